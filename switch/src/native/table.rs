//! Emitting lookups, and what runs when they are done.

use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{Block, InstBuilder, MemFlags, Value};
use cranelift_frontend::Switch;

use super::emit::Emitter;
use super::runtime::{self, HIT_SHIFT};
use crate::code::ConstCall;
use crate::program::TableKind;
use crate::table::row::Shape;
use crate::table::{KeyPart, packed_width};

impl Emitter<'_> {
    /// Looks a table up and runs the action, then goes on at `then`. `inline`: an action, by its position, whose code is the
    /// block given instead.
    pub(super) fn apply(&mut self, region: usize, table: u16, inline: Option<(usize, Block)>, then: Block) {
        let number = self.word(table.into());
        let code = &self.code.tables[usize::from(table)];
        let TableKind::Exact { parts } = &code.kind else {
            let answer = self.call(runtime::apply as *const u8, &[self.run, self.slots, number]);
            let hit = self.builder.ins().ushr_imm(answer, HIT_SHIFT);
            self.builder.def_var(self.hit, hit);
            let action = self.builder.ins().band_imm(answer, (1 << HIT_SHIFT) - 1);
            return self.run_action(region, table, action, None, inline, then);
        };
        let low = self.pack(parts, 0);
        let row = match packed_width(parts) {
            0..=64 => self.call(runtime::find as *const u8, &[self.run, number, low]),
            _ => {
                let high = self.pack(parts, 64);
                self.call(runtime::find_wide as *const u8, &[self.run, number, low, high])
            }
        };
        let [found, missed] = [(); 2].map(|()| self.builder.create_block());
        self.branch(row, found, missed);

        self.builder.switch_to_block(missed);
        self.builder.set_cold_block(missed);
        let no = self.word(0);
        self.builder.def_var(self.hit, no);
        let action = self.call(runtime::miss as *const u8, &[self.run, self.slots, number]);
        self.run_action(region, table, action, None, inline, then);

        self.builder.switch_to_block(found);
        let yes = self.word(1);
        self.builder.def_var(self.hit, yes);
        self.count(code.shape, row);
        let action = self.builder.ins().load(I64, MemFlags::trusted(), row, 0);
        self.run_action(region, table, action, Some(row), inline, then);
    }

    /// Ends the block: runs the action of position `number` - 1, with parameters from the row if there is one; 0: none.
    fn run_action(
        &mut self,
        region: usize,
        table: u16,
        number: Value,
        row: Option<Value>,
        inline: Option<(usize, Block)>,
        then: Block,
    ) {
        let mut switch = Switch::new();
        let mut begin = Vec::new();
        for position in 0..self.code.tables[usize::from(table)].actions.len() {
            let block = self.builder.create_block();
            switch.set_entry(position as u128 + 1, block);
            begin.push(block);
        }
        let none = self.builder.create_block();
        self.switch(switch, number, none);
        for (position, block) in begin.into_iter().enumerate() {
            let action = self.code.tables[usize::from(table)].actions[position];
            self.builder.switch_to_block(block);
            let number = self.word(position as u64);
            self.builder.def_var(self.action, number);
            for at in 0..row.map_or(0, |_| action.params) {
                let Some(row) = row else { break };
                let value = self.builder.ins().load(I64, MemFlags::trusted(), row, 8 * (1 + i32::from(at)));
                self.set(action.param_base.wrapping_add(at), value);
            }
            match inline {
                Some((at, code)) if at == position => self.jump(code),
                _ => {
                    let body = self.builder.create_block();
                    self.jump(body);
                    self.action_at(body, region, action.start, then);
                }
            }
        }
        self.builder.switch_to_block(none);
        let no_action = self.word(u64::MAX);
        self.builder.def_var(self.action, no_action);
        self.jump(then);
    }

    /// The key's word of 64 bits that begins at this bit.
    fn pack(&mut self, parts: &[KeyPart], first: u32) -> Value {
        let mut key = self.word(0);
        for part in parts {
            let (low, high) = (u32::from(part.shift), u32::from(part.shift) + u32::from(part.width));
            if high <= first || low >= first + 64 {
                continue;
            }
            let value = self.get(part.slot);
            let value = match low.checked_sub(first) {
                Some(0) => value,
                Some(by) => self.builder.ins().ishl_imm(value, i64::from(by)),
                None => self.builder.ins().ushr_imm(value, i64::from(first - low)),
            };
            key = self.builder.ins().bor(key, value);
        }
        key
    }

    /// A hit, in the row's counter.
    fn count(&mut self, shape: Shape, row: Value) {
        if !shape.counted {
            return;
        }
        let one = self.word(1);
        for (word, by) in [(shape.entry, one), (shape.entry + 1, self.frame_len)] {
            let at = 8 * word as i32;
            let old = self.builder.ins().load(I64, MemFlags::trusted(), row, at);
            let new = self.builder.ins().iadd(old, by);
            self.builder.ins().store(MemFlags::trusted(), new, row, at);
        }
    }

    /// The same for a table that is part of the program: its entries become conditions.
    pub(super) fn apply_const(&mut self, region: usize, table: u16, then: Block) {
        let table = &self.code.const_tables[usize::from(table)];
        let (word, known) = self.join(&table.parts);
        let mut entries = table.words.iter().zip(&table.calls).peekable();
        while let Some((_, call)) = entries.peek().copied() {
            // Entries in a row that do the same are one condition.
            let same =
                std::iter::from_fn(|| entries.next_if(|(_, other)| other.does(call))).map(|entry| *entry.0);
            let yes = self.builder.create_block();
            self.unless(word, known, same, yes);
            let no = self.builder.current_block();
            self.builder.switch_to_block(yes);
            self.call_const(region, true, call, then);
            if let Some(no) = no {
                self.builder.switch_to_block(no);
            }
        }
        match table.calls.last() {
            Some(miss) => self.call_const(region, false, miss, then),
            None => self.jump(then),
        }
    }

    fn call_const(&mut self, region: usize, hit: bool, call: &ConstCall, then: Block) {
        let hit = self.word(hit.into());
        self.builder.def_var(self.hit, hit);
        let position = self.word(call.position as u64);
        self.builder.def_var(self.action, position);
        if call.position == usize::MAX {
            return self.jump(then);
        }
        // Values first: the slots of an action that has none begin where there is no number left to go on with.
        for (&value, slot) in call.params.iter().zip(call.code.param_base..) {
            let value = self.word(value);
            self.set(slot, value);
        }
        let body = self.builder.create_block();
        self.jump(body);
        self.action_at(body, region, call.code.start, then);
    }
}
