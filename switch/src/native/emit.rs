//! From operations to Cranelift's intermediate representation.

use std::collections::{BTreeSet, HashMap};
use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{AbiParam, Block, InstBuilder, MemFlags, SigRef, Signature, Value};
use cranelift_frontend::{FunctionBuilder, Switch, Variable};
use cranelift_jit::JITModule;
use cranelift_module::Module;

use super::runtime::{self, Run};
use crate::code::{Op, Pc, Slot};
use crate::machine::Packet;
use crate::program::Code;
use crate::step::Flow;
use crate::table::ones;

/// Signature of a function of this many words that returns this many.
pub(super) fn signature(module: &JITModule, params: usize, returns: usize) -> Signature {
    let mut signature = module.make_signature();
    signature.params.resize(params, AbiParam::new(I64));
    signature.returns.resize(returns, AbiParam::new(I64));
    signature
}

/// Emits a function of a run and its slots that goes through `phases`.
pub(super) fn emit(code: &Code, phases: &[Pc], mut builder: FunctionBuilder<'_>, module: &JITModule) {
    let entry = builder.create_block();
    builder.append_block_params_for_function_params(entry);
    builder.switch_to_block(entry);
    let &[run, slots] = builder.block_params(entry) else { unreachable!("the signature has two parameters") };
    let run_word = |builder: &mut FunctionBuilder<'_>, at: usize| {
        builder.ins().load(I64, MemFlags::trusted(), run, at as i32)
    };
    let packet = run_word(&mut builder, offset_of!(Run<'_>, packet));
    let frame = run_word(&mut builder, offset_of!(Run<'_>, frame_start));
    let frame_len = run_word(&mut builder, offset_of!(Run<'_>, frame_len));
    let tables = run_word(&mut builder, offset_of!(Run<'_>, tables));
    let (hit, action) = (builder.declare_var(I64), builder.declare_var(I64));
    let zero = builder.ins().iconst(I64, 0);
    builder.def_var(hit, zero);
    builder.def_var(action, zero);
    let calls = [2, 3, 4, 5].map(|params| {
        let signature = signature(module, params, 1);
        builder.import_signature(signature)
    });
    let stop = builder.create_block();
    let mut emitter = Emitter {
        builder,
        code,
        constants: code.constants.iter().copied().collect(),
        targets: targets(code),
        regions: Vec::new(),
        work: Vec::new(),
        run,
        slots,
        packet,
        frame,
        frame_len,
        tables,
        hit,
        action,
        stop,
        calls,
    };
    emitter.phases(phases);
    let Emitter { mut builder, .. } = emitter;
    builder.switch_to_block(stop);
    builder.ins().return_(&[]);
    builder.seal_all_blocks();
    builder.finalize();
}

/// Every operation that an operation other than the preceding one may lead to.
fn targets(code: &Code) -> BTreeSet<Pc> {
    let jumps = code.ops.iter().copied().filter_map(|mut op| op.target().copied());
    let selects = code.selects.iter().flat_map(|s| s.to.iter().chain([&s.otherwise]).copied());
    let tables = code.tables.iter().flat_map(|t| t.next.iter().chain([&t.next_without_action]).copied());
    jumps.chain(selects).chain(tables).collect()
}

/// A phase, or an action where a table runs it.
struct Region {
    blocks: HashMap<Pc, Block>,
    /// Block to which an action returns.
    on_return: Block,
    /// Block in which the next phase begins.
    on_end: Block,
}

/// Code that is still to be emitted.
struct Work {
    block: Block,
    region: usize,
    pc: Pc,
}

pub(super) struct Emitter<'a> {
    pub(super) builder: FunctionBuilder<'a>,
    pub(super) code: &'a Code,
    constants: HashMap<Slot, u64>,
    targets: BTreeSet<Pc>,
    regions: Vec<Region>,
    work: Vec<Work>,
    pub(super) run: Value,
    pub(super) slots: Value,
    pub(super) packet: Value,
    /// Address of the frame.
    pub(super) frame: Value,
    pub(super) frame_len: Value,
    /// Address of the tables' contents.
    pub(super) tables: Value,
    /// Whether the last table lookup hit.
    pub(super) hit: Variable,
    /// The position in its table's list of the action that ran last.
    pub(super) action: Variable,
    /// Leaves the function.
    stop: Block,
    /// Signatures of functions of 2 to 5 words that return one.
    calls: [SigRef; 4],
}

impl Emitter<'_> {
    fn phases(&mut self, phases: &[Pc]) {
        let blocks: Vec<Block> = phases.iter().map(|_| self.builder.create_block()).collect();
        let first = blocks.first().copied().unwrap_or(self.stop);
        self.builder.ins().jump(first, &[]);
        for (at, (&pc, &block)) in phases.iter().zip(&blocks).enumerate() {
            let on_end = blocks.get(at + 1).copied().unwrap_or(self.stop);
            self.regions.push(Region { blocks: HashMap::from([(pc, block)]), on_return: self.stop, on_end });
            self.work.push(Work { block, region: at, pc });
        }
        while let Some(Work { block, region, pc }) = self.work.pop() {
            self.builder.switch_to_block(block);
            self.straight(region, pc);
        }
    }

    /// Emits an action's code, to begin in the block and to return to `then`. `region`: where it is called.
    pub(super) fn action_at(&mut self, block: Block, region: usize, start: Pc, then: Block) {
        let on_end = self.regions[region].on_end;
        self.regions.push(Region { blocks: HashMap::new(), on_return: then, on_end });
        self.work.push(Work { block, region: self.regions.len() - 1, pc: start });
    }

    /// The block that begins with this operation.
    pub(super) fn block_at(&mut self, region: usize, pc: Pc) -> Block {
        if let Some(&block) = self.regions[region].blocks.get(&pc) {
            return block;
        }
        let block = self.builder.create_block();
        self.regions[region].blocks.insert(pc, block);
        self.work.push(Work { block, region, pc });
        block
    }

    pub(super) fn get(&mut self, slot: Slot) -> Value {
        match self.constants.get(&slot) {
            Some(&value) => self.word(value),
            None => self.builder.ins().load(I64, MemFlags::trusted(), self.slots, i32::from(slot) * 8),
        }
    }

    pub(super) fn set(&mut self, slot: Slot, value: Value) {
        self.builder.ins().store(MemFlags::trusted(), value, self.slots, i32::from(slot) * 8);
    }

    /// A word of the packet, by its place in [`Packet`].
    pub(super) fn packet_word(&mut self, at: usize) -> Value {
        self.builder.ins().load(I64, MemFlags::trusted(), self.packet, at as i32)
    }

    pub(super) fn set_packet_word(&mut self, at: usize, value: Value) {
        self.builder.ins().store(MemFlags::trusted(), value, self.packet, at as i32);
    }

    pub(super) fn word(&mut self, value: u64) -> Value {
        self.builder.ins().iconst(I64, value as i64)
    }

    /// Calls a function of the runtime that returns a word.
    pub(super) fn call(&mut self, function: *const u8, args: &[Value]) -> Value {
        let address = self.builder.ins().iconst(I64, function as i64);
        let call = self.builder.ins().call_indirect(self.calls[args.len() - 2], address, args);
        self.builder.inst_results(call)[0]
    }

    pub(super) fn jump(&mut self, to: Block) {
        self.builder.ins().jump(to, &[]);
    }

    pub(super) fn branch(&mut self, condition: Value, yes: Block, no: Block) {
        self.builder.ins().brif(condition, yes, &[], no, &[]);
    }

    pub(super) fn and(&mut self, value: Value, mask: u64) -> Value {
        if mask == u64::MAX { value } else { self.builder.ins().band_imm(value, mask as i64) }
    }

    /// A slot's value rotated right and masked.
    pub(super) fn slice(&mut self, slot: Slot, rot: u8, mask: u64) -> Value {
        let value = self.get(slot);
        self.rotate(value, rot, mask)
    }

    fn rotate(&mut self, value: Value, rot: u8, mask: u64) -> Value {
        let (right, left) = (u32::from(rot), 64 - u32::from(rot));
        let ins = self.builder.ins();
        // Where the mask cuts what comes round, it is a shift.
        let value = if rot == 0 {
            value
        } else if mask.leading_zeros() >= right {
            ins.ushr_imm(value, i64::from(right))
        } else if mask.trailing_zeros() >= left {
            ins.ishl_imm(value, i64::from(left))
        } else {
            ins.rotr_imm(value, i64::from(right))
        };
        self.and(value, mask)
    }

    /// Emits what follows, up to the next block.
    fn straight(&mut self, region: usize, mut pc: Pc) {
        loop {
            let Some(op) = self.code.ops.get(pc as usize) else { return self.jump(self.stop) };
            if !self.compute(op) && self.control(region, pc, op) {
                return;
            }
            pc += 1;
            if self.targets.contains(&pc) || self.regions[region].blocks.contains_key(&pc) {
                let to = self.block_at(region, pc);
                return self.jump(to);
            }
        }
    }

    /// Emits an operation that only computes; `false` if it does something else, or is rare.
    fn compute(&mut self, op: &Op) -> bool {
        let (dst, value) = match *op {
            Op::Mov { dst, a } => (dst, self.get(a)),
            Op::Slice { dst, a, rot, mask } => (dst, self.slice(a, rot, mask)),
            Op::SliceNot { dst, a, rot, mask } => {
                let a = self.get(a);
                let not = self.builder.ins().bnot(a);
                (dst, self.rotate(not, rot, mask))
            }
            Op::Swap { dst, a, shift } => {
                let a = self.get(a);
                let swapped = self.builder.ins().bswap(a);
                (dst, self.builder.ins().ushr_imm(swapped, i64::from(shift & 63)))
            }
            Op::Join { dst, a, b, a_rot, b_rot, b_not, a_mask, b_mask } => {
                let mut b = self.get(b);
                if b_not {
                    b = self.builder.ins().bnot(b);
                }
                let (a, b) = (self.slice(a, a_rot, a_mask), self.rotate(b, b_rot, b_mask));
                (dst, self.builder.ins().bor(a, b))
            }
            Op::XorSlices { dst, a, b, a_rot, b_rot, a_mask, b_mask } => {
                let (a, b) = (self.slice(a, a_rot, a_mask), self.slice(b, b_rot, b_mask));
                (dst, self.builder.ins().bxor(a, b))
            }
            Op::AddSlices { dst, a, b, a_rot, b_rot, width, a_mask, b_mask } => {
                let (a, b) = (self.slice(a, a_rot, a_mask), self.slice(b, b_rot, b_mask));
                let sum = self.builder.ins().iadd(a, b);
                (dst, self.and(sum, ones(width.into())))
            }
            Op::SubSlices { dst, a, b, a_rot, b_rot, width, a_mask, b_mask } => {
                let (a, b) = (self.slice(a, a_rot, a_mask), self.slice(b, b_rot, b_mask));
                let difference = self.builder.ins().isub(a, b);
                (dst, self.and(difference, ones(width.into())))
            }
            Op::Not { dst, a, mask } => {
                let a = self.get(a);
                let not = self.builder.ins().bnot(a);
                (dst, self.and(not, mask))
            }
            Op::Add { dst, a, b, mask }
            | Op::Sub { dst, a, b, mask }
            | Op::Mul { dst, a, b, mask }
            | Op::And { dst, a, b, mask }
            | Op::Or { dst, a, b, mask }
            | Op::Xor { dst, a, b, mask } => {
                let (a, b) = (self.get(a), self.get(b));
                let ins = self.builder.ins();
                let value = match op {
                    Op::Add { .. } => ins.iadd(a, b),
                    Op::Sub { .. } => ins.isub(a, b),
                    Op::Mul { .. } => ins.imul(a, b),
                    Op::And { .. } => ins.band(a, b),
                    Op::Or { .. } => ins.bor(a, b),
                    _ => ins.bxor(a, b),
                };
                (dst, self.and(value, mask))
            }
            Op::Eq { dst, a, b } => (dst, self.compare(IntCC::Equal, a, b)),
            Op::Ne { dst, a, b } => (dst, self.compare(IntCC::NotEqual, a, b)),
            Op::Lt { dst, a, b } => (dst, self.compare(IntCC::UnsignedLessThan, a, b)),
            Op::Le { dst, a, b } => (dst, self.compare(IntCC::UnsignedLessThanOrEqual, a, b)),
            Op::LtSigned { dst, a, b } => (dst, self.compare(IntCC::SignedLessThan, a, b)),
            Op::LeSigned { dst, a, b } => (dst, self.compare(IntCC::SignedLessThanOrEqual, a, b)),
            Op::Choose { dst, cond, a, b } => {
                let (cond, a, b) = (self.get(cond), self.get(a), self.get(b));
                (dst, self.builder.ins().select(cond, a, b))
            }
            _ => return false,
        };
        self.set(dst, value);
        true
    }

    /// Compares two slots: 1 or 0.
    fn compare(&mut self, condition: IntCC, a: Slot, b: Slot) -> Value {
        let (a, b) = (self.get(a), self.get(b));
        let truth = self.builder.ins().icmp(condition, a, b);
        self.builder.ins().uextend(I64, truth)
    }

    /// Emits an operation of another kind; `true` if the block ends with it.
    fn control(&mut self, region: usize, pc: Pc, op: &Op) -> bool {
        let next = pc + 1;
        match *op {
            Op::Jump { to } => {
                let to = self.block_at(region, to);
                self.jump(to);
            }
            Op::Loop { to } => {
                self.burn();
                let to = self.block_at(region, to);
                self.jump(to);
            }
            Op::JumpIf { a, to } => {
                let a = self.get(a);
                self.fork(region, a, to, next);
            }
            Op::JumpUnless { a, to } => {
                let a = self.get(a);
                self.fork(region, a, next, to);
            }
            Op::JumpEq { a, b, to } => self.fork_if(region, IntCC::Equal, a, b, to, next),
            Op::JumpNe { a, b, to } => self.fork_if(region, IntCC::NotEqual, a, b, to, next),
            Op::JumpLt { a, b, to } => self.fork_if(region, IntCC::UnsignedLessThan, a, b, to, next),
            Op::JumpLe { a, b, to } => self.fork_if(region, IntCC::UnsignedLessThanOrEqual, a, b, to, next),
            Op::JumpMiss { to } => {
                let hit = self.builder.use_var(self.hit);
                self.fork(region, hit, next, to);
            }
            Op::Apply { table } => {
                let then = self.block_at(region, next);
                self.apply(region, table, None, then);
            }
            Op::ApplyInto { table, action, skip } => {
                let (inline, skip) = (self.block_at(region, next), self.block_at(region, skip));
                self.apply(region, table, Some((usize::from(action), inline)), skip);
            }
            Op::ApplyConst { table } => {
                let then = self.block_at(region, next);
                self.apply_const(region, table, then);
            }
            Op::Switch { table } => {
                let table = &self.code.tables[usize::from(table)];
                let action = self.builder.use_var(self.action);
                self.cases(region, action, &table.next, table.next_without_action);
            }
            Op::Select { select } => {
                self.burn();
                self.select(region, select);
            }
            Op::Return => self.jump(self.regions[region].on_return),
            Op::End => self.jump(self.regions[region].on_end),
            Op::Touch { headers } => {
                let old = self.packet_word(offset_of!(Packet, touched));
                let new = self.builder.ins().bor_imm(old, headers as i64);
                self.set_packet_word(offset_of!(Packet, touched), new);
                return false;
            }
            _ => {
                let done = match *op {
                    Op::Extract { header } => self.extract(region, pc, op, header),
                    Op::AddHeader { header } => self.add_header(header),
                    Op::RemoveHeader { header } => self.remove_header(header),
                    Op::Calculate { dst, calculation } => self.calculate(region, pc, dst, calculation),
                    _ => false,
                };
                if !done {
                    self.step(region, pc, op);
                }
                return false;
            }
        }
        true
    }

    fn fork(&mut self, region: usize, condition: Value, yes: Pc, no: Pc) {
        let (yes, no) = (self.block_at(region, yes), self.block_at(region, no));
        self.branch(condition, yes, no);
    }

    fn fork_if(&mut self, region: usize, condition: IntCC, a: Slot, b: Slot, yes: Pc, no: Pc) {
        let (a, b) = (self.get(a), self.get(b));
        let truth = self.builder.ins().icmp(condition, a, b);
        self.fork(region, truth, yes, no);
    }

    pub(super) fn cases(&mut self, region: usize, number: Value, to: &[Pc], otherwise: Pc) {
        let mut switch = Switch::new();
        for (case, &to) in to.iter().enumerate() {
            switch.set_entry(case as u128, self.block_at(region, to));
        }
        let otherwise = self.block_at(region, otherwise);
        self.switch(switch, number, otherwise);
    }

    pub(super) fn switch(&mut self, switch: Switch, number: Value, otherwise: Block) {
        if switch.entries().is_empty() {
            self.jump(otherwise);
        } else {
            switch.emit(&mut self.builder, number, otherwise);
        }
    }

    /// Emits a round of a loop: takes it from the packet's budget, or stops the packet.
    fn burn(&mut self) {
        let at = offset_of!(Packet, fuel) as i32;
        let fuel = self.builder.ins().load(I32, MemFlags::trusted(), self.packet, at);
        let (on, out) = (self.builder.create_block(), self.builder.create_block());
        self.branch(fuel, on, out);
        self.builder.switch_to_block(out);
        self.call(runtime::out_of_fuel as *const u8, &[self.run, self.slots]);
        self.jump(self.stop);
        self.builder.switch_to_block(on);
        let left = self.builder.ins().iadd_imm(fuel, -1);
        self.builder.ins().store(MemFlags::trusted(), left, self.packet, at);
    }

    /// Emits a call of the runtime that runs an operation.
    pub(super) fn step(&mut self, region: usize, pc: Pc, op: &Op) {
        let number = self.word(pc.into());
        let flow = self.call(runtime::step as *const u8, &[self.run, self.slots, number]);
        if !op.may_end() {
            return;
        }
        let [on, off] = [(); 2].map(|()| self.builder.create_block());
        self.branch(flow, off, on);
        self.builder.switch_to_block(off);
        let ended = self.builder.ins().icmp_imm(IntCC::Equal, flow, Flow::EndPhase as i64);
        self.branch(ended, self.regions[region].on_end, self.stop);
        self.builder.switch_to_block(on);
    }
}
