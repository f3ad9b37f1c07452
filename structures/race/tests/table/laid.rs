//! Tables laid out from keys: the structure, every answer, and changes on top, against a map.

use std::collections::BTreeMap;
use std::future::Future;

use fatbtree_memserver::grpc::{Incoming as _, KeysAndValues, PartIncoming, PartLoading, proto};
use fatbtree_memserver::{
    LayError, Laying, Loaded, MemoryServer, Part as _, ServerOptions, Storage, lay_in_memory,
};
use fatbtree_race::host::HashTable;
use fatbtree_race::{Shape, Table, TableError, Verified};
use fatbtree_remote_memory::CommonError;
use fatbtree_sim::stage;
use fatbtree_verbs::Access;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use proptest::prelude::*;
use prost::Message as _;

use crate::model::{SMALL, done, value};

const CHUNK: u64 = 16 << 10;
const SPARE: u64 = 8 << 20;

fn data(content: &BTreeMap<u64, Vec<u8>>) -> KeysAndValues {
    content.clone().into_iter().collect()
}

fn laying(shape: Shape, generation: u64) -> Laying<Shape> {
    let generations = (0..32).filter(|server| shape.servers >> server & 1 == 1);
    let generations = generations.map(|server| (server, generation)).collect();
    Laying { shape, chunk_bytes: CHUNK, generations }
}

fn laid(
    shape: Shape,
    generation: u64,
    content: &BTreeMap<u64, Vec<u8>>,
) -> Result<Vec<Loaded<HashTable>>, LayError> {
    lay_in_memory(&laying(shape, generation), SPARE, &data(content))
}

/// Serves parts, and runs something with their table.
fn with_parts<F: Future>(
    parts: Vec<Loaded<HashTable>>,
    work: impl FnOnce(Result<Table<PlainDevice>, TableError>) -> F,
) -> F::Output {
    stage::with_parts(parts, CHUNK, work)
}

/// Compares the whole table with a map.
async fn compare(table: &Table<PlainDevice>, content: &BTreeMap<u64, Vec<u8>>) -> Verified {
    let verified = table.verify().await.expect("the structure is right");
    assert_eq!((verified.keys, verified.unfinished, verified.tentative), (content.len() as u64, 0, 0));
    for (key, value) in content {
        let found = table.search(*key).await;
        assert_eq!(found.result.expect("nothing is in the way").as_deref(), Some(&value[..]), "{key}");
    }
    for key in (0..50).map(|key| key | 1 << 40) {
        assert!(table.search(key).await.result.expect("nothing is in the way").is_none(), "{key}");
    }
    verified
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_table_that_was_laid_out_is_a_map(
        keys in prop::collection::btree_map(0..4_000_u64, prop_oneof![4 => 0..100_usize, 1 => 100..4_000_usize], 0..1_500),
        servers in prop_oneof![Just(0b1), Just(0b1_0110)],
        changes in prop::collection::vec((0..4_000_u64, any::<bool>()), 0..600),
    ) {
        let shape = Shape { servers, ..SMALL };
        let mut content: BTreeMap<_, _> =
            keys.into_iter().map(|(key, length)| (key, value(key, 0, length))).collect();
        let parts = laid(shape, 7, &content).expect("it can be laid out");
        with_parts(parts, |table| async move {
            let table = table.expect("its parts fit together");
            let verified = compare(&table, &content).await;
            let all = if content.len() > 300 { servers } else { verified.servers };
            assert_eq!((verified.servers, verified.stale_entries), (all, 0));
            // Splits of what was laid out: memory of its chunks is not given out again.
            for (number, (key, inserts)) in (1..).zip(changes) {
                if inserts {
                    let value = value(key, number, 40);
                    table.upsert(key, &value).await.result.expect("nothing is in the way");
                    content.insert(key, value);
                } else {
                    assert_eq!(done(table.delete(key).await), content.remove(&key).is_some(), "{key}");
                }
            }
            compare(&table, &content).await;
        });
    }
}

fn some(keys: u64) -> BTreeMap<u64, Vec<u8>> {
    (0..keys).map(|key| (key, value(key, 0, 20))).collect()
}

/// A load of which not all servers have their part, because the loader has died: no client takes the rest for a table.
#[test]
fn parts_of_two_loads_are_no_table() {
    let shape = Shape { servers: 0b11, ..SMALL };
    let [former, later] =
        [3, 4].map(|generation| laid(shape, generation, &some(500)).expect("it can be laid out"));
    for halves in [[&former[0], &later[1]], [&later[0], &former[1]]] {
        with_parts(halves.map(Clone::clone).into(), |table| async move {
            let parted = table.map(|_| ()).expect_err("the parts are of two loads");
            assert_eq!(parted, TableError::Common(CommonError::Parted));
        });
    }
    with_parts(later, |table| async move { compare(&table.expect("one load"), &some(500)).await });
}

/// The same where the former parts were never opened by a client, so that no word names them.
#[test]
fn a_part_of_a_load_and_an_empty_one_are_no_table() {
    let shape = Shape { servers: 0b11, ..SMALL };
    let empty = |server| HashTable::make(server, shape, SPARE).expect("it can be made");
    for kept in [0_u16, 1] {
        let mut parts = laid(shape, 2, &some(500)).expect("it can be laid out");
        parts[usize::from(1 - kept)] = empty(1 - kept);
        with_parts(parts, |table| async move {
            let parted = table.map(|_| ()).expect_err("a part is missing");
            assert_eq!(parted, TableError::Common(CommonError::Parted), "{kept}");
        });
    }
}

#[test]
fn what_a_table_does_not_take_is_refused() {
    let reason = |shape, content: &BTreeMap<u64, Vec<u8>>| {
        laid(shape, 1, content).expect_err("it is refused").to_string()
    };
    let long = [(5, vec![0; 4_001])].into();
    assert_eq!(reason(SMALL, &long), "value of key 0x5: 4001 bytes, and the table takes up to 4000");
    let few = Shape { directory_bits: 1, ..SMALL };
    assert!(reason(few, &some(500)).starts_with("the table is full"), "{}", reason(few, &some(500)));
    let twice: KeysAndValues = [(1, vec![]), (1, vec![])].into_iter().collect();
    let order = lay_in_memory::<HashTable>(&laying(SMALL, 1), SPARE, &twice).expect_err("it is refused");
    assert!(order.to_string().starts_with("key 0x1 at position 1 is not larger"), "{order}");
    let small = Laying { chunk_bytes: 4_032, ..laying(SMALL, 1) };
    let chunks = lay_in_memory::<HashTable>(&small, SPARE, &data(&some(1))).expect_err("it is refused");
    assert!(chunks.to_string().contains("at least 4096"), "{chunks}");
}

/// Bytes at offsets of a part, as a loader announces and sends them.
struct Sent {
    begin: proto::PartBegin,
    pieces: proto::PartPieces,
}

/// What a loader sends to the only server of a table, which is of generation 1.
fn sent() -> Sent {
    let (mut pieces, laying) = (proto::PartPieces::default(), laying(SMALL, 2));
    let mut write = |at: fatbtree_remote_memory::GlobalAddress, bytes: &[u8]| {
        pieces.offsets.push(at.offset());
        pieces.lengths.push(bytes.len() as u32);
        pieces.bytes.extend_from_slice(bytes);
        Ok(())
    };
    let laid = HashTable::lay(&laying, &data(&some(300)), &mut write).expect("it can be laid out");
    let chunks = laid.of(0).iter().map(|class| class.0).collect();
    let bytes = pieces.bytes.len() as u64;
    Sent { begin: proto::PartBegin { shape: SMALL.to_string(), generation: 2, chunks, bytes }, pieces }
}

/// What a server says of a load: the part, or its refusal.
fn taken(sent: &Sent) -> Result<Loaded<HashTable>, String> {
    let former = HashTable::make(0, SMALL, SPARE).expect("it can be made");
    let options = ServerOptions { access: Access::ALL, chunk_bytes: CHUNK, ..ServerOptions::writable() };
    let server = MemoryServer::new(PlainNetwork::new().device(), former, &options, 1);
    let info = *server.expect("it can be served").info();
    let loading = PartLoading { shape: SMALL, spare_bytes: SPARE, chunk_bytes: CHUNK };
    let taken = || {
        let storage = &mut Storage::Memory;
        let begin = sent.begin.encode_to_vec();
        let mut incoming = PartIncoming::<HashTable>::begin(&loading, &begin, &info, storage)?;
        incoming.take(&sent.pieces.encode_to_vec())?;
        assert!(incoming.is_complete());
        incoming.build(&loading, storage)
    };
    taken().map(|(loaded, _)| loaded).map_err(|status| status.message().to_owned())
}

#[test]
fn a_server_takes_what_is_a_whole_part() {
    let part = taken(&sent()).expect("it is whole");
    with_parts(
        vec![part],
        |table| async move { compare(&table.expect("its part is there"), &some(300)).await },
    );
}

#[test]
fn a_server_refuses_what_is_no_part() {
    type Damage = fn(&mut Sent);
    let cases: [(Damage, &str); 9] = [
        (|sent| sent.begin.shape = "memory server 0".to_owned(), "use the cluster file with which"),
        (|sent| sent.begin.generation = 7, "it was filled meanwhile"),
        (|sent| sent.begin.chunks[0] = 9, "a chunk of class 9"),
        (|sent| sent.begin.bytes -= 1, "were still to come"),
        (|sent| sent.pieces.lengths[0] += 1, "with lengths of"),
        // The header is the server's.
        (|sent| sent.pieces.offsets[0] = 56, "expected offsets from 64"),
        (|sent| sent.pieces.offsets[0] = u64::MAX, "expected offsets from 64"),
        // A byte of the first subtable's successors, and one of the last entry of the directory.
        (|sent| sent.pieces.bytes[9] ^= 1, "no whole part of the structure"),
        (|sent| *sent.pieces.bytes.last_mut().expect("some") ^= 1, "no whole part of the structure"),
    ];
    let told = cases.map(|(damage, reason)| {
        let mut sent = sent();
        damage(&mut sent);
        (reason, taken(&sent).map(|_| "it was taken".to_owned()).unwrap_or_else(|refusal| refusal))
    });
    let others: Vec<_> = told.iter().filter(|(reason, told)| !told.contains(reason)).collect();
    assert!(others.is_empty(), "{others:#?}");
}
