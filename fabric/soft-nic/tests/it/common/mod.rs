//! Two NICs, virtual time, and a seeded link between them that loses, doubles, damages and delays frames; and frames that
//! neither of them would send.
#![allow(dead_code, unreachable_pub)] // each test file uses its part, and none exports anything

use fatbtree_soft_nic::faults::{FaultRates, LossyLink};
use fatbtree_soft_nic::{Nic, NicConfig, QueuePairOptions};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{
    Access, Completion, Device, Failure, Memory, Operation, Output, PostError, QueuePair, Region, Remote,
    Verbs, WorkRequest,
};
use fatbtree_wire::{Bth, Extension, Flow, Frame, HeaderTemplate, Opcode, Reth};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// End of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Client,
    Server,
}

pub struct Pair {
    pub now: Instant,
    pub client: Nic,
    pub server: Nic,
    pub queue_pair: QueuePair,
    pub peer: QueuePair,
    pub link: LossyLink<End>,
    frame: Vec<u8>,
}

pub const CLIENT: ([u8; 6], Ipv4Addr) = ([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1));
pub const SERVER: ([u8; 6], Ipv4Addr) = ([2, 0, 0, 0, 0, 2], Ipv4Addr::new(10, 0, 0, 2));

pub const LATENCY: Duration = Duration::from_micros(5);

pub fn client_config() -> NicConfig {
    NicConfig { ack_timeout: Duration::from_micros(100), ..NicConfig::new(CLIENT.0, CLIENT.1) }
}

pub fn server_config() -> NicConfig {
    NicConfig { ack_timeout: Duration::from_micros(100), ..NicConfig::new(SERVER.0, SERVER.1) }
}

/// Addresses of a host.
pub type Addresses = ([u8; 6], Ipv4Addr);

/// Addresses of frames from one host to another.
pub fn flow(from: Addresses, to: Addresses) -> Flow {
    Flow {
        source_mac: from.0,
        destination_mac: to.0,
        source_ip: from.1,
        destination_ip: to.1,
        ..Flow::default()
    }
}

/// Number of seeds of a test: those that the environment variable `FATBTREE_NIC_SEEDS` names, or as many as a test has time for.
pub fn seeds(usual: u64) -> std::ops::Range<u64> {
    let given = std::env::var("FATBTREE_NIC_SEEDS").ok();
    0..given.map_or(usual, |seeds| seeds.parse().expect("FATBTREE_NIC_SEEDS is a number of seeds"))
}

/// Connects a queue pair of each.
pub fn connect(client: &mut Nic, server: &mut Nic, options: QueuePairOptions) -> (QueuePair, QueuePair) {
    let queue_pair = client.create_with(options).unwrap();
    let peer = server.create().unwrap();
    client.connect(queue_pair, &server.endpoint(peer).unwrap()).unwrap();
    server.connect(peer, &client.endpoint(queue_pair).unwrap()).unwrap();
    (queue_pair, peer)
}

/// Everything a NIC wants to send now.
pub fn drain(nic: &mut Nic, now: Instant) -> Vec<Vec<u8>> {
    let (mut frames, mut frame) = (Vec::new(), Vec::new());
    while nic.poll_transmit(now, &mut frame) {
        frames.push(frame.clone());
    }
    frames
}

pub fn read(address: u64, rkey: u32, len: u32) -> Operation<'static> {
    Operation::Read { from: Remote { address, rkey }, len }
}

pub fn write(address: u64, rkey: u32, data: &[u8]) -> Operation<'_> {
    Operation::Write { to: Remote { address, rkey }, data }
}

pub fn fetch_add(address: u64, rkey: u32, add: u64) -> Operation<'static> {
    Operation::FetchAdd { at: Remote { address, rkey }, add }
}

impl Pair {
    pub fn new(seed: u64) -> Pair {
        Pair::with(seed, client_config(), server_config(), QueuePairOptions::default(), FaultRates::NONE)
    }

    pub fn with(
        seed: u64,
        client: NicConfig,
        server: NicConfig,
        options: QueuePairOptions,
        rates: FaultRates,
    ) -> Pair {
        let mut client = Nic::new(client, seed).unwrap();
        let mut server = Nic::new(server, seed ^ 0x5eed).unwrap();
        let (queue_pair, peer) = connect(&mut client, &mut server, options);
        let link = LossyLink::new(LATENCY, rates, seed);
        Pair { now: Instant::ZERO, client, server, queue_pair, peer, link, frame: Vec::new() }
    }

    /// Memory of the server with these bytes.
    pub fn register(&mut self, bytes: &[u8], iova: u64, access: Access) -> (Arc<Memory>, Region) {
        let memory = Memory::shared(bytes.len() as u64).unwrap();
        memory.write(0, bytes).unwrap();
        let region = self.server.register(&memory, iova, access).unwrap();
        (memory, region)
    }

    /// Posts one signalled request.
    pub fn post(&mut self, tag: u64, operation: Operation<'_>) -> Result<(), PostError> {
        self.client.post(self.queue_pair, &[WorkRequest { tag, signalled: true, operation }])
    }

    fn transmit(&mut self) {
        while self.client.poll_transmit(self.now, &mut self.frame) {
            self.link.send(self.now, End::Server, &self.frame);
        }
        while self.server.poll_transmit(self.now, &mut self.frame) {
            self.link.send(self.now, End::Client, &self.frame);
        }
    }

    /// Moves to the next event. False when nothing is on its way and nothing is due.
    pub fn step(&mut self) -> bool {
        self.transmit();
        let arrival = self.link.next_arrival();
        let timeout = [self.client.poll_timeout(), self.server.poll_timeout()].into_iter().flatten().min();
        let Some(next) = [arrival, timeout].into_iter().flatten().min() else { return false };
        assert!(next >= self.now, "time went back");
        self.now = next;
        match self.link.receive(self.now, &mut self.frame) {
            Some(End::Server) => self.server.handle_frame(self.now, &self.frame),
            Some(End::Client) => self.client.handle_frame(self.now, &self.frame),
            None => {
                self.client.handle_timeout(self.now);
                self.server.handle_timeout(self.now);
            }
        }
        true
    }

    /// Steps until nothing is left to do.
    pub fn drive(&mut self) {
        for _ in 0..1_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!(
            "still busy after a million events: client {}, server {}",
            self.client.stats(),
            self.server.stats()
        );
    }

    pub fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.client.poll()).collect()
    }

    /// Tag and failure of each completion.
    pub fn outcomes(&mut self) -> Vec<(u64, Option<Failure>)> {
        self.completions().into_iter().map(|completion| (completion.tag, completion.result.err())).collect()
    }

    /// The one completion there is: the bytes that it read.
    pub fn bytes(&mut self) -> Vec<u8> {
        match &self.completions()[..] {
            [Completion { result: Ok(Output::Read(bytes)), .. }] => bytes.to_vec(),
            other => panic!("one READ was to succeed: {other:?}"),
        }
    }

    /// The client's first PSN.
    pub fn first_psn(&self) -> u32 {
        self.client.endpoint(self.queue_pair).unwrap().psn
    }

    /// A frame that seems to come from the other end: what is not said in `bth` is right.
    pub fn forge(&self, to: End, opcode: Opcode, psn: u32, extension: Extension, payload: &[u8]) -> Vec<u8> {
        let (from, at, number) = match to {
            End::Server => (CLIENT, SERVER, self.server.endpoint(self.peer)),
            End::Client => (SERVER, CLIENT, self.client.endpoint(self.queue_pair)),
        };
        let flow = flow(from, at);
        let bth = Bth { ack_request: true, ..Bth::new(opcode, number.unwrap().queue_pair.0, psn) };
        let mut out = Vec::new();
        HeaderTemplate::new(&flow).emit(&mut out, 1, &bth, &extension, payload);
        out
    }

    /// Hands a forged request to the server.
    pub fn request(&mut self, opcode: Opcode, psn: u32, extension: Extension, payload: &[u8]) {
        let frame = self.forge(End::Server, opcode, psn, extension, payload);
        self.server.handle_frame(self.now, &frame);
    }

    /// Hands a forged READ request to the server.
    pub fn request_read(&mut self, psn: u32, va: u64, rkey: u32, length: u32) {
        let reth = Extension::Reth(Reth { va, rkey, length });
        self.request(Opcode::RC_RDMA_READ_REQUEST, psn, reth, &[]);
    }

    /// Hands a forged response to the client.
    pub fn respond(&mut self, opcode: Opcode, psn: u32, extension: Extension, payload: &[u8]) {
        let frame = self.forge(End::Client, opcode, psn, extension, payload);
        self.client.handle_frame(self.now, &frame);
    }

    /// Packets that the server sends now, in short.
    pub fn answers(&mut self) -> Vec<String> {
        drain(&mut self.server, self.now).iter().map(|frame| describe(frame)).collect()
    }
}

/// PSN, and what a responder says.
pub fn describe(frame: &[u8]) -> String {
    let frame = Frame::parse(frame).unwrap();
    let psn = frame.bth.psn;
    match frame.extension {
        Extension::Aeth(aeth) if frame.bth.opcode == Opcode::RC_ACKNOWLEDGE => {
            format!("{psn}: {}", aeth.syndrome)
        }
        Extension::AethAtomicAck(_, ack) => format!("{psn}: atomic, {}", ack.original),
        _ => format!("{psn}: {} bytes", frame.payload.len()),
    }
}
