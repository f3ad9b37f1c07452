//! Errors from loading a tree.

use fatbtree_blink::layers::MAX_KEY_BYTES;
use fatbtree_blink::{KeyRange, Keys, MAX_VALUE};

/// Errors from loading a tree.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum LoadError {
    /// One key twice.
    #[error("key {key:#x} occurs twice: each key has one value; remove one of the two")]
    DuplicateKey {
        /// The key.
        key: u64,
    },
    /// Keys out of order.
    #[error(
        "key {key:#x} at position {position} is smaller than the key before it: sort the keys first (`sort_keys`)"
    )]
    Unsorted {
        /// The key.
        key: u64,
        /// Its place among the keys.
        position: usize,
    },
    /// Keys of bytes out of order.
    #[error(
        "the key at position {position} is not above the one before it: sort the keys, and give each one value"
    )]
    BytesOrder {
        /// Its place among the keys.
        position: usize,
    },
    /// A key of too many bytes.
    #[error("the key at position {position} has {found} bytes; up to {MAX_KEY_BYTES} are possible")]
    KeyBytes {
        /// Its place among the keys.
        position: usize,
        /// Its length.
        found: usize,
    },
    /// A key and a value of too many bytes.
    #[error(
        "key and value at position {position} have {found} bytes together; up to {MAX_VALUE} are possible, with 2 for the length of the key"
    )]
    PairBytes {
        /// Its place among the keys.
        position: usize,
        /// Their length.
        found: usize,
    },
    /// Bytes that are no pair.
    #[error("the bytes at position {position} are no key with a value")]
    NoPair {
        /// Their place among the keys.
        position: usize,
    },
    /// Keys of the other kind.
    #[error("the tree is for keys that are {expected}, and others were given")]
    OtherKeys {
        /// What its keys are.
        expected: Keys,
    },
    /// A key that belongs to another server.
    #[error("key {key:#x} lies outside of the partition's range {range}")]
    OutOfRange {
        /// The key.
        key: u64,
        /// The partition's keys.
        range: KeyRange,
    },
    /// Fill factor.
    #[error("fill factor {found}: expected a number above 0 and at most 1")]
    Fill {
        /// The requested value.
        found: f64,
    },
    /// A value that does not have the size of all in-line values.
    #[error(
        "value of key {key:#x} has {found} bytes, but values in leaves have {expected}: keep values out of line"
    )]
    InlineLength {
        /// The key.
        key: u64,
        /// Bytes of its value.
        found: u32,
        /// Bytes of every value.
        expected: u8,
    },
    /// More bytes than an offset can name, or than this machine can address.
    #[error("the tree needs {bytes} bytes, a region has at most {max}: split the keys over more servers")]
    TooLarge {
        /// Bytes needed; saturated.
        bytes: u64,
        /// Bytes of the largest region.
        max: u64,
    },
    /// More bytes than the server is allowed.
    #[error(
        "the tree needs a region of {bytes} bytes, the server takes up to {limit}: start it with a larger --region-bytes, or split the keys over more servers"
    )]
    OverLimit {
        /// Bytes needed.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A range without keys.
    #[error("partition range {range} is empty: expected the low key below the high key")]
    EmptyRange {
        /// The range.
        range: KeyRange,
    },
    /// Fewer keys than servers.
    #[error(
        "too few keys to be split over memory servers, {keys} for {servers}: each needs at least one, and there must be one server"
    )]
    TooFewKeys {
        /// Keys given.
        keys: usize,
        /// Servers asked for.
        servers: u16,
    },
    /// Keys of bytes that cannot be divided.
    #[error(
        "the keys differ too little in eight bytes behind what nearly all of them begin with to be divided among {servers} memory servers: take          fewer servers"
    )]
    TooAlike {
        /// Servers asked for.
        servers: u16,
    },
    /// The region is still in use.
    #[error(
        "the region to be filled anew is still shared: stop its server and drop every other handle first"
    )]
    Shared,
    /// The region to be filled anew is too small.
    #[error(
        "the tree needs a region of {needed} bytes, the one to be filled anew has {found}: use a larger one"
    )]
    RegionTooSmall {
        /// Bytes needed, padding included.
        needed: u64,
        /// Bytes there.
        found: u64,
    },
    /// The region to be filled anew holds something else.
    #[error(
        "the region to be filled anew begins with magic {found:#x}, which is no superblock: use new memory"
    )]
    Foreign {
        /// The value in the place of the superblock's magic.
        found: u64,
    },
    /// Borders that do not divide the keys.
    #[error(
        "{servers} partitions cannot be made: expected 1 to 65,535 low keys in strictly ascending order, the first of them 0"
    )]
    Borders {
        /// Low keys given.
        servers: usize,
    },
    /// More memory than the machine gives.
    #[error(
        "cannot get {bytes} bytes of memory for the region: use fewer keys, shorter values or more machines"
    )]
    OutOfMemory {
        /// Bytes needed.
        bytes: u64,
    },
}
