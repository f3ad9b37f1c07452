//! The tables' part of a memory server's process: made, described, kept in a folder and found there again.
//!
//! A server whose folder is kept goes on with its items, and clients recover what dead coordinators have left there. One that begins without
//! a folder, or with an empty one, is [`Content::Begun`]: clients fill it, or make new tables. So its memory is never refused in the place
//! of a lost one.

use std::fmt;
use std::io;
use std::sync::Arc;

use fatbtree_memserver::grpc::{Describe, LoadData, MessageError};
use fatbtree_memserver::{
    Counts, FolderError, FoundRegion, LaidOut, LayError, Laying, Loaded, Origin, Part, PartOptions, Writes,
};
use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES, RegionHeader, ServerSet};
use fatbtree_verbs::Memory;
use serde::{Deserialize, Serialize};

use super::{Content, HostTables, MakeError, classes};
use crate::layout::{BEGUN, EMPTIED, NEW, STATE, STRUCTURE, Shape, WHOLE};

/// Shape of tables, as a folder's `state.json` says it for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TableCounts {
    /// The tables' servers, a bit for each number.
    pub servers: u32,
    /// Backups of each item.
    pub backups: u8,
    /// Transactions that may be under way at once.
    pub seats: u16,
    /// Items that one transaction may write.
    pub writes: u8,
    /// Nodes of each table.
    pub nodes: Vec<u32>,
    /// Slots of a node of each table.
    pub slots: Vec<u8>,
    /// Bytes of a value of each table.
    pub value_bytes: Vec<u16>,
}

impl Counts for TableCounts {
    const STRUCTURE: &'static str = Shape::STRUCTURE;
}

impl From<Shape> for TableCounts {
    fn from(shape: Shape) -> Self {
        let Shape { servers, backups, seats, writes, .. } = shape;
        let tables = shape.tables().iter();
        Self {
            servers,
            backups,
            seats,
            writes,
            nodes: tables.clone().map(|table| table.nodes).collect(),
            slots: tables.clone().map(|table| table.slots).collect(),
            value_bytes: tables.map(|table| table.value_bytes).collect(),
        }
    }
}

/// The description is the first two lines of a region, but for its generation: all of the shape is there.
impl Describe for Shape {
    const STRUCTURE: &'static str = "dtx";

    fn encode(&self) -> Vec<u8> {
        self.head(0, 0).into()
    }

    fn decode(_server: u16, description: &[u8]) -> Result<Self, MessageError> {
        let is_long = description.len() == 2 * HEADER_BYTES;
        Self::of_head(description).filter(|_| is_long).ok_or_else(|| {
            MessageError::structure(
                "the description is no transactional table's of this version: do both ends run the same version?",
            )
        })
    }
}

/// Words for people: `4 tables for 600000 items, 1 backup of each, memory servers 0, 1`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = |count: usize| if count == 1 { "" } else { "s" };
        let (tables, backups) = (self.tables().len(), usize::from(self.backups));
        let items: u64 = self.tables().iter().map(|table| table.items()).sum();
        let servers = ServerSet(self.servers);
        write!(
            f,
            "{tables} table{} for {items} items, {backups} backup{} of each, {servers}",
            s(tables),
            s(backups)
        )
    }
}

/// The part of tables is one of a structure over several servers.
impl Part for HostTables {
    type Shape = Shape;
    type Counts = TableCounts;
    type MakeError = MakeError;

    fn shape(&self) -> Shape {
        self.shape
    }

    /// The region has all of its nodes from the beginning.
    fn spare_bytes(_: &PartOptions<Shape>) -> u64 {
        0
    }

    /// Each server has the first lines: the first server's are read.
    fn begin(shape: &Shape) -> GlobalAddress {
        GlobalAddress::new(shape.server(0), HEADER_BYTES as u64)
    }

    fn make_with<E: From<MakeError>>(
        options: &PartOptions<Shape>,
        region: impl FnOnce(u64) -> Result<Memory, E>,
    ) -> Result<Loaded<Self>, E> {
        let &PartOptions { server, shape, generation, origin, .. } = options;
        let content = match origin {
            Origin::Meant => Content::Emptied,
            Origin::Begun => Content::Begun,
            Origin::Lost => Content::Lost,
        };
        Self::make_in(server, shape, content, generation, region)
    }

    fn no_memory(bytes: u64, why: io::Error) -> MakeError {
        MakeError::Memory { bytes, why }
    }

    fn found(
        server: u16,
        found: FoundRegion<TableCounts>,
        _chunk_bytes: u64,
    ) -> Result<Loaded<Self>, FolderError> {
        let mut head = [0; 2 * HEADER_BYTES];
        let is_read = found.region.read(0, &mut head).is_ok();
        let header = RegionHeader::parse(&found.first_line()?, &STRUCTURE);
        let (Some(header), Some(shape)) = (header, Shape::of_head(&head).filter(|_| is_read)) else {
            return Err(found.damaged("it does not begin with the first lines of a transactional table"));
        };
        found.check_header(&header, shape.region_bytes(), &shape.into())?;
        if shape.position(server).is_none() {
            return Err(found.damaged(MakeError::Server(server)));
        }
        let mut state = [0; 8];
        let is_read = found.region.read(STATE, &mut state).is_ok();
        if !is_read || ![0, WHOLE, BEGUN, EMPTIED, NEW].contains(&u64::from_le_bytes(state)) {
            return Err(found.damaged(format_args!("offset {STATE}: no state of a server")));
        }
        let tenant = Self { server, shape, region: Arc::clone(&found.region) };
        Ok(found.into_loaded(server, classes(), tenant))
    }

    fn lay(of: &Laying<Shape>, data: &dyn LoadData, write: &mut Writes<'_>) -> Result<LaidOut, LayError> {
        super::lay::lay(of, data, write)
    }
}
