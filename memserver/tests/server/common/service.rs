//! A memory server's data path in a thread of its own, with the service in front.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fatbtree_memserver::grpc::ServiceOptions;
use fatbtree_memserver::{Event, Handle, MemoryServer, ServerOptions, grpc, mailbox};
use fatbtree_verbs::plain::PlainNetwork;
use fatbtree_verbs::time::Instant;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::service::Routes;

use super::blocks::{Blocks, Info, LoadedBlocks};

/// The word to stop, and the thread, which returns the events of its life.
type DataPath = (Arc<AtomicBool>, std::thread::JoinHandle<Vec<Event<Info>>>);

pub struct Service {
    pub address: SocketAddr,
    pub handle: Handle<Blocks>,
    /// The data path shall do nothing, and does nothing.
    frozen: Arc<(AtomicBool, AtomicBool)>,
    data_path: Option<DataPath>,
    stop: Option<oneshot::Sender<()>>,
    serving: tokio::task::JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Service {
    pub async fn start(part: LoadedBlocks, server: ServerOptions, service: ServiceOptions) -> Self {
        let (handle, mut mail) = mailbox(16);
        let (stopped, frozen) = (Arc::<AtomicBool>::default(), Arc::<(AtomicBool, AtomicBool)>::default());
        let thread = std::thread::spawn({
            let (stopped, frozen) = (Arc::clone(&stopped), Arc::clone(&frozen));
            move || {
                let clock = std::time::Instant::now();
                let device = PlainNetwork::new().device();
                let server = MemoryServer::new(device, part, &server, 7).expect("it can be served");
                let mut server = server.with_device_counters(|_| vec![("nic_reads".to_owned(), 12)]);
                let mut events = vec![];
                while !stopped.load(Ordering::Relaxed) {
                    let freeze = frozen.0.load(Ordering::Relaxed);
                    frozen.1.store(freeze, Ordering::Relaxed);
                    if !freeze {
                        let now = Instant::ZERO + clock.elapsed().into();
                        while let Some(request) = mail.take() {
                            server.handle(now, request);
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
        let until = async { drop(until.await) };
        let serving =
            tokio::spawn(grpc::serve(service, listener, handle.clone(), |_| Routes::default(), until));
        Self { address, handle, frozen, data_path: Some((stopped, thread)), stop: Some(stop), serving }
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
    pub fn stop_data_path(&mut self) -> Vec<Event<Info>> {
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
