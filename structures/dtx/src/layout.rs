//! Where everything lies: region header, tables' shapes, state, seats, nodes.
//!
//! ```text
//!   region of a server
//!   ┌───────────────┐ 0
//!   │ region header │        node                               item, a multiple of 32 bytes
//!   ├───────────────┤ 64     ┌────────────────────┐ 0           ┌──────────────────────┐ 0
//!   │ tables        │        │ head: lock, version│             │ lock                 │
//!   ├───────────────┤ 128    ├────────────────────┤ 64          │ version              │ 8
//!   │ state, era,   │        │ item               │             │ key                  │ 16
//!   │ load          │        │ item               │             │ checksum, presence   │ 24
//!   ├───────────────┤ 192    │ …                  │             │ value                │ 32
//!   │ seats         │        └────────────────────┘             └──────────────────────┘
//!   ├───────────────┤
//!   │ nodes: for each table, and each rank of replica, one array
//!   └───────────────┘
//! ```
//!
//! Node *n* of table *t* has its primary on server number *t + n* of the shape's list, counted round and round, and its backups on the next
//! ones. So each server is the primary of its share of each table, and the backup of others' shares. All servers have the same layout.

use fatbtree_remote_memory::{CONFIGURATION_BYTES, GlobalAddress, HEADER_BYTES, RegionHeader, mix};

use crate::checks::Check;
use crate::item::ITEM_HEAD;
use crate::seat::SeatLayout;
use crate::word::MAX_SEATS;

/// Name of the structure in the region's header.
pub const STRUCTURE: [u8; 8] = *b"dtxtable";

/// Maximum number of tables.
pub const MAX_TABLES: usize = 8;

/// Maximum number of memory servers: numbers below this.
pub const MAX_SERVERS: usize = 32;

/// Maximum number of backups of an item.
pub const MAX_BACKUPS: u8 = 3;

/// Maximum length of a value in bytes.
pub const MAX_VALUE: u16 = 512;

/// Maximum number of items of a node.
pub const MAX_SLOTS: u8 = 64;

/// Maximum number of bytes of a node, which one READ brings.
pub const MAX_NODE_BYTES: u64 = 4096;

/// Maximum number of items that a transaction writes.
pub const MAX_WRITES: u8 = 15;

/// Table of the pairs, where tables are one of several structures of keys and values.
pub(crate) const PAIRS: u8 = 0;

/// Tables of [`Shape::of_servers`].
pub const TABLES_OF_SERVERS: usize = 4;

/// Items of each of these tables. Four tables with a backup take 360 MB of address space on each of two servers, and memory as they are filled.
pub const ITEMS: u32 = 150_000;

/// Offset of the state's word: [`WHOLE`]; or 0, [`BEGUN`], [`EMPTIED`] or [`NEW`] while the server is to be filled, or new tables are made.
pub(crate) const STATE: u64 = 128;

/// Content of the state's word when the server has all of its items.
pub(crate) const WHOLE: u64 = 0x656c_6f68_7721;

/// Content of the state's word when the server has begun with empty memory, and does not know whether it had items before.
pub(crate) const BEGUN: u64 = 0x6e75_6765_6221;

/// Content of the state's word when an operator has emptied the server.
pub(crate) const EMPTIED: u64 = 0x6569_7470_6d21;

/// Content of the state's word while new tables are made on all servers.
pub(crate) const NEW: u64 = 0x7765_6e21;

/// Offset of the era's word: a name that changes each time that another server is filled.
pub(crate) const ERA: u64 = STATE + 8;

/// Offset of the word that names the bulk load whose items the server has; 0 where clients have made the tables. All whole servers have the same.
pub(crate) const LOAD: u64 = STATE + 16;

/// Seats of a server beside those of the shape, for recoveries only. No log ever lies in one, so a dead client's is free for others at once.
/// The number bounds the clients that recover transactions at one time and have no other seat.
pub const SPARE_SEATS: u16 = 16;

/// Maximum number of seats of a shape.
pub const MOST_SEATS: u16 = MAX_SEATS - SPARE_SEATS;

/// Bytes of a node before its first item.
pub(crate) const NODE_HEAD: u64 = 64;

const TABLES: u64 = 64;
const SEATS: u64 = 192;
const FORMAT: u8 = 2;

/// Shape of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TableShape {
    /// Nodes of the table; a key belongs to one of them by its hash.
    pub nodes: u32,
    /// Bytes of each value.
    pub value_bytes: u16,
    /// Items of a node.
    pub slots: u8,
}

/// Keys of a node on average, in a table for so many items.
const KEYS_OF_NODE: u32 = 6;

impl TableShape {
    /// A table for `items` items. A node has FORD's 22 slots, and 6 keys on average: of ten million nodes, one has more keys than slots.
    #[must_use]
    pub const fn for_items(items: u32, value_bytes: u16) -> Self {
        let slots = 22;
        let nodes = items.div_ceil(KEYS_OF_NODE);
        Self { nodes: if nodes == 0 { 1 } else { nodes }, value_bytes, slots }
    }

    /// Items that the table is for.
    #[must_use]
    pub const fn items(&self) -> u64 {
        self.nodes as u64 * KEYS_OF_NODE as u64
    }

    /// Bytes of an item.
    #[must_use]
    pub const fn item_bytes(&self) -> u64 {
        (ITEM_HEAD as u64 + self.value_bytes as u64).next_multiple_of(32)
    }

    /// Bytes of a node, a multiple of 64.
    #[must_use]
    pub const fn node_bytes(&self) -> u64 {
        NODE_HEAD + (self.slots as u64 * self.item_bytes()).next_multiple_of(64)
    }
}

/// Shape of all tables. It is chosen when they are made, and never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    tables: [TableShape; MAX_TABLES],
    count: u8,
    /// Memory servers of the tables: a bit for each number.
    pub servers: u32,
    /// Backups of each item, on different servers.
    pub backups: u8,
    /// Seats of a server: transactions that may be under way at once, of all clients.
    pub seats: u16,
    /// Items that one transaction may write. An insertion counts as two.
    pub writes: u8,
}

/// A shape that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadShape {
    /// No or too many tables.
    #[error("{0} tables: choose 1 to {MAX_TABLES}")]
    Tables(usize),
    /// A table that cannot be.
    #[error(
        "table {0}: choose 1 or more nodes, 1 to {MAX_SLOTS} slots, values of up to {MAX_VALUE} bytes, and nodes of up to {MAX_NODE_BYTES} \
         bytes"
    )]
    Table(usize),
    /// Fewer servers than replicas.
    #[error(
        "{backups} backups on {servers} servers: each replica needs a server of its own, and {MAX_BACKUPS} backups are the most"
    )]
    Backups {
        /// Backups of each item.
        backups: u8,
        /// Servers of the shape.
        servers: u32,
    },
    /// No or too many seats.
    #[error("{0} seats: choose 1 to {MOST_SEATS}")]
    Seats(u16),
    /// No or too many writes.
    #[error("transactions of {0} writes: choose 1 to {MAX_WRITES}")]
    Writes(u8),
}

/// Place of an item: table, node and slot. The head of a node is an item, too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// Number of the table.
    pub table: u8,
    /// Number of the node in its table.
    pub node: u32,
    /// Number of the slot in its node. `None` is the node's head.
    pub slot: Option<u8>,
}

impl Shape {
    /// A shape of these tables on `servers` (a bit for each number) with `backups` of each item.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn new(tables: &[TableShape], servers: u32, backups: u8) -> Result<Self, BadShape> {
        let mut all = [TableShape::default(); MAX_TABLES];
        let bad = BadShape::Tables(tables.len());
        all.get_mut(..tables.len()).ok_or(bad)?.copy_from_slice(tables);
        let shape = Self { tables: all, count: tables.len() as u8, servers, backups, seats: 256, writes: 8 };
        shape.check()?;
        Ok(shape)
    }

    /// The shape on these servers (a bit for each number) where nothing else is asked for: [`TABLES_OF_SERVERS`] tables for [`ITEMS`] items
    /// each, with values of up to 126 bytes after their [length](crate::LENGTH), and a backup of each item where there is another server.
    #[must_use]
    pub fn of_servers(servers: u32) -> Self {
        let mut tables = [TableShape::default(); MAX_TABLES];
        tables[..TABLES_OF_SERVERS].fill(TableShape::for_items(ITEMS, 128));
        let backups = u8::from(servers.count_ones() > 1);
        Self { tables, count: TABLES_OF_SERVERS as u8, servers, backups, seats: 4096, writes: MAX_WRITES }
    }

    /// Whether such tables can be.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn check(&self) -> Result<(), BadShape> {
        if self.count == 0 || usize::from(self.count) > MAX_TABLES {
            return Err(BadShape::Tables(self.count.into()));
        }
        let fits = |table: &TableShape| {
            table.nodes > 0
                && (1..=MAX_SLOTS).contains(&table.slots)
                && table.value_bytes <= MAX_VALUE
                && table.node_bytes() <= MAX_NODE_BYTES
        };
        if let Some(bad) = self.tables().iter().position(|table| !fits(table)) {
            return Err(BadShape::Table(bad));
        }
        let servers = self.servers.count_ones();
        if u32::from(self.backups) >= servers || self.backups > MAX_BACKUPS {
            return Err(BadShape::Backups { backups: self.backups, servers });
        }
        if self.seats == 0 || self.seats > MOST_SEATS {
            return Err(BadShape::Seats(self.seats));
        }
        if self.writes == 0 || self.writes > MAX_WRITES {
            return Err(BadShape::Writes(self.writes));
        }
        Ok(())
    }

    /// The tables, by number.
    #[must_use]
    pub fn tables(&self) -> &[TableShape] {
        &self.tables[..usize::from(self.count)]
    }

    /// Servers of the tables.
    #[must_use]
    pub const fn server_count(&self) -> usize {
        self.servers.count_ones() as usize
    }

    /// The server with the `position`th bit, counted round and round.
    #[must_use]
    pub fn server(&self, position: usize) -> u16 {
        let nth = position % self.server_count().max(1);
        let rest = (0..nth).fold(self.servers, |servers, _| servers & servers.wrapping_sub(1));
        rest.trailing_zeros() as u16
    }

    /// Position of a server in the list. `None` if it is not one of the tables'.
    #[must_use]
    pub const fn position(&self, server: u16) -> Option<usize> {
        if server >= 32 || self.servers >> server & 1 == 0 {
            return None;
        }
        Some((self.servers & ((1 << server) - 1)).count_ones() as usize)
    }

    /// Replicas of each item: ranks below this. The primary has rank 0.
    #[must_use]
    pub const fn replicas(&self) -> usize {
        self.backups as usize + 1
    }

    /// Node of a key.
    #[must_use]
    pub fn node_of(&self, table: u8, key: u64) -> u32 {
        let nodes = self.tables[usize::from(table)].nodes;
        // The high bits of the mixed key decide: a multiplication instead of a division.
        ((u128::from(mix(key.wrapping_add(0x9e37_79b9_7f4a_7c15))) * u128::from(nodes)) >> 64) as u32
    }

    /// Position of the server with the replica of a rank.
    #[must_use]
    pub fn replica(&self, place: Place, rank: usize) -> usize {
        (usize::from(place.table) + place.node as usize + rank) % self.server_count()
    }

    /// Rank of the replica that a server has. `None` if it has none.
    #[must_use]
    pub fn rank_on(&self, place: Place, position: usize) -> Option<usize> {
        (0..self.replicas()).find(|&rank| self.replica(place, rank) == position)
    }

    /// Address of a replica.
    #[must_use]
    pub fn address(&self, place: Place, rank: usize) -> GlobalAddress {
        let table = &self.tables[usize::from(place.table)];
        let within = match place.slot {
            None => 0,
            Some(slot) => NODE_HEAD + u64::from(slot) * table.item_bytes(),
        };
        let counted = if Check::BackupOffsets.on() { rank } else { rank.min(1) };
        let number = u64::from(place.node) / self.server_count() as u64;
        let offset = self.array(place.table, counted) + number * table.node_bytes() + within;
        GlobalAddress::new(self.server(self.replica(place, rank)), offset)
    }

    /// Nodes of a table in each of a server's arrays.
    const fn nodes_per_server(&self, table: &TableShape) -> u64 {
        (table.nodes as u64).div_ceil(self.server_count() as u64)
    }

    /// Offset of a server's array of a table's replicas of one rank.
    fn array(&self, table: u8, rank: usize) -> u64 {
        let bytes = |table: &TableShape| self.nodes_per_server(table) * table.node_bytes();
        let before: u64 = self.tables[..usize::from(table)].iter().map(bytes).sum();
        let own = bytes(&self.tables[usize::from(table)]);
        self.nodes_offset() + before * self.replicas() as u64 + own * rank as u64
    }

    /// Offset of the first node.
    fn nodes_offset(&self) -> u64 {
        SEATS + u64::from(self.all_seats()) * self.seat_layout().bytes()
    }

    /// Seats of a server, spare ones included: numbers below this.
    pub(crate) const fn all_seats(&self) -> u16 {
        self.seats + SPARE_SEATS
    }

    /// Bytes of a server's region.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.tables().iter().fold(self.nodes_offset(), |sum, table| {
            sum + self.nodes_per_server(table) * table.node_bytes() * self.replicas() as u64
        })
    }

    /// Layout of a seat.
    pub(crate) fn seat_layout(&self) -> SeatLayout {
        let value = self.tables().iter().map(|table| table.value_bytes).max().unwrap_or(0);
        SeatLayout { servers: self.server_count() as u8, writes: self.writes, value_bytes: value }
    }

    /// Offset of a seat.
    pub(crate) fn seat(&self, number: u16) -> u64 {
        SEATS + u64::from(number) * self.seat_layout().bytes()
    }

    /// Bytes of a table's values.
    pub(crate) fn value_bytes(&self, table: u8) -> usize {
        self.tables[usize::from(table)].value_bytes.into()
    }

    /// Bytes of an item's value. A node's head has none.
    pub(crate) fn value_bytes_at(&self, place: Place) -> usize {
        if place.slot.is_some() { self.value_bytes(place.table) } else { 0 }
    }

    /// The first two lines of a server's region: header and tables.
    #[must_use]
    pub fn head(&self, server: u16, generation: u64) -> [u8; 2 * HEADER_BYTES] {
        let mut head = [0; 2 * HEADER_BYTES];
        let (line, tables) = head.split_at_mut(HEADER_BYTES);
        for (bytes, table) in tables.chunks_exact_mut(8).zip(self.tables()) {
            bytes[..4].copy_from_slice(&table.nodes.to_le_bytes());
            bytes[4..6].copy_from_slice(&table.value_bytes.to_le_bytes());
            bytes[6] = table.slots;
        }
        let mut configuration = [0; CONFIGURATION_BYTES];
        (configuration[0], configuration[1], configuration[2]) = (FORMAT, self.backups, self.count);
        configuration[3] = self.writes;
        configuration[4..8].copy_from_slice(&self.servers.to_le_bytes());
        configuration[8..10].copy_from_slice(&self.seats.to_le_bytes());
        configuration[12..16].copy_from_slice(&crc32fast::hash(tables).to_le_bytes());
        let root = GlobalAddress::new(server, TABLES);
        let region_bytes = self.region_bytes();
        let header = RegionHeader { structure: STRUCTURE, root, generation, region_bytes, configuration };
        line.copy_from_slice(&header.to_bytes());
        head
    }

    /// Shape that a region's first two lines tell. `None` if no tables of this format lie there.
    #[must_use]
    pub fn of_head(head: &[u8]) -> Option<Self> {
        let (line, tables) = (head.first_chunk::<HEADER_BYTES>()?, head.get(HEADER_BYTES..2 * HEADER_BYTES)?);
        let RegionHeader { configuration, .. } = RegionHeader::parse(line, &STRUCTURE)?;
        let mut all = [TableShape::default(); MAX_TABLES];
        for (bytes, table) in tables.chunks_exact(8).zip(&mut all) {
            table.nodes = u32::from_le_bytes(*bytes.first_chunk()?);
            table.value_bytes = u16::from_le_bytes(*bytes[4..].first_chunk()?);
            table.slots = bytes[6];
        }
        let shape = Self {
            tables: all,
            count: configuration[2],
            servers: u32::from_le_bytes(*configuration[4..].first_chunk()?),
            backups: configuration[1],
            seats: u16::from_le_bytes(*configuration[8..].first_chunk()?),
            writes: configuration[3],
        };
        let is_whole = crc32fast::hash(tables).to_le_bytes() == configuration[12..16];
        (configuration[0] == FORMAT && is_whole && shape.check().is_ok()).then_some(shape)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn shape(tables: &[TableShape], servers: u32, backups: u8) -> Shape {
        Shape { seats: 4, ..Shape::new(tables, servers, backups).expect("the shape is possible") }
    }

    proptest! {
        /// No two replicas share a byte, replicas of an item lie on different servers, and all lie in the region.
        #[test]
        fn replicas_have_places_of_their_own(
            nodes in prop::collection::vec((1..9_u32, 0..90_u16, 1..6_u8), 1..4),
            servers in 1..64_u32,
            backups in 0..3_u8,
        ) {
            let tables: Vec<_> =
                nodes.into_iter().map(|(nodes, value_bytes, slots)| TableShape { nodes, value_bytes, slots }).collect();
            prop_assume!(u32::from(backups) < servers.count_ones());
            let shape = shape(&tables, servers, backups);
            let mut used = BTreeMap::new();
            for (table, of) in (0..).zip(&tables) {
                for node in 0..of.nodes {
                    for slot in std::iter::once(None).chain((0..of.slots).map(Some)) {
                        let place = Place { table, node, slot };
                        for rank in 0..shape.replicas() {
                            let (at, position) = (shape.address(place, rank), shape.replica(place, rank));
                            prop_assert_eq!(shape.position(at.server()), Some(position));
                            prop_assert_eq!(shape.rank_on(place, position), Some(rank));
                            let bytes = if slot.is_some() { of.item_bytes() } else { NODE_HEAD };
                            prop_assert!(at.offset() + bytes <= shape.region_bytes());
                            used.insert(at.raw(), at.raw() + bytes);
                        }
                    }
                }
            }
            let ends: Vec<_> = used.iter().collect();
            prop_assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{:?}", ends);
        }

        #[test]
        fn a_shape_is_read_as_it_was_written(nodes in 1..1_000_u32, value_bytes in 0..100_u16, servers in 1..=u32::MAX, seats in 1..=MOST_SEATS) {
            let shape = Shape { seats, ..shape(&[TableShape { nodes, value_bytes, slots: 7 }; 3], servers, 0) };
            let mut head = shape.head(3, 7);
            prop_assert_eq!(Shape::of_head(&head), Some(shape));
            head[70] ^= 1;
            prop_assert_eq!(Shape::of_head(&head), None);
        }

        #[test]
        fn keys_are_spread(table in 0..1_u8, base: u64) {
            let shape = shape(&[TableShape { nodes: 16, value_bytes: 8, slots: 8 }], 1, 0);
            let mut counts = [0; 16];
            (0..1_600).for_each(|key| counts[shape.node_of(table, base.wrapping_add(key)) as usize] += 1);
            prop_assert!(counts.iter().all(|count| (50..160).contains(count)), "{:?}", counts);
        }
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        let table = TableShape { nodes: 1, value_bytes: 8, slots: 8 };
        assert_eq!(Shape::new(&[], 1, 0), Err(BadShape::Tables(0)));
        assert_eq!(Shape::new(&[TableShape { nodes: 0, ..table }], 1, 0), Err(BadShape::Table(0)));
        assert_eq!(Shape::new(&[table], 1, 1), Err(BadShape::Backups { backups: 1, servers: 1 }));
        assert_eq!(Shape { seats: 0, ..shape(&[table], 1, 0) }.check(), Err(BadShape::Seats(0)));
        assert_eq!(Shape { writes: 16, ..shape(&[table], 1, 0) }.check(), Err(BadShape::Writes(16)));
    }

    #[test]
    fn sizes_are_the_papers() {
        assert_eq!(TableShape { nodes: 1, value_bytes: 8, slots: 22 }.item_bytes(), 64);
        assert_eq!(TableShape { nodes: 1, value_bytes: 48, slots: 22 }.item_bytes(), 96);
    }
}
