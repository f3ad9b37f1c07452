//! The structures: for each a [`Kind`], and an arm of [`with_kind!`].
//!
//! ```text
//!   word of the cluster file ──► with_kind!   ──► a Kind: its client ──► library, shell, bench
//!                            └─► with_spread! ──► a SpreadKind, which lies over all memory servers: its part, its shape ──► memory servers, loads
//! ```
//!
//! Commands and the library are generic over the kind, and name no structure. Trees are a kind whose memory servers are not a [`SpreadKind`]'s:
//! each has a tree of its own keys, which it builds when it is loaded, and answers queries about.

use fatbtree_memserver::Part;
use fatbtree_memserver::grpc::Describe;
use fatbtree_remote_memory::{Keys, Spread, SpreadClient, Structure, StructureClient};
use fatbtree_verbs::Verbs;
use fatbtree_verbs::plain::PlainDevice;

/// Word of a structure in cluster files and on command lines.
pub use fatbtree_topology::Structure as Word;

/// All words.
pub const WORDS: [Word; 4] = [Word::Tree, Word::Hash, Word::Dolphin, Word::Dtx];

/// A structure as its clients use it.
pub trait Kind: 'static {
    /// The client.
    type Client<V: Verbs + 'static>: StructureClient<Verbs = V, Info: Describe>;

    /// Name for people: `hash table`.
    const NAME: &'static str = <Self::Client<PlainDevice> as Structure>::NAME;
}

/// A structure over all memory servers, at both ends.
pub trait SpreadKind: 'static {
    /// The structure as a client uses it.
    type Structure<V: Verbs + 'static>: Spread<Verbs = V, Info: Describe>;
    /// One server's part of it.
    type Part: Part;

    /// Shape of a structure over these servers, a bit for each number, where nothing else is asked for.
    fn shape(servers: u32) -> <Self::Part as Part>::Shape;

    /// One whose keys are bytes. `None`: keys of this structure are numbers.
    fn with_byte_keys(_servers: u32) -> Option<ByteKeys<<Self::Part as Part>::Shape>> {
        None
    }
}

/// A structure whose keys are bytes, as it is loaded.
#[derive(Debug)]
pub struct ByteKeys<S> {
    /// Its shape.
    pub shape: S,
    /// The number by which a load has a key. Its value there is that of a [record](fatbtree_remote_memory::byte_keys): key and value.
    pub word_of: fn(&[u8]) -> u64,
}

impl<K: SpreadKind> Kind for K {
    type Client<V: Verbs + 'static> = SpreadClient<K::Structure<V>>;
}

/// Trees, which switches lead clients through.
#[derive(Debug)]
pub struct Tree;

impl Kind for Tree {
    type Client<V: Verbs + 'static> = fatbtree_blink_client::Client<V>;
}

/// RACE's hash table.
#[derive(Debug)]
pub struct Hash;

impl SpreadKind for Hash {
    type Structure<V: Verbs + 'static> = fatbtree_race::Table<V>;
    type Part = fatbtree_race::host::HashTable;

    fn shape(servers: u32) -> fatbtree_race::Shape {
        fatbtree_race::Shape { servers, ..fatbtree_race::Shape::default() }
    }

    fn with_byte_keys(servers: u32) -> Option<ByteKeys<fatbtree_race::Shape>> {
        let shape = fatbtree_race::Shape { keys: Keys::Bytes, ..Self::shape(servers) };
        Some(ByteKeys { shape, word_of: fatbtree_race::word_of })
    }
}

/// Dolphin's hybrid index, for values of any length.
#[derive(Debug)]
pub struct Dolphin;

impl SpreadKind for Dolphin {
    type Structure<V: Verbs + 'static> = fatbtree_dolphin::Index<V>;
    type Part = fatbtree_dolphin::host::HybridIndex;

    fn shape(servers: u32) -> fatbtree_dolphin::Shape {
        fatbtree_dolphin::Shape { servers, max_value: fatbtree_dolphin::MAX_VALUE }
    }
}

/// Tables of strictly serializable transactions. Its pairs are the first table's.
#[derive(Debug)]
pub struct Dtx;

impl SpreadKind for Dtx {
    type Structure<V: Verbs + 'static> = fatbtree_dtx::Tables<V>;
    type Part = fatbtree_dtx::host::HostTables;

    fn shape(servers: u32) -> fatbtree_dtx::Shape {
        fatbtree_dtx::Shape::of_servers(servers)
    }
}

/// Evaluates an expression with the [`SpreadKind`] of a [`Word`]: `Some` of its value, or `None` for trees.
///
/// ```
/// use fatbtree_registry::{Kind, Word, with_spread};
/// assert_eq!(with_spread!(Word::Hash, K => K::NAME), Some("hash table"));
/// assert_eq!(with_spread!(Word::Tree, K => K::NAME), None);
/// ```
#[macro_export]
macro_rules! with_spread {
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

/// Evaluates an expression with the [`Kind`] of a [`Word`].
///
/// ```
/// use fatbtree_registry::{Kind, Word, with_kind};
/// assert_eq!(with_kind!(Word::Tree, K => K::NAME), "tree");
/// ```
#[macro_export]
macro_rules! with_kind {
    ($word:expr, $kind:ident => $value:expr) => {
        match $crate::with_spread!($word, $kind => $value) {
            Some(value) => value,
            None => {
                type $kind = $crate::Tree;
                $value
            }
        }
    };
}

/// Servers of a structure are numbered below this: a bit for each in the word of their set.
pub use fatbtree_race::MAX_SERVERS;
