//! The structures that lie over all memory servers: for each a [`Kind`], and an arm of [`with_kind!`].
//!
//! ```text
//!   word of the cluster file ──► with_kind! ──► a Kind: client (a Spread), part, shape ──► library, processes, commands
//! ```
//!
//! Commands and the library are generic over the kind, and name no structure. Trees are not among the kinds: they are opened from the
//! descriptions of all servers, which build them when they are loaded.

use fatbtree_dolphin::CacheStats;
use fatbtree_dtx::AddressStats;
use fatbtree_memserver::Part;
use fatbtree_memserver::grpc::Describe;
use fatbtree_race::PlaceStats;
use fatbtree_remote_memory::{Spread, Structure};
use fatbtree_verbs::Verbs;
use fatbtree_verbs::plain::PlainDevice;

/// Word of a structure in cluster files and on command lines.
pub use fatbtree_topology::Structure as Word;

/// All words.
pub const WORDS: [Word; 4] = [Word::Tree, Word::Hash, Word::Dolphin, Word::Dtx];

/// A structure over all memory servers, at both ends.
pub trait Kind: 'static {
    /// The structure as a client uses it.
    type Client<V: Verbs + 'static>: Spread<Verbs = V, Info: Describe>;
    /// One server's part of it.
    type Part: Part;

    /// Name for people: `hash table`.
    const NAME: &'static str = <Self::Client<PlainDevice> as Structure>::NAME;

    /// What a client remembers of it.
    const REMEMBERS: Remembered;

    /// Use of what the client remembers.
    fn cache_use<V: Verbs + 'static>(client: &Self::Client<V>) -> CacheUse;

    /// Shape of a structure over these servers, a bit for each number, where nothing else is asked for.
    fn shape(servers: u32) -> <Self::Part as Part>::Shape;
}

/// What a client remembers of a structure, to save round trips.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remembered {
    /// Places of single keys.
    Places,
    /// Inner nodes.
    Nodes,
}

/// Use of what a client remembers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheUse {
    /// Operations that it led to their key.
    pub hits: u64,
    /// Operations for which it had nothing.
    pub misses: u64,
    /// Operations that it led to a wrong place.
    pub stale: u64,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Places or nodes.
    pub entries: u64,
}

/// RACE's hash table.
#[derive(Debug)]
pub struct Hash;

impl Kind for Hash {
    type Client<V: Verbs + 'static> = fatbtree_race::Table<V>;
    type Part = fatbtree_race::host::HashTable;

    const REMEMBERS: Remembered = Remembered::Places;

    fn cache_use<V: Verbs + 'static>(table: &fatbtree_race::Table<V>) -> CacheUse {
        let PlaceStats { hits, misses, stale, bytes, places: entries } = table.place_stats();
        CacheUse { hits, misses, stale, bytes, entries }
    }

    fn shape(servers: u32) -> fatbtree_race::Shape {
        fatbtree_race::Shape { servers, ..fatbtree_race::Shape::default() }
    }
}

/// Dolphin's hybrid index, for values of any length.
#[derive(Debug)]
pub struct Dolphin;

impl Kind for Dolphin {
    type Client<V: Verbs + 'static> = fatbtree_dolphin::Index<V>;
    type Part = fatbtree_dolphin::host::HybridIndex;

    const REMEMBERS: Remembered = Remembered::Nodes;

    fn cache_use<V: Verbs + 'static>(index: &fatbtree_dolphin::Index<V>) -> CacheUse {
        let CacheStats { hits, misses, stale, nodes: entries, bytes, .. } = index.cache().stats();
        CacheUse { hits, misses, stale, bytes, entries }
    }

    fn shape(servers: u32) -> fatbtree_dolphin::Shape {
        fatbtree_dolphin::Shape { servers, max_value: fatbtree_dolphin::MAX_VALUE }
    }
}

/// Tables of strictly serializable transactions. Its pairs are the first table's.
#[derive(Debug)]
pub struct Dtx;

impl Kind for Dtx {
    type Client<V: Verbs + 'static> = fatbtree_dtx::Tables<V>;
    type Part = fatbtree_dtx::host::HostTables;

    const REMEMBERS: Remembered = Remembered::Places;

    fn cache_use<V: Verbs + 'static>(tables: &fatbtree_dtx::Tables<V>) -> CacheUse {
        let AddressStats { hits, misses, stale, bytes, known: entries } = tables.addresses().stats();
        CacheUse { hits, misses, stale, bytes, entries }
    }

    fn shape(servers: u32) -> fatbtree_dtx::Shape {
        fatbtree_dtx::Shape::of_servers(servers)
    }
}

/// Evaluates an expression with the [`Kind`] of a [`Word`]: `Some` of its value, or `None` for trees.
///
/// ```
/// use fatbtree_registry::{Kind, Word, with_kind};
/// assert_eq!(with_kind!(Word::Hash, K => K::NAME), Some("hash table"));
/// assert_eq!(with_kind!(Word::Tree, K => K::NAME), None);
/// ```
#[macro_export]
macro_rules! with_kind {
    ($word:expr, $kind:ident => $value:expr) => {
        match $word {
            $crate::Word::Tree => None,
            $crate::Word::Hash => {
                type $kind = $crate::Hash;
                Some($value)
            }
            $crate::Word::Dolphin => {
                type $kind = $crate::Dolphin;
                Some($value)
            }
            $crate::Word::Dtx => {
                type $kind = $crate::Dtx;
                Some($value)
            }
        }
    };
}

/// Servers of a structure are numbered below this: a bit for each in the word of their set.
pub use fatbtree_race::MAX_SERVERS;
