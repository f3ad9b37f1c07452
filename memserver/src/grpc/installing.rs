//! Another region in the place of the one that is served: one at a time, made in the server's storage beside the former one.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fatbtree_remote_memory::ServerInfo;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use super::service::answer_within;
use crate::folder::{Counts, FolderError, KeptRegion};
use crate::mailbox::{Handle, ServerGone};
use crate::storage::Storage;
use crate::tenant::{Loaded, Tenant};

/// Description of a tenant's server.
pub(super) type InfoOf<T> = ServerInfo<<T as Tenant>::Description>;

/// A server whose region can be replaced, and its storage. Clones are the same.
#[derive(Debug)]
pub struct Replacing<T: Tenant, C> {
    handle: Handle<T>,
    storage: Arc<Mutex<Storage<C>>>,
    one: Arc<Semaphore>,
    /// Time limit for an answer of the data path.
    answer: Duration,
}

impl<T: Tenant, C> Clone for Replacing<T, C> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            storage: Arc::clone(&self.storage),
            one: Arc::clone(&self.one),
            answer: self.answer,
        }
    }
}

impl<T, C> Replacing<T, C>
where
    T: Tenant<Description: Send + Sync, Request: Send> + Send + 'static,
    C: Counts + Send + 'static,
{
    /// The server behind a handle. `answer` is the time limit for answers of its data path.
    #[must_use]
    pub fn new(handle: Handle<T>, storage: Storage<C>, answer: Duration) -> Self {
        Self { handle, storage: Arc::new(storage.into()), one: Arc::new(Semaphore::new(1)), answer }
    }

    /// The turn of one replacement.
    pub(super) fn turn(&self) -> Result<OwnedSemaphorePermit, Status> {
        let turn = Arc::clone(&self.one).try_acquire_owned();
        turn.map_err(|_| Status::aborted("another load is under way; wait for its end, or stop it"))
    }

    pub(super) async fn info(&self) -> Result<InfoOf<T>, Status> {
        answer_within(self.answer, self.handle.info()).await
    }

    /// Does something with the storage, in a thread that may wait for a disk.
    pub(super) async fn in_storage<A: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Storage<C>) -> Result<A, Status> + Send + 'static,
    ) -> Result<A, Status> {
        let storage = Arc::clone(&self.storage);
        let done = tokio::task::spawn_blocking(move || {
            work(&mut storage.lock().unwrap_or_else(PoisonError::into_inner))
        });
        done.await.map_err(|error| Status::internal(error.to_string()))?
    }

    /// First it is written down which region is the one, then it is served: a server that is killed in between comes back with the new one.
    /// Where it is not served after all, the former one is written down again. `late` is told if the data path does not begin in time; it
    /// installs the region when it goes on.
    pub(super) async fn install<L: Future<Output = ()>>(
        &self,
        loaded: Loaded<T>,
        kept: KeptRegion<C>,
        late: impl FnOnce(Status) -> L,
    ) -> Result<InfoOf<T>, Status> {
        let refused = match self.try_install(loaded, kept, late).await {
            Ok(info) => {
                let settle = |storage: &mut Storage<C>| {
                    storage.settle();
                    Ok(())
                };
                self.in_storage(settle).await?;
                return Ok(info);
            }
            Err(refused) => refused,
        };
        match self.in_storage(|storage| storage.go_back().map_err(of_folder)).await {
            Ok(()) => Err(refused),
            Err(error) => {
                let (why, error) = (refused.message(), error.message());
                Err(Status::new(
                    refused.code(),
                    format!(
                        "{why}; the server serves what it had, but a restart would serve the new load, because what was written down cannot be \
                         undone: {error}; mend that, and load again"
                    ),
                ))
            }
        }
    }

    async fn try_install<L: Future<Output = ()>>(
        &self,
        loaded: Loaded<T>,
        kept: KeptRegion<C>,
        late: impl FnOnce(Status) -> L,
    ) -> Result<InfoOf<T>, Status> {
        let stopped = |gone: ServerGone| Status::unavailable(gone.to_string());
        // The place comes before anything is written down: then the region reaches the data path for sure.
        let place = tokio::time::timeout(self.answer, self.handle.install_place()).await;
        let place = place.map_err(|_| {
            Status::deadline_exceeded(
                "the server's data path does not answer: nothing has changed; load again",
            )
        })?;
        let place = place.map_err(stopped)?;
        self.in_storage(move |storage| storage.keep(kept).map_err(of_folder)).await?;
        let mut installing = place.install(loaded);
        if tokio::time::timeout(self.answer, installing.begun()).await.is_err() {
            // The loader is told now. The load has its turn until the region is served or refused.
            late(Status::deadline_exceeded(
                "the server's data path does not answer: it serves the new load when it goes on",
            ))
            .await;
        }
        // Now it works, for as long as the device takes to register the memory.
        let installed = installing.end().await.map_err(stopped)?;
        installed.map_err(|error| Status::failed_precondition(error.to_string()))
    }

    /// Forgets what a failed load has left.
    pub(super) async fn forget(&self) {
        let forget = |storage: &mut Storage<C>| {
            storage.forget_others();
            Ok(())
        };
        // The rest of its files is removed now, or when the server is started again.
        let _ = self.in_storage(forget).await;
    }
}

pub(super) fn of_folder(error: FolderError) -> Status {
    Status::internal(error.to_string())
}
