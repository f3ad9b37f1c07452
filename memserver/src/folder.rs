//! A folder that a memory server keeps its tree in: whoever starts the server again serves the same tree at the same addresses.
//!
//! ```text
//!   lock         locked by the process that has the folder
//!   state.json   whose it is, and which generation is the tree: replaced as a whole (written, synced, renamed)
//!   tree-7       the region of generation 7, mapped: what clients write is in it
//!   chunks-7     a byte for each chunk that was given out: its kind, mapped
//!   writes-7     the write that is being carried out, mapped
//! ```
//!
//! **A process that is killed** loses nothing that was acknowledged: mapped files are the operating system's. A packet's write that it was
//! killed in the middle of is carried out when the server starts again, from `writes-7`; so no node or entry is half-written. What clients
//! had given back is forgotten, and lost to the tree. Sessions and locks are gone: whoever had them opens a session anew.
//!
//! **A machine that dies** may lose what was written since a file was last synced, and leave a mixture: files are synced when a tree
//! is loaded, and when the server stops. A tree that is not whole is refused at the start, as far as its nodes show it.
//!
//! A load that finds no room on the disk is refused. Spare memory takes none until it is used, and a disk that is full then ends the process:
//! leave as much room as the spare memory has.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fatbtree_index::node::{LINE, NodeFault};
use fatbtree_index::{Regions, SUPERBLOCK_BYTES, Superblock, SuperblockError, Tree, WalkError};
use fatbtree_verbs::Memory;
use serde::{Deserialize, Serialize};

use crate::load::{LoadCounts, LoadError, LoadOptions, LoadedTree, bulk_load_in};
use crate::storage::BuildError;
use crate::values::ValueSource;

/// The version of files and layouts in them.
const FORMAT: u32 = 2;

const LOCK: &str = "lock";
const STATE: &str = "state.json";
const NEW_STATE: &str = "state.json.new";

/// Whose folder it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FolderOwner {
    /// The memory server's name in its cluster file.
    pub server: String,
    /// Its partition.
    pub partition: u16,
    /// Its address on the data path.
    pub address: Ipv4Addr,
}

/// What `state.json` says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    format: u32,
    owner: FolderOwner,
    generation: u64,
    chunk_bytes: u64,
    keys: u64,
    leaf_nodes: u64,
    internal_nodes: u64,
    record_bytes: u64,
}

/// A folder that this process has.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    owner: FolderOwner,
    chunk_bytes: u64,
    state: Option<State>,
    former: Option<State>,
    _lock: File,
}

/// A folder that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The file system.
    #[error("{}: {what}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// Somebody else has it.
    #[error("{} is used by another process: stop that memory server first, or name another folder", .path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// Another version.
    #[error(
        "{} has format {found}, expected {FORMAT}: it was written by another version of this program; load into a new folder", .path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// It is another server's.
    #[error(
        "{} belongs to memory server {} (partition {}, {}), not to {} (partition {}, {}): name another folder", .path.display(), .found.server,
        .found.partition, .found.address, .expected.server, .expected.partition, .expected.address
    )]
    Owner {
        /// The folder.
        path: PathBuf,
        /// Whose it is.
        found: Box<FolderOwner>,
        /// Who wants it.
        expected: Box<FolderOwner>,
    },
    /// Chunks of another size.
    #[error("{} was made with chunks of {found} bytes, this server's have {expected}: load into a new folder", .path.display())]
    Chunks {
        /// The folder.
        path: PathBuf,
        /// Bytes of its chunks.
        found: u64,
        /// Bytes of the server's.
        expected: u64,
    },
    /// A file is not what was written.
    #[error("{} is damaged: {reason}; move the folder away and load anew", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl Folder {
    /// Makes the folder if it is not there, and locks it. `chunk_bytes`: as in [`ServerOptions`](crate::ServerOptions).
    ///
    /// # Errors
    /// When somebody has it, or it is another server's or version's, or damaged.
    pub fn open(path: &Path, owner: FolderOwner, chunk_bytes: u64) -> Result<Self, FolderError> {
        let at = |name: &str| path.join(name);
        fs::create_dir_all(path).map_err(failed(path, "making the folder"))?;
        let lock = File::options().create(true).truncate(false).write(true).open(at(LOCK));
        let lock = lock.map_err(failed(&at(LOCK), "opening it"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(FolderError::InUse { path: path.to_owned() }),
            Err(fs::TryLockError::Error(source)) => return Err(failed(&at(LOCK), "locking it")(source)),
        }
        let state = match fs::read(at(STATE)) {
            Ok(text) => Some(parse(&at(STATE), &text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(&at(STATE), "reading it")(error)),
        };
        if let Some(State { owner: found, chunk_bytes: chunks, .. }) = &state {
            let path = path.to_owned();
            if *found != owner {
                return Err(FolderError::Owner { path, found: found.clone().into(), expected: owner.into() });
            }
            if *chunks != chunk_bytes {
                return Err(FolderError::Chunks { path, found: *chunks, expected: chunk_bytes });
            }
        }
        let folder = Self { path: path.to_owned(), owner, chunk_bytes, state, former: None, _lock: lock };
        folder.forget_others();
        Ok(folder)
    }

    /// The tree that is in it, if there is one. Every node is read.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn tree(&self) -> Result<Option<LoadedTree>, FolderError> {
        let Some(state) = &self.state else { return Ok(None) };
        let path = self.file("tree", state.generation);
        let damaged = |reason: String| FolderError::Damaged { path: path.clone(), reason };
        let file = self.open_file(&path, false)?;
        let len = file.metadata().map_err(failed(&path, "asking for its length"))?.len();
        // Whoever was killed may have been writing the superblock: that write is carried out first.
        let first = self.map(&path, &file, len, state.generation, false)?;
        let mut line = [0; LINE];
        first.read(0, &mut line).map_err(|out| damaged(out.to_string()))?;
        drop(first);
        let superblock =
            Superblock::parse(&line).map_err(|error: SuperblockError| damaged(error.to_string()))?;
        let Superblock { partition, config, generation, region_bytes, .. } = superblock;
        if (partition.id, generation) != (self.owner.partition, state.generation) {
            return Err(damaged(format!(
                "it is generation {generation} of partition {}, expected generation {} of partition {}",
                partition.id, state.generation, self.owner.partition
            )));
        }
        // Files end with a whole word.
        if region_bytes.next_multiple_of(8) != len {
            return Err(damaged(format!("it has {len} bytes, {region_bytes} were written")));
        }
        let nodes = |count: u64, bytes: u32| count.checked_mul(bytes.into());
        let used = nodes(state.leaf_nodes, config.leaf_bytes())
            .zip(nodes(state.internal_nodes, config.internal_bytes()))
            .and_then(|(leaves, internal)| leaves.checked_add(internal)?.checked_add(state.record_bytes))
            .and_then(|used| {
                used.checked_add(SUPERBLOCK_BYTES.into())?.checked_next_multiple_of(LINE as u64)
            });
        let end = region_bytes.checked_sub(config.max_node_bytes().into());
        let (Some(from), Some(end)) = (used, end) else {
            return Err(damaged("it is too small for what state.json says".to_owned()));
        };
        if from > end {
            return Err(damaged(format!(
                "state.json speaks of {from} bytes of nodes and records, it has {end}"
            )));
        }
        let region = Arc::new(self.map(&path, &file, region_bytes, state.generation, false)?);
        let kinds = self.kinds(end - from, state.generation, false)?;
        let counts = LoadCounts {
            keys: state.keys,
            leaf_nodes: state.leaf_nodes,
            internal_nodes: state.internal_nodes,
            record_bytes: state.record_bytes,
        };
        let spare = from..end;
        let tree = LoadedTree {
            region,
            spare,
            config,
            partition,
            counts,
            generation,
            chunk_kinds: Some(kinds.into()),
        };
        walk(&tree).map_err(|error| damaged(error.to_string()))?;
        Ok(Some(tree))
    }

    pub(crate) fn build<S: ValueSource>(
        &self,
        options: &LoadOptions,
        keys: &[u64],
        values: &mut S,
        within: impl Fn(u64) -> Result<u64, LoadError>,
    ) -> Result<LoadedTree, BuildError> {
        let path = self.file("tree", options.generation);
        let mut trouble = None;
        let memory = |bytes| {
            let bytes = within(bytes)?;
            let mapped = self.open_file(&path, true).and_then(|file| {
                // What is loaded has its room on the disk before it is written: a mapped file that finds none ends the process.
                let used = i64::try_from(bytes - options.spare_bytes.min(bytes)).unwrap_or(i64::MAX);
                let room = nix::fcntl::posix_fallocate(&file, 0, used.max(1));
                room.map_err(|errno| failed(&path, "getting room on the disk")(errno.into()))?;
                self.map(&path, &file, bytes, options.generation, true)
            });
            mapped.map_err(|error| {
                trouble = Some(error);
                LoadError::OutOfMemory { bytes }
            })
        };
        let built = bulk_load_in(options, keys, values, memory);
        if let Some(error) = trouble {
            return Err(error.into());
        }
        let tree = built?;
        let kinds = self.kinds(tree.spare.end - tree.spare.start, options.generation, true)?;
        tree.region.sync().map_err(failed(&path, "writing it"))?;
        Ok(LoadedTree { chunk_kinds: Some(kinds.into()), ..tree })
    }

    pub(crate) fn keep(&mut self, tree: &LoadedTree) -> Result<(), FolderError> {
        let LoadCounts { keys, leaf_nodes, internal_nodes, record_bytes } = tree.counts;
        let state = State {
            format: FORMAT,
            owner: self.owner.clone(),
            generation: tree.generation,
            chunk_bytes: self.chunk_bytes,
            keys,
            leaf_nodes,
            internal_nodes,
            record_bytes,
        };
        self.write(&state)?;
        self.former = self.state.replace(state);
        Ok(())
    }

    pub(crate) fn go_back(&mut self) -> Result<(), FolderError> {
        match self.former.take() {
            Some(former) => {
                self.write(&former)?;
                self.state = Some(former);
            }
            None => {
                let path = self.path.join(STATE);
                fs::remove_file(&path).map_err(failed(&path, "removing it"))?;
                self.state = None;
            }
        }
        Ok(())
    }

    /// Removes the files of trees that are not the one. What cannot be removed is removed the next time.
    pub(crate) fn forget_others(&self) {
        let own = self.state.as_ref().map(|state| state.generation);
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| {
                let (kind, number) = name.split_once('-')?;
                ["tree", "chunks", "writes"].contains(&kind).then(|| number.parse::<u64>().ok())?
            });
            if number.is_some_and(|number| Some(number) != own)
                && let Err(error) = fs::remove_file(entry.path())
            {
                tracing::warn!(path = %entry.path().display(), %error, "not removed");
            }
        }
    }

    /// Replaces the state: whoever is killed meanwhile leaves the old one or the new one.
    fn write(&self, state: &State) -> Result<(), FolderError> {
        let (new, path) = (self.path.join(NEW_STATE), self.path.join(STATE));
        let text = serde_json::to_vec_pretty(state).expect("it is numbers and a name");
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            File::open(&self.path)?.sync_all()
        });
        written.map_err(failed(&path, "writing it"))
    }

    fn file(&self, kind: &str, generation: u64) -> PathBuf {
        self.path.join(format!("{kind}-{generation}"))
    }

    fn open_file(&self, path: &Path, anew: bool) -> Result<File, FolderError> {
        let opened = File::options().read(true).write(true).create(anew).truncate(anew).open(path);
        opened.map_err(failed(path, "opening it"))
    }

    /// A region with its log.
    fn map(
        &self,
        path: &Path,
        file: &File,
        bytes: u64,
        generation: u64,
        anew: bool,
    ) -> Result<Memory, FolderError> {
        let log = self.file("writes", generation);
        let log = self.open_file(&log, anew)?;
        Memory::file_with_log(file, bytes, &log).map_err(failed(path, "mapping it"))
    }

    fn kinds(&self, spare: u64, generation: u64, anew: bool) -> Result<Memory, FolderError> {
        let path = self.file("chunks", generation);
        let file = self.open_file(&path, anew)?;
        Memory::file(&file, spare / self.chunk_bytes.max(1)).map_err(failed(&path, "mapping it"))
    }
}

fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io { path, what, source }
}

fn parse(path: &Path, text: &[u8]) -> Result<State, FolderError> {
    #[derive(Deserialize)]
    struct Version {
        format: u32,
    }
    let damaged =
        |error: serde_json::Error| FolderError::Damaged { path: path.to_owned(), reason: error.to_string() };
    let Version { format } = serde_json::from_slice(text).map_err(damaged)?;
    if format != FORMAT {
        return Err(FolderError::Format { path: path.to_owned(), found: format });
    }
    serde_json::from_slice(text).map_err(damaged)
}

/// Reads every node. One that was freed while its neighbours still lead there is met again by whoever finishes the merge.
fn walk(tree: &LoadedTree) -> Result<(), WalkError> {
    let memory = Regions::new([(tree.partition.id, Arc::clone(&tree.region))]);
    let walk = Tree::new(&memory, &tree.config, &tree.partition);
    match walk.for_each_internal(|_| {}).and_then(|()| walk.for_each_leaf(|_| {})) {
        Err(WalkError::Damaged { fault: NodeFault::Free, address }) => {
            tracing::warn!(%address, "a node was freed, and not taken out of its level");
            Ok(())
        }
        walked => walked,
    }
}
