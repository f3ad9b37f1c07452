//! A structure over several servers that is laid out from keys: what a [part](crate::Part) needs to do so.
//!
//! A structure's blocks name each other by address, also from server to server. So one process decides where all of them lie: the loader,
//! which counts what each server's chunks will hold, and then writes block after block. It keeps no block.

use std::ops::Range;

use fatbtree_remote_memory::{GlobalAddress, SizeClass, name_of};
use fatbtree_verbs::Memory;

use crate::chunk::chunk_classes_bytes;
use crate::grpc::LoadData;
use crate::part::{Part, PartOptions, finish, make};
use crate::tenant::Loaded;

/// A structure that is laid out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Laying<S> {
    /// Its shape.
    pub shape: S,
    /// Bytes of a chunk, the same on all servers.
    pub chunk_bytes: u64,
    /// Its servers, ascending, with the generations that their parts will have.
    pub generations: Vec<(u16, u64)>,
}

impl<S> Laying<S> {
    /// Writes the word that names all parts by their generations, at an offset of each server's region. A structure of one server has none.
    ///
    /// A client that opens a structure of which some servers have not come to their new parts finds other generations than these, and refuses
    /// it.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn write_members(&self, offset: u64, write: &mut Writes<'_>) -> Result<(), LayError> {
        if self.generations.len() < 2 {
            return Ok(());
        }
        let members = name_of(self.generations.iter().copied()).to_le_bytes();
        self.generations
            .iter()
            .try_for_each(|&(server, _)| write(GlobalAddress::new(server, offset), &members))
    }
}

/// Chunks that were filled.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LaidOut {
    /// Of each server, its number and the classes of its chunks, in their order.
    pub chunks: Vec<(u16, Vec<SizeClass>)>,
}

impl LaidOut {
    /// Classes of a server's chunks.
    #[must_use]
    pub fn of(&self, server: u16) -> &[SizeClass] {
        self.chunks.iter().find(|(of, _)| *of == server).map_or(&[], |(_, chunks)| chunks)
    }
}

/// Receiver of the bytes of a structure: each byte comes once, with its address. An error of it ends the layout.
pub type Writes<'w> = dyn FnMut(GlobalAddress, &[u8]) -> Result<(), LayError> + 'w;

/// Keys out of order, or a key twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "key {key:#x} at position {position} is not larger than the key before it: sort the keys first, and remove those that occur twice"
)]
pub struct OutOfOrder {
    /// The key.
    pub key: u64,
    /// Its place among the keys.
    pub position: usize,
}

/// Checks the keys of a structure of this shape.
fn check_keys<P: Part>(shape: &P::Shape, keys: &[u64]) -> Result<(), OutOfOrder> {
    match check_order(keys) {
        Err(OutOfOrder { .. }) if P::may_repeat_numbers(shape) && keys.is_sorted() => Ok(()),
        checked => checked,
    }
}

/// Whether keys are ascending, and none occurs twice.
///
/// # Errors
/// The first key that is not larger than the one before it.
pub fn check_order(keys: &[u64]) -> Result<(), OutOfOrder> {
    let wrong = keys.windows(2).position(|pair| pair[0] >= pair[1]).map(|before| before + 1);
    wrong.map_or(Ok(()), |position| Err(OutOfOrder { key: keys[position], position }))
}

/// Errors from laying a structure out.
#[derive(Debug, thiserror::Error)]
pub enum LayError {
    /// The keys are not ascending.
    #[error(transparent)]
    Order(#[from] OutOfOrder),
    /// The receiver of the bytes has ended.
    #[error("the load was given up")]
    Stopped,
    /// The structure does not take the pairs.
    #[error(transparent)]
    Refused(Box<dyn std::error::Error + Send + Sync>),
}

/// Checks the order of the keys, and counts what a structure of them takes: `each` is told of every byte that is to be written.
pub(crate) fn count<P: Part>(
    of: &Laying<P::Shape>,
    data: &dyn LoadData,
    mut each: impl FnMut(GlobalAddress, &[u8]),
) -> Result<LaidOut, LayError> {
    check_keys::<P>(&of.shape, data.keys())?;
    P::lay(of, data, &mut |at, bytes| {
        each(at, bytes);
        Ok(())
    })
}

/// Lays a structure out in the memory of this process, for servers that begin with it here. Its parts have so many spare bytes beside what is
/// loaded. They are checked as those of a folder are at a start.
///
/// # Errors
/// When the structure does not take the pairs, or there is no memory.
pub fn lay_in_memory<P: Part>(
    of: &Laying<P::Shape>,
    spare_bytes: u64,
    data: &dyn LoadData,
) -> Result<Vec<Loaded<P>>, LayError> {
    let refused = |error: Box<dyn std::error::Error + Send + Sync>| LayError::Refused(error);
    let laid = count::<P>(of, data, |_, _| {})?;
    let mut parts = Vec::new();
    for &(server, generation) in &of.generations {
        let chunks = laid.of(server);
        let spare_bytes = (chunks.len() as u64).saturating_mul(of.chunk_bytes).saturating_add(spare_bytes);
        let chunk_bytes = of.chunk_bytes;
        let options =
            PartOptions { spare_bytes, generation, chunk_bytes, ..PartOptions::new(server, of.shape) };
        parts.push(make::<P>(&options).map_err(|error| refused(error.into()))?);
    }
    let mut write = |at: GlobalAddress, bytes: &[u8]| {
        let part = parts.iter().find(|part| part.server == at.server());
        let written = part.map_or(Ok(()), |part| part.region.write(at.offset(), bytes));
        written.map_err(|error| refused(error.to_string().into()))
    };
    P::lay(of, data, &mut write)?;
    let finished = parts.into_iter().map(|part| {
        let table = Memory::shared(chunk_classes_bytes(part.spare.end - part.spare.start, of.chunk_bytes));
        let table = table.map_err(|error| refused(error.into()))?;
        let chunks = laid.of(part.server);
        finish(part, chunks, table, of.chunk_bytes).map_err(|error| refused(error.into()))
    });
    finished.collect()
}

/// Chunks of all servers of a structure, which are filled one after the other, a block at a time.
#[derive(Clone, Debug)]
pub struct Rooms {
    chunk_bytes: u64,
    servers: Vec<Room>,
}

/// Chunks of one server.
#[derive(Clone, Debug)]
struct Room {
    server: u16,
    /// Offset of the first chunk.
    from: u64,
    /// Classes of the chunks so far.
    chunks: Vec<SizeClass>,
    /// What is left of the last chunk of each class.
    open: Vec<Range<u64>>,
}

impl Rooms {
    /// No chunk yet, on these servers; the first one of each begins at its offset. The structure has so many size classes.
    #[must_use]
    pub fn new(chunk_bytes: u64, classes: usize, servers: impl IntoIterator<Item = (u16, u64)>) -> Self {
        let room = |(server, from)| Room { server, from, chunks: Vec::new(), open: vec![0..0; classes] };
        Self { chunk_bytes, servers: servers.into_iter().map(room).collect() }
    }

    /// Takes room on a server for a block, which is no longer than a chunk. Returns its address.
    ///
    /// # Panics
    /// When there is no such server or class.
    pub fn take(&mut self, server: u16, class: SizeClass, bytes: u32) -> GlobalAddress {
        let room = self.servers.iter_mut().find(|room| room.server == server);
        let Room { from, chunks, open, .. } = room.expect("the structure lies on this server");
        let open = &mut open[usize::from(class.0)];
        if open.end - open.start < bytes.into() {
            let begin = *from + chunks.len() as u64 * self.chunk_bytes;
            chunks.push(class);
            *open = begin..begin + self.chunk_bytes;
        }
        let at = open.start;
        open.start += u64::from(bytes);
        GlobalAddress::new(server, at)
    }

    /// What was filled.
    #[must_use]
    pub fn into_laid_out(self) -> LaidOut {
        LaidOut { chunks: self.servers.into_iter().map(|room| (room.server, room.chunks)).collect() }
    }
}
