//! Tables laid out from keys: every answer, and changes on top, against a map; and loads that have not come to all servers.

use std::collections::BTreeMap;

use fatbtree_dtx::host::{Content, HostTables};
use fatbtree_dtx::{DtxError, Shape, Tables};
use fatbtree_memserver::grpc::KeysAndValues;
use fatbtree_memserver::{LayError, Laying, Loaded, Tenant as _, lay_in_memory};
use fatbtree_remote_memory::{Change, CommonError, Spread, Structure};
use fatbtree_sim::stage::with_parts;
use fatbtree_verbs::plain::PlainDevice;
use proptest::prelude::*;

use crate::model::small;

const CHUNK: u64 = 16 << 10;

type Laid = Vec<Loaded<HostTables>>;
type Opened = Result<Tables<PlainDevice>, DtxError>;

fn laid(shape: Shape, generation: u64, content: &BTreeMap<u64, Vec<u8>>) -> Result<Laid, LayError> {
    let generations = (0..shape.server_count()).map(|at| (shape.server(at), generation)).collect();
    let data: KeysAndValues = content.clone().into_iter().collect();
    lay_in_memory(&Laying { shape, chunk_bytes: CHUNK, generations }, 0, &data)
}

/// Compares all pairs with a map.
async fn compare(tables: &Tables<PlainDevice>, content: &BTreeMap<u64, Vec<u8>>) {
    let verified = Spread::verify(tables).await.expect("the tables are right");
    assert_eq!((verified.keys, verified.locks, verified.logs), (content.len() as u64, 0, 0));
    for key in 0..40 {
        let found = Structure::get(tables, key).await.result.expect("nothing is in the way");
        assert_eq!(found.as_deref(), content.get(&key).map(Vec::as_slice), "{key}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn tables_that_were_laid_out_are_a_map(
        keys in prop::collection::btree_map(0..40_u64, prop::collection::vec(any::<u8>(), 0..7), 0..15),
        (servers, backups) in prop_oneof![Just((0b1, 0)), Just((0b101, 1)), Just((0b1_0110, 2))],
        changes in prop::collection::vec((0..40_u64, any::<bool>()), 0..12),
    ) {
        let mut content = keys;
        let parts = laid(small(servers, backups), 7, &content).expect("a node has eight slots");
        prop_assert!(parts.iter().all(|part| HostTables::is_whole(part) && part.tenant.is_used(0)));
        with_parts(parts, CHUNK, |tables: Opened| async move {
            let tables = tables.expect("its parts fit together");
            compare(&tables, &content).await;
            for (key, puts) in changes {
                let change = if puts { Change::Upsert(b"new") } else { Change::Delete };
                let applied = tables.change(key, change).await.result.expect("nothing is in the way");
                let before = if puts { content.insert(key, b"new".to_vec()) } else { content.remove(&key) };
                assert!(applied == (puts || before.is_some()), "{key}");
            }
            compare(&tables, &content).await;
        });
    }
}

fn some(value: u8) -> BTreeMap<u64, Vec<u8>> {
    (0..10).map(|key| (key, vec![value])).collect()
}

/// Parts of which one server has another load's, or what clients have made: no client takes them for tables.
pub(crate) fn parts_of_two_loads() -> Result<(), String> {
    let shape = small(0b11, 1);
    let [former, later] =
        [3, 4].map(|generation| laid(shape, generation, &some(generation as u8)).expect("there is room"));
    let empty = |server| HostTables::make(server, shape, Content::Empty, 1).expect("it can be made");
    for halves in [
        [former[0].clone(), later[1].clone()],
        [later[0].clone(), former[1].clone()],
        [later[0].clone(), empty(1)],
        [empty(0), later[1].clone()],
    ] {
        let found = with_parts(halves.into(), CHUNK, |tables: Opened| async move {
            Structure::get(&tables.expect("its shape is right"), 1).await.result
        });
        if found != Err(DtxError::Common(CommonError::Parted)) {
            return Err(format!("{found:?}"));
        }
    }
    Ok(())
}

#[test]
fn parts_of_two_loads_are_no_tables() {
    assert_eq!(parts_of_two_loads(), Ok(()));
}

/// A server that has lost its part gets it from the other, with the load's name: afterwards both are of one load.
#[test]
fn a_lost_part_of_a_load_is_filled() {
    let shape = small(0b11, 1);
    for lost in [0_u16, 1] {
        let mut parts = laid(shape, 3, &some(3)).expect("there is room");
        let begun = HostTables::make(lost, shape, Content::Begun, 9).expect("it can be made");
        assert!(!begun.tenant.is_used(0));
        parts[usize::from(lost)] = begun;
        let served = parts.clone();
        with_parts(parts, CHUNK, |tables: Opened| async move {
            compare(&tables.expect("one of them is there"), &some(3)).await;
        });
        assert!(served.iter().all(HostTables::is_whole));
        with_parts(served, CHUNK, |tables: Opened| async move {
            compare(&tables.expect("both are there"), &some(3)).await;
        });
    }
}

#[test]
fn tables_are_used_when_something_was_committed() {
    let parts: Laid = vec![HostTables::make(0, small(0b1, 0), Content::Begun, 1).expect("it can be made")];
    let is_used = || parts[0].tenant.is_used(0);
    let with = |change: bool| {
        with_parts(parts.clone(), CHUNK, |tables: Opened| async move {
            let tables = tables.expect("it is there");
            Structure::get(&tables, 1).await.result.expect("nothing is in the way");
            if change {
                tables.change(1, Change::Upsert(b"one")).await.result.expect("nothing is in the way");
            }
        });
    };
    with(false);
    assert!(HostTables::is_whole(&parts[0]) && !is_used());
    with(true);
    assert!(is_used());
}

#[test]
fn what_tables_do_not_take_is_refused() {
    let reason = |content: &BTreeMap<u64, Vec<u8>>| {
        laid(small(0b1, 0), 1, content).expect_err("it is refused").to_string()
    };
    let long = reason(&[(5, vec![0; 7])].into());
    assert!(long.contains("7 bytes"), "{long}");
    let many = reason(&(0..200).map(|key| (key, vec![])).collect());
    assert!(many.starts_with("table 0 has no room for key"), "{many}");
}
