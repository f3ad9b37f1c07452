//! A pipe: the state with which one thread forwards packets. This file has the packet's way through it.

use std::collections::BTreeMap;
use std::sync::Arc;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng;

use crate::control::initial_state;
use crate::lower::DROP_PORT;
use crate::machine::{Machine, State};
use crate::output::{DropReason, Drops, Output};
use crate::pipeline::Replica;
use crate::program::{Code, Program};

/// Longest frame a pipeline takes, in bytes.
pub const MAX_FRAME: usize = 65_535;

/// Mask of a port number, which has 9 bits in v1model.
const PORT_BITS: u64 = 0x1ff;

/// `standard_metadata.instance_type` of a multicast copy, as BMv2 numbers it.
const REPLICATION: u64 = 5;

/// Tables, counters and registers that one thread forwards packets with.
///
/// All pipes of a [`Pipeline`](crate::Pipeline) hold the same entries; each has counted what has passed through itself.
#[derive(Debug)]
pub struct Pipe {
    program: Arc<Program>,
    pub(crate) state: State,
    pub(crate) drops: Drops,
    pub(crate) multicast: BTreeMap<u16, Vec<Replica>>,
}

impl Pipe {
    pub(crate) fn new(program: Arc<Program>, random: u64) -> Self {
        let state = State { random: SplitMix64::seed_from_u64(random), ..initial_state(&program) };
        Pipe { program, state, drops: Drops::default(), multicast: BTreeMap::new() }
    }

    /// Processes one frame that came in at `now_ns` on `ingress_port`; appends what is sent to `out`.
    ///
    /// Takes any bytes: the program decides what to do with a bad frame (`parser_error`,
    /// `checksum_error`), as on BMv2. Drops are counted in `out` and in the pipeline.
    pub fn process(&mut self, now_ns: u64, ingress_port: u16, frame: &[u8], out: &mut Output) {
        self.pass(now_ns, ingress_port, Frame::Lent(frame), out);
    }

    /// Processes a frame as [`process`](Self::process) does, but may keep its buffer.
    ///
    /// If there is nothing in `out` yet, and headers come and go at one place at most, the frame is changed in place. The buffer
    /// then goes to `out`, in exchange for its own. The bytes in `frame` afterwards have no meaning.
    pub fn forward(&mut self, now_ns: u64, ingress_port: u16, frame: &mut Vec<u8>, out: &mut Output) {
        self.pass(now_ns, ingress_port, Frame::Given(frame), out);
    }

    fn pass(&mut self, now_ns: u64, ingress_port: u16, frame: Frame<'_>, out: &mut Output) {
        let Pipe { program, state, drops, multicast } = self;
        let mut bench = out.take_workbench(program);
        let machine = &mut bench.machine;
        let mut pass = Pass { code: &program.code, state, machine, drops, multicast, now_ns };
        if let Err(reason) = pass.forward(ingress_port, frame, out) {
            drops.add(reason);
            out.drops.add(reason);
        }
        out.workbench = Some(bench);
    }
}

/// A frame that came in.
enum Frame<'a> {
    Lent(&'a [u8]),
    Given(&'a mut Vec<u8>),
}

impl Frame<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Frame::Lent(bytes) => bytes,
            Frame::Given(buffer) => buffer,
        }
    }
}

/// One frame's way through a pipeline.
struct Pass<'a> {
    code: &'a Code,
    state: &'a mut State,
    machine: &'a mut Machine,
    drops: &'a mut Drops,
    multicast: &'a BTreeMap<u16, Vec<Replica>>,
    now_ns: u64,
}

impl Pass<'_> {
    fn forward(&mut self, ingress_port: u16, frame: Frame<'_>, out: &mut Output) -> Result<(), DropReason> {
        let bytes = frame.bytes();
        if bytes.len() > MAX_FRAME {
            return Err(DropReason::TooLong);
        }
        let code = self.code;
        let metadata = &code.metadata;
        let machine = &mut *self.machine;
        machine.reset(code, bytes);
        let mut set = |slot: Option<u16>, value: u64| {
            if let Some(slot) = slot {
                machine.slots.set(slot, value);
            }
        };
        set(metadata.ingress_port, u64::from(ingress_port) & PORT_BITS);
        set(metadata.packet_length, bytes.len() as u64);
        set(metadata.ingress_timestamp, (self.now_ns / 1000) & ((1 << 48) - 1));
        set(metadata.parser_error, code.no_error);

        machine.run_before(code, self.state, bytes);
        if let Some(reason) = machine.packet.fault {
            return Err(reason);
        }
        let group = metadata.multicast_group.map_or(0, |slot| machine.slots.get(slot));
        if group != 0 {
            return self.replicate(group as u16, bytes, out);
        }
        let port = machine.slots.get(metadata.egress_spec);
        if port == DROP_PORT {
            return Err(DropReason::Ingress);
        }
        self.send(port, frame, out)
    }

    /// Egress, checksums and deparser for one copy of the packet.
    fn send(&mut self, port: u64, frame: Frame<'_>, out: &mut Output) -> Result<(), DropReason> {
        let code = self.code;
        let metadata = &code.metadata;
        let machine = &mut *self.machine;
        let length = machine.packet.length.max(0) as u64;
        let mut set = |slot: Option<u16>, value: u64| {
            if let Some(slot) = slot {
                machine.slots.set(slot, value);
            }
        };
        let micros = (self.now_ns / 1000) & ((1 << 48) - 1);
        set(metadata.egress_port, port & PORT_BITS);
        // Anything but the drop port, as BMv2 does: egress may choose it.
        set(Some(metadata.egress_spec), 0);
        set(metadata.packet_length, length & 0xffff_ffff);
        set(metadata.egress_timestamp, micros);
        set(metadata.enqueue_timestamp, micros & 0xffff_ffff);
        machine.run_after(code, self.state, frame.bytes());
        if let Some(reason) = machine.packet.fault {
            return Err(reason);
        }
        if machine.slots.get(metadata.egress_spec) == DROP_PORT {
            return Err(DropReason::Egress);
        }
        match frame {
            Frame::Given(buffer) if out.is_empty() => match machine.rewrite(code, buffer) {
                true => std::mem::swap(&mut out.bytes, buffer),
                false => machine.deparse(code, buffer, &mut out.bytes),
            },
            frame => machine.deparse(code, frame.bytes(), &mut out.bytes),
        }
        out.frames.push((port as u16, out.bytes.len()));
        Ok(())
    }

    fn replicate(&mut self, group: u16, frame: &[u8], out: &mut Output) -> Result<(), DropReason> {
        let code = self.code;
        let replicas = self.multicast.get(&group).ok_or(DropReason::NoGroup)?;
        let saved = self.machine.save(code);
        for replica in replicas {
            self.machine.restore(&saved);
            if let Some(slot) = code.metadata.instance_type {
                self.machine.slots.set(slot, REPLICATION);
            }
            if let Some(slot) = code.metadata.egress_rid {
                self.machine.slots.set(slot, u64::from(replica.instance));
            }
            if let Err(reason) = self.send(u64::from(replica.port), Frame::Lent(frame), out) {
                // One copy's end is not the others'.
                self.drops.add(reason);
                out.drops.add(reason);
                self.machine.packet.fault = None;
            }
        }
        Ok(())
    }
}
