//! A memory server's data path in a thread of its own, with the service in front: of any tenant. The trees' tests have this file, too.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fatbtree_memserver::{
    Event, Handle, Loaded, MemoryServer, Request, ServerOptions, Tenant, grpc, mailbox,
};
use fatbtree_verbs::plain::PlainNetwork;
use fatbtree_verbs::time::Instant;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// What a data path tells of its structure.
type EventOf<T> = Event<<T as Tenant>::Description>;

/// The word to stop, and the thread, which returns the events of its life.
type DataPath<T> = (Arc<AtomicBool>, std::thread::JoinHandle<Vec<EventOf<T>>>);

pub struct Served<T: Tenant> {
    pub address: SocketAddr,
    pub handle: Handle<T>,
    /// The data path shall do nothing, and does nothing.
    frozen: Arc<(AtomicBool, AtomicBool)>,
    data_path: Option<DataPath<T>>,
    stop: Option<oneshot::Sender<()>>,
    serving: tokio::task::JoinHandle<Result<(), tonic::transport::Error>>,
}

impl<T: Tenant<Description: Send, Request: Send> + Send + 'static> Served<T> {
    /// Serves some content. `each` request goes to the data path as this function returns it, and `service` serves on a listener until it is
    /// told to stop.
    pub async fn start<S: Future<Output = Result<(), tonic::transport::Error>> + Send + 'static>(
        content: impl Into<Loaded<T>> + Send + 'static,
        options: ServerOptions,
        mut each: impl FnMut(Request<T>) -> Request<T> + Send + 'static,
        service: impl FnOnce(TcpListener, Handle<T>, oneshot::Receiver<()>) -> S,
    ) -> Self {
        let (handle, mut mail) = mailbox(16);
        let (stopped, frozen) = (Arc::<AtomicBool>::default(), Arc::<(AtomicBool, AtomicBool)>::default());
        let thread = std::thread::spawn({
            let (stopped, frozen) = (Arc::clone(&stopped), Arc::clone(&frozen));
            move || {
                let clock = std::time::Instant::now();
                let device = PlainNetwork::new().device();
                let server = MemoryServer::new(device, content, &options, 7).expect("it can be served");
                let mut server = server.with_device_counters(|_| vec![("nic_reads".to_owned(), 12)]);
                let mut events = vec![];
                while !stopped.load(Ordering::Relaxed) {
                    let freeze = frozen.0.load(Ordering::Relaxed);
                    frozen.1.store(freeze, Ordering::Relaxed);
                    if !freeze {
                        let now = Instant::ZERO + clock.elapsed().into();
                        while let Some(request) = mail.take() {
                            server.handle(now, each(request));
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
        let serving = tokio::spawn(service(listener, handle.clone(), until));
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
    pub fn stop_data_path(&mut self) -> Vec<EventOf<T>> {
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

impl<T: Tenant> Drop for Served<T> {
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
