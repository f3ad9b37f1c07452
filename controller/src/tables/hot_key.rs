//! `hot_key`: a key that is asked for often, at the client's edge switch → where its record lies, or its leaf. The same for all epochs.

use std::net::Ipv4Addr;

use super::NodeKind;
use super::TableError;
use super::declare::{self, Field, action};
use super::found::{Reader, Writer};

/// Key of an entry. Reads that ask for a node (bit 0 of the rkey) have no entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The memory server.
    pub dst_ip: Ipv4Addr,
    /// The key of the tree.
    pub key: u64,
}

impl declare::Key for Key {
    const TABLES: &'static [&'static str] = &["hot_key"];
    const FIELDS: &'static [Field] = &[
        Field::exact::<Ipv4Addr, Ipv4Addr>("dst_ip"),
        Field::exact::<u64, u64>("key"),
        Field::exact::<bool, bool>("wants_node"),
    ];

    fn write(self, row: Writer<'_>) -> Writer<'_> {
        row.exact::<Ipv4Addr, _>(self.dst_ip).exact::<u64, _>(self.key).exact::<bool, _>(false)
    }

    fn read(mut row: Reader<'_>) -> Result<Self, TableError> {
        let key = Self { dst_ip: row.exact::<Ipv4Addr, _>()?, key: row.exact::<u64, _>()? };
        if row.exact::<bool, _>()? {
            return Err(row.foreign("expected `wants_node` to be 0, found 1"));
        }
        Ok(key)
    }
}

action! {
    /// Go there at once.
    pub struct Action = "go_to" {
        /// The record, or the leaf.
        address: u64,
        /// Whether it is a leaf, of which a slice may be read.
        kind: NodeKind,
    }
}
