//! The service of a memory server of a tree, which may take long to install another one.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fatbtree_blink_host::grpc::{Loading, TreeServiceOptions, serve_with};
use fatbtree_blink_host::{Blink, LoadedTree};
use fatbtree_memserver::{Request, ServerOptions};
use served::Served;
use tokio::sync::oneshot;

pub use served::soon;

#[path = "../../../../../../memserver/tests/server/common/served.rs"]
mod served;

pub struct Service {
    served: Served<Blink>,
    /// Time that installing a tree takes, in milliseconds.
    pub slowness: Arc<AtomicU64>,
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
        let slowness = Arc::<AtomicU64>::default();
        let slow = Arc::clone(&slowness);
        let each = move |request| slowly(request, slow.load(Ordering::Relaxed));
        let served = Served::start(tree, server, each, |listener, handle, until| {
            serve_with(service, loading, listener, handle, async { drop(until.await) })
        });
        Self { served: served.await, slowness }
    }
}

impl Deref for Service {
    type Target = Served<Blink>;

    fn deref(&self) -> &Served<Blink> {
        &self.served
    }
}

impl DerefMut for Service {
    fn deref_mut(&mut self) -> &mut Served<Blink> {
        &mut self.served
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
