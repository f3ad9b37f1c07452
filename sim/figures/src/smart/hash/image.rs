//! A loaded hash table, of which each measurement has a copy.

use std::rc::Rc;
use std::sync::Arc;

use fatbtree_memserver::Loaded;
use fatbtree_race::host::HashTable;
use fatbtree_race::{Shape, Table};
use fatbtree_remote_memory::Keys;
use fatbtree_verbs::Memory;
use fatbtree_verbs::time::Duration;

use crate::bench::{key_of, value_of};
use crate::rig::{Loading, Servers, serve};
use crate::smart::clients::SERVERS;
use fatbtree_sim::world::Machine;

/// Subtables of 2,688 slots.
const SHAPE: Shape =
    Shape { groups: 128, directory_bits: 10, servers: 0b11, max_value: 64, keys: Keys::Numbers };
/// Memory of a server beside directory and first subtable.
const SPARE: u64 = 48 << 20;
/// Bytes of a chunk: 96 clients have one of each size on each server.
const CHUNK: u64 = 64 << 10;
/// Longest time for loading.
const LOADING: Duration = Duration::from_secs(60);

/// Memory of a table's servers.
pub(super) struct Image {
    keys: u64,
    servers: Vec<[Vec<u8>; 2]>,
}

impl Image {
    /// Loads so many keys with values of 8 bytes by insertions.
    ///
    /// # Errors
    /// When one fails.
    pub(super) fn load(keys: u64) -> Result<Self, String> {
        let contents = (0..SERVERS).map(make).collect::<Result<Vec<_>, _>>()?;
        let loading = Loading::begin(contents.clone(), CHUNK)?;
        let memory = Rc::clone(&loading.memory);
        let load = async move {
            let table = Table::open(memory, 0).await.map_err(|error| error.to_string())?;
            for number in 0..keys {
                let key = key_of(number);
                table.upsert(key, &value_of(key)).await.result.map_err(|error| error.to_string())?;
            }
            Ok(())
        };
        loading.run(load, LOADING)?;
        let servers = contents.iter().map(|content| bytes_of(parts(content))).collect();
        Ok(Self { keys, servers })
    }

    /// Number of keys.
    pub(super) fn keys(&self) -> u64 {
        self.keys
    }

    /// Starts memory servers with a copy of the table.
    pub(super) fn serve(&self, machines: &[Machine]) -> Result<Servers<HashTable>, String> {
        let contents = (0..).zip(&self.servers).map(|(id, bytes)| {
            let content = make(id)?;
            for (memory, bytes) in parts(&content).into_iter().zip(bytes) {
                memory.write(0, bytes).map_err(|error| error.to_string())?;
            }
            Ok(content)
        });
        serve(machines, contents, CHUNK)
    }
}

fn make(id: u16) -> Result<Loaded<HashTable>, String> {
    let content = HashTable::make(id, SHAPE, SPARE).map_err(|error| error.to_string())?;
    content.with_chunk_classes(CHUNK).map_err(|error| error.to_string())
}

/// All that outlives a server.
fn parts(content: &Loaded<HashTable>) -> [Arc<Memory>; 2] {
    let classes = content.chunk_classes.as_ref().expect("it was made with one");
    [&content.region, classes].map(Arc::clone)
}

fn bytes_of(memory: [Arc<Memory>; 2]) -> [Vec<u8>; 2] {
    memory.map(|memory| {
        let mut bytes = Vec::new();
        memory.append(0, memory.len() as usize, &mut bytes).expect("it is as long");
        bytes
    })
}
