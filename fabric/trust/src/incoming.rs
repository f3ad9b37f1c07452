//! Bounded acceptance of connections, for each host and for all together. A connection over the bound is closed at once and counted, before
//! a byte of it is read, with TLS or without.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use fatbtree_wire::host_of;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Pause in accepting after the system has refused, for example because no file descriptor is left.
const PAUSE: Duration = Duration::from_millis(20);

/// Bounds of a service's open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Maximum number of connections of all hosts together.
    pub all: usize,
    /// Maximum number of connections of one host.
    pub per_host: usize,
}

/// Connections that were closed at once. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Refused(Arc<AtomicU64>);

impl Refused {
    /// Count so far.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts something per host and in all. Clones count together.
#[derive(Clone, Debug)]
pub struct Places {
    /// Number of all places taken, and by host; a host without connections is left out.
    taken: Arc<Mutex<(usize, BTreeMap<IpAddr, usize>)>>,
    all: usize,
    per_host: usize,
}

impl Places {
    /// Places in all, and for each host.
    pub fn new(all: usize, per_host: usize) -> Self {
        Self { taken: Arc::default(), all, per_host }
    }

    /// Takes a place for a peer of `host`, until it is dropped. `None` if there is none left.
    pub fn take(&self, host: IpAddr) -> Option<Place> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, hosts) = &mut *taken;
        let of_host = hosts.get(&host).copied().unwrap_or(0);
        if *all >= self.all || of_host >= self.per_host {
            return None;
        }
        *all += 1;
        hosts.insert(host, of_host + 1);
        Some(Place { places: self.clone(), host })
    }
}

/// One of the [`Places`].
#[derive(Debug)]
pub struct Place {
    places: Places,
    host: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (all, hosts) = &mut *taken;
        *all -= 1;
        if let Some(count) = hosts.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                hosts.remove(&self.host);
            }
        }
    }
}

/// A connection that has a place.
#[derive(Debug)]
pub struct Accepted {
    stream: TcpStream,
    _place: Place,
}

/// Accepts connections; those without a place are closed at once. Ends when the stream is dropped.
pub(crate) fn incoming(
    listener: TcpListener,
    bound: Connections,
    refused: Refused,
) -> ReceiverStream<io::Result<Accepted>> {
    let places = Places::new(bound.all, bound.per_host);
    let (accepted, stream) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let connection = tokio::select! {
                connection = listener.accept() => connection,
                () = accepted.closed() => return,
            };
            match connection {
                Err(error) => {
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(PAUSE).await;
                }
                Ok((stream, peer)) => match places.take(host_of(peer.ip())) {
                    None => {
                        refused.0.fetch_add(1, Ordering::Relaxed);
                        tracing::info!(%peer, "connection refused: as many as there may be");
                    }
                    Some(place) => {
                        // Answers are short and waited for. Where it cannot be set, they only come later.
                        let _ = stream.set_nodelay(true);
                        if accepted.send(Ok(Accepted { stream, _place: place })).await.is_err() {
                            return;
                        }
                    }
                },
            }
        }
    });
    ReceiverStream::new(stream)
}

impl Connected for Accepted {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_have_left_are_forgotten() {
        let places = Places::new(3, 2);
        let host = |n: u8| IpAddr::from([10, 0, 0, n]);
        let mut held: Vec<Place> = [1, 1, 2].into_iter().filter_map(|n| places.take(host(n))).collect();
        assert_eq!(held.len(), 3);
        assert!(places.take(host(3)).is_none(), "three in all");
        held.remove(2);
        assert!(places.take(host(1)).is_none(), "two of a host");
        assert!(places.take(host(3)).is_some());
        drop(held);
        assert_eq!(*places.taken.lock().unwrap(), (0, BTreeMap::new()));
    }
}
