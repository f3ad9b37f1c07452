//! Queries for keys of bytes, as a sorted map of byte strings answers them.

use std::collections::BTreeMap;

use fatbtree_blink::layers::KeyCode;
use fatbtree_blink::{Integrity, KeyRange, Keys, TreeConfig, ValueLayout};
use fatbtree_blink_host::{LoadOptions, bulk_load, seeded};
use fatbtree_query::{Answer, Ask, Requester, RequesterOptions};
use fatbtree_wire::query::bytes::{self, Reader};
use fatbtree_wire::query::{Op, Query, QueryHeader, Status};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::lab::{Lab, SEED, Worker, address, ask, value_of};

/// The server's keys are those from "b" to before the border, which lies between two keys and is no key's word.
const BORDER: u64 = 0x6d_00_80_00_00_00_00_00;

fn lab() -> Lab {
    let config = TreeConfig::with_integrity(5, 512, ValueLayout::SHORT, Integrity::Checksums);
    let config = config.unwrap().with_keys(Keys::Bytes).unwrap();
    Lab::of(config, KeyRange { low: first_word(b"b"), high: Some(BORDER) }, &[])
}

fn first_word(key: &[u8]) -> u64 {
    KeyCode::NONE.word(key)
}

fn client() -> Requester {
    Requester::new(RequesterOptions { servers: vec![(0, 1)], ..RequesterOptions::default() }, 1)
}

/// Keys of one to some letters, some of which begin with much that others begin with as well.
fn key(random: &mut ChaCha8Rng) -> Vec<u8> {
    let mut key = vec![[b'b', b'k', b'm'][random.random_range(0..3)]];
    if key != b"m" {
        let shared = [0, 0, 7, 20, 1500][random.random_range(0..5)];
        key.extend_from_slice(&vec![b'x'; shared]);
        let letters = random.random_range(0..5);
        key.extend((0..letters).map(|_| [0, b'a', 0xff][random.random_range(0..3)]));
    }
    key
}

#[test]
fn keys_of_bytes_are_answered_as_a_model_answers() {
    let mut lab = lab();
    let (mut worker, mut client) = (lab.worker(1), client());
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let (mut long, mut led) = (0, 0);
    for step in 0..3000_u32 {
        let key = key(&mut random);
        long += u32::from(key.len() > 1400);
        let word = first_word(&key);
        let new = step.to_be_bytes().repeat([1, 2, 100, 500][random.random_range(0..4)]);
        let found = |model: &BTreeMap<Vec<u8>, Vec<u8>>| model.contains_key(&key);
        let answer = |is: bool| if is { Answer::Written } else { Answer::NotFound };
        let (asked, expected) = match random.random_range(0..6) {
            0 => {
                let value = model.get(&key).map_or(Answer::NotFound, |value| Answer::Value(value.clone()));
                (Ask::of_bytes(Op::Get, word, &key, &[]), value)
            }
            1 | 2 => {
                model.insert(key.clone(), new.clone());
                (Ask::of_bytes(Op::Put, word, &key, &new), Answer::Written)
            }
            3 => {
                let is_there = found(&model);
                model.entry(key.clone()).and_modify(|value| *value = new.clone());
                (Ask::of_bytes(Op::Update, word, &key, &new), answer(is_there))
            }
            4 => (Ask::of_bytes(Op::Delete, word, &key, &[]), answer(model.remove(&key).is_some())),
            _ => {
                let high = Some([&key[..], &vec![0xff; random.random_range(1..9)]].concat());
                let high = high.filter(|_| random.random_range(0..3) > 0);
                let limit = random.random_range(1..30);
                let within = |found: &Vec<u8>| high.as_ref().is_none_or(|high| found < high);
                let all: Vec<_> = model.range(key.clone()..).take_while(|(found, _)| within(found)).collect();
                let next = match all.get(limit - 1) {
                    Some((last, _)) => Some([&last[..], &[0]].concat()),
                    None => Some(KeyCode::NONE.least_key(BORDER)),
                };
                let mut payload = Vec::new();
                bytes::push_option(&mut payload, next.filter(within).as_deref());
                for (key, value) in all.iter().take(limit) {
                    bytes::push_record(&mut payload, key, value);
                }
                led += u32::from(all.len() > limit);
                (
                    Ask::scan_bytes(word, &key, high.as_deref(), limit as u32),
                    Answer::Records { payload, next: None },
                )
            }
        };
        let said = format!("step {step}: {asked:?}");
        let answered = ask(&mut lab, &mut worker, &mut client, 1, asked, |_| {});
        assert_eq!(answered, expected, "{said}");
    }
    assert!(long > 300 && led > 50 && model.len() > 100, "{long} {led} {}", model.len());
}

#[test]
fn keys_of_the_other_kind_and_of_other_servers_are_refused() {
    let (mut lab, mut client) = (lab(), client());
    let mut worker = lab.worker(1);
    let mut asked =
        |lab: &mut Lab, worker: &mut Worker, question| ask(lab, worker, &mut client, 1, question, |_| {});
    let refused = Answer::Refused(Status::Refused);
    let (word, long) = (first_word(b"boat"), [&b"boat"[..], &[b'x'; 4093]].concat());
    for question in [
        Ask::get(word),
        Ask::put(word, vec![1; 20]),
        Ask::scan(word, word + 1, 5),
        Ask::of_bytes(Op::Put, first_word(&long), &long, b"x"),
    ] {
        let said = format!("{question:?}");
        assert_eq!(asked(&mut lab, &mut worker, question), refused, "{said}");
    }
    assert_eq!(asked(&mut lab, &mut worker, Ask::of_bytes(Op::Put, word, b"boat", b"x")), Answer::Written);
    // A range that ends before it begins, and no records.
    for question in [Ask::scan_bytes(word, b"boat", Some(b"b"), 5), Ask::scan_bytes(word, b"boat", None, 0)] {
        let Answer::Records { payload, .. } = asked(&mut lab, &mut worker, question) else {
            panic!("records")
        };
        assert_eq!((Reader::new(&payload).option(), payload.len()), (Ok(None), 2));
    }
    for (key, server) in [(&b"a"[..], 0), (b"", 0), (b"m\0", 2), (b"zoo", 2)] {
        let mut payload = Vec::new();
        bytes::push(&mut payload, key);
        let request = QueryHeader::request(Op::Get, first_word(key), 7, 1);
        let request = QueryHeader { bytes: true, total: payload.len() as u32, ..request };
        worker.worker.handle(lab.now, address(9), &[&request.to_bytes()[..], &payload].concat());
        worker.settle(&mut lab);
        let answer = Query::parse(&worker.worker.poll_transmit().unwrap().bytes).unwrap().header;
        assert_eq!((answer.status, answer.walk.partition), (Some(Status::Redirect), server), "{key:?}");
    }
    // The other way round.
    let range = KeyRange { low: first_word(b"b"), high: Some(BORDER) };
    let mut lab = Lab::of(super::config(Integrity::Checksums), range, &[word]);
    let mut worker = lab.worker(1);
    for question in [
        Ask::of_bytes(Op::Get, word, b"boat", &[]),
        Ask::of_bytes(Op::Put, word, b"boat", &[1; 20]),
        Ask::scan_bytes(word, b"boat", None, 5),
    ] {
        let said = format!("{question:?}");
        assert_eq!(ask(&mut lab, &mut worker, &mut self::client(), 1, question, |_| {}), refused, "{said}");
    }
    let there = ask(&mut lab, &mut worker, &mut self::client(), 1, Ask::get(word), |_| {});
    assert!(matches!(there, Answer::Value(_)), "{there:?}");
}

/// The header has another word than the payload's key: of this partition, too. The answer to a read tells the code.
#[test]
fn keys_under_other_words_are_not_looked_for() {
    // It takes more than one packet.
    let description: Vec<u8> =
        (0..255).flat_map(|last| [1, 3, last, b'a', 1, b'b', 2, b'o', 9, b't', 3]).collect();
    let code = KeyCode::new(&description).unwrap();
    let server = lab().server.info().config;
    let mut lab = Lab::of(server.with_code(code), KeyRange { low: 1, high: Some(u64::MAX) }, &[]);
    let (mut worker, mut client) = (lab.worker(1), client());
    let mut asked = |question| ask(&mut lab, &mut worker, &mut client, 1, question, |_| {});
    let (word, told) = (code.word(b"boat"), Answer::OtherCode(Some(description)));
    assert_eq!(asked(Ask::of_bytes(Op::Put, word, b"boat", b"x")), Answer::Written);
    for wrong in [first_word(b"boat"), code.word(b"boar"), word + 1, 0, u64::MAX] {
        assert_eq!(asked(Ask::of_bytes(Op::Get, wrong, b"boat", &[])), told, "{wrong:x}");
        assert_eq!(asked(Ask::scan_bytes(wrong, b"boat", None, 5)), told, "{wrong:x}");
        for op in [Op::Put, Op::Update, Op::Delete] {
            let value = if op == Op::Delete { &[][..] } else { b"y" };
            assert_eq!(asked(Ask::of_bytes(op, wrong, b"boat", value)), Answer::OtherCode(None), "{wrong:x}");
        }
    }
    assert_eq!(asked(Ask::of_bytes(Op::Get, word, b"boat", &[])), Answer::Value(b"x".to_vec()));
}

/// A worker that has not heard of the load yet refuses nothing: it looks what its server has now.
#[test]
fn queries_go_on_after_a_load_with_keys_of_the_other_kind() {
    let range = KeyRange { low: first_word(b"b"), high: Some(BORDER) };
    let word = first_word(b"boat");
    let bytes = *lab().server.info();
    let numbers = bytes.config.with_keys(Keys::Numbers).unwrap();
    let mut lab = Lab::of(numbers, range, &[word]);
    let (mut worker, mut client) = (lab.worker(1), client());
    for (round, config) in [bytes.config, numbers, bytes.config].into_iter().enumerate() {
        let generation = lab.server.info().generation + 1;
        let load = LoadOptions { spare_bytes: 4 << 20, range, generation, ..LoadOptions::new(config, 1) };
        let keys = if config.keys() == Keys::Numbers { &[word][..] } else { &[] };
        let tree = bulk_load(&load, keys, &mut seeded(SEED, 20)).unwrap();
        let now = lab.now;
        lab.server.install(now, tree).unwrap();
        let (question, expected) = match config.keys() {
            Keys::Numbers => (Ask::get(word), Answer::Value(value_of(word, SEED))),
            Keys::Bytes => (Ask::of_bytes(Op::Put, word, b"boat", b"x"), Answer::Written),
        };
        let answer = ask(&mut lab, &mut worker, &mut client, 1, question, |_| {});
        assert_eq!(answer, expected, "round {round}");
    }
    assert_eq!(worker.replaced, 3);
}

/// A client that has written to a server writes to its next tree, of another layout, without doubt about the outcome.
#[test]
fn a_client_stays_known_when_its_worker_begins_anew() {
    let mut lab = lab();
    let (mut worker, mut client) = (lab.worker(1), client());
    let (key, config, range) = (b"boat", lab.server.info().config, lab.server.info().partition.range);
    for (round, description) in
        [&[][..], &[0, 1, b'b', 1, b'z', 9], &[0, 1, b'b', 2, b'z', 9]].into_iter().enumerate()
    {
        let code = KeyCode::new(description).unwrap();
        if round > 0 {
            let generation = lab.server.info().generation + 1;
            let range = KeyRange { low: 1, ..range };
            let options = LoadOptions::new(config.with_code(code), 1);
            let load = LoadOptions { spare_bytes: 4 << 20, range, generation, ..options };
            let (now, tree) = (lab.now, bulk_load(&load, &[], &mut seeded(SEED, 20)).unwrap());
            lab.server.install(now, tree).unwrap();
        }
        let mut asked = |question| ask(&mut lab, &mut worker, &mut client, 1, question, |_| {});
        if round > 0 {
            let stale = first_word(key) + 1;
            assert_eq!(asked(Ask::of_bytes(Op::Put, stale, key, b"x")), Answer::OtherCode(None), "{round}");
        }
        let word = code.word(key);
        assert_eq!(asked(Ask::of_bytes(Op::Put, word, key, b"x")), Answer::Written, "{round}");
        assert_eq!(asked(Ask::of_bytes(Op::Get, word, key, &[])), Answer::Value(b"x".to_vec()), "{round}");
    }
    assert_eq!(worker.replaced, 2);
}
