//! Whatever frames a peer sends to a software NIC, it takes or drops them, keeps little, and sends nothing that is malformed.
#![no_main]

use std::net::Ipv4Addr;

use fatbtree_fuzz::Input;
use fatbtree_soft_nic::{Nic, NicConfig, QueuePairOptions};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{
    Access, BufferClass, BufferPool, Connection, ConnectionEvent, Connector, Device, Endpoint, Memory,
    Messages, Mtu, QueuePairNumber,
};
use fatbtree_wire::cm::{MAD_BYTES, MANAGEMENT_QUEUE_KEY, MANAGEMENT_QUEUE_PAIR, Mad, Message};
use fatbtree_wire::{Bth, Deth, Extension, Flow, Frame, HeaderTemplate, Opcode};
use libfuzzer_sys::fuzz_target;

const PORT: u16 = 7471;
const PEER: ([u8; 6], Ipv4Addr) = ([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1));
const HERE: ([u8; 6], Ipv4Addr) = ([2, 0, 0, 0, 0, 2], Ipv4Addr::new(10, 0, 0, 2));
const FIRST_PSN: u32 = 100;

/// Bytes of memory that the peer may write.
const REGION: u64 = 8192;

struct Scene {
    nic: Nic,
    now: Instant,
    /// Number of the queue pair that is connected to the peer.
    number: u32,
    psn: u32,
    /// Numbers that the NIC has given connections, as its messages have told the peer.
    ids: Vec<u32>,
    connections: Vec<Connection>,
}

fn flow() -> HeaderTemplate {
    HeaderTemplate::new(&Flow {
        source_mac: PEER.0,
        destination_mac: HERE.0,
        source_ip: PEER.1,
        destination_ip: HERE.1,
        ..Flow::default()
    })
}

impl Scene {
    fn new(buffers: BufferPool) -> Self {
        let config = NicConfig { mtu: Mtu::B256, ..NicConfig::new(HERE.0, HERE.1) };
        let mut nic = Nic::with_buffers(config, 1, buffers);
        nic.listen(PORT);
        let memory = Memory::shared(REGION).expect("a few pages");
        nic.register_with_rkey(700, &memory, 0, Access::ALL).expect("a free rkey");
        let options = QueuePairOptions { psn: Some(FIRST_PSN), ..QueuePairOptions::default() };
        let queue_pair = nic.create_with(options).expect("room");
        let number = nic.endpoint(queue_pair).expect("it is new").queue_pair.0;
        let peer = Endpoint {
            mac: PEER.0,
            ip: PEER.1,
            queue_pair: QueuePairNumber(77),
            psn: FIRST_PSN,
            mtu: Mtu::B256,
            responder_reads: 4,
            initiator_reads: 4,
        };
        nic.connect(queue_pair, &peer).expect("a good endpoint");
        for tag in 0..2 {
            nic.receive(queue_pair, tag, 600).expect("room");
        }
        Self { nic, now: Instant::ZERO, number, psn: FIRST_PSN, ids: Vec::new(), connections: Vec::new() }
    }

    fn hand_in(&mut self, bth: &Bth, extension: &Extension, payload: &[u8]) {
        let mut frame = Vec::new();
        flow().emit(&mut frame, 1, bth, extension, payload);
        self.nic.handle_frame(self.now, &frame);
    }

    /// A message of the Communication Manager, with some bytes of it changed.
    fn message(&mut self, input: &mut Input<'_>) {
        let mut bytes = [0; MAD_BYTES];
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[17] = 0x10 + input.below(8) as u8;
        bytes[15] = input.byte();
        let known = |ids: &[u32], at: usize| ids.get(at % ids.len().max(1)).copied().unwrap_or(0);
        if bytes[17] == 0x10 {
            // A request that is good as it is.
            bytes[27] = input.byte();
            bytes[32..40].copy_from_slice(&fatbtree_wire::cm::service_id(PORT).to_be_bytes());
            bytes[58] = 1 + input.below(4) as u8;
            bytes[75] = 0x10;
            bytes[165] = 4 << 4;
        } else {
            bytes[27] = input.byte();
            let id = known(&self.ids, input.below(256));
            bytes[28..32].copy_from_slice(&id.to_be_bytes());
        }
        input.overwrite(&mut bytes);
        let deth = Deth { qkey: MANAGEMENT_QUEUE_KEY, resv8: 0, source_qp: 1 };
        let bth = Bth::new(Opcode::UD_SEND_ONLY, MANAGEMENT_QUEUE_PAIR, 1);
        let len = if input.below(16) == 0 { input.below(256) } else { MAD_BYTES };
        self.hand_in(&bth, &Extension::Deth(deth), &bytes[..len]);
    }

    /// A packet of the connected queue pair.
    fn packet(&mut self, input: &mut Input<'_>) {
        let opcode = Opcode::KNOWN[input.below(Opcode::KNOWN.len())];
        let psn = self.psn.wrapping_add(input.byte() as i8 as u32) & 0xff_ffff;
        let headers: Vec<u8> = {
            let mut headers = vec![0; Extension::MAX_LEN];
            headers[10..12].copy_from_slice(&700_u16.to_be_bytes());
            headers[14] = input.below(4) as u8;
            headers[15] = input.byte();
            input.overwrite(&mut headers);
            headers
        };
        let Ok(extension) = Extension::parse(opcode, &headers, 0) else { return };
        let len = [0, 4, 8, 256, 255][input.below(5)];
        let payload = vec![input.byte(); len];
        let bth = Bth { ack_request: true, ..Bth::new(opcode, self.number, psn) };
        if input.below(4) != 0 {
            self.psn = psn.wrapping_add(1) & 0xff_ffff;
        }
        self.hand_in(&bth, &extension, &payload);
    }

    /// The program of the NIC does something, or time passes.
    fn turn(&mut self, input: &mut Input<'_>) {
        while let Some((connection, event)) = self.nic.poll_connection() {
            match event {
                ConnectionEvent::Requested { .. } => self.connections.push(connection),
                ConnectionEvent::Established { .. } => {}
                _ => self.connections.retain(|other| *other != connection),
            }
        }
        let at = input.below(256);
        let connection = self.connections.get(at % self.connections.len().max(1)).copied();
        match (input.below(4), connection) {
            (0, Some(connection)) => {
                let queue_pair = self.nic.create().expect("room");
                if self.nic.accept(connection, queue_pair, b"yours").is_err() {
                    self.nic.destroy(queue_pair);
                }
            }
            (1, Some(connection)) => drop(self.nic.reject(connection, b"no")),
            (2, Some(connection)) => self.nic.disconnect(connection),
            _ => {
                self.now += Duration::from_millis(1 << input.below(17));
                self.nic.handle_timeout(self.now);
            }
        }
    }

    /// Takes all that the NIC sends, and reads it.
    fn drain(&mut self) {
        let mut frame = Vec::new();
        for sent in 0.. {
            if !self.nic.poll_transmit(self.now, &mut frame) {
                return;
            }
            assert!(sent < 10_000, "it sends without end");
            let parsed = Frame::parse(&frame).expect("what a NIC sends is a frame");
            assert_eq!(parsed.icrc, parsed.expected_icrc());
            if parsed.bth.destination_qp == MANAGEMENT_QUEUE_PAIR {
                let mad = Mad::parse(parsed.payload).expect("and a message");
                if let Message::Reply(reply) = mad.message {
                    self.ids.push(reply.ids.local);
                }
            }
        }
    }
}

fuzz_target!(|input: &[u8]| {
    thread_local! {
        static BUFFERS: BufferPool =
            BufferPool::new(&[BufferClass { count: 64, bytes: 4096 }]).expect("a few pages");
    }
    let mut input = Input::new(input);
    let mut scene = Scene::new(BUFFERS.with(Clone::clone));
    while !input.is_empty() {
        match input.below(5) {
            0 | 1 => scene.message(&mut input),
            2 | 3 => scene.packet(&mut input),
            _ => scene.turn(&mut input),
        }
        scene.drain();
        while scene.nic.poll_received().is_some() {}
    }
    assert!(scene.nic.connections() <= 4096);
    // Whatever was said: after an hour of silence nothing is kept but what is there.
    for _ in 0..200 {
        let Some(at) = scene.nic.poll_timeout() else { break };
        scene.now = scene.now.max(at);
        scene.nic.handle_timeout(scene.now);
        scene.drain();
    }
});
