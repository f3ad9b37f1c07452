//! Loads of structures over several servers: the loader lays out all parts, and each server takes the bytes of its own.
//!
//! Trees are built by their servers, because each server's tree is complete in itself. Blocks of these structures name each other from server to
//! server, so one process must know all places: here the loader. A server checks the content as it checks a folder that it finds
//! ([`Part::found`]), so what it serves after a load is what it would serve after a start.

use std::sync::Arc;

use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES, Origin, ServerInfo, SizeClass};
use fatbtree_verbs::Memory;
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::Status;

use super::client::Client;
use super::installing::{InfoOf, of_folder};
use super::loader::{Content, LoadData, LoadProgress, LoadServersError, load_all};
use super::loading::{Built, Incoming};
use super::proto;
use crate::chunk::chunk_classes_bytes;
use crate::folder::FolderError;
use crate::lay::{self, LaidOut, LayError, Laying};
use crate::part::{MakeInError, Part, PartOptions, begin_in, finish, kept};
use crate::storage::Storage;
use crate::tenant::Loaded;

/// Bytes of a message, about.
const MESSAGE: usize = 128 << 10;

/// Bytes of a piece in a message, beside its content.
const PIECE_BYTES: usize = 12;

/// Messages for one server that wait.
const WAITING: usize = 4;

/// What a server knows of loads of its part.
#[derive(Clone, Copy, Debug)]
pub struct PartLoading<S> {
    /// Shape of the structure.
    pub shape: S,
    /// Bytes for what clients write.
    pub spare_bytes: u64,
    /// Bytes of a chunk of the server.
    pub chunk_bytes: u64,
}

/// A part on its way to its server.
#[derive(Debug)]
pub struct PartIncoming<P: Part> {
    made: Loaded<P>,
    chunks: Vec<SizeClass>,
    /// End of what is loaded.
    end: u64,
    /// Bytes that are still to come.
    left: u64,
}

impl<P: Part> Incoming for PartIncoming<P> {
    type Tenant = P;
    type Counts = P::Counts;
    type Options = PartLoading<P::Shape>;

    fn begin(
        options: &Self::Options,
        announced: &[u8],
        info: &InfoOf<P>,
        storage: &mut Storage<P::Counts>,
    ) -> Result<Self, Status> {
        let &PartLoading { shape, spare_bytes, chunk_bytes } = options;
        let announced = proto::PartBegin::decode(announced).map_err(|_| {
            Status::invalid_argument("the announcement is none of a part: do both ends run the same version?")
        })?;
        let proto::PartBegin { shape: of, generation, chunks, bytes: left } = announced;
        let shape = P::shape_of_load(&shape, &of).ok_or_else(|| {
            Status::failed_precondition(format!(
                "the load is of a structure over {of}; this server's is over {shape}: use the cluster file with which the servers were started"
            ))
        })?;
        let next = info.generation.wrapping_add(1);
        if generation != next {
            return Err(Status::aborted(format!(
                "the load is for generation {generation}, the next one of this server is {next}: it was filled meanwhile; load again"
            )));
        }
        let loaded = (chunks.len() as u64).saturating_mul(chunk_bytes);
        let make = PartOptions {
            spare_bytes: loaded.saturating_add(spare_bytes),
            generation,
            origin: Origin::Meant,
            chunk_bytes,
            ..PartOptions::new(info.server, shape)
        };
        let made = begin_in::<P>(storage, &make, loaded).map_err(of_make)?;
        let end = made.spare.start + loaded;
        Ok(Self { made, chunks: chunks.into_iter().map(SizeClass).collect(), end, left })
    }

    fn is_complete(&self) -> bool {
        self.left == 0
    }

    fn take(&mut self, content: &[u8]) -> Result<(), Status> {
        let proto::PartPieces { offsets, lengths, bytes } = proto::PartPieces::decode(content)
            .map_err(|_| Status::invalid_argument("the content is none of a part"))?;
        let sum: u64 = lengths.iter().map(|&length| u64::from(length)).sum();
        if offsets.len() != lengths.len() || sum != bytes.len() as u64 || sum == 0 || sum > self.left {
            return Err(Status::invalid_argument(format!(
                "{} bytes at {} offsets came with lengths of {sum} together; {} were still to come",
                bytes.len(),
                offsets.len(),
                self.left
            )));
        }
        let mut rest = &bytes[..];
        for (offset, length) in offsets.into_iter().zip(lengths) {
            let (piece, after) = rest.split_at(length as usize);
            // The header is the server's.
            let is_within = offset >= HEADER_BYTES as u64
                && offset.checked_add(length.into()).is_some_and(|end| end <= self.end);
            if !is_within || self.made.region.write(offset, piece).is_err() {
                return Err(Status::invalid_argument(format!(
                    "{length} bytes for offset {offset}: expected offsets from {HEADER_BYTES} to {}",
                    self.end
                )));
            }
            rest = after;
        }
        self.left -= sum;
        Ok(())
    }

    fn build(self, options: &Self::Options, storage: &mut Storage<P::Counts>) -> Result<Built<Self>, Status> {
        let Self { made, chunks, .. } = self;
        let generation = made.generation;
        let table: Arc<Memory> = match storage {
            Storage::Folder(folder) => {
                folder.fill(generation, &made.region, &made.spare).map_err(of_folder)?
            }
            Storage::Memory => {
                let bytes = chunk_classes_bytes(made.spare.end - made.spare.start, options.chunk_bytes);
                let table = Memory::shared(bytes);
                table.map_err(|error| Status::resource_exhausted(format!("no memory: {error}")))?
            }
        };
        if let Some(class) = chunks.iter().find(|class| usize::from(class.0) >= made.shape.classes.len()) {
            return Err(Status::invalid_argument(format!("a chunk of class {}, which is none", class.0)));
        }
        let kept = kept(&made);
        let found = finish(made, &chunks, table, options.chunk_bytes).map_err(|error| match error {
            FolderError::Damaged { reason, .. } => Status::invalid_argument(format!(
                "what was loaded is no whole part of the structure: {reason}"
            )),
            other => of_folder(other),
        })?;
        Ok((found, kept))
    }
}

/// Error of a part that is not made.
pub(super) fn of_make<E: std::error::Error + 'static>(error: MakeInError<E>) -> Status {
    match error {
        MakeInError::Make(error) => Status::invalid_argument(error.to_string()),
        MakeInError::Folder(error) => of_folder(error),
    }
}

/// Errors from a load of all parts of a structure.
#[derive(Debug, thiserror::Error)]
pub enum LoadPartsError {
    /// The structure cannot be laid out.
    #[error(transparent)]
    Lay(#[from] LayError),
    /// The servers have chunks of different sizes.
    #[error(
        "memory servers with chunks of {one} and {other} bytes: a structure needs chunks of one size; start them all with the same release"
    )]
    Chunks {
        /// Bytes on a server.
        one: u64,
        /// Bytes on another one.
        other: u64,
    },
    /// A server has failed.
    #[error(transparent)]
    Servers(#[from] LoadServersError),
}

/// A structure of which is known where it will lie.
pub struct Plan<P: Part> {
    laying: Laying<P::Shape>,
    laid: LaidOut,
    /// Bytes for each server.
    bytes: Vec<u64>,
    data: Arc<dyn LoadData>,
}

impl<P: Part> std::fmt::Debug for Plan<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("laying", &self.laying).finish_non_exhaustive()
    }
}

impl<P: Part> Plan<P> {
    /// Counts what the structure takes on these servers, whose present descriptions are given.
    ///
    /// # Errors
    /// When the structure does not take the pairs, or the servers do not fit together.
    pub fn new(
        shape: P::Shape,
        servers: &[ServerInfo<P::Description>],
        data: Arc<dyn LoadData>,
    ) -> Result<Self, LoadPartsError> {
        let chunk_bytes = servers.first().map_or(0, |info| info.chunk_bytes);
        if let Some(other) = servers.iter().find(|info| info.chunk_bytes != chunk_bytes) {
            return Err(LoadPartsError::Chunks { one: chunk_bytes, other: other.chunk_bytes });
        }
        let mut generations: Vec<_> =
            servers.iter().map(|info| (info.server, info.generation.wrapping_add(1))).collect();
        generations.sort_unstable();
        let laying = Laying { shape, chunk_bytes, generations };
        let mut bytes = vec![0; laying.generations.len()];
        let laid = lay::count::<P>(&laying, &*data, |at, piece| {
            if let Ok(server) = laying.generations.binary_search_by_key(&at.server(), |(server, _)| *server) {
                bytes[server] += piece.len() as u64;
            }
        })?;
        Ok(Self { laying, laid, bytes, data })
    }

    /// Bytes that will be sent.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }
}

/// Fills all servers of a structure. None serves what it has got before all have it. A loader that ends before that leaves all as they were.
///
/// # Errors
/// See [`LoadPartsError`].
pub async fn load_parts<P: Part>(
    plan: Plan<P>,
    mut servers: Vec<(u16, Client)>,
    tell: impl FnMut(LoadProgress),
) -> Result<Vec<ServerInfo<P::Description>>, LoadPartsError> {
    servers.sort_unstable_by_key(|(server, _)| *server);
    let Plan { laying, laid, bytes, data } = plan;
    let (mut parts, mut lanes) = (Vec::new(), Vec::new());
    for (((number, client), &(server, generation)), bytes) in
        servers.into_iter().zip(&laying.generations).zip(bytes)
    {
        debug_assert_eq!(number, server);
        let chunks = laid.of(server).iter().map(|class| class.0).collect();
        let announced = proto::PartBegin { shape: laying.shape.to_string(), generation, chunks, bytes };
        let (send, messages) = mpsc::channel(WAITING);
        lanes.push(Lane { server, send, pieces: proto::PartPieces::default() });
        parts.push((client, Content { server, announced: announced.encode_to_vec(), messages }));
    }
    let writing = tokio::task::spawn_blocking(move || {
        let mut write = |at: GlobalAddress, bytes: &[u8]| {
            let lane = lanes.iter_mut().find(|lane| lane.server == at.server());
            lane.map_or(Ok(()), |lane| lane.write(at.offset(), bytes))
        };
        P::lay(&laying, &*data, &mut write)?;
        lanes.iter_mut().try_for_each(Lane::flush)
    });
    // A layout that stops has no receiver any more: the cause is told by the other one.
    let loaded = load_all::<P::Description>(parts, tell).await;
    match writing.await {
        Ok(Err(refused)) if loaded.is_ok() || !matches!(refused, LayError::Stopped) => Err(refused.into()),
        Err(panic) if panic.is_panic() => std::panic::resume_unwind(panic.into_panic()),
        _ => Ok(loaded?),
    }
}

/// Way of bytes to a server.
struct Lane {
    server: u16,
    send: mpsc::Sender<(Vec<u8>, u64)>,
    pieces: proto::PartPieces,
}

impl Lane {
    fn write(&mut self, mut offset: u64, bytes: &[u8]) -> Result<(), LayError> {
        for piece in bytes.chunks(MESSAGE) {
            let pieces = &mut self.pieces;
            pieces.offsets.push(offset);
            pieces.lengths.push(piece.len() as u32);
            pieces.bytes.extend_from_slice(piece);
            offset += piece.len() as u64;
            if pieces.bytes.len() + pieces.offsets.len() * PIECE_BYTES >= MESSAGE {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), LayError> {
        let pieces = std::mem::take(&mut self.pieces);
        let bytes = pieces.bytes.len() as u64;
        if bytes == 0 {
            return Ok(());
        }
        self.send.blocking_send((pieces.encode_to_vec(), bytes)).map_err(|_| LayError::Stopped)
    }
}
