//! Ending a role from another thread.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fatbtree_port::Waker;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::NodeError;

/// Tells a role's thread to end; clones tell the same thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    told: Arc<AtomicBool>,
    waker: Waker,
}

impl Stopper {
    pub(crate) fn new(waker: Waker) -> Self {
        Self { told: Arc::default(), waker }
    }

    /// The role's loop ends after the batch that it is working on.
    pub fn stop(&self) {
        self.told.store(true, Ordering::Relaxed);
        self.waker.wake();
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

/// Ctrl-C or SIGTERM. From now on they do not end the process by themselves. Must be called where a runtime is.
pub(crate) fn stop_signal() -> std::io::Result<impl Future<Output = ()> + Send> {
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

/// One thread for everything that is not the data path.
pub(crate) fn control_runtime() -> Result<Runtime, NodeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.map_err(NodeError::system("starting the control plane's thread"))
}

/// The same, with threads that stand behind others where processors are short: work that can wait does not stop packets, for as long as
/// the system's time slices are.
pub(crate) fn control_runtime_behind() -> Result<Runtime, NodeError> {
    /// Of -20 to 19: such a thread gets about a tenth of what one of 0 gets beside it.
    const NICE: i32 = 10;
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
