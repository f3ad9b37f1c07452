//! What a memory server does for tables: it makes empty ones, or memory to be filled from other servers.
//!
//! It reads no table. Nothing of a table is ever lost with a client: each item has its slot, tables have no chunks, and no client takes blocks. So a
//! server sweeps nothing ([`Tenant::swept`]).
//!
//! Clients need [`Access::ALL`](fatbtree_verbs::Access::ALL) in
//! [`ServerOptions::access`](fatbtree_memserver::ServerOptions::access): locks are taken by atomics.

mod lay;
mod part;

use std::convert::Infallible;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use fatbtree_memserver::{Class, Found, Loaded, Origin, Seen, Shape as Classes, Tenant};
use fatbtree_remote_memory::{CommonError, GlobalAddress, HEADER_BYTES, RegionHeader, SizeClass};
use fatbtree_verbs::Memory;

use crate::error::DtxError;
use crate::item::{BODY, Presence, next_version, write_body};
use crate::layout::{BEGUN, BadShape, EMPTIED, ERA, LOAD, Place, STATE, STRUCTURE, Shape, WHOLE};
use crate::seat::LOG_SUM;

pub use part::TableCounts;

/// Content of a server's memory at its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Empty tables. All servers of new tables are made so.
    Empty,
    /// Empty memory of a process that does not know whether there were tables before. Where no server of the tables has any, the first client
    /// makes new ones; otherwise clients fill the server.
    Begun,
    /// Empty memory that an operator has asked for. All servers of the tables are to begin anew, one after the other.
    Emptied,
    /// None: the server has lost its memory. Clients fill it from the other servers before the next transaction.
    Lost,
}

impl Content {
    /// Word of a server's state.
    const fn state(self) -> u64 {
        match self {
            Self::Empty => WHOLE,
            Self::Begun => BEGUN,
            Self::Emptied => EMPTIED,
            Self::Lost => 0,
        }
    }
}

/// Errors from making tables.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// Such tables cannot be.
    #[error(transparent)]
    Shape(#[from] BadShape),
    /// The server is not one of the tables'.
    #[error("memory server {0} is not in the tables' list of servers; add its bit to the shape")]
    Server(u16),
    /// The system gives no memory.
    #[error("no memory for a region of {bytes} bytes: {why}")]
    Memory {
        /// Bytes of the region.
        bytes: u64,
        /// The system's reason.
        why: io::Error,
    },
}

/// One server's part of the tables.
#[derive(Clone, Debug)]
pub struct HostTables {
    server: u16,
    shape: Shape,
    region: Arc<Memory>,
}

impl HostTables {
    /// A region for a server's part of the tables. `generation` is one more each time that the server has lost its memory.
    ///
    /// # Errors
    /// When such tables cannot be, or there is no memory.
    pub fn make(
        server: u16,
        shape: Shape,
        content: Content,
        generation: u64,
    ) -> Result<Loaded<Self>, MakeError> {
        Self::make_in(server, shape, content, generation, |bytes| {
            Memory::anonymous(bytes).map_err(|why| MakeError::Memory { bytes, why })
        })
    }

    /// The same in memory that `region` gives.
    fn make_in<E: From<MakeError>>(
        server: u16,
        shape: Shape,
        content: Content,
        generation: u64,
        region: impl FnOnce(u64) -> Result<Memory, E>,
    ) -> Result<Loaded<Self>, E> {
        shape.check().map_err(MakeError::from)?;
        if shape.position(server).is_none() {
            return Err(MakeError::Server(server).into());
        }
        let bytes = shape.region_bytes();
        let region: Arc<Memory> = region(bytes)?.into();
        let write = |offset: u64, bytes: &[u8]| {
            region.write(offset, bytes).expect("the region has room for its first lines");
        };
        write(0, &shape.head(server, generation));
        write(STATE, &content.state().to_le_bytes());
        Ok(Loaded {
            server,
            region: Arc::clone(&region),
            spare: bytes..bytes,
            generation,
            // Whether there were other tables before is no question of the server's: its clients fill it, if there were.
            origin: Origin::Meant,
            chunk_classes: None,
            shape: classes(),
            tenant: Self { server, shape, region },
        })
    }
}

/// Tables have no chunks.
fn classes() -> Classes {
    Classes { classes: vec![Class { name: "none", ..Class::default() }], ..Classes::default() }
}

impl HostTables {
    /// Puts a record into a server's region, before it is served. Every server of the tables must be given the same records in the same
    /// order, and takes those of which it has a replica. Returns the slot; `None` if it has none.
    ///
    /// # Errors
    /// When there is no such table, the value has another length, or the key's node is full.
    pub fn put(loaded: &Loaded<Self>, table: u8, key: u64, value: &[u8]) -> Result<Option<u8>, DtxError> {
        let (shape, server) = (loaded.tenant.shape, loaded.tenant.server);
        let of = *shape.tables().get(usize::from(table)).ok_or(DtxError::NoTable(table))?;
        if value.len() != usize::from(of.value_bytes) {
            return Err(DtxError::Length { found: value.len(), expected: of.value_bytes.into() });
        }
        let node = Place { table, node: shape.node_of(table, key), slot: None };
        let position = shape.position(server).ok_or(CommonError::UnknownServer(server))?;
        let Some(rank) = shape.rank_on(node, position) else { return Ok(None) };
        let at = |slot: Option<u8>| shape.address(Place { slot, ..node }, rank).offset() + BODY as u64;
        let inside = "the region has room for all nodes";
        for slot in 0..of.slots {
            let mut version = [0; 8];
            loaded.region.read(at(Some(slot)), &mut version).expect(inside);
            if version == [0; 8] {
                let version = next_version(0, 0);
                let mut body = Vec::new();
                write_body(&mut body, version, 0, Presence::Present, &[]);
                loaded.region.write(at(None), &body).expect(inside);
                body.clear();
                write_body(&mut body, version, key, Presence::Present, value);
                loaded.region.write(at(Some(slot)), &body).expect(inside);
                return Ok(Some(slot));
            }
        }
        Err(DtxError::Full { table, key })
    }

    /// Whether a region has all of its items. One that was made as [`Content::Lost`] has when clients have filled it.
    #[must_use]
    pub fn is_whole(loaded: &Loaded<Self>) -> bool {
        loaded.tenant.state() == WHOLE
    }

    /// Word of the state.
    fn state(&self) -> u64 {
        self.word(STATE)
    }

    fn word(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        self.region.read(at, &mut word).expect("the region has room for its first lines and its seats");
        u64::from_le_bytes(word)
    }
}

impl Tenant for HostTables {
    type Description = Shape;
    type Request = Infallible;

    fn description(&self) -> Shape {
        self.shape
    }

    fn root(&self) -> GlobalAddress {
        GlobalAddress::new(self.server, HEADER_BYTES as u64)
    }

    /// No client changes the header.
    fn see(&mut self, header: &[u8; HEADER_BYTES]) -> Seen {
        if RegionHeader::parse(header, &STRUCTURE).is_some() { Seen::Same } else { Seen::Refused }
    }

    /// Tables have no chunks.
    fn find(&self, _class: SizeClass, within: Range<u64>) -> Found {
        Found::Nothing(within.end)
    }

    /// What was loaded has a name, and what was filled, an era on another server. All else came by a transaction, which has left a log in its
    /// seat.
    fn is_used(&self, _chunks: u64) -> bool {
        let log = self.shape.seat_layout().log();
        let mut logs = (0..self.shape.seats).map(|seat| self.shape.seat(seat) + log + LOG_SUM);
        self.state() == WHOLE
            && (self.word(LOAD) != 0 || self.word(ERA) != 0 || logs.any(|at| self.word(at) != 0))
    }

    fn handle(&mut self, request: Infallible) {
        match request {}
    }

    /// Tables of the same shape.
    fn may_follow(&self, former: &Self) -> bool {
        (self.server, self.shape) == (former.server, former.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::TableShape;

    #[test]
    fn a_region_says_what_lies_in_it() {
        let shape = Shape::new(&[TableShape::for_items(100, 8)], 0b101, 1).unwrap();
        let contents = [
            (Content::Empty, WHOLE),
            (Content::Lost, 0),
            (Content::Begun, BEGUN),
            (Content::Emptied, EMPTIED),
        ];
        for (content, state) in contents {
            let Loaded { region, mut tenant, .. } = HostTables::make(2, shape, content, 3).unwrap();
            let mut head = [0; 2 * HEADER_BYTES];
            region.read(0, &mut head).unwrap();
            assert_eq!(Shape::of_head(&head), Some(shape));
            let line = head.first_chunk().unwrap();
            assert_eq!((tenant.see(line), tenant.see(&[0; HEADER_BYTES])), (Seen::Same, Seen::Refused));
            let mut word = [0; 8];
            region.read(STATE, &mut word).unwrap();
            assert_eq!(u64::from_le_bytes(word), state);
        }
        assert!(matches!(HostTables::make(1, shape, Content::Empty, 1), Err(MakeError::Server(1))));
    }
}
