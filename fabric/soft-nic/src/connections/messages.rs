//! Messages of the Communication Manager, made from what a NIC knows, and what they say of the other side.

use std::net::Ipv4Addr;

use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Endpoint, Mtu, QueuePairNumber};
use fatbtree_wire::DEFAULT_PKEY;
use fatbtree_wire::cm::{Addresses, Ids, Path, Reason, Reject, Reply, Request, What};

use super::{Peer, service_id};

/// What messages have of a NIC's configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// Time after which a message is sent again.
    pub(crate) timeout: Duration,
    /// Times that it is sent again.
    pub(crate) retries: u8,
    /// Time after which a packet of a queue pair is sent again.
    pub(crate) ack_timeout: Duration,
    /// Times that it is sent again.
    pub(crate) retry_count: u8,
    /// Largest path MTU.
    pub(crate) mtu: Mtu,
    /// Hops that a packet may take.
    pub(crate) ttl: u8,
}

/// Unit of times in messages.
const UNIT_NS: u64 = 4096;

/// The shortest time that can be said and is not shorter: 4.096 µs times two to this power.
pub(crate) fn encoded(time: Duration) -> u8 {
    let units = time.as_nanos().div_ceil(UNIT_NS).max(1);
    (units.next_power_of_two().trailing_zeros() as u8).min(31)
}

pub(super) fn decoded(code: u8) -> Duration {
    Duration::from_nanos(UNIT_NS << (code & 31))
}

pub(super) const fn mtu_code(mtu: Mtu) -> u8 {
    match mtu {
        Mtu::B256 => 1,
        Mtu::B512 => 2,
        Mtu::B1024 => 3,
        Mtu::B2048 => 4,
        Mtu::B4096 => 5,
    }
}

pub(super) fn mtu_of(code: u8) -> Option<Mtu> {
    [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096].into_iter().find(|mtu| mtu_code(*mtu) == code)
}

/// The port of a service, if librdmacm names it by one.
pub(super) fn port_of(service: u64) -> Option<u16> {
    Some(service as u16).filter(|port| service_id(*port) == service)
}

/// Private data of the program that has asked: behind the addresses.
pub(super) fn program_data(private: &[u8; 92]) -> Option<&[u8]> {
    let (addresses, program) = private.split_first_chunk()?;
    Addresses::parse(addresses).map(|_| program)
}

/// The endpoint that a REQ or a REP names: queue pair, PSN, READs that it answers at once and has outstanding. A program that serves none
/// says 0.
fn endpoint(peer: Peer, mtu: Mtu, [queue_pair, psn]: [u32; 2], [responder, initiator]: [u8; 2]) -> Endpoint {
    Endpoint {
        mac: peer.mac,
        ip: peer.ip,
        queue_pair: QueuePairNumber(queue_pair),
        psn,
        mtu,
        responder_reads: responder.max(1),
        initiator_reads: initiator.max(1),
    }
}

pub(super) fn endpoint_of_request(peer: Peer, request: &Request, mtu: Mtu) -> Endpoint {
    let Request { queue_pair, starting_psn, responder_resources, initiator_depth, .. } = *request;
    endpoint(peer, mtu, [queue_pair, starting_psn], [responder_resources, initiator_depth])
}

pub(super) fn endpoint_of_reply(peer: Peer, reply: &Reply, mtu: Mtu) -> Endpoint {
    let Reply { queue_pair, starting_psn, responder_resources, initiator_depth, .. } = *reply;
    endpoint(peer, mtu, [queue_pair, starting_psn], [responder_resources, initiator_depth])
}

/// Private data, filled up with zeros.
fn filled<const N: usize>(private: &[u8]) -> [u8; N] {
    let mut all = [0; N];
    let len = private.len().min(N);
    all[..len].copy_from_slice(&private[..len]);
    all
}

pub(super) fn reject(ids: Ids, what: What, reason: Reason, information: &[u8], private: &[u8]) -> Reject {
    Reject {
        ids,
        what,
        information_bytes: information.len() as u8,
        reason,
        information: filled(information),
        private: filled(private),
    }
}

/// The global identifier of a port with this address (RoCEv2: an IPv6 address that has an IPv4 one).
fn gid(ip: Ipv4Addr) -> [u8; 16] {
    ip.to_ipv6_mapped().octets()
}

/// Identifier of an adapter with this MAC address (EUI-64).
fn guid(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// What one side of a connection has to say.
pub(super) struct Terms {
    pub(super) timing: Timing,
    pub(super) local: Endpoint,
    pub(super) peer: Peer,
}

impl Terms {
    pub(super) fn request(&self, id: u32, port: u16, private: &[u8]) -> Request {
        let Self { timing, local, peer } = self;
        let addresses = Addresses { source_port: 0, source: local.ip.into(), destination: peer.ip.into() };
        let timeout = encoded(timing.timeout);
        Request {
            local_id: id,
            service_id: service_id(port),
            guid: guid(local.mac),
            queue_key: 0,
            queue_pair: local.queue_pair.0,
            responder_resources: local.responder_reads,
            initiator_depth: local.initiator_reads,
            remote_timeout: timeout,
            transport: 0,
            flow_control: false,
            starting_psn: local.psn,
            local_timeout: timeout,
            retry_count: timing.retry_count.min(7),
            partition_key: DEFAULT_PKEY,
            mtu: mtu_code(local.mtu),
            rnr_retry_count: 7,
            most_retries: timing.retries.min(15),
            has_shared_queue: false,
            path: Path {
                local_gid: gid(local.ip),
                remote_gid: gid(peer.ip),
                hop_limit: timing.ttl,
                ack_timeout: encoded(timing.ack_timeout),
                ..Path::default()
            },
            alternate: Path::default(),
            private: filled(&[&addresses.to_bytes()[..], private].concat()),
        }
    }

    /// Accepts what `remote` has asked for, as far as this side can.
    pub(super) fn reply(&self, ids: Ids, remote: &Endpoint, private: &[u8]) -> Reply {
        let Self { timing, local, .. } = self;
        Reply {
            ids,
            queue_key: 0,
            queue_pair: local.queue_pair.0,
            starting_psn: local.psn,
            responder_resources: local.responder_reads.min(remote.initiator_reads),
            initiator_depth: local.initiator_reads.min(remote.responder_reads),
            ack_delay: encoded(timing.ack_timeout).saturating_sub(2),
            failover: 1,
            flow_control: false,
            rnr_retry_count: 7,
            has_shared_queue: false,
            guid: guid(local.mac),
            private: filled(private),
        }
    }
}
