//! The structures: how their servers' parts are made and found in folders, and what their clients are.

use std::marker::PhantomData;
use std::path::Path;

use fatbtree_blink::{Integrity, KeyRange, TreeConfig, ValueLayout};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::{Blink, Load, LoadOptions, TreeFolder, TreeStorage, build_in, seeded, tree_in};
use fatbtree_dolphin::Index;
use fatbtree_dolphin::host::HybridIndex;
use fatbtree_memserver::{
    Counts, Folder, FolderError, FolderOwner, Keeping, Loaded, Part, PartOptions, Storage, Tenant, kept,
    make_in, part_in,
};
use fatbtree_race::Table;
use fatbtree_race::host::HashTable;
use fatbtree_remote_memory::{Change, Keys, Spread, SpreadClient, Structure as _, StructureClient};

use crate::world::{Driven, SimDevice};

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
    type Client: StructureClient<Verbs = SimDevice, Info = <Self::Tenant as Tenant>::Description> + Driven;

    /// Kind of its keys.
    const KEYS: Keys;

    /// Makes the part of one of `servers` servers in a new folder, and keeps it.
    fn make(path: &Path, server: u16, servers: u16, keeping: Keeping) -> Loaded<Self::Tenant>;

    /// The part in a folder.
    fn found(path: &Path, server: u16) -> Result<Option<Loaded<Self::Tenant>>, FolderError>;

    /// Brings everything into the files of the folder of a server whose process has ended, and leaves checksums if it was a `stop`.
    fn end(path: &Path, server: u16, is_stop: bool) -> Result<(), FolderError>;
}

const HAS_BYTES: &str = "its keys are bytes";

/// A key of bytes for a number. Half of those of a group begin alike for longer than two words, so that they lie in a layer of a layer.
fn name(key: u64) -> Vec<u8> {
    let bytes = key.to_be_bytes();
    let alike: &[u8] = if key.is_multiple_of(2) { b"alike for more than two words" } else { b"" };
    [&bytes[..1], alike, &bytes[1..]].concat()
}

/// The value of a key.
pub(super) async fn get<S: Structure>(client: &S::Client, key: u64) -> Result<Option<Vec<u8>>, String> {
    let found = match S::KEYS {
        Keys::Numbers => client.get(key).await,
        Keys::Bytes => client.get_bytes(&name(key)).await.expect(HAS_BYTES),
    };
    Ok(found.result.map_err(text)?.map(|value| value.as_ref().to_vec()))
}

/// Changes a key.
pub(super) async fn change<S: Structure>(
    client: &S::Client,
    key: u64,
    change: Change<'_>,
) -> Result<(), String> {
    let changed = match S::KEYS {
        Keys::Numbers => client.change(key, change).await,
        Keys::Bytes => client.change_bytes(&name(key), change).await.expect(HAS_BYTES),
    };
    changed.result.map(drop).map_err(text)
}

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

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A structure that lies over all servers.
pub(super) struct Whole<K, const OF_BYTES: bool>(PhantomData<K>);

pub(super) type Hash = Whole<Table<SimDevice>, false>;
pub(super) type HashOfBytes = Whole<Table<SimDevice>, true>;
pub(super) type Dolphin = Whole<Index<SimDevice>, false>;

const fn keys_of(are_bytes: bool) -> Keys {
    if are_bytes { Keys::Bytes } else { Keys::Numbers }
}

/// A client's view with the part that its servers have.
pub(super) trait Parts: Spread {
    type Part: Part;

    fn shape(servers: u32, keys: Keys) -> <Self::Part as Part>::Shape;
}

impl Parts for Table<SimDevice> {
    type Part = HashTable;

    fn shape(servers: u32, keys: Keys) -> fatbtree_race::Shape {
        // Small, so that it splits.
        let max_value = LONGEST as u32;
        fatbtree_race::Shape { servers, groups: 2, directory_bits: 6, max_value, keys }
    }
}

impl Parts for Index<SimDevice> {
    type Part = HybridIndex;

    fn shape(servers: u32, _: Keys) -> fatbtree_dolphin::Shape {
        fatbtree_dolphin::Shape { servers, max_value: LONGEST as u32 }
    }
}

impl<K, const OF_BYTES: bool> Structure for Whole<K, OF_BYTES>
where
    K: Parts + Spread<Verbs = SimDevice, Info = <<K as Parts>::Part as Tenant>::Description>,
{
    type Tenant = K::Part;
    type Client = SpreadClient<K>;

    const KEYS: Keys = keys_of(OF_BYTES);

    fn make(path: &Path, server: u16, servers: u16, keeping: Keeping) -> Loaded<K::Part> {
        let folder = Folder::open_with(path, owner(server), CHUNK, keeping).expect("it is new");
        let mut storage = Storage::Folder(folder.into());
        let options = PartOptions {
            spare_bytes: SPARE,
            chunk_bytes: CHUNK,
            ..PartOptions::new(server, K::shape((1 << servers) - 1, Self::KEYS))
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
}

/// A tree with a partition for each server.
pub(super) struct TreeOf<const OF_BYTES: bool>;

pub(super) type Tree = TreeOf<false>;
pub(super) type TreeOfBytes = TreeOf<true>;

fn tree_config(keys: Keys) -> TreeConfig {
    // Small nodes, so that they split and merge.
    let leaf = if keys == Keys::Bytes { 512 } else { 256 };
    let config = TreeConfig::with_integrity(4, leaf, ValueLayout::SHORT, Integrity::Checksums);
    config.and_then(|config| config.with_keys(keys)).expect("it can be")
}

impl<const OF_BYTES: bool> Structure for TreeOf<OF_BYTES> {
    type Tenant = Blink;
    type Client = Client<SimDevice>;

    const KEYS: Keys = keys_of(OF_BYTES);

    fn make(path: &Path, server: u16, servers: u16, keeping: Keeping) -> Loaded<Blink> {
        let folder = Folder::open_with(path, owner(server), CHUNK, keeping).expect("it is new");
        let mut storage = TreeStorage::Folder(folder.into());
        let options = LoadOptions {
            range: KeyRange {
                low: u64::from(server) * GROUP,
                high: (server + 1 < servers).then(|| u64::from(server + 1) * GROUP),
            },
            spare_bytes: SPARE,
            ..LoadOptions::new(tree_config(Self::KEYS), server)
        };
        let tree = build_in(&mut storage, &options, u64::MAX, Load::Numbers(&[], &mut seeded(1, 8)))
            .expect("there is room");
        storage.keep(tree.kept()).expect("there is room");
        tree.into()
    }

    fn found(path: &Path, server: u16) -> Result<Option<Loaded<Blink>>, FolderError> {
        Ok(tree_in(&Folder::open(path, owner(server), CHUNK)?)?.map(Loaded::from))
    }

    fn end(path: &Path, server: u16, is_stop: bool) -> Result<(), FolderError> {
        end(&TreeFolder::open(path, owner(server), CHUNK)?, is_stop)
    }
}
