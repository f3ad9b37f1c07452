//! Waits without the interpreter's lock, and never beyond the end of the interpreter.
//!
//! * Signals: a thread that waits looks at them every [`LOOK`], so that Ctrl-C raises `KeyboardInterrupt` there.
//! * The end: an interpreter that ends does not wait for daemon threads, and a thread that asks for its lock then is ended in the middle of
//!   a Rust function, which aborts the process. So a thread that comes back late does not ask: it sleeps until the process is gone. A handler
//!   of `atexit` closes the way back, and waits for those that are on it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, ThreadId};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// Time between two looks at signals.
const LOOK: Duration = Duration::from_millis(50);

/// The thread that ends the interpreter, from then on. It may come back.
static ENDS: OnceLock<ThreadId> = OnceLock::new();
/// Whether there are coroutines.
static HAS_COROUTINES: AtomicBool = AtomicBool::new(false);
/// Time in which threads that are within a coroutine get out of it, or to its next step.
const STEP: Duration = Duration::from_millis(50);
/// Threads on their way back to the interpreter.
static RETURNING: AtomicUsize = AtomicUsize::new(0);

/// A way back to the interpreter that is still open; it stays so until this is dropped.
struct Return;

impl Return {
    /// `None`: the interpreter ends.
    fn begin() -> Option<Self> {
        // Counted before the look: the handler closes the way before it counts.
        RETURNING.fetch_add(1, Ordering::SeqCst);
        let back = Self;
        (!ends_elsewhere()).then_some(back)
    }
}

impl Drop for Return {
    fn drop(&mut self) {
        RETURNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether another thread ends the interpreter.
fn ends_elsewhere() -> bool {
    ENDS.get().is_some_and(|ending| *ending != std::thread::current().id())
}

/// Sleeps until the process is gone.
fn sleep_for_ever() -> ! {
    loop {
        std::thread::park();
    }
}

/// Closes the way back, and waits for the threads that are on it: called by `atexit`. A loop's thread stops at the next step of a coroutine.
#[pyfunction]
pub(crate) fn end(py: Python<'_>) {
    let _ = ENDS.set(std::thread::current().id());
    py.detach(|| {
        if HAS_COROUTINES.load(Ordering::SeqCst) {
            std::thread::sleep(STEP);
        }
        while RETURNING.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Has `atexit` call [`end`].
pub(crate) fn at_exit(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let end = wrap_pyfunction!(end, module)?;
    py.import("atexit")?.call_method1("register", (end,))?;
    Ok(())
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end on this thread.
///
/// # Errors
/// What a signal handler raises, `KeyboardInterrupt` as a rule. The future is dropped then.
pub(crate) fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = T> + Send) -> PyResult<T> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        let (output, back) = py.detach(|| {
            let output = poll_for(future.as_mut(), &waker);
            match Return::begin() {
                Some(back) => (output, back),
                None => sleep_for_ever(),
            }
        });
        // The interpreter's lock is held again.
        drop(back);
        match output {
            Some(output) => return Ok(output),
            None => py.check_signals()?,
        }
    }
}

/// Polls a future for [`LOOK`], and sleeps in between.
fn poll_for<T>(mut future: Pin<&mut impl Future<Output = T>>, waker: &Waker) -> Option<T> {
    let until = Instant::now() + LOOK;
    let mut context = Context::from_waker(waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}

/// A future of a coroutine: the connection's thread, which wakes it, does not enter an interpreter that ends.
pub(crate) struct Guarded<F>(Pin<Box<F>>);

/// Guards a future.
pub(crate) fn guarded<F: Future>(future: F) -> Guarded<F> {
    Guarded(Box::pin(future))
}

/// A coroutine's waker, which enters the interpreter.
struct Enter(Waker);

impl Wake for Enter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(_back) = Return::begin() {
            self.0.wake_by_ref();
        }
    }
}

impl<F: Future> Future for Guarded<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        HAS_COROUTINES.store(true, Ordering::SeqCst);
        if ends_elsewhere() {
            // The interpreter would end this thread within the coroutine, where the next call of Python code gives its lock away.
            Python::attach(|py| py.detach(|| sleep_for_ever()));
        }
        let waker = Arc::new(Enter(context.waker().clone())).into();
        self.0.as_mut().poll(&mut Context::from_waker(&waker))
    }
}
