//! Queries: any bytes at all, and any payload in any order.
use fatbtree_wire::query::{Assembly, Op, PartError, Query, QueryHeader, Status, datagram, parts, records};
use fatbtree_wire::{IndexFlags, IndexHeader};
use proptest::prelude::*;

fn a_header() -> impl Strategy<Value = QueryHeader> {
    let walk = (any::<u8>(), any::<u8>(), any::<u8>(), any::<u16>(), any::<[u8; 2]>(), any::<u64>());
    let kind = (prop::sample::select(&Op::ALL), prop::option::of(prop::sample::select(&Status::ALL)));
    let numbers =
        (any::<u64>(), any::<u16>(), any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
    (walk, kind, any::<bool>(), numbers).prop_map(|(walk, (op, status), bytes, numbers)| QueryHeader {
        walk: IndexHeader {
            flags: IndexFlags(walk.0),
            epoch: walk.1,
            levels: walk.2,
            partition: walk.3,
            path: walk.4[0],
            slice: walk.4[1],
            key: walk.5,
        },
        address: numbers.0,
        op,
        bytes: bytes && op != Op::Open,
        status,
        execution: numbers.1,
        limit: numbers.2,
        client: numbers.3,
        request: numbers.4,
        range_end: numbers.5,
        total: 0,
        offset: 0,
        tag: numbers.6,
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        header in a_header(), payload in prop::collection::vec(any::<u8>(), 0..3000), most in 1usize..1500,
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..20), twice in any::<prop::sample::Index>(),
    ) {
        let sent = parts(&header, &payload, most).map(|(header, part)| datagram(&header, part));
        let mut datagrams: Vec<Vec<u8>> = sent.collect();
        prop_assert_eq!(datagrams.len(), payload.len().div_ceil(most).max(1));
        datagrams.push(twice.get(&datagrams).clone());
        for (at, other) in order.iter().enumerate() {
            let (at, other) = (at % datagrams.len(), other.index(datagrams.len()));
            datagrams.swap(at, other);
        }
        let mut assembly = Assembly::new(payload.len() as u32);
        for datagram in &datagrams {
            let Query { header: found, part } = Query::parse(datagram).unwrap();
            prop_assert_eq!(QueryHeader { total: 0, offset: 0, ..found }, header);
            assembly.add(found.total, found.offset, part).unwrap();
        }
        prop_assert_eq!(assembly.finish(), Some(payload));
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(query) = Query::parse(&bytes) {
            let _ = query.to_string();
        }
        records::read(&bytes).for_each(drop);
    }

    #[test]
    fn damage_is_refused_or_read_as_it_is(
        header in a_header(), part in prop::collection::vec(any::<u8>(), 0..64), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let header = QueryHeader { total: part.len() as u32, ..header };
        let mut datagram = [&header.to_bytes()[..], &part].concat();
        *at.get_mut(&mut datagram) = byte;
        if let Ok(Query { header, part }) = Query::parse(&datagram) {
            prop_assert_eq!([&header.to_bytes()[..], part].concat(), datagram);
        }
    }

    /// Parts that overlap say different things of the same bytes, sooner or later: none of them changes what was there before.
    #[test]
    fn parts_that_overlap_are_refused(
        total in 1u32..200, pieces in prop::collection::vec((any::<u16>(), 0u32..60, any::<u8>()), 1..30),
    ) {
        let mut assembly = Assembly::new(total);
        let mut model: Vec<Option<u8>> = vec![None; total as usize];
        for (offset, len, fill) in pieces {
            let offset = u32::from(offset) % (total + 10);
            let part = vec![fill; len as usize];
            let range = offset as usize..(offset + len) as usize;
            match assembly.add(total, offset, &part) {
                // It may have been there, then with the bytes of the first.
                Ok(()) => model[range].iter_mut().for_each(|byte| {
                    byte.get_or_insert(fill);
                }),
                Err(PartError::Place { .. }) => {
                    let is_free = model.get(range).is_some_and(|bytes| bytes.iter().all(Option::is_none));
                    prop_assert!(!is_free, "bytes {offset} and {len} more");
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
        let whole: Option<Vec<u8>> = model.into_iter().collect();
        prop_assert_eq!(assembly.finish(), whole);
    }

    #[test]
    fn records_are_read_as_they_were_written(
        all in prop::collection::vec((any::<u64>(), prop::collection::vec(any::<u8>(), 0..40)), 0..40),
    ) {
        let mut payload = Vec::new();
        all.iter().for_each(|(key, value)| records::push(&mut payload, *key, value));
        let found: Vec<(u64, Vec<u8>)> =
            records::read(&payload).map(|record| record.map(|(key, value)| (key, value.to_vec())).unwrap()).collect();
        prop_assert_eq!(found, all);
    }
}
