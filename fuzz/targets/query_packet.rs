//! Whatever bytes come, the packet's parsers read them or refuse them, and what they read is emitted as it was.
#![no_main]

use fatbtree_fuzz::Input;
use fatbtree_wire::UdpFrame;
use fatbtree_wire::query::bytes::{self, Reader};
use fatbtree_wire::query::{Assembly, Query, records};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((which, bytes)) = input.split_first() else { return };
    match which % 5 {
        0 => datagram(bytes),
        1 => all_records(bytes),
        2 => parts(bytes),
        3 => keys_of_bytes(bytes),
        _ => frame(bytes),
    }
});

fn datagram(bytes: &[u8]) {
    let Ok(query) = Query::parse(bytes) else { return };
    assert!(!query.to_string().is_empty());
    assert_eq!([&query.header.to_bytes()[..], query.part].concat(), bytes, "{query:?}");
}

/// All records up to the first that is damaged are those that were there.
fn all_records(bytes: &[u8]) {
    let mut emitted = Vec::new();
    for record in records::read(bytes) {
        match record {
            Ok((key, value)) => records::push(&mut emitted, key, value),
            Err(error) => {
                return assert!(error.at == emitted.len() && error.expected > error.found, "{error}");
            }
        }
    }
    assert_eq!(emitted, bytes);
}

/// What is read of a payload of keys of bytes is what stands there, up to what is damaged.
fn keys_of_bytes(payload: &[u8]) {
    let mut reader = Reader::new(payload);
    let mut emitted = Vec::new();
    let whole = (|| {
        bytes::push_option(&mut emitted, reader.option()?);
        while let Some((key, value)) = reader.record()? {
            bytes::push_record(&mut emitted, key, value);
        }
        reader.end()
    })();
    match whole {
        Ok(()) => assert_eq!(emitted, payload),
        Err(error) => assert!(payload.starts_with(&emitted) && !error.to_string().is_empty()),
    }
}

/// Parts that are no payload's change nothing, those of the payload are put together whatever comes between.
fn parts(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let most = 1 + input.below(64);
    let payload = input.bytes(256);
    let header = fatbtree_wire::query::QueryHeader::request(fatbtree_wire::query::Op::Put, 7, 1, 1);
    let sent = fatbtree_wire::query::parts(&header, payload, most);
    let mut sent: Vec<Vec<u8>> = sent.map(|(header, part)| fatbtree_wire::query::datagram(&header, part)).collect();
    let mut assembly = Assembly::new(payload.len() as u32);
    while !input.is_empty() && !sent.is_empty() {
        // A part of another cut lies across others, or keeps one out that comes later: then nothing more is known.
        if input.below(2) == 0 {
            let (total, offset) = (input.short(), input.short());
            let len = input.below(256).max(1);
            let fake = vec![0; len];
            let before = assembly.clone();
            if assembly.add(total.into(), offset.into(), &fake).is_ok() {
                assembly = before;
            }
        } else {
            let next = sent.swap_remove(input.below(sent.len()));
            let Query { header, part } = Query::parse(&next).expect("it was emitted");
            assert_eq!(assembly.add(header.total, header.offset, part), Ok(()));
            assert_eq!(assembly.add(header.total, header.offset, part), Ok(()), "again");
        }
    }
    for datagram in sent {
        let Query { header, part } = Query::parse(&datagram).expect("it was emitted");
        assert!(part.is_empty() || !assembly.is_whole(), "a part is missing");
        assert_eq!(assembly.add(header.total, header.offset, part), Ok(()));
    }
    assert_eq!(assembly.finish().as_deref(), Some(payload));
}

fn frame(bytes: &[u8]) {
    let Ok(frame) = UdpFrame::parse(bytes) else { return };
    let mut emitted = Vec::new();
    frame.emit(&mut emitted);
    assert_eq!(UdpFrame::parse(&emitted), Ok(frame));
    datagram(frame.payload);
}
