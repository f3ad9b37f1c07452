use proptest::prelude::*;

use super::*;

const FIVE: &str = "\
0,k:a,3,30,1,get,0
0,k:b,3,0,1,get,0

1,k:b,3,12,2,set,60
1,k:c,3,7,2,add,60
2,k:d,3,9,3,incr,0
2,k:b,3,0,3,delete,0
";

fn kinds(trace: &mut Trace) -> Vec<(OperationKind, u64, u32)> {
    std::iter::from_fn(|| {
        let Operation { kind, key, value_bytes, .. } = trace.next_operation().ok()?;
        Some((kind, key, value_bytes.expect("each line has one")))
    })
    .collect()
}

#[test]
fn lines_become_operations_in_order() {
    let mut trace = Trace::read("five", FIVE.as_bytes(), usize::MAX).expect("it is a trace");
    let [a, b, c, d] = [&b"k:a"[..], b"k:b", b"k:c", b"k:d"].map(|key| trace.code().key(key));
    assert!(a < b && b < c && c < d);
    assert_eq!(trace.preloaded().collect::<Vec<_>>(), [(a, 30), (d, 16)], "short values have 16 bytes");
    assert_eq!((trace.preloaded_bytes(a), trace.preloaded_bytes(b)), (Some(30), None));
    assert_eq!((trace.len(), trace.keys(), trace.merged()), (6, 4, 0));
    use OperationKind::{Delete, Insert, Put, Read, Update};
    let expected =
        [(Read, a, 30), (Read, b, 16), (Put, b, 16), (Insert, c, 16), (Update, d, 16), (Delete, b, 16)];
    assert_eq!(kinds(&mut trace), expected);
    let ended = trace.next_operation().expect_err("it has six operations");
    assert_eq!(ended, WorkloadError::TraceEnded { operations: 6 });
    assert_eq!(Trace::read("two", FIVE.as_bytes(), 2).expect("it is a trace").len(), 2);
}

#[test]
fn a_key_may_contain_commas() {
    let line = Line::parse(b"7,a,b,c,5,100,3,cas,9").expect("the key has five bytes");
    assert_eq!((line.timestamp, line.key, line.value_bytes), (7, &b"a,b,c"[..], 100));
    assert_eq!((line.client, line.operation, line.ttl), (3, line::TraceOperation::Cas, 9));
}

#[test]
fn bad_lines_are_named() {
    let long = format!("0,{},5000,0,1,get,0", "k".repeat(5000));
    for (text, expected) in [
        ("", "no operations"),
        ("0,k,1,0,1,get", "7 fields, found 6"),
        ("0,k:a,3,30,1,get,0\nx,k,1,0,1,get,0", "bad:2: timestamp: expected a number"),
        ("0,k,2,0,1,get,0", "key size: expected 1, the bytes of the key, found 2"),
        ("0,k,1,99999999999,1,get,0", "value size: expected a number of at most 4294967295"),
        ("0,k,1,4294967295,1,get,0", "values of at most"),
        ("0,k,1,0,1,fetch,0", "found \"fetch\""),
        ("0,k,1,0,1,get,-1", "TTL: expected a number"),
        (&long, "less than 4096 bytes"),
    ] {
        let error = Trace::read("bad", text.as_bytes(), usize::MAX).expect_err(text).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_made_trace_reads_what_is_there() {
    let maker = Maker { operations: 20_000, keys: 500, gets: 0.6, deletes: 0.1, ..Maker::default() };
    let mut lines = Vec::new();
    maker.write(7, &mut lines).expect("it is made");
    let mut trace = Trace::read("made", &lines[..], usize::MAX).expect("it is a trace");
    assert_eq!((trace.len(), trace.merged()), (20_000, 0));
    let share = |kind| trace.count(kind) as f64 / 20_000.0;
    assert!(
        (share(OperationKind::Read) - 0.6).abs() < 0.02 && (share(OperationKind::Delete) - 0.1).abs() < 0.02
    );
    let mut model: BTreeMap<u64, ()> = trace.preloaded().map(|(key, _)| (key, ())).collect();
    let text = String::from_utf8(lines).expect("it is text");
    let mut found = 0;
    for (line, (kind, key, _)) in text.lines().zip(kinds(&mut trace)) {
        let bytes = Line::parse(line.as_bytes()).expect("it was read before").value_bytes;
        match kind {
            OperationKind::Read => assert_eq!(model.contains_key(&key), bytes > 0, "{line}"),
            OperationKind::Delete => assert_eq!(model.remove(&key).is_some(), bytes > 0, "{line}"),
            _ => drop(model.insert(key, ())),
        }
        found += usize::from(bytes > 0);
    }
    assert!(found > 15_000, "most lines find a value: {found}");
    let refused = Maker { gets: 0.9, deletes: 0.2, ..Maker::default() }.write(1, Vec::new());
    assert!(matches!(refused, Err(MakerError::Shares { .. })));
    let refused = Maker { value_bytes: (9, 3), ..Maker::default() }.write(1, Vec::new());
    assert!(matches!(refused, Err(MakerError::Sizes { .. })));
}

proptest! {
    #[test]
    fn keys_keep_the_order_of_strings(
        strings in prop::collection::vec(prop::collection::vec(prop_oneof![Just(b'a'), any::<u8>()], 0..12), 1..40),
        prefix in prop::collection::vec(any::<u8>(), 0..5),
    ) {
        let mut strings: Vec<Vec<u8>> = strings.iter().map(|rest| [&prefix[..], rest].concat()).collect();
        strings.sort();
        let code = KeyCode::of(strings.iter().map(Vec::as_slice));
        prop_assert!(code.prefix().starts_with(&prefix) || strings.len() == 1);
        let keys: Vec<u64> = strings.iter().map(|string| code.key(string)).collect();
        prop_assert!(keys.is_sorted());
        let visible = |string: &[u8]| {
            let rest = &string[code.prefix().len()..];
            rest[..rest.len().min(code.digits() as usize)].to_vec()
        };
        for (strings, keys) in strings.windows(2).zip(keys.windows(2)) {
            prop_assert_eq!(visible(&strings[0]) == visible(&strings[1]), keys[0] == keys[1]);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(text in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Trace::read("any", &text[..], usize::MAX);
        let _ = Line::parse(&text);
    }
}
