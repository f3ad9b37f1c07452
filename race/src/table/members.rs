//! Whether the servers of a table fit together.
//!
//! A server that begins anew without what it held knows nothing of the other parts. Slots on other servers lead to its former blocks, and
//! would lead to new ones. So the table's servers are named once, by the generations of their regions: the first client that opens the table
//! puts a word of all generations beside the directory, and every client compares. A table of one server needs no such word.

use std::rc::Rc;

use fatbtree_remote::{GlobalAddress, HEADER_BYTES, RegionHeader, RemoteMemory, mix};
use fatbtree_verbs::Verbs;

use crate::error::{Stop, TableError};
use crate::layout::{MEMBERS, STRUCTURE, Shape, behind};

/// Checks that all servers hold parts of one table.
pub(super) async fn fit_together<V: Verbs>(
    memory: &Rc<RemoteMemory<V>>,
    shape: &Shape,
    home: GlobalAddress,
    lane: u8,
) -> Result<(), Stop> {
    if shape.servers.count_ones() == 1 {
        return Ok(());
    }
    let mut members = 0;
    for server in (0..32).filter(|server| shape.servers >> server & 1 == 1) {
        let line = memory.read(lane, GlobalAddress::new(server, 0), HEADER_BYTES as u32).await?;
        let line = line.first_chunk().ok_or(Stop::Later)?;
        let header = RegionHeader::parse(line, &STRUCTURE).ok_or(TableError::NoTable { server })?;
        if Shape::of_header(line) != Some((*shape, home)) {
            return Err(TableError::Parted.into());
        }
        members = mix(members ^ mix(header.generation.wrapping_add(u64::from(server) << 48)));
    }
    let members = members | 1;
    match memory.compare_swap(lane, behind(home, MEMBERS), 0, members).await? {
        0 => Ok(()),
        found if found == members => Ok(()),
        _ => Err(TableError::Parted.into()),
    }
}
