//! Multicast groups through P4Runtime.

use fatbtree_p4runtime::P4RuntimeClient;
use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::v1::{
    CloneSessionEntry, Entity, MulticastGroupEntry, PacketReplicationEngineEntry, Replica, Update, entity,
    packet_replication_engine_entry::Type, replica::PortKind, update, write_request::Atomicity,
};

use crate::harness::{Harness, one_error};

fn entity(kind: Type) -> Entity {
    let entry = PacketReplicationEngineEntry { r#type: Some(kind) };
    Entity { entity: Some(entity::Entity::PacketReplicationEngineEntry(entry)) }
}

fn group(id: u32, ports: &[(u16, u32)]) -> Entity {
    let replicas = ports
        .iter()
        .map(|(port, instance)| {
            let bytes = fatbtree_p4runtime::bytestring::encode(*port);
            Replica {
                port_kind: Some(PortKind::Port(bytes)),
                instance: *instance,
                backup_replicas: Vec::new(),
            }
        })
        .collect();
    entity(Type::MulticastGroupEntry(MulticastGroupEntry {
        multicast_group_id: id,
        replicas,
        metadata: Vec::new(),
    }))
}

fn update(kind: update::Type, entity: Entity) -> Update {
    Update { r#type: kind.into(), entity: Some(entity) }
}

async fn read(client: &P4RuntimeClient, id: u32) -> Vec<Entity> {
    client.read(vec![group(id, &[])]).await.expect("readable")
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_bounded() {
    let (_harness, client) = Harness::loaded().await;
    let ports: Vec<(u16, u32)> = (0..1025).map(|n| (1, n)).collect();
    let result = client.write([update(update::Type::Insert, group(1, &ports))]).await;
    one_error(result, Code::ResourceExhausted, &["1024 replicas", "1025"]);
    client
        .write([update(update::Type::Insert, group(1, &ports[..1024]))])
        .await
        .expect("so many are allowed");
    // And all groups are read, however many.
    let many: Vec<_> = (2..600).map(|id| update(update::Type::Insert, group(id, &ports[..9]))).collect();
    client.write(many).await.expect("legal");
    assert_eq!(read(&client, 0).await.len(), 599);
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_live_and_die() {
    use update::Type::{Delete, Insert, Modify};
    let (_harness, client) = Harness::loaded().await;
    client
        .write([update(Insert, group(1, &[(1, 0), (2, 7)])), update(Insert, group(9, &[(511, 1)]))])
        .await
        .expect("legal");
    assert_eq!(read(&client, 0).await, [group(1, &[(1, 0), (2, 7)]), group(9, &[(511, 1)])]);
    client.write([update(Modify, group(9, &[(3, 1)]))]).await.expect("there");
    assert_eq!(read(&client, 9).await, [group(9, &[(3, 1)])]);
    for (kind, wrong, code, words) in [
        (Insert, group(1, &[(1, 0)]), Code::AlreadyExists, "group 1"),
        (Modify, group(2, &[(1, 0)]), Code::NotFound, "group 2"),
        (Delete, group(2, &[]), Code::NotFound, "group 2"),
        (Insert, group(0, &[(1, 0)]), Code::InvalidArgument, "1 to 65535"),
        (Insert, group(65_536, &[(1, 0)]), Code::InvalidArgument, "65536"),
        (Insert, group(2, &[]), Code::InvalidArgument, "found none"),
        (Insert, group(2, &[(1, 0), (1, 0)]), Code::InvalidArgument, "twice"),
        (Insert, group(2, &[(512, 0)]), Code::OutOfRange, "9 bits"),
        (Insert, group(2, &[(1, 65_536)]), Code::OutOfRange, "16 bits"),
        (Insert, entity(Type::CloneSessionEntry(CloneSessionEntry::default())), Code::Unimplemented, "clone"),
    ] {
        one_error(client.write([update(kind, wrong)]).await, code, &[words]);
    }
    let before = read(&client, 0).await;
    let batch = vec![
        update(Delete, group(1, &[])),
        update(Insert, group(4, &[(4, 0)])),
        update(Modify, group(9, &[(9, 9)])),
        update(Delete, group(77, &[])),
    ];
    client.write_batch(batch, Atomicity::RollbackOnError).await.expect_err("no group 77");
    assert_eq!(read(&client, 0).await, before);
    client.write([update(Delete, group(1, &[])), update(Delete, group(9, &[]))]).await.expect("there");
    assert_eq!(read(&client, 0).await, []);
}
