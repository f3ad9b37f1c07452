//! Progress of a bulk load on the terminal, and its end by a signal.

use std::cell::Cell;
use std::time::Instant;

use anyhow::{Result, bail};
use fatbtree_memserver::grpc::LoadProgress;
use indicatif::ProgressBar;

use crate::interrupted::Interrupted;
use crate::progress;

/// A load that is followed.
pub(super) struct Following {
    bar: ProgressBar,
    unit: &'static str,
    total: u64,
    built: Cell<usize>,
    servers: usize,
    began: Instant,
}

impl Following {
    /// Follows a load of so many keys or bytes into so many servers.
    pub(super) fn new(unit: &'static str, total: u64, servers: usize) -> Self {
        tracing::info!(unit, total, servers, "the load begins");
        let (bar, built) = (progress::bar(unit, total), Cell::new(0));
        Self { bar, unit, total, built, servers, began: Instant::now() }
    }

    pub(super) fn tell(&self, progress: LoadProgress) {
        match progress {
            LoadProgress::Sent(amount) => {
                self.bar.inc(amount);
                if self.bar.position() == self.total {
                    self.bar.set_message("sent; the memory servers build");
                }
            }
            LoadProgress::Built(servers) => {
                self.built.set(servers);
                if servers == self.servers {
                    self.bar.set_message("built; the memory servers change over");
                }
            }
        }
    }

    /// Waits for the load's end, or a signal. Returns what was loaded, and the seconds that it took.
    pub(super) async fn until<T, E: std::error::Error + Send + Sync + 'static>(
        &self,
        loaded: impl Future<Output = Result<T, E>>,
        signalled: impl Future<Output = ()>,
    ) -> Result<(T, f64)> {
        let loaded = tokio::select! {
            loaded = loaded => loaded,
            () = signalled => {
                let sent = self.bar.position();
                self.bar.finish_and_clear();
                bail!(Interrupted(self.how_far(sent)));
            }
        };
        let seconds = self.began.elapsed().as_secs_f64();
        self.bar.finish_and_clear();
        Ok((loaded?, seconds))
    }

    /// Progress of a load that is broken off, in words.
    fn how_far(&self, sent: u64) -> String {
        let Self { unit, total, servers, .. } = self;
        let built = self.built.get();
        match built == *servers {
            false => format!(
                "{sent} of {total} {unit} were sent, {built} of {servers} memory servers had built what they shall serve; all of them serve what \
                 they served before"
            ),
            true => "the memory servers were changing over to what was loaded, and not all may have done so: load again with --replace".to_owned(),
        }
    }
}

/// Waits for connections to servers, or a signal.
pub(super) async fn connected<T>(
    connecting: impl Future<Output = Result<T>>,
    signalled: impl Future<Output = ()>,
) -> Result<T> {
    tokio::select! {
        connected = connecting => connected,
        () = signalled => {
            bail!(Interrupted("nothing was sent; all memory servers serve what they served before".to_owned()))
        }
    }
}
