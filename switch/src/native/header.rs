//! Emits the code that takes headers from the frame, adds them and removes them.

use std::collections::BTreeMap;
use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I8, I16, I32, I64};
use cranelift_codegen::ir::{InstBuilder, MemFlags, Type, Value};
use cranelift_frontend::FunctionBuilder;

use super::emit::Emitter;
use crate::code::{FieldAt, Op, Pc};
use crate::machine::{NOWHERE, Packet};
use crate::table::ones;

/// Bytes of a header that are read at once: those from `begin` on, as many as a number of type `of` has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) begin: u32,
    pub(super) of: Type,
}

impl Window {
    /// Bytes of a header of `len` bytes that hold all of a field; `None`: no number in it does.
    pub(super) fn around(field: &FieldAt, len: usize) -> Option<Self> {
        let of = match len {
            0 => return None,
            1 => I8,
            2..4 => I16,
            4..8 => I32,
            _ => I64,
        };
        let last = len as u32 - of.bytes();
        let end = (field.byte * 8 + u32::from(field.skip) + u32::from(field.width)).div_ceil(8);
        // Fields that lie side by side are read together, if they can.
        let together = field.byte / of.bytes() * of.bytes();
        let mut begins = [together, field.byte].into_iter().map(|begin| begin.min(last));
        begins.find(|begin| end <= begin + of.bytes()).map(|begin| Window { begin, of })
    }

    /// Bits after a field.
    pub(super) fn behind(self, field: &FieldAt) -> u32 {
        let before = (field.byte - self.begin) * 8 + u32::from(field.skip);
        self.of.bits() - before - u32::from(field.width)
    }
}

/// Converts a number from the host's byte order to that of frames, and back.
pub(super) fn swap_bytes(builder: &mut FunctionBuilder<'_>, value: Value, of: Type) -> Value {
    if cfg!(target_endian = "little") && of != I8 { builder.ins().bswap(value) } else { value }
}

impl Emitter<'_> {
    /// Takes a header from the frame; the runtime handles a frame that is too short. `false` if the runtime has to do all, because a field
    /// cannot be read as a number.
    pub(super) fn extract(&mut self, region: usize, pc: Pc, op: &Op, header: u16) -> bool {
        let layout = &self.code.headers[usize::from(header)];
        let fields = layout.loads.iter().map(|field| Some((field, Window::around(field, layout.len)?)));
        let Some(fields) = fields.collect::<Option<Vec<_>>>() else { return false };

        let begin = self.packet_word(offset_of!(Packet, cursor));
        let end = self.builder.ins().iadd_imm(begin, layout.len as i64);
        let is_short = self.builder.ins().icmp(IntCC::UnsignedGreaterThan, end, self.frame_len);
        let [short, whole, done] = [(); 3].map(|()| self.builder.create_block());
        self.branch(is_short, short, whole);
        self.builder.switch_to_block(short);
        self.builder.set_cold_block(short);
        self.step(region, pc, op);
        self.jump(done);

        self.builder.switch_to_block(whole);
        let at = self.builder.ins().iadd(self.frame, begin);
        let mut words = BTreeMap::new();
        for (field, window) in fields {
            let word = *words.entry(window.begin).or_insert_with(|| self.read(at, window));
            let value = self.builder.ins().ushr_imm(word, i64::from(window.behind(field)));
            let value = self.and(value, ones(field.width.into()));
            self.set(field.slot, value);
        }
        let yes = self.word(1);
        self.set(layout.valid, yes);
        self.set_origin(header, begin);
        let touched = self.packet_word(offset_of!(Packet, touched));
        let untouched = self.and(touched, !(1 << (header % 64)));
        self.set_packet_word(offset_of!(Packet, touched), untouched);
        self.set_packet_word(offset_of!(Packet, cursor), end);
        self.jump(done);
        self.builder.switch_to_block(done);
        true
    }

    /// The bytes of a window of the header that begins `at` this address.
    fn read(&mut self, at: Value, window: Window) -> Value {
        let flags = MemFlags::trusted().with_readonly();
        let raw = self.builder.ins().load(window.of, flags, at, window.begin as i32);
        let word = swap_bytes(&mut self.builder, raw, window.of);
        if window.of == I64 { word } else { self.builder.ins().uextend(I64, word) }
    }

    fn set_origin(&mut self, header: u16, origin: Value) {
        let at = offset_of!(Packet, origins) + size_of::<u32>() * usize::from(header % 64);
        self.builder.ins().istore32(MemFlags::trusted(), origin, self.packet, at as i32);
    }

    fn lengthen(&mut self, by: i64) {
        let old = self.packet_word(offset_of!(Packet, length));
        let new = self.builder.ins().iadd_imm(old, by);
        self.set_packet_word(offset_of!(Packet, length), new);
    }

    /// Adds a header that is not there, with zeros in it.
    pub(super) fn add_header(&mut self, header: u16) -> bool {
        let layout = &self.code.headers[usize::from(header)];
        let [add, done] = [(); 2].map(|()| self.builder.create_block());
        let valid = self.get(layout.valid);
        self.branch(valid, done, add);
        self.builder.switch_to_block(add);
        let [yes, zero, nowhere] = [1, 0, NOWHERE.into()].map(|value| self.word(value));
        self.set(layout.valid, yes);
        self.lengthen(layout.len as i64);
        self.set_origin(header, nowhere);
        layout.loads.iter().for_each(|field| self.set(field.slot, zero));
        self.jump(done);
        self.builder.switch_to_block(done);
        true
    }

    /// Removes a header that is there.
    pub(super) fn remove_header(&mut self, header: u16) -> bool {
        let layout = &self.code.headers[usize::from(header)];
        let [remove, done] = [(); 2].map(|()| self.builder.create_block());
        let valid = self.get(layout.valid);
        self.branch(valid, remove, done);
        self.builder.switch_to_block(remove);
        let no = self.word(0);
        self.set(layout.valid, no);
        self.lengthen(-(layout.len as i64));
        self.jump(done);
        self.builder.switch_to_block(done);
        true
    }
}
