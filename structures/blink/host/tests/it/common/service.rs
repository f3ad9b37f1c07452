//! A memory server's data path in a thread of its own, with the service in front.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fatbtree_blink_host::grpc::{Loading, TreeServiceOptions};
use fatbtree_blink_host::{Blink, LoadedTree, TreeEvent, TreeHandle};
use fatbtree_memserver::{MemoryServer, Request, ServerOptions, grpc, mailbox};
use fatbtree_verbs::plain::PlainNetwork;
use fatbtree_verbs::time::Instant;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

pub struct Service {
    pub address: SocketAddr,
    pub handle: TreeHandle,
    /// The data path shall do nothing, and does nothing.
    frozen: Arc<(AtomicBool, AtomicBool)>,
    /// Time that installing a tree takes, in milliseconds.
    pub slowness: Arc<AtomicU64>,
    data_path: Option<(Arc<AtomicBool>, std::thread::JoinHandle<Vec<TreeEvent>>)>,
    stop: Option<oneshot::Sender<()>>,
    serving: tokio::task::JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Service {
    pub async fn start(tree: LoadedTree, server: ServerOptions, service: TreeServiceOptions) -> Self {
        Self::start_with(tree, server, service, None).await
    }

    pub async fn start_with(
        tree: LoadedTree,
        server: ServerOptions,
        service: TreeServiceOptions,
        loading: Option<Loading>,
    ) -> Self {
        let (handle, mut mail) = mailbox(16);
        let (stopped, frozen) = (Arc::<AtomicBool>::default(), Arc::<(AtomicBool, AtomicBool)>::default());
        let slowness = Arc::<AtomicU64>::default();
        let thread = std::thread::spawn({
            let slowness = Arc::clone(&slowness);
            let (stopped, frozen) = (Arc::clone(&stopped), Arc::clone(&frozen));
            move || {
                let clock = std::time::Instant::now();
                let device = PlainNetwork::new().device();
                let server = MemoryServer::new(device, tree, &server, 7).expect("it can be served");
                let mut server = server.with_device_counters(|_| vec![("nic_reads".to_owned(), 12)]);
                let mut events = vec![];
                while !stopped.load(Ordering::Relaxed) {
                    let freeze = frozen.0.load(Ordering::Relaxed);
                    frozen.1.store(freeze, Ordering::Relaxed);
                    if !freeze {
                        let now = Instant::ZERO + clock.elapsed().into();
                        while let Some(request) = mail.take() {
                            server.handle(now, slowly(request, slowness.load(Ordering::Relaxed)));
                        }
                        server.handle_timeout(now);
                        server.work(now, 64);
                        events.extend(std::iter::from_fn(|| server.poll_event()));
                    }
                    std::thread::sleep(Duration::from_micros(50));
                }
                events
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("it listens");
        let (stop, until) = oneshot::channel::<()>();
        let serving = tokio::spawn(fatbtree_blink_host::grpc::serve_with(
            service,
            loading,
            listener,
            handle.clone(),
            async { drop(until.await) },
        ));
        Self {
            address,
            handle,
            frozen,
            slowness,
            data_path: Some((stopped, thread)),
            stop: Some(stop),
            serving,
        }
    }

    /// Freezes the data path, or lets it go on; returns when it does so.
    pub fn freeze(&self, freeze: bool) {
        self.frozen.0.store(freeze, Ordering::Relaxed);
        while self.frozen.1.load(Ordering::Relaxed) != freeze {
            std::thread::yield_now();
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub async fn client(&self) -> grpc::Client {
        grpc::Client::connect(&self.url()).await.expect("it listens")
    }

    /// Stops the data path; returns the events of its life.
    pub fn stop_data_path(&mut self) -> Vec<TreeEvent> {
        let (stopped, thread) = self.data_path.take().expect("it runs");
        stopped.store(true, Ordering::Relaxed);
        thread.join().expect("it does not panic")
    }

    /// Stops the service.
    pub async fn stop(&mut self) {
        drop(self.stop.take());
        (&mut self.serving).await.expect("it does not panic").expect("it ends well");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some((stopped, _)) = &self.data_path {
            stopped.store(true, Ordering::Relaxed);
        }
    }
}

/// Installs slowly, as a device that takes long to register the memory of a tree.
fn slowly(request: Request<Blink>, milliseconds: u64) -> Request<Blink> {
    match request {
        Request::Install { loaded, begun, reply } if milliseconds > 0 => {
            let _ = begun.send(());
            std::thread::sleep(Duration::from_millis(milliseconds));
            Request::Install { loaded, begun: oneshot::channel().0, reply }
        }
        other => other,
    }
}

/// Waits for something that comes soon.
pub async fn soon<T, F: Future<Output = Option<T>>>(mut what: impl FnMut() -> F) -> T {
    for _ in 0..500 {
        if let Some(it) = what().await {
            return it;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it does not come within five seconds")
}
