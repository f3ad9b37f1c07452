//! Damaged frames and damaged programs.

use std::sync::Arc;

use fatbtree_switch::{DropReason, MAX_FRAME, MatchValue, Program};
use proptest::prelude::*;

use crate::{FATBTREE, FILTER, GROUPS, ROUTER, SUMS, Switch, TUNNEL, ipv4_frame, load};

/// Every program, with an entry in every table that takes some, twice: for the two calls that take a frame.
fn twins() -> Vec<(Switch, Switch)> {
    let twins = |json| (filled(load(json)), filled(load(json)));
    [ROUTER, FILTER, TUNNEL, SUMS, GROUPS, FATBTREE].map(twins).into()
}

fn filled(program: Arc<Program>) -> Switch {
    let mut switch = Switch::of(program.clone());
    for (at, info) in program.tables().iter().enumerate() {
        let wild = info.key.iter().map(|field| match field.kind.name() {
            "exact" => MatchValue::Exact(at as u64 & 1),
            "lpm" => MatchValue::Lpm { value: 0, prefix_len: 0 },
            "ternary" => MatchValue::Ternary { value: 0, mask: 0 },
            _ => MatchValue::Range {
                low: 0,
                high: if field.width == 64 { u64::MAX } else { (1 << field.width) - 1 },
            },
        });
        let key: Vec<MatchValue> = wild.collect();
        let Some(&action) = info.actions.first().filter(|_| !info.const_entries && !key.is_empty()) else {
            continue;
        };
        let params = vec![1; program.action_info(action).params.len()];
        let entry = fatbtree_switch::Entry {
            key,
            priority: i32::from(info.has_priority),
            action,
            params,
            metadata: vec![],
        };
        let table = switch.table(&info.name);
        switch.pipeline.insert(table, &entry).unwrap();
    }
    switch
}

proptest! {
    #[test]
    fn any_bytes_at_all(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20)) {
        for (mut switch, mut twin) in twins() {
            for frame in &frames {
                let sent = switch.all(3, frame);
                prop_assert!(sent.iter().all(|(_, sent)| sent.len() <= frame.len() + 64));
                prop_assert_eq!(twin.all_given(3, frame), sent);
            }
        }
    }

    /// Frames that get deep into the programs, cut and with flipped bits.
    #[test]
    fn nearly_right_frames(
        flips in prop::collection::vec((0..90usize, any::<u8>()), 0..4),
        cut in 0..90usize,
        index in any::<bool>(),
        flags in 0..8u8,
        key in prop_oneof![0..2u64, any::<u64>()],
    ) {
        let mut udp = vec![0xc0, 0x00, 0x12, if index { 0xb8 } else { 0xb7 }, 0, if index { 56 } else { 40 }, 0, 0];
        if index {
            udp.extend([4, flags, 0, 0, 0, 1, 0, 0xf8]);
            udp.extend(key.to_be_bytes());
        }
        udp.extend([0x0c, 0, 0xff, 0xff, 0, 0, 0, 1, 0x80, 0, 0, 1]);
        udp.extend(key.to_be_bytes());
        udp.extend([0, 0, 0, 0, 0, 0, 2, 0, 1, 2, 3, 4]);
        let mut frame = ipv4_frame(0, 0, 64, 17, &udp);
        frame.truncate(cut.max(14));
        for (at, bits) in flips {
            if let Some(byte) = frame.get_mut(at) {
                *byte ^= bits;
            }
        }
        for (mut switch, mut twin) in twins() {
            let sent = switch.all(1, &frame);
            prop_assert_eq!(twin.all_given(1, &frame), sent);
        }
    }
}

#[test]
fn frames_beyond_the_limit_are_dropped_and_counted() {
    let mut switch = filled(load(TUNNEL));
    assert_eq!(switch.all(0, &vec![1; MAX_FRAME]).len(), 1);
    assert_eq!(switch.all(0, &vec![1; MAX_FRAME + 1]), []);
    assert_eq!(switch.pipeline.drops().count(DropReason::TooLong), 1);
    assert_eq!(switch.pipeline.drops().total(), 1);
}

/// Changes one place in a program's text; returns why it is not loaded.
fn refusal(json: &str, from: &str, to: &str) -> String {
    assert!(json.contains(from), "the program has no {from}");
    Program::load(&json.replacen(from, to, 1)).expect_err("loaded").to_string()
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    for (json, from, to, expected) in [
        (TUNNEL, r#""op":"truncate""#, r#""op":"recirculate""#, "primitive `recirculate` is not supported"),
        (TUNNEL, r#""algo":"crc16""#, r#""algo":"crc16_custom""#, "algorithm `crc16_custom`"),
        (TUNNEL, r#""meter_arrays":[]"#, r#""meter_arrays":[{"name":"m"}]"#, "meter `m`"),
        (TUNNEL, r#""header_stacks":[]"#, r#""header_stacks":[{"name":"s"}]"#, "header stack `s`"),
        (TUNNEL, r#""learn_lists":[]"#, r#""learn_lists":[{"name":"d"}]"#, "digest `d`"),
        (TUNNEL, r#""op":"extract""#, r#""op":"extract_VL""#, "parser operation `extract_VL`"),
        (SUMS, r#""op":"*""#, r#""op":"**""#, "operation `**`"),
        (FILTER, r#""support_timeout":false"#, r#""support_timeout":true"#, "ageing"),
        (FILTER, r#""type":"simple""#, r#""type":"indirect""#, "implementation `indirect`"),
        (ROUTER, r#"["ttl",8,false]"#, r#"["ttl","*",false]"#, "varbit field `ttl`"),
        (ROUTER, r#"["src",48,false]"#, r#"["src",120,false]"#, "`ethernet.src`, of more than 64 bits"),
        (ROUTER, r#""checksums":"#, r#""surprise":1,"checksums":"#, "surprise"),
        (ROUTER, r#""version":[2,"#, r#""version":[3,"#, "version 3."),
    ] {
        let message = refusal(json, from, to);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn programs_that_want_too_much_are_refused_by_name() {
    let huge = 1u64 << 62;
    let many_bits = format!("[\"ttl\",8,false]{}", r#",["x",65528,false]"#.repeat(20));
    for (json, from, to, expected) in [
        (
            TUNNEL,
            r#""size":8,"bitwidth":32"#,
            format!(r#""size":{huge},"bitwidth":32"#),
            "register `ingress.seen`",
        ),
        (
            ROUTER,
            r#""size":4,"is_direct""#,
            format!(r#""size":{huge},"is_direct""#),
            "counter `ingress.next_hops`",
        ),
        (ROUTER, r#""max_size":64"#, format!(r#""max_size":{huge}"#), "table `ingress."),
        // Tables of other kinds.
        (FILTER, r#""max_size":3"#, format!(r#""max_size":{huge}"#), "table `ingress."),
        (FILTER, r#""max_size":8"#, format!(r#""max_size":{}"#, 1 << 27), "table `ingress."),
        // Each of them would do, but not all.
        (
            TUNNEL,
            r#""size":8,"bitwidth":32}"#,
            format!(
                r#""size":{0},"bitwidth":32}},{{"name":"second","id":1,"size":{0},"bitwidth":64}}"#,
                1 << 26
            ),
            "program, up to register `second`: needs 1073741",
        ),
        (ROUTER, r#"["ttl",8,false]"#, many_bits, "bits, this switch has 524280"),
    ] {
        let message = refusal(json, from, &to);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn damaged_programs_are_refused_with_the_place() {
    for (json, from, to, expected) in [
        ("{}", "{}", "[", "JSON that p4c-bm2-ss writes"),
        (ROUTER, r#""value":"ipv4""#, r#""value":"ipv9""#, "header `ipv9`"),
        (ROUTER, r#""next_state":"ipv4""#, r#""next_state":"nowhere""#, "state `nowhere`"),
        (ROUTER, r#""init_table":"node"#, r#""init_table":"edon"#, "`edon"),
        (
            SUMS,
            r#""op":"_jump","parameters":[{"type":"hexstr","value":"0x"#,
            r#""op":"_jump","parameters":[{"type":"hexstr","value":"0x9"#,
            "jumps to primitives",
        ),
    ] {
        let message = refusal(json, from, to);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_program_that_never_ends_is_stopped() {
    // The parser's second state leads back to itself and takes nothing.
    let json =
        FILTER.replacen(r#"{"parameters":[{"type":"regular","value":"extra"}],"op":"extract"}"#, "", 1);
    let at = json.find(r#""name":"extra","id":1"#).unwrap();
    let (head, tail) = json.split_at(at);
    let tail = tail.replacen(r#""next_state":null"#, r#""next_state":"extra""#, 1);
    let program = Program::load(&format!("{head}{tail}")).unwrap();
    let mut switch = Switch::of(program);
    assert!(switch.one(0, &[0x40, 0, 0, 0, 0, 0, 0, 0]).is_none());
    assert_eq!(switch.pipeline.drops().count(DropReason::Loop), 1);
}
