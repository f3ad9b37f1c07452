//! The frames that are sent: all that hosts and switches send, all that they should not, and of all of these damaged copies.

use std::net::Ipv4Addr;

use fatbtree_controller::Connection;
use fatbtree_topology::{Host, Peer};
use fatbtree_wire::query::{ANY_PARTITION, Op, QUERY_UDP_PORT, QueryHeader};
use fatbtree_wire::{Bth, Extension, Flow, HeaderTemplate, IndexFlags, IndexHeader, Opcode, Reth, hops};
use rand::RngExt as _;

use crate::case::{Case, EPOCHS, PARTITIONS};
use crate::damage::{damage, mend_ipv4};
use crate::{Frame, Random};

/// The port of the controller, by which its packets come in.
const CPU_PORT: u16 = 510;
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const VLAN: u16 = 0x8100;
const IPV6: u16 = 0x86dd;
const PROBE: u16 = 0x88b5;
const FLAGS_AT: usize = 20;
const TTL_AT: usize = 22;

/// Makes frames for one switch.
pub(crate) struct Frames<'a> {
    case: &'a Case,
    /// Hosts here and elsewhere.
    hosts: Vec<Host>,
    host_ports: Vec<(u16, Host)>,
    trunks: Vec<u16>,
    ports: u16,
    random: &'a mut Random,
}

impl<'a> Frames<'a> {
    pub(crate) fn new(case: &'a Case, random: &'a mut Random) -> Self {
        let network = &case.network;
        let (mut host_ports, mut trunks) = (Vec::new(), Vec::new());
        for (port, peer) in network.ports(case.switch) {
            match peer {
                Peer::Host(host) => host_ports.push((port, network.host(host).clone())),
                Peer::Switch { .. } => trunks.push(port),
            }
        }
        let ports = network.port_count(case.switch);
        Self { case, hosts: network.hosts().to_vec(), host_ports, trunks, ports, random }
    }

    /// One frame, and the port that it comes in by.
    pub(crate) fn next(&mut self) -> Frame {
        let mut frame = match self.random.random_range(0..100u8) {
            0..18 => self.index_read(),
            18..25 => self.query(),
            // Where there are no other switches, all of them are forged.
            25..45 if self.trunks.is_empty() => self.index_read(),
            25..47 => self.in_flight(),
            47..52 => self.query_in_flight(),
            52..60 => self.roce(),
            60..66 => self.datagram(),
            66..73 => self.arp(),
            73..79 => self.echo(),
            79..82 => self.other_ether_type(),
            82..86 => self.foreign_in_flight(),
            86..88 => self.packet_out(),
            88..90 => self.noise(),
            _ => self.varied(),
        };
        match self.random.random_range(0..100u8) {
            0..4 => self.tag(&mut frame),
            4..6 => frame.port = self.any_port(),
            _ => {}
        }
        if self.random.random_bool(0.4) {
            damage(&mut frame.bytes, self.random);
        }
        // A stream of frames has no empty ones.
        if frame.bytes.is_empty() {
            frame.bytes.push(0);
        }
        frame
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.random.random_range(0..of.len())].clone()
    }

    fn any_port(&mut self) -> u16 {
        match self.random.random_range(0..8u8) {
            0 => self.random.random_range(0..510),
            _ => self.random.random_range(0..self.ports + 2),
        }
    }

    /// Port by which a packet from another switch comes in, if there are others.
    fn trunk(&mut self) -> u16 {
        let trunks = self.trunks.clone();
        if trunks.is_empty() { self.any_port() } else { self.pick(&trunks) }
    }

    fn client(&mut self) -> (u16, Host) {
        let here = self.host_ports.clone();
        if !here.is_empty() && self.random.random_bool(0.9) {
            return self.pick(&here);
        }
        let hosts = self.hosts.clone();
        (self.any_port(), self.pick(&hosts))
    }

    fn host(&mut self) -> Host {
        let hosts = self.hosts.clone();
        self.pick(&hosts)
    }

    fn key(&mut self) -> u64 {
        let case = self.case;
        match self.random.random_range(0..10u8) {
            0..6 => self.pick(&case.keys).wrapping_add(self.random.random_range(0..3)).wrapping_sub(1),
            6 => [0, 1, u64::MAX, 1 << 63, (1 << 63) - 1, 0xffff_ffff, 1 << 32]
                [self.random.random_range(0..7usize)],
            7 => self.pick(&case.hot),
            8 => self.pick(&case.keys) ^ 1 << self.random.random_range(0..64u8),
            _ => self.random.random(),
        }
    }

    fn connection(&mut self, host: &Host) -> Connection {
        let of: Vec<Connection> =
            self.case.connections.iter().filter(|connection| connection.client == host.ip).copied().collect();
        let of = if of.is_empty() { self.case.connections.clone() } else { of };
        self.pick(&of)
    }

    fn tos(&mut self) -> u8 {
        let dscp = match self.random.random_range(0..4u8) {
            0 => 26,
            1 => 48,
            2 => 0,
            _ => self.random.random_range(0..64),
        };
        dscp << 2 | self.random.random_range(0..4u8)
    }

    fn ttl(&mut self) -> u8 {
        match self.random.random_range(0..6u8) {
            0 => [0, 1, 2, 15, 16, 17, 255][self.random.random_range(0..7usize)],
            1 => self.random.random(),
            _ => 64,
        }
    }

    fn flow(&mut self, from: &Host, to: Ipv4Addr) -> Flow {
        let destination = self.host();
        Flow {
            source_mac: from.mac.0,
            destination_mac: destination.mac.0,
            source_ip: from.ip,
            destination_ip: to,
            source_port: self.random.random(),
            tos: self.tos(),
            ttl: self.ttl(),
        }
    }

    /// A READ with a key, from a host: registered and not, too long and not, of hot keys and of others.
    fn index_read(&mut self) -> Frame {
        let (port, client) = self.client();
        let connection = self.connection(&client);
        let server = self.case.placement.host(connection.partition);
        let to = server.map_or(Ipv4Addr::LOCALHOST, |server| self.case.network.host(server).ip);
        let hot = self.random.random_bool(0.3);
        let case = self.case;
        let key = if hot { self.pick(&case.hot) } else { self.key() };
        let length = match self.random.random_range(0..10u8) {
            0 => [0, 0x7fff, 0x8000, 0xffff, 0x1_0000, u32::MAX][self.random.random_range(0..6usize)],
            1 => u32::from(connection.mtu) + self.random.random_range(0..3u32) - 1,
            2 => self.random.random(),
            _ => self.random.random_range(0..=256),
        };
        let dest_qp = match self.random.random_range(0..12u8) {
            0 => self.random.random_range(0..1 << 24),
            1 => connection.dest_qp ^ 1,
            _ => connection.dest_qp,
        };
        let reth = Reth { va: key, rkey: self.random.random_range(0..=256), length };
        let bytes = self.read(&client, to, dest_qp, reth);
        Frame { port, bytes }
    }

    fn read(&mut self, from: &Host, to: Ipv4Addr, dest_qp: u32, reth: Reth) -> Vec<u8> {
        let flow = self.flow(from, to);
        let bth = Bth {
            ack_request: self.random.random(),
            resv8a: if self.random.random_bool(0.2) { self.random.random() } else { 0 },
            ..Bth::new(Opcode::RC_RDMA_READ_REQUEST, dest_qp, self.random.random_range(0..1 << 24))
        };
        let mut bytes = Vec::new();
        HeaderTemplate::new(&flow).emit(&mut bytes, self.random.random(), &bth, &Extension::Reth(reth), &[]);
        bytes
    }

    /// An index read between two switches; some from hosts, which must not send such.
    fn in_flight(&mut self) -> Frame {
        let case = self.case;
        let client = self.host();
        let connection = self.pick(&case.connections);
        let server = case.placement.host(connection.partition);
        let to = server.map_or(Ipv4Addr::LOCALHOST, |server| case.network.host(server).ip);
        let key = self.key();
        let reth = Reth {
            va: key,
            rkey: self.random.random::<u8>().into(),
            length: self.random.random_range(0..=4096),
        };
        let mut bytes = self.read(&client, to, connection.dest_qp, reth);
        let (header, va) = self.walk(&connection, key);
        hops::admit(&mut bytes, &header, va, connection.rkey);
        let port = if self.random.random_bool(0.95) { self.trunk() } else { self.any_port() };
        Frame { port, bytes }
    }

    /// An index header between two switches, and the address of a node.
    fn walk(&mut self, connection: &Connection, key: u64) -> (IndexHeader, u64) {
        let case = self.case;
        let flags = match self.random.random_range(0..10u8) {
            0..3 => IndexFlags::CLIMBING.0,
            3..7 => IndexFlags::INNER.0,
            7 => IndexFlags::LEAF.0,
            8 => 0,
            _ => self.random.random(),
        };
        let mut header = IndexHeader {
            flags: IndexFlags(flags),
            epoch: match self.random.random_range(0..10u8) {
                0 => self.random.random(),
                1..4 => EPOCHS[0],
                _ => EPOCHS[1],
            },
            levels: if self.random.random_bool(0.1) {
                self.random.random()
            } else {
                self.random.random_range(0..4)
            },
            partition: match self.random.random_range(0..12u8) {
                0 => self.random.random(),
                1 => PARTITIONS[self.random.random_range(0..PARTITIONS.len())],
                _ => connection.partition,
            },
            path: if self.random.random_bool(0.05) {
                self.random.random()
            } else {
                self.random.random_range(0..64)
            },
            slice: if self.random.random_bool(0.5) { self.random.random() } else { 0 },
            key,
        };
        let mut va = match self.random.random_range(0..10u8) {
            0 => self.random.random(),
            1 => connection.root,
            _ => self.pick(&case.nodes).0,
        };
        if !case.cached.is_empty() && self.random.random_bool(0.5) {
            self.at_cached_node(&mut header, &mut va);
        }
        (header, va)
    }

    /// A query as a host sends it, to a server or to another host; some with fields that only switches should
    /// write.
    fn query(&mut self) -> Frame {
        let key = self.key();
        let mut header = QueryHeader::request(Op::Get, key, self.random.random(), self.random.random());
        if self.random.random_bool(0.3) {
            let connection = self.pick(&self.case.connections);
            (header.walk, header.address) = self.walk(&connection, key);
        }
        header.walk.path = self.random.random_range(0..=64);
        self.query_frame(&header)
    }

    /// One between two switches; some from hosts, which must not mark any.
    fn query_in_flight(&mut self) -> Frame {
        let (key, connection) = (self.key(), self.pick(&self.case.connections));
        let mut header = QueryHeader::request(Op::Put, key, self.random.random(), self.random.random());
        (header.walk, header.address) = self.walk(&connection, key);
        if self.random.random_bool(0.3) {
            header.walk.partition = ANY_PARTITION;
        }
        let mut frame = self.query_frame(&header);
        frame.bytes[FLAGS_AT] |= 0x80;
        mend_ipv4(&mut frame.bytes);
        if self.random.random_bool(0.95) {
            frame.port = self.trunk();
        }
        frame
    }

    /// Puts a query into a datagram whose checksum may be any, or none; some are too short.
    fn query_frame(&mut self, header: &QueryHeader) -> Frame {
        let more = self.random.random_range(0..60usize);
        let mut payload = vec![0; 8];
        payload.extend(header.to_bytes());
        payload.extend((0..more).map(|_| self.random.random::<u8>()));
        if self.random.random_bool(0.05) {
            payload.truncate(self.random.random_range(8..payload.len()));
        }
        let checksum: u16 = match self.random.random_range(0..10u8) {
            0 => 0,
            1 => 0xffff,
            _ => self.random.random(),
        };
        for (at, number) in
            [(0, self.random.random()), (2, QUERY_UDP_PORT), (4, payload.len() as u16), (6, checksum)]
        {
            payload[at..at + 2].copy_from_slice(&number.to_be_bytes());
        }
        self.ipv4(17, &payload)
    }

    /// Lets a header begin at a node that this switch has, with a key about one of its pivots.
    fn at_cached_node(&mut self, header: &mut IndexHeader, va: &mut u64) {
        let case = self.case;
        let (epoch, node) = self.pick(&case.cached);
        let (address, firsts) = &case.nodes[node];
        let key = self.pick(firsts).wrapping_add(self.random.random_range(0..3)).wrapping_sub(1);
        *va = *address;
        let partition = (address >> 48) as u16;
        *header = IndexHeader { flags: IndexFlags::INNER, epoch, partition, key, ..*header };
    }

    /// Other RoCE packets.
    fn roce(&mut self) -> Frame {
        let (port, from) = self.client();
        let (to, dest_qp) = (self.host(), self.random.random_range(0..1 << 24));
        let reth =
            Reth { va: self.random.random(), rkey: self.random.random(), length: self.random.random() };
        let mut bytes = self.read(&from, to.ip, dest_qp, reth);
        if self.random.random_bool(0.7) {
            // Another operation, of another length.
            bytes[42] = self.random.random();
            let more = self.random.random_range(0..300);
            self.append(&mut bytes, more);
        }
        let port = if self.random.random_bool(0.5) { port } else { self.trunk() };
        Frame { port, bytes }
    }

    /// More payload after UDP, with lengths that say so.
    fn append(&mut self, bytes: &mut Vec<u8>, more: usize) {
        bytes.extend((0..more).map(|_| self.random.random::<u8>()));
        let (ip, udp) = (bytes.len() - 14, bytes.len() - 34);
        bytes[16..18].copy_from_slice(&(ip as u16).to_be_bytes());
        bytes[38..40].copy_from_slice(&(udp as u16).to_be_bytes());
        mend_ipv4(bytes);
    }

    /// Addresses that are routed, and some that are not.
    fn destination(&mut self) -> Ipv4Addr {
        match self.random.random_range(0..10u8) {
            0 => Ipv4Addr::from(self.random.random::<u32>()),
            1 => Ipv4Addr::from(0x0a00_0000 | self.random.random::<u32>() & 0xff_ffff),
            2 => self.case.network.switch(self.case.switch).ip,
            3 => {
                let switches = self.case.network.switches();
                switches[self.random.random_range(0..switches.len())].ip
            }
            _ => self.host().ip,
        }
    }

    fn ipv4(&mut self, protocol: u8, payload: &[u8]) -> Frame {
        let (port, from) = self.client();
        let to = self.destination();
        let destination = self.host();
        let mut bytes = ethernet(destination.mac.0, from.mac.0, IPV4);
        bytes.extend([0x45, self.tos()]);
        bytes.extend((20 + payload.len() as u16).to_be_bytes());
        bytes.extend(self.random.random::<u16>().to_be_bytes());
        bytes.extend([if self.random.random() { 0x40 } else { 0 }, 0, self.ttl(), protocol, 0, 0]);
        bytes.extend(from.ip.octets());
        bytes.extend(to.octets());
        bytes.extend(payload);
        mend_ipv4(&mut bytes);
        let port = if self.random.random_bool(0.6) { port } else { self.trunk() };
        Frame { port, bytes }
    }

    fn datagram(&mut self) -> Frame {
        let length = match self.random.random_range(0..20u8) {
            0 => 8900,
            1..4 => 1472,
            _ => self.random.random_range(0..200usize),
        };
        let mut payload: Vec<u8> = (0..8 + length).map(|_| self.random.random()).collect();
        payload[2..4]
            .copy_from_slice(&[4791u16, 4792, 4793, 53][self.random.random_range(0..4usize)].to_be_bytes());
        payload[4..6].copy_from_slice(&(8 + length as u16).to_be_bytes());
        let protocol = [17, 17, 17, 6, 132, 1, 0][self.random.random_range(0..7usize)];
        self.ipv4(protocol, &payload)
    }

    fn echo(&mut self) -> Frame {
        let mut payload: Vec<u8> =
            (0..8 + self.random.random_range(0..100usize)).map(|_| self.random.random()).collect();
        payload[0] = [8, 8, 8, 0, 3][self.random.random_range(0..5usize)];
        payload[1] = u8::from(self.random.random_bool(0.1));
        // About the carry of the checksum that the answer has.
        if self.random.random_bool(0.5) {
            payload[2] = [0xf6, 0xf7, 0xf8, 0xff][self.random.random_range(0..4usize)];
        }
        let mut frame = self.ipv4(1, &payload);
        if self.random.random_bool(0.7) {
            let to = self.case.network.switch(self.case.switch).ip;
            frame.bytes[30..34].copy_from_slice(&to.octets());
            mend_ipv4(&mut frame.bytes);
        }
        frame
    }

    fn arp(&mut self) -> Frame {
        let (port, from) = self.client();
        let sought = self.destination();
        let mut bytes = ethernet([0xff; 6], from.mac.0, ARP);
        let operation = if self.random.random_bool(0.8) { 1 } else { self.random.random_range(0..4u8) };
        bytes.extend([0, 1, 8, 0, 6, 4, 0, operation]);
        bytes.extend(from.mac.0);
        // A probe for one's own address has none as its sender's.
        bytes.extend(if self.random.random_bool(0.1) { [0; 4] } else { from.ip.octets() });
        bytes.extend([0; 6]);
        bytes.extend(if self.random.random_bool(0.15) { from.ip } else { sought }.octets());
        bytes.extend(vec![0; [0, 18, 22][self.random.random_range(0..3usize)]]);
        let port = if self.random.random_bool(0.85) { port } else { self.trunk() };
        Frame { port, bytes }
    }

    fn other_ether_type(&mut self) -> Frame {
        let from = self.host();
        let kind = [IPV6, IPV6, PROBE, PROBE, 0x88cc, 0x8847, 0x88a8, self.random.random()]
            [self.random.random_range(0..8usize)];
        let mut bytes = ethernet([0x33, 0x33, 0, 0, 0, 1], from.mac.0, kind);
        bytes.extend((0..self.random.random_range(0..120usize)).map(|_| self.random.random::<u8>()));
        let port = if self.random.random() { self.trunk() } else { self.any_port() };
        Frame { port, bytes }
    }

    /// A frame to the port of index packets, or with their mark, that is no index packet.
    fn foreign_in_flight(&mut self) -> Frame {
        let mut frame = if self.random.random() { self.datagram() } else { self.in_flight() };
        let bytes = &mut frame.bytes;
        bytes[36..38].copy_from_slice(&4792u16.to_be_bytes());
        match self.random.random_range(0..4u8) {
            0 => bytes[FLAGS_AT] ^= 0x80,
            1 => bytes[FLAGS_AT] |= 0x80,
            2 => {
                bytes[FLAGS_AT] |= 0x80;
                bytes[38..40].copy_from_slice(&56u16.to_be_bytes());
            }
            _ => {}
        }
        mend_ipv4(bytes);
        frame.port = if self.random.random_bool(0.6) { self.trunk() } else { self.any_port() };
        frame
    }

    /// A frame from the controller, with the port by which it leaves as it is.
    fn packet_out(&mut self) -> Frame {
        let mut inner = self.varied();
        // What it gets back is compared apart, and 511 is nowhere.
        let port =
            [self.any_port(), self.random.random_range(0..510), 511][self.random.random_range(0..3usize)];
        inner.bytes.splice(0..0, port.to_be_bytes());
        Frame { port: CPU_PORT, bytes: inner.bytes }
    }

    fn noise(&mut self) -> Frame {
        let length = self.random.random_range(1..200usize);
        let bytes = (0..length).map(|_| self.random.random()).collect();
        Frame { port: self.any_port(), bytes }
    }

    /// An IPv4 packet with one field of its header changed, and the checksum right.
    fn varied(&mut self) -> Frame {
        let mut frame = match self.random.random_range(0..4u8) {
            0 => self.index_read(),
            1 => self.in_flight(),
            2 => self.roce(),
            _ => self.datagram(),
        };
        let bytes = &mut frame.bytes;
        match self.random.random_range(0..8u8) {
            // Options, or a header too short to be one; another version.
            0 => bytes[14] = 0x40 | self.random.random_range(0..16u8),
            1 => bytes[14] = bytes[14] & 0x0f | self.random.random_range(0..16u8) << 4,
            // Fragments.
            2 => bytes[FLAGS_AT] |= 0x20,
            3 => bytes[FLAGS_AT + 1] = self.random.random(),
            4 => bytes[TTL_AT] = self.random.random_range(0..4),
            5 => bytes[15] = self.random.random(),
            6 => bytes[23] = self.random.random(),
            _ => bytes[16..18].copy_from_slice(&self.random.random::<u16>().to_be_bytes()),
        }
        mend_ipv4(bytes);
        frame
    }

    /// One tag, or two.
    fn tag(&mut self, frame: &mut Frame) {
        for _ in 0..self.random.random_range(1..3u8) {
            if frame.bytes.len() < 12 {
                return;
            }
            let tag: u16 = self.random.random();
            let outer = if self.random.random_bool(0.9) { VLAN } else { 0x88a8 };
            let bytes = [outer.to_be_bytes(), tag.to_be_bytes()].concat();
            frame.bytes.splice(12..12, bytes);
        }
    }
}

fn ethernet(to: [u8; 6], from: [u8; 6], kind: u16) -> Vec<u8> {
    [&to[..], &from[..], &kind.to_be_bytes()[..]].concat()
}
