//! How a folder keeps its regions, and the threads of their journals.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use fatbtree_verbs::journal::{Disk, Journal, OsDisk, Pace};
use fatbtree_verbs::time::Duration;
use nix::sys::statvfs::statvfs;

use super::{FolderError, failed};

/// How a folder keeps its regions. Start from the default and change what you need.
#[derive(Clone, Debug)]
pub struct Keeping {
    /// Time at which acknowledged changes reach the disk.
    pub pace: Pace,
    /// Whether a device writes regions without this process, as an RDMA card does. Then no journal notes the changes, and the pace is not
    /// kept.
    pub is_written_by_device: bool,
    /// Whether each journal has threads, which sync and apply it. Otherwise the thread that writes does both when it must.
    pub has_threads: bool,
    /// File system of the folder.
    pub disk: Arc<dyn Disk>,
}

impl Default for Keeping {
    /// No sync before a stop; a software NIC; no threads; the operating system's files.
    fn default() -> Self {
        Self {
            pace: Pace::Never,
            is_written_by_device: false,
            has_threads: false,
            disk: Arc::new(OsDisk::default()),
        }
    }
}

/// Bytes that are free on the disk of a folder.
pub(super) fn free_bytes(folder: &Path) -> Result<u64, FolderError> {
    let found = statvfs(folder).map_err(io::Error::from).map_err(failed(folder, "asking for room"))?;
    Ok(found.blocks_available() * found.fragment_size())
}

/// A journal, and its threads. They end when this value is dropped; the journal goes on as long as its memories.
#[derive(Debug)]
pub(super) struct KeptJournal {
    pub(super) journal: Arc<Journal>,
    threads: Vec<JoinHandle<()>>,
}

impl KeptJournal {
    pub(super) fn new(journal: &Arc<Journal>, has_threads: bool) -> io::Result<Self> {
        let mut kept = Self { journal: Arc::clone(journal), threads: Vec::new() };
        if has_threads {
            kept.start("journal-apply", apply)?;
            if let Pace::Every(interval) = journal.pace() {
                kept.start("journal-sync", move |journal| sync(journal, interval))?;
            }
        }
        Ok(kept)
    }

    fn start(&mut self, name: &str, work: impl FnOnce(&Journal) + Send + 'static) -> io::Result<()> {
        let journal = Arc::clone(&self.journal);
        self.threads.push(Builder::new().name(name.to_owned()).spawn(move || work(&journal))?);
        Ok(())
    }
}

impl Drop for KeptJournal {
    fn drop(&mut self) {
        self.journal.close();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a journal's thread has panicked");
            }
        }
    }
}

/// Syncs twice in each interval, so that a sync has half of it to end in time. Failures are told by the next commit.
fn sync(journal: &Journal, interval: Duration) {
    while journal.pause(interval / 2) {
        let before = journal.counts();
        if journal.sync().is_err() {
            return;
        }
        let took = Duration::from_micros(journal.counts().sync_micros - before.sync_micros);
        if took > interval / 2 {
            tracing::warn!(%took, %interval, "the disk is slow: changes wait for it, and clients with them");
        }
    }
}

/// Applies what is sealed.
fn apply(journal: &Journal) {
    while journal.wait_for_sealed() {
        if journal.apply().is_err() {
            return;
        }
    }
}
