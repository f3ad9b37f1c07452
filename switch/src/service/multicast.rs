//! Multicast groups ("MulticastGroupEntry"). Clone sessions are left to the program.

use std::collections::BTreeSet;

use fatbtree_p4runtime::bytestring;
use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::v1::{
    self, PacketReplicationEngineEntry, packet_replication_engine_entry::Type, replica::PortKind, update,
};

use super::refusal::Refusal;
use crate::{Pipeline, Replica};

/// Width of a v1model port, bits.
const PORT_BITS: u32 = 9;

/// Maximum number of replicas of a group: twice the number of ports. A frame is copied to all of them at once.
const MAX_REPLICAS: usize = 1024;

/// Applies an update; returns the group and the replicas it had before.
pub(super) fn write(
    pipeline: &mut Pipeline,
    kind: update::Type,
    entry: &PacketReplicationEngineEntry,
) -> Result<(u16, Vec<Replica>), Refusal> {
    let entry = match &entry.r#type {
        Some(Type::MulticastGroupEntry(entry)) => entry,
        other => return Err(unsupported(other.as_ref())),
    };
    let group =
        u16::try_from(entry.multicast_group_id).ok().filter(|group| *group != 0).ok_or_else(|| {
            Refusal::invalid(format!(
                "expected a multicast group of 1 to 65535, found {}",
                entry.multicast_group_id
            ))
        })?;
    let old = pipeline.multicast_group(group).map(<[Replica]>::to_vec);
    match (kind, &old) {
        (update::Type::Insert, Some(_)) => {
            return Err(Refusal::new(
                Code::AlreadyExists,
                format!("multicast group {group} exists: MODIFY it"),
            ));
        }
        (update::Type::Modify | update::Type::Delete, None) => {
            return Err(Refusal::new(
                Code::NotFound,
                format!("there is no multicast group {group}: INSERT it"),
            ));
        }
        (update::Type::Delete, Some(_)) => pipeline.set_multicast_group(group, Vec::new()),
        _ => pipeline.set_multicast_group(group, replicas(group, entry)?),
    }
    Ok((group, old.unwrap_or_default()))
}

fn replicas(group: u16, entry: &v1::MulticastGroupEntry) -> Result<Vec<Replica>, Refusal> {
    if entry.replicas.is_empty() {
        return Err(Refusal::invalid(format!(
            "multicast group {group}: expected replicas, found none; DELETE the group instead"
        )));
    }
    if entry.replicas.len() > MAX_REPLICAS {
        let found = entry.replicas.len();
        let message =
            format!("multicast group {group}: expected up to {MAX_REPLICAS} replicas, found {found}");
        return Err(Refusal::new(Code::ResourceExhausted, message));
    }
    if !entry.metadata.is_empty() {
        return Err(Refusal::unimplemented(format!(
            "multicast group {group}: this switch keeps no metadata for it"
        )));
    }
    let mut seen = BTreeSet::new();
    let mut replicas = Vec::with_capacity(entry.replicas.len());
    for replica in &entry.replicas {
        #[allow(deprecated, reason = "old clients give ports as numbers")]
        let port = match &replica.port_kind {
            Some(PortKind::EgressPort(port)) => u128::from(*port),
            Some(PortKind::Port(bytes)) => bytestring::decode(bytes, PORT_BITS).map_err(|error| {
                Refusal::new(Code::OutOfRange, format!("multicast group {group}, port: {error}"))
            })?,
            None => return Err(Refusal::invalid(format!("multicast group {group}: a replica has no port"))),
        };
        let port = u16::try_from(port).ok().filter(|port| *port < 1 << PORT_BITS);
        let (Some(port), Ok(instance)) = (port, u16::try_from(replica.instance)) else {
            let message =
                format!("multicast group {group}: expected a port of 9 bits and an instance of 16 bits");
            return Err(Refusal::new(Code::OutOfRange, format!("{message}, found {replica:?}")));
        };
        if !replica.backup_replicas.is_empty() {
            return Err(Refusal::unimplemented(format!(
                "multicast group {group}: this switch has no backup replicas"
            )));
        }
        if !seen.insert((port, instance)) {
            return Err(Refusal::invalid(format!(
                "multicast group {group}: port {port} with instance {instance} is given twice"
            )));
        }
        replicas.push(Replica { port, instance });
    }
    Ok(replicas)
}

/// Reads the groups a filter selects, from number `from` on: one, or all when its id is 0 or the entry is empty. `found` is given each with
/// the number of its replicas, and says whether to go on; returns where that will be.
pub(super) fn read(
    pipeline: &Pipeline,
    filter: &PacketReplicationEngineEntry,
    from: u64,
    mut found: impl FnMut(PacketReplicationEngineEntry, usize) -> bool,
) -> Result<Option<u64>, Refusal> {
    let wanted = match &filter.r#type {
        None => 0,
        Some(Type::MulticastGroupEntry(entry)) => entry.multicast_group_id,
        // There are none, so "all of them" is an answer.
        Some(Type::CloneSessionEntry(entry)) if entry.session_id == 0 => return Ok(None),
        other => return Err(unsupported(other.as_ref())),
    };
    let from = u16::try_from(from).unwrap_or(u16::MAX);
    for (group, replicas) in pipeline.multicast_groups_from(from) {
        if wanted != 0 && wanted != u32::from(group) {
            continue;
        }
        let count = replicas.len();
        let replicas = replicas
            .iter()
            .map(|replica| v1::Replica {
                instance: replica.instance.into(),
                port_kind: Some(PortKind::Port(bytestring::encode(replica.port))),
                backup_replicas: Vec::new(),
            })
            .collect();
        let entry =
            v1::MulticastGroupEntry { multicast_group_id: group.into(), replicas, metadata: Vec::new() };
        let entry = PacketReplicationEngineEntry { r#type: Some(Type::MulticastGroupEntry(entry)) };
        if !found(entry, count) && group < u16::MAX {
            return Ok(Some(u64::from(group) + 1));
        }
    }
    Ok(None)
}

fn unsupported(found: Option<&Type>) -> Refusal {
    match found {
        Some(Type::CloneSessionEntry(_)) => {
            Refusal::unimplemented("this switch does not serve clone sessions")
        }
        _ => Refusal::invalid("expected a multicast group, found an empty entry"),
    }
}
