//! `--key-type` and `--key-shape`: kinds of keys, and keys of bytes that are made.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use fatbtree_blink::Keys;
use fatbtree_topology::{Cluster, KeyKind};
use fatbtree_workload::byte_keys::{ByteKeys, KeyShape};

/// Kind of the keys of trees.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyType {
    Numbers,
    Bytes,
}

impl From<KeyType> for Keys {
    fn from(of: KeyType) -> Self {
        match of {
            KeyType::Numbers => Self::Numbers,
            KeyType::Bytes => Self::Bytes,
        }
    }
}

/// Kind of the keys with which the memory servers of a cluster begin.
pub(crate) fn keys_of(cluster: &Cluster) -> Keys {
    match cluster.keys() {
        KeyKind::Numbers => Keys::Numbers,
        KeyKind::Bytes => Keys::Bytes,
    }
}

/// The kind of keys that are made.
#[derive(Args, Clone, Copy)]
pub(crate) struct KeyShapeArgument {
    /// Kind of keys of bytes that are made from their numbers and --seed: user:N, UUIDs, URLs, e-mail addresses, names as in cache traces, or
    /// 32 random bytes. Without this, user:N.
    #[arg(long, value_name = "user|uuid|url|email|trace|random", value_parser = words(), conflicts_with = "trace")]
    key_shape: Option<KeyShape>,
}

/// Reader of the words of shapes.
fn words() -> impl TypedValueParser<Value = KeyShape> {
    PossibleValuesParser::new(KeyShape::ALL.map(KeyShape::word)).try_map(|word| word.parse::<KeyShape>())
}

impl KeyShapeArgument {
    /// Whether the command line names one.
    pub(crate) fn is_given(self) -> bool {
        self.key_shape.is_some()
    }

    /// The keys of the shape.
    pub(crate) fn keys(self, seed: u64) -> ByteKeys {
        ByteKeys::new(self.key_shape.unwrap_or(KeyShape::User), seed)
    }
}
