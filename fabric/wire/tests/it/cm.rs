//! Messages of the Communication Manager: layouts against the specification's tables, round trips, and any bytes.

use std::net::Ipv4Addr;

use fatbtree_wire::cm::{
    Addresses, Disconnect, DisconnectReply, Ids, MAD_BYTES, Mad, MadError, Message, MessageReceipt, Path,
    ReadyToUse, Reason, Reject, Reply, Request, What, service_id,
};
use proptest::prelude::*;

fn a_path() -> impl Strategy<Value = Path> {
    let gids = (any::<[u8; 16]>(), any::<[u8; 16]>());
    let small = (0..1_u32 << 20, 0..64_u8, 0..16_u8, 0..32_u8);
    (gids, small, any::<[u8; 2]>(), any::<bool>()).prop_map(
        |(
            (local_gid, remote_gid),
            (flow_label, rate, service_level, ack_timeout),
            [traffic_class, hop_limit],
            is_local,
        )| {
            Path {
                local_gid,
                remote_gid,
                flow_label,
                rate,
                traffic_class,
                hop_limit,
                service_level,
                is_local,
                ack_timeout,
            }
        },
    )
}

fn private<const N: usize>() -> impl Strategy<Value = [u8; N]> {
    prop::collection::vec(any::<u8>(), N).prop_map(|bytes| bytes.try_into().expect("as many"))
}

fn ids() -> impl Strategy<Value = Ids> {
    any::<[u32; 2]>().prop_map(|[local, remote]| Ids { local, remote })
}

fn what() -> impl Strategy<Value = What> {
    prop::sample::select(vec![What::Request, What::Reply, What::Other])
}

fn a_message() -> impl Strategy<Value = Message> {
    let number = 0..1_u32 << 24;
    let request = (
        (any::<[u32; 2]>(), any::<[u64; 2]>(), number.clone(), number.clone(), any::<u16>()),
        (any::<[u8; 2]>(), 0..32_u8, 0..4_u8, 0..32_u8, 0..8_u8, 0..16_u8, 0..8_u8, 0..16_u8),
        (any::<[bool; 2]>(), a_path(), a_path(), private()),
    )
        .prop_map(|(wide, small, rest)| {
            let ([local_id, queue_key], [service_id, guid], queue_pair, starting_psn, partition_key) = wide;
            let ([responder_resources, initiator_depth], remote_timeout, transport, local_timeout, ..) =
                small;
            let (.., retry_count, mtu, rnr_retry_count, most_retries) = small;
            let ([flow_control, has_shared_queue], path, alternate, private) = rest;
            Message::Request(Request {
                local_id,
                service_id,
                guid,
                queue_key,
                queue_pair,
                responder_resources,
                initiator_depth,
                remote_timeout,
                transport,
                flow_control,
                starting_psn,
                local_timeout,
                retry_count,
                partition_key,
                mtu,
                rnr_retry_count,
                most_retries,
                has_shared_queue,
                path,
                alternate,
                private,
            })
        });
    let reply = (
        (ids(), any::<u32>(), number.clone(), number.clone(), any::<u64>(), private()),
        (any::<[u8; 2]>(), 0..32_u8, 0..4_u8, 0..8_u8, any::<[bool; 2]>()),
    )
        .prop_map(|((ids, queue_key, queue_pair, starting_psn, guid, private), small)| {
            let ([responder_resources, initiator_depth], ack_delay, failover, rnr_retry_count, flags) = small;
            let [flow_control, has_shared_queue] = flags;
            Message::Reply(Reply {
                ids,
                queue_key,
                queue_pair,
                starting_psn,
                responder_resources,
                initiator_depth,
                ack_delay,
                failover,
                flow_control,
                rnr_retry_count,
                has_shared_queue,
                guid,
                private,
            })
        });
    let receipt = (ids(), what(), 0..32_u8, private())
        .prop_map(|(ids, what, timeout, private)| MessageReceipt { ids, what, timeout, private });
    let reject = (ids(), what(), 0..128_u8, any::<u16>(), private(), private()).prop_map(
        |(ids, what, information_bytes, reason, information, private)| Reject {
            ids,
            what,
            information_bytes,
            reason: Reason(reason),
            information,
            private,
        },
    );
    let ready = (ids(), private()).prop_map(|(ids, private)| ReadyToUse { ids, private });
    let end = (ids(), number, private()).prop_map(|(ids, queue_pair, private)| Disconnect {
        ids,
        queue_pair,
        private,
    });
    let ended = (ids(), private()).prop_map(|(ids, private)| DisconnectReply { ids, private });
    prop_oneof![
        request,
        reply,
        receipt.prop_map(Message::MessageReceipt),
        reject.prop_map(Message::Reject),
        ready.prop_map(Message::ReadyToUse),
        end.prop_map(Message::Disconnect),
        ended.prop_map(Message::DisconnectReply),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(transaction: u64, message in a_message()) {
        let mad = Mad { transaction, message };
        prop_assert_eq!(Mad::parse(&mad.to_bytes()), Ok(mad));
    }

    #[test]
    fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), MAD_BYTES), attribute in 0..0x20_u8) {
        let _ = Mad::parse(&bytes);
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&[0, attribute]);
        prop_assert_eq!(Mad::parse(&bytes).is_ok(), (0x10..=0x16).contains(&attribute));
        prop_assert_eq!(Mad::parse(&bytes[1..]), Err(MadError::Length { found: MAD_BYTES - 1 }));
    }

    #[test]
    fn addresses_are_read_as_they_were_written(bytes: [u8; 32], source_port: u16, is_ipv4: bool) {
        let (source, destination) = bytes.split_at(16);
        let ip = |bytes: &[u8]| match is_ipv4 {
            true => <[u8; 4]>::try_from(&bytes[..4]).expect("four").into(),
            false => <[u8; 16]>::try_from(bytes).expect("sixteen").into(),
        };
        let addresses = Addresses { source_port, source: ip(source), destination: ip(destination) };
        prop_assert_eq!(Addresses::parse(&addresses.to_bytes()), Some(addresses));
    }
}

/// Offsets and bits of tables 106, 108 and 110 of the specification, by hand.
#[test]
fn fields_lie_where_the_specification_has_them() {
    let path = Path {
        local_gid: [0xa1; 16],
        remote_gid: [0xa2; 16],
        flow_label: 0x12345,
        rate: 0x2a,
        traffic_class: 0xb1,
        hop_limit: 0xb2,
        service_level: 0xc,
        is_local: true,
        ack_timeout: 0x12,
    };
    let request = Request {
        local_id: 0x0102_0304,
        service_id: service_id(7471),
        guid: 0x1112_1314_1516_1718,
        queue_key: 0x2122_2324,
        queue_pair: 0x31_3233,
        responder_resources: 0x41,
        initiator_depth: 0x42,
        remote_timeout: 0b10101,
        transport: 0b10,
        flow_control: true,
        starting_psn: 0x51_5253,
        local_timeout: 0b01010,
        retry_count: 0b101,
        partition_key: 0xffff,
        mtu: 5,
        rnr_retry_count: 7,
        most_retries: 0xf,
        has_shared_queue: true,
        path,
        alternate: Path::default(),
        private: [0xdd; 92],
    };
    let bytes = Mad { transaction: 0x61, message: Message::Request(request) }.to_bytes();
    assert_eq!(bytes[..24], [1, 7, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x61, 0, 0x10, 0, 0, 0, 0, 0, 0]);
    let at =
        |from: usize, expected: &[u8]| assert_eq!(bytes[24 + from..][..expected.len()], *expected, "{from}");
    at(0, &[1, 2, 3, 4, 0, 0, 0, 0]);
    at(8, &[0, 0, 0, 0, 1, 6, 0x1d, 0x2f]);
    at(16, &[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0, 0, 0, 0]);
    at(28, &[0x21, 0x22, 0x23, 0x24, 0x31, 0x32, 0x33, 0x41, 0, 0, 0, 0x42, 0, 0, 0]);
    at(43, &[0b1010_1101, 0x51, 0x52, 0x53, 0b0101_0101, 0xff, 0xff, 0x57, 0xf8]);
    at(52, &[0, 0, 0, 0, 0xa1]);
    at(72, &[0xa2; 16]);
    at(88, &[0x12, 0x34, 0x50, 0x2a, 0xb1, 0xb2, 0xc8, 0x90]);
    at(96, &[0; 44]);
    at(140, &[0xdd; 92]);

    let ids = Ids { local: 0x0102_0304, remote: 0x0506_0708 };
    let reply = Reply {
        ids,
        queue_key: 0,
        queue_pair: 0x11_1213,
        starting_psn: 0x21_2223,
        responder_resources: 0x31,
        initiator_depth: 0x32,
        ack_delay: 0b10001,
        failover: 0b01,
        flow_control: true,
        rnr_retry_count: 0b101,
        has_shared_queue: true,
        guid: 0x41 << 56,
        private: [0xee; 196],
    };
    let bytes = Mad { transaction: 1, message: Message::Reply(reply) }.to_bytes();
    let begin = [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0x11, 0x12, 0x13, 0, 0, 0, 0, 0, 0x21, 0x22, 0x23, 0];
    assert_eq!(bytes[24..48], begin);
    assert_eq!(bytes[48..56], [0x31, 0x32, 0b1000_1011, 0b1011_0000, 0x41, 0, 0, 0]);
    assert_eq!(bytes[60..], [0xee; 196]);

    let reject = Reject {
        ids,
        what: What::Reply,
        information_bytes: 3,
        reason: Reason::BY_CONSUMER,
        information: [9; 72],
        private: [8; 148],
    };
    let bytes = Mad { transaction: 1, message: Message::Reject(reject) }.to_bytes();
    assert_eq!(bytes[32..37], [0x40, 6, 0, 28, 9]);
    assert_eq!((bytes[107], bytes[108]), (9, 8));
}

#[test]
fn addresses_lie_where_librdmacm_has_them() {
    let (source, destination) = (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into());
    let mut bytes = Addresses { source_port: 0x1234, source, destination }.to_bytes();
    assert_eq!(bytes[..4], [0, 0x40, 0x12, 0x34]);
    assert_eq!((&bytes[16..20], &bytes[32..]), (&[10, 0, 0, 1][..], &[10, 0, 0, 2][..]));
    for (at, value) in [(0, 1), (1, 0x50)] {
        let former = std::mem::replace(&mut bytes[at], value);
        assert_eq!(Addresses::parse(&bytes), None);
        bytes[at] = former;
    }
}
