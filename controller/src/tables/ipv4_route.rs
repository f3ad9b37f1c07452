//! `ipv4_route`: ordinary routing by longest prefix.

use std::net::Ipv4Addr;

use fatbtree_topology::Prefix;

use super::TableError;
use super::declare::{self, Field, action};
use super::found::{Reader, Writer};

/// Key of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Destinations.
    pub prefix: Prefix,
}

impl declare::Key for Key {
    const TABLES: &'static [&'static str] = &["ipv4_route"];
    const FIELDS: &'static [Field] = &[Field::lpm::<Ipv4Addr, Ipv4Addr>("dst_ip")];

    fn write(self, row: Writer<'_>) -> Writer<'_> {
        row.lpm::<Ipv4Addr, _>(self.prefix.address(), self.prefix.len())
    }

    fn read(mut row: Reader<'_>) -> Result<Self, TableError> {
        let (address, length) = row.lpm::<Ipv4Addr, _>()?;
        Ok(Self { prefix: Prefix::new(address, length) })
    }
}

action! {
    /// Forward.
    pub struct Action = "forward" {
        /// The port.
        port: u16,
    }
}
