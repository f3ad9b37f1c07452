//! Ending a role from another thread.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fatbtree_port::Waiter;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::NodeError;

/// Tells a role to end; clones tell the same one.
#[derive(Clone)]
pub struct Stopper {
    told: Arc<AtomicBool>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Stopper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stopper").field("told", &self.told).finish_non_exhaustive()
    }
}

impl Stopper {
    /// Creates a stopper. `wake` makes the role look whether it was told to end.
    pub(crate) fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { told: Arc::default(), wake: Arc::new(wake) }
    }

    /// Ends the role's loop after the batch that it is working on.
    pub fn stop(&self) {
        self.told.store(true, Ordering::Relaxed);
        (self.wake)();
    }

    pub(crate) fn is_told(&self) -> bool {
        self.told.load(Ordering::Relaxed)
    }

    /// Stops at Ctrl-C and SIGTERM.
    pub(crate) fn at_signals(&self, runtime: &Runtime) -> Result<(), NodeError> {
        let _reactor = runtime.enter();
        let stopper = self.clone();
        let told = stop_signal().map_err(NodeError::system("listening for signals"))?;
        runtime.spawn(async move {
            told.await;
            stopper.stop();
        });
        Ok(())
    }
}

/// Stopper of a role whose thread waits at `waiter`.
pub(crate) fn stopper_of(waiter: &Waiter) -> Stopper {
    let waker = waiter.waker();
    Stopper::new(move || waker.wake())
}

/// Future that completes at Ctrl-C or SIGTERM. From now on they do not end the process by themselves. Must be called within a runtime.
///
/// # Errors
/// When the system refuses.
pub fn stop_signal() -> std::io::Result<impl Future<Output = ()> + Send> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupted, mut terminated) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
    })
}

/// Runtime with one thread, for everything that is not the data path.
pub(crate) fn control_runtime() -> Result<Runtime, NodeError> {
    runtime(1)
}

/// Runtime of the controller, with two threads: a long task, such as comparing a switch's entries with the desired ones, does not delay
/// probes.
pub(crate) fn controller_runtime() -> Result<Runtime, NodeError> {
    runtime(2)
}

fn runtime(threads: usize) -> Result<Runtime, NodeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    runtime.map_err(NodeError::system("starting the control plane's thread"))
}

/// Runtime of a switch's control plane, whose thread has lower priority where processors are short.
///
/// Otherwise its work would stop packets for as long as the system's time slices are.
pub(crate) fn control_runtime_behind() -> Result<Runtime, NodeError> {
    /// Nice value, -20 to 19: the thread gets a third of the processor time that a thread of 0 gets beside it. With less, controllers
    /// would wait too long while packets keep the processors busy.
    const NICE: i32 = 5;
    let step_back = || {
        // On Linux, this concerns a thread. It may always ask for less.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .on_thread_start(step_back)
        .enable_all()
        .build();
    runtime.map_err(NodeError::system("starting the control plane's thread"))
}

pub(crate) fn listen(runtime: &Runtime, address: &str) -> Result<TcpListener, NodeError> {
    let listener = runtime.block_on(TcpListener::bind(address));
    listener.map_err(|source| NodeError::Listen { address: address.to_owned(), source })
}
