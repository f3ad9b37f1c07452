//! The structures: how their servers' parts are made and found, and how a client uses them.

use std::path::Path;
use std::rc::Rc;

use fatbtree_blink::{
    Integrity, KeyRange, Partition, Pool, PoolConfig, Start, SuperRoot, TreeConfig, ValueLayout,
};
use fatbtree_blink_host::{Blink, LoadOptions, TreeFolder, TreeStorage, build_in, seeded, tree_in};
use fatbtree_dolphin::Index;
use fatbtree_dolphin::host::HybridIndex;
use fatbtree_memserver::{
    Counts, Folder, FolderError, FolderOwner, Keeping, Load as _, Loaded, Part, PartOptions, ServerInfo,
    Storage, Tenant, kept, make_in, part_in,
};
use fatbtree_race::Table;
use fatbtree_race::host::HashTable;
use fatbtree_remote_memory::{Change, Kept, RemoteConfig, RemoteMemory, Spread};

use crate::world::{Machine, SimDevice};

/// Bytes of a server's chunks.
pub(super) const CHUNK: u64 = 32 << 10;
/// Bytes for what clients write.
const SPARE: u64 = 4 << 20;
/// Keys of the groups differ in their first byte: a structure of several servers has parts of them on each.
pub(super) const GROUP: u64 = 1 << 60;
/// Longest value.
pub(super) const LONGEST: u64 = 1200;

/// A structure on memory servers.
pub(super) trait Structure: Sized + 'static {
    type Tenant: Tenant;
    /// What a client's sessions belong to.
    type Memory: Kept<Verbs = SimDevice> + 'static;

    /// Makes the part of one of `servers` servers in a new folder, and keeps it.
    fn make(path: &Path, server: u16, servers: u16, keeping: Keeping) -> Loaded<Self::Tenant>;

    /// The part in a folder.
    fn found(path: &Path, server: u16) -> Result<Option<Loaded<Self::Tenant>>, FolderError>;

    /// Brings everything into the files of the folder of a server whose process has ended, and leaves checksums if it was a `stop`.
    fn end(path: &Path, server: u16, is_stop: bool) -> Result<(), FolderError>;

    /// The memory of these servers, as a new client reaches it.
    fn memory(machine: &Machine, servers: &[Info<Self>], seed: u64) -> Rc<Self::Memory>;

    /// The structure, when all sessions are there.
    async fn open(memory: Rc<Self::Memory>) -> Result<Self, String>;

    async fn get(&self, key: u64) -> Result<Option<Vec<u8>>, String>;

    async fn change(&self, key: u64, change: Change<'_>) -> Result<(), String>;

    async fn verify(&self) -> Result<(), String>;
}

/// What a server says of itself.
pub(super) type Info<S> = ServerInfo<<<S as Structure>::Tenant as Tenant>::Description>;

fn owner(server: u16) -> FolderOwner {
    FolderOwner { server: format!("server-{server}"), partition: server, address: [127, 0, 0, 1].into() }
}

/// Brings everything into the files of a folder, and writes checksums if it is a stop.
fn end<C: Counts>(folder: &Folder<C>, is_stop: bool) -> Result<(), FolderError> {
    let Some(found) = folder.region()? else { return Ok(()) };
    found.region.journal().expect("it lies in a folder").checkpoint()?;
    let generation = found.kept.generation;
    drop(found);
    if is_stop { folder.seal().write(generation) } else { Ok(()) }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A structure that lies over all servers.
pub(super) struct Whole<K>(K);

pub(super) type Hash = Whole<Table<SimDevice>>;
pub(super) type Dolphin = Whole<Index<SimDevice>>;

/// A client's view with the part that its servers have.
pub(super) trait Parts: Spread<Verbs = SimDevice> {
    type Part: Part;

    fn shape(servers: u32) -> <Self::Part as Part>::Shape;
}

impl Parts for Table<SimDevice> {
    type Part = HashTable;

    fn shape(servers: u32) -> fatbtree_race::Shape {
        // Small, so that it splits.
        fatbtree_race::Shape { servers, groups: 2, directory_bits: 6, max_value: LONGEST as u32 }
    }
}

impl Parts for Index<SimDevice> {
    type Part = HybridIndex;

    fn shape(servers: u32) -> fatbtree_dolphin::Shape {
        fatbtree_dolphin::Shape { servers, max_value: LONGEST as u32 }
    }
}

impl<K: Parts> Structure for Whole<K> {
    type Tenant = K::Part;
    type Memory = RemoteMemory<SimDevice>;

    fn make(path: &Path, server: u16, servers: u16, keeping: Keeping) -> Loaded<K::Part> {
        let folder = Folder::open_with(path, owner(server), CHUNK, keeping).expect("it is new");
        let mut storage = Storage::Folder(folder.into());
        let options = PartOptions {
            spare_bytes: SPARE,
            chunk_bytes: CHUNK,
            ..PartOptions::new(server, K::shape((1 << servers) - 1))
        };
        let made = make_in::<K::Part>(&mut storage, &options).expect("there is room");
        storage.keep(kept(&made)).expect("there is room");
        made
    }

    fn found(path: &Path, server: u16) -> Result<Option<Loaded<K::Part>>, FolderError> {
        part_in(&Folder::open(path, owner(server), CHUNK)?, CHUNK)
    }

    fn end(path: &Path, server: u16, is_stop: bool) -> Result<(), FolderError> {
        end(&Folder::<<K::Part as Part>::Counts>::open(path, owner(server), CHUNK)?, is_stop)
    }

    fn memory(machine: &Machine, servers: &[Info<Self>], seed: u64) -> Rc<Self::Memory> {
        let numbers = servers.iter().map(|info| info.server);
        let memory = RemoteMemory::new(machine.device(), numbers, RemoteConfig::default(), seed);
        let memory = Rc::new(memory.expect("there are lanes"));
        machine.set_driven(Rc::clone(&memory) as _);
        memory
    }

    async fn open(memory: Rc<Self::Memory>) -> Result<Self, String> {
        K::open(memory, 0, 1 << 20).await.map(Self).map_err(text)
    }

    async fn get(&self, key: u64) -> Result<Option<Vec<u8>>, String> {
        Ok(self.0.get(key).await.result.map_err(text)?.map(|value| value.as_ref().to_vec()))
    }

    async fn change(&self, key: u64, change: Change<'_>) -> Result<(), String> {
        self.0.change(key, change).await.result.map(drop).map_err(text)
    }

    async fn verify(&self) -> Result<(), String> {
        self.0.verify().await.map(drop).map_err(text)
    }
}

/// A tree with a partition for each server.
pub(super) struct Tree(Rc<Pool<SimDevice>>);

fn tree_config() -> TreeConfig {
    // Small nodes, so that they split and merge.
    TreeConfig::with_integrity(4, 256, ValueLayout::OutOfLine, Integrity::Checksums).expect("it can be")
}

impl Structure for Tree {
    type Tenant = Blink;
    type Memory = Pool<SimDevice>;

    fn make(path: &Path, server: u16, servers: u16, keeping: Keeping) -> Loaded<Blink> {
        let folder = Folder::open_with(path, owner(server), CHUNK, keeping).expect("it is new");
        let mut storage = TreeStorage::Folder(folder.into());
        let options = LoadOptions {
            range: KeyRange {
                low: u64::from(server) * GROUP,
                high: (server + 1 < servers).then(|| u64::from(server + 1) * GROUP),
            },
            spare_bytes: SPARE,
            ..LoadOptions::new(tree_config(), server)
        };
        let tree = build_in(&mut storage, &options, u64::MAX, &[], &mut seeded(1, 8)).expect("there is room");
        storage.keep(tree.kept()).expect("there is room");
        tree.loaded()
    }

    fn found(path: &Path, server: u16) -> Result<Option<Loaded<Blink>>, FolderError> {
        Ok(tree_in(&Folder::open(path, owner(server), CHUNK)?)?.map(|tree| tree.loaded()))
    }

    fn end(path: &Path, server: u16, is_stop: bool) -> Result<(), FolderError> {
        end(&TreeFolder::open(path, owner(server), CHUNK)?, is_stop)
    }

    fn memory(machine: &Machine, servers: &[Info<Self>], seed: u64) -> Rc<Pool<SimDevice>> {
        let partitions: Vec<Partition> = servers.iter().map(|info| info.partition).collect();
        let roots = SuperRoot::new(partitions).expect("one partition has all keys");
        let config = PoolConfig { tree: tree_config(), ..PoolConfig::default() };
        let pool = Rc::new(Pool::new(machine.device(), config, roots, seed).expect("there are lanes"));
        machine.set_driven(Rc::clone(&pool) as _);
        pool
    }

    async fn open(pool: Rc<Pool<SimDevice>>) -> Result<Self, String> {
        Ok(Self(pool))
    }

    async fn get(&self, key: u64) -> Result<Option<Vec<u8>>, String> {
        let found = self.0.lookup(key, Start::Root).await.result.map_err(text)?;
        Ok(found.map(|value| value.to_vec()))
    }

    async fn change(&self, key: u64, change: Change<'_>) -> Result<(), String> {
        self.0.mutate(key, change, Start::Root).await.result.map(drop).map_err(text)
    }

    async fn verify(&self) -> Result<(), String> {
        self.0.verify().await.map(drop).map_err(text)
    }
}
