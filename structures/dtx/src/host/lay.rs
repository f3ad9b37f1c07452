//! Bulk load: tables laid out from keys, on all of their servers.
//!
//! The pairs are the first table's, as for all that comes by the library or by commands; the other tables are empty. A key goes to the next slot
//! of its node, on each replica. So what a load writes does not depend on anything but the pairs.

use fatbtree_memserver::grpc::LoadData;
use fatbtree_memserver::{LaidOut, LayError, Laying, Writes};
use fatbtree_remote_memory::{GlobalAddress, name_of};

use crate::error::DtxError;
use crate::item::{BODY, Presence, next_version, write_body};
use crate::layout::{LOAD, NODE_HEAD, PAIRS, Place, STATE, Shape, WHOLE};
use crate::value::pack;

impl From<DtxError> for LayError {
    fn from(error: DtxError) -> Self {
        Self::Refused(error.into())
    }
}

/// Lays out tables for [`Part::lay`](fatbtree_memserver::Part::lay).
pub(super) fn lay(
    of: &Laying<Shape>,
    data: &dyn LoadData,
    write: &mut Writes<'_>,
) -> Result<LaidOut, LayError> {
    let shape = of.shape;
    shape.check().map_err(|bad| LayError::Refused(bad.into()))?;
    let keys = data.keys();
    let mut nodes: Vec<(u32, usize)> =
        keys.iter().enumerate().map(|(at, &key)| (shape.node_of(PAIRS, key), at)).collect();
    nodes.sort_unstable();
    let table = shape.tables()[usize::from(PAIRS)];
    let (mut node, mut value) = (Vec::new(), Vec::new());
    for of_node in nodes.chunk_by(|one, other| one.0 == other.0) {
        if let Some(&(_, at)) = of_node.get(usize::from(table.slots)) {
            return Err(DtxError::Full { table: PAIRS, key: keys[at] }.into());
        }
        let version = next_version(0, 0);
        node.clear();
        node.resize(BODY, 0);
        write_body(&mut node, version, 0, Presence::Present, &[]);
        for (slot, &(_, at)) in (0..).zip(of_node) {
            value.clear();
            data.append(at, &mut value);
            let packed = pack(&value, table.value_bytes.into())?;
            node.resize((NODE_HEAD + slot * table.item_bytes()) as usize + BODY, 0);
            write_body(&mut node, version, keys[at], Presence::Present, &packed);
        }
        let place = Place { table: PAIRS, node: of_node[0].0, slot: None };
        for rank in 0..shape.replicas() {
            write(shape.address(place, rank), &node)?;
        }
    }
    let load = name_of(of.generations.iter().copied());
    for &(server, _) in &of.generations {
        write(GlobalAddress::new(server, STATE), &WHOLE.to_le_bytes())?;
        write(GlobalAddress::new(server, LOAD), &load.to_le_bytes())?;
    }
    // The region has all of its nodes from the beginning: nothing lies in chunks.
    Ok(LaidOut { chunks: of.generations.iter().map(|&(server, _)| (server, Vec::new())).collect() })
}
