//! Emits the code that writes headers into the outgoing frame.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I16, I32, I64};
use cranelift_codegen::ir::{Block, InstBuilder, MemFlags, Value};
use cranelift_frontend::{FunctionBuilder, Variable};

use super::header::swap_bytes;
use crate::code::{FieldAt, HeaderCode};
use crate::machine::{NOWHERE, Packet};
use crate::program::Code;
use crate::table::ones;

/// Emits a function of a packet, its slots, and the outgoing frame with its length. It writes the fields of those valid headers over the
/// frame that may differ from the one that came in; nothing after the frame's end.
pub(super) fn emit(code: &Code, mut builder: FunctionBuilder<'_>) {
    let entry = builder.create_block();
    builder.append_block_params_for_function_params(entry);
    builder.switch_to_block(entry);
    let &[packet, slots, frame, frame_len] = builder.block_params(entry) else {
        unreachable!("the signature has four parameters")
    };
    let position = builder.declare_var(I64);
    let zero = builder.ins().iconst(I64, 0);
    builder.def_var(position, zero);
    let stop = builder.create_block();
    let mut writer = Writer { builder, packet, slots, frame, frame_len, position, stop };
    for &header in &code.deparser {
        writer.header(header, &code.headers[usize::from(header)]);
    }
    let mut builder = writer.builder;
    builder.ins().jump(stop, &[]);
    builder.switch_to_block(stop);
    builder.ins().return_(&[]);
    builder.seal_all_blocks();
    builder.finalize();
}

struct Writer<'a> {
    builder: FunctionBuilder<'a>,
    packet: Value,
    slots: Value,
    frame: Value,
    frame_len: Value,
    /// Offset of the next header in the frame.
    position: Variable,
    stop: Block,
}

impl Writer<'_> {
    fn header(&mut self, header: u16, layout: &HeaderCode) {
        let [there, write, done] = [(); 3].map(|()| self.builder.create_block());
        let valid = self.slot(layout.valid);
        self.builder.ins().brif(valid, there, &[], done, &[]);

        self.builder.switch_to_block(there);
        let begin = self.builder.use_var(self.position);
        let end = self.builder.ins().iadd_imm(begin, layout.len as i64);
        self.builder.def_var(self.position, end);
        let is_inside = self.builder.ins().icmp(IntCC::UnsignedLessThanOrEqual, end, self.frame_len);
        let inside = self.builder.create_block();
        self.builder.ins().brif(is_inside, inside, &[], self.stop, &[]);
        self.builder.switch_to_block(inside);
        if layout.stores.is_empty() {
            self.builder.ins().jump(done, &[]);
        } else {
            let differs = self.differs(header);
            self.builder.ins().brif(differs, write, &[], done, &[]);
            self.builder.switch_to_block(write);
            let at = self.builder.ins().iadd(self.frame, begin);
            layout.stores.iter().for_each(|field| self.store(at, field));
            self.builder.ins().jump(done, &[]);
        }
        self.builder.switch_to_block(done);
    }

    /// Value that is not 0 if the header may differ from the frame, or was not in it.
    fn differs(&mut self, header: u16) -> Value {
        let flags = MemFlags::trusted();
        let touched = self.builder.ins().load(I64, flags, self.packet, offset_of!(Packet, touched) as i32);
        let is_touched = self.builder.ins().band_imm(touched, 1 << (header % 64));
        let at = offset_of!(Packet, origins) + size_of::<u32>() * usize::from(header % 64);
        let origin = self.builder.ins().uload32(flags, self.packet, at as i32);
        let is_new = self.builder.ins().icmp_imm(IntCC::Equal, origin, i64::from(NOWHERE));
        let is_new = self.builder.ins().uextend(I64, is_new);
        self.builder.ins().bor(is_touched, is_new)
    }

    fn slot(&mut self, slot: u16) -> Value {
        self.builder.ins().load(I64, MemFlags::trusted(), self.slots, i32::from(slot) * 8)
    }

    /// Writes a field of the header that begins `at` this address: whole bytes as large numbers, other bits into the bytes they are in.
    fn store(&mut self, at: Value, field: &FieldAt) {
        let flags = MemFlags::trusted();
        let value = self.slot(field.slot);
        // In bits from the beginning of the field's first byte.
        let (skip, end) = (u32::from(field.skip), u32::from(field.skip) + u32::from(field.width));
        let mut bit = 0;
        while bit < end {
            let place = (field.byte + bit / 8) as i32;
            let whole = if bit < skip { 0 } else { (end - bit) / 8 };
            let of = match whole {
                0 => {
                    let (first, last) = (skip.saturating_sub(bit), (end - bit).min(8));
                    let mask = (ones((last - first) as u16) << (8 - last)) as i64;
                    let bits = self.shift(value, i64::from(end) - i64::from(bit + 8));
                    let bits = self.builder.ins().band_imm(bits, mask);
                    let old = self.builder.ins().uload8(I64, flags, at, place);
                    let others = self.builder.ins().band_imm(old, !mask);
                    let new = self.builder.ins().bor(others, bits);
                    self.builder.ins().istore8(flags, new, at, place);
                    bit += 8;
                    continue;
                }
                1 => I8,
                2..4 => I16,
                4..8 => I32,
                _ => I64,
            };
            bit += of.bits();
            let number = self.shift(value, i64::from(end - bit));
            let number = if of == I64 { number } else { self.builder.ins().ireduce(of, number) };
            let number = swap_bytes(&mut self.builder, number, of);
            self.builder.ins().store(flags, number, at, place);
        }
    }

    /// Shifts a value right by `by` bits; left, if `by` is negative.
    fn shift(&mut self, value: Value, by: i64) -> Value {
        match by {
            0 => value,
            1.. => self.builder.ins().ushr_imm(value, by),
            _ => self.builder.ins().ishl_imm(value, -by),
        }
    }
}
