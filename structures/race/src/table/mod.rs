//! The table as one client uses it.

mod buckets;
mod export;
mod grow;
mod mutate;
mod place;
mod search;
mod space;
mod speculate;
mod split;
mod structure;
mod swing;
mod thaw;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fatbtree_remote_memory::byte_keys::MAX_KEY_BYTES;
use fatbtree_remote_memory::{
    CommonError, GlobalAddress, HEADER_BYTES, Keys, Lane, Members, Ongoing, ReadBytes, RemoteMemory, Writer,
    members,
};
use fatbtree_verbs::{MAX_BATCH, Operation, Remote, Verbs};

pub use export::Cursor;
pub use fatbtree_remote_memory::Change;
pub use search::Value;
pub use speculate::PlaceStats;

use crate::block::{self, Found};
use crate::checks::Check;
use crate::directory::Directory;
use crate::error::{Stop, TableError};
use crate::hash::Hash;
use crate::key::{Asked, Key};
use crate::layout::{Leaf, MEMBERS, STRUCTURE, Shape, entry_offset, word_at};
use crate::slot::{BlockPointer, Place};

/// Result of an operation, and what it took.
pub type Answer<T> = fatbtree_remote_memory::Answer<T, TableError>;

/// A hash table in the memory of one or several servers, as one thread uses it. Any number of its operations run at once.
///
/// A table is opened on a [`RemoteMemory`] whose sessions a keeper keeps. Operations wait for connections that are being made. After a
/// server has lost its memory and was loaded anew, open the table anew.
pub struct Table<V: Verbs> {
    memory: Rc<RemoteMemory<V>>,
    shape: Shape,
    /// Address of the directory.
    home: GlobalAddress,
    directory: RefCell<Directory>,
    /// Subtables that an operation of this client splits.
    splitting: RefCell<Vec<Place>>,
    /// Bytes of blocks that were written, to be used again.
    scratch: RefCell<Vec<Vec<u8>>>,
    /// A server that has begun anew since the table was opened.
    left: Cell<Option<u16>>,
    /// Where keys were found.
    places: RefCell<speculate::Places>,
    /// Number of this one among the tables that were opened on the memory. A table that was opened anew may be another one.
    number: u64,
}

/// Tables that were opened on a memory.
#[derive(Default)]
struct Opened(Cell<u64>);

impl<V: Verbs> std::fmt::Debug for Table<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("shape", &self.shape).field("home", &self.home).finish_non_exhaustive()
    }
}

/// One operation on its way.
type Op<'k> = fatbtree_remote_memory::Op<Search<'k>>;

/// What an operation knows of the place of its key.
struct Search<'k> {
    key: Asked<'k>,
    hash: Hash,
    /// Whether the directory was read anew, because the subtable's server is away.
    has_reloaded: bool,
    /// A sweep of the server waits for it.
    _ongoing: Ongoing,
}

impl<V: Verbs> Table<V> {
    /// Opens the table whose directory lies on a server: reads the regions' headers and the directory.
    ///
    /// # Errors
    /// [`TableError::NoTable`], [`CommonError::Parted`]; and when the connection is given up, or breaks too often.
    pub async fn open(memory: Rc<RemoteMemory<V>>, server: u16) -> Result<Self, TableError> {
        let mut op = memory.waiting_op(memory.take_lane());
        memory.attempt(&mut op, async |op| Self::try_open(&memory, server, &op.lane).await).await
    }

    async fn try_open(memory: &Rc<RemoteMemory<V>>, server: u16, lane: &Lane) -> Result<Self, Stop> {
        let header = memory.read(lane, GlobalAddress::new(server, 0), HEADER_BYTES as u32).await?;
        let line = header.first_chunk().ok_or(Stop::Later)?;
        let (shape, home) = Shape::of_header(line).ok_or(TableError::NoTable { server })?;
        let is_part = |line: &_| Shape::of_header(line) == Some((shape, home));
        let of = (STRUCTURE, shape.servers);
        match members(memory, of, home.offset() + MEMBERS, lane, is_part).await? {
            Members::Whole => {}
            Members::Parted => return Err(CommonError::Parted.into()),
            Members::Missing(server) => return Err(TableError::NoTable { server }.into()),
        }
        let directory = load_directory(memory, &shape, home, lane).await?;
        let (memory, scratch) = (Rc::clone(memory), RefCell::default());
        let (directory, left) = (RefCell::new(directory), Cell::new(None));
        let (splitting, places) = Default::default();
        let opened = memory.shared::<Opened>();
        let number = opened.0.get();
        opened.0.set(number + 1);
        Ok(Self { memory, shape, home, directory, splitting, scratch, left, places, number })
    }

    /// The table's shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Address of the directory.
    pub fn home(&self) -> GlobalAddress {
        self.home
    }

    /// The memory that the table lies in.
    pub fn memory(&self) -> &Rc<RemoteMemory<V>> {
        &self.memory
    }

    /// Ends the table: a server has begun anew with an empty part of it. All operations end with [`CommonError::Lost`] from now on.
    pub fn leave(&self, server: u16) {
        self.left.set(Some(server));
    }

    /// Fails where keys are of another kind, and where this one is too long.
    fn check_key(&self, key: Asked<'_>) -> Result<(), TableError> {
        self.check_kind(key.kind())?;
        match key.bytes().map_or(0, <[u8]>::len) {
            found if found > MAX_KEY_BYTES => Err(TableError::KeyBytes { found }),
            _ => Ok(()),
        }
    }

    /// Fails where keys are of another kind.
    fn check_kind(&self, asked: Keys) -> Result<(), TableError> {
        match self.shape.keys {
            table if table != asked && Check::Kind.on() => Err(TableError::Keys { table }),
            _ => Ok(()),
        }
    }

    fn op<'k>(&self, key: Asked<'k>) -> Op<'k> {
        let (hash, _ongoing) = (Hash::of(key.word), self.memory.begin());
        let search = Search { key, hash, has_reloaded: false, _ongoing };
        self.memory.op(self.memory.take_lane(), key.word, search)
    }

    /// An operation that is about no certain key.
    fn op_of_none(&self) -> Op<'static> {
        self.op(Asked::number(0))
    }

    /// Subtable for a hash, as far as this client knows.
    fn leaf(&self, hash: Hash) -> Leaf {
        self.directory.borrow().leaf(hash)
    }

    /// Subtable for an operation. Where its server is away the directory is read anew, once: the subtable may have been split, and its
    /// successors lie elsewhere.
    async fn reach(&self, op: &mut Op<'_>) -> Result<Leaf, Stop> {
        let leaf = self.leaf(op.state.hash);
        let is_up = |at: GlobalAddress| self.memory.is_up(op.lane.to(at.server()).id);
        if op.state.has_reloaded || is_up(leaf.place.address()) || !is_up(self.home) {
            return Ok(leaf);
        }
        op.state.has_reloaded = true;
        let found = load_directory(&self.memory, &self.shape, self.home, &op.lane).await?;
        // What only this client has followed is kept: the way there may lead over the server that is away.
        self.directory.borrow_mut().merge(found);
        Ok(self.leaf(op.state.hash))
    }

    /// Reads the directory anew.
    async fn reload(&self, op: &mut Op<'_>) -> Result<(), Stop> {
        let directory = load_directory(&self.memory, &self.shape, self.home, &op.lane).await?;
        *self.directory.borrow_mut() = directory;
        Ok(())
    }

    /// Identity under which the client writes to a server, when a session is there.
    async fn writer(&self, server: u16, lane: &Lane) -> Result<Writer, Stop> {
        // A session begins before its first connection.
        self.memory.until_up(lane.to(server).id).await?;
        Ok(self.memory.writer(server)?)
    }

    /// Compares and swaps words on one server, [`MAX_BATCH`] with a doorbell, in the session of `writer`: that in which the words were read.
    /// Others may have been quicker: the result is not looked at.
    async fn swap_all(
        &self,
        server: u16,
        writer: &Writer,
        op: &mut Op<'_>,
        swaps: &[(GlobalAddress, u64, u64)],
    ) -> Result<(), Stop> {
        for some in swaps.chunks(MAX_BATCH) {
            let swap = |rkey: u32| {
                some.iter().map(move |&(at, compare, swap)| {
                    let at = Remote { address: at.raw(), rkey };
                    Operation::CompareSwap { at, compare, swap }
                })
            };
            self.memory.batch(op.lane.to(server), writer, swap).await?;
        }
        Ok(())
    }

    /// Does an operation again and again until it has an answer.
    async fn answer<'k, T>(
        &self,
        mut op: Op<'k>,
        mut attempt: impl AsyncFnMut(&mut Op<'k>) -> Result<T, Stop>,
    ) -> Answer<T> {
        let attempt = async |op: &mut Op<'k>| match self.left.get() {
            Some(server) => Err(CommonError::Lost(server).into()),
            None => attempt(op).await,
        };
        let result = self.memory.attempt(&mut op, attempt).await;
        // The word of a key of bytes says nothing to people.
        let result = match op.state.key.kind() {
            Keys::Numbers => result,
            Keys::Bytes => result.map_err(TableError::of_no_key),
        };
        Answer { result, round_trips: op.lane.round_trips() }
    }
}

/// Reads the words of slots or entries. Each was read at some moment of the READ. They are copied: buffers are few, and are held for long.
async fn read_all<V: Verbs>(
    memory: &RemoteMemory<V>,
    lane: &Lane,
    at: GlobalAddress,
    bytes: u64,
) -> Result<Vec<u8>, Stop> {
    Ok(match memory.read_long(lane, at, bytes).await? {
        ReadBytes::Whole(buffer) => buffer.to_vec(),
        ReadBytes::Pieces(bytes) => bytes,
    })
}

/// Reads a directory: the global depth first, then as many entries.
async fn load_directory<V: Verbs>(
    memory: &RemoteMemory<V>,
    shape: &Shape,
    home: GlobalAddress,
    lane: &Lane,
) -> Result<Directory, Stop> {
    let damaged = CommonError::Damaged { at: home, expected: "the directory of a hash table" };
    let depth = memory.read_word(lane, home).await?;
    let depth = u8::try_from(depth).ok().filter(|&depth| depth <= shape.directory_bits);
    let depth = depth.ok_or(damaged)?;
    let first = home.behind(entry_offset(0));
    let bytes = read_all(memory, lane, first, 8 << depth).await?;
    // An entry may be newer than the depth, and is never deeper than the directory may be.
    let leaf = |word| Leaf::from_word(word).filter(|leaf| leaf.depth <= shape.directory_bits);
    let leaves: Option<Vec<Leaf>> =
        (0..1_u64 << depth).map(|number| leaf(word_at(&bytes, number * 8))).collect();
    Ok(leaves.and_then(|leaves| Directory::new(depth, leaves)).ok_or(damaged)?)
}

/// Reads of a walk over the whole table.
impl<V: Verbs> Table<V> {
    /// Reads a word.
    pub(crate) async fn word(&self, at: GlobalAddress) -> Result<u64, TableError> {
        self.answer(self.op_of_none(), async |op| Ok(self.memory.read_word(&op.lane, at).await?)).await.result
    }

    /// Reads many bytes.
    pub(crate) async fn read_all(&self, at: GlobalAddress, bytes: u64) -> Result<Vec<u8>, TableError> {
        let read = async |op: &mut Op<'static>| read_all(&self.memory, &op.lane, at, bytes).await;
        self.answer(self.op_of_none(), read).await.result
    }

    /// Reads the record that a slot leads to, and its key. `None`: another one lies there.
    pub(crate) async fn read_found(&self, pointer: BlockPointer) -> Result<Option<(Found, Key)>, TableError> {
        let keys = self.shape.keys;
        let read = async |op: &mut Op<'static>| {
            let bytes = self.read_block(pointer, op).await?;
            let found = block::find(&bytes, pointer, keys);
            Ok(found.map(|found| (found, Key::of(keys, &found, &bytes))))
        };
        self.answer(self.op_of_none(), read).await.result
    }
}
