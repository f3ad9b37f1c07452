//! Emits lookups, and the actions that run after them.

use std::mem::offset_of;

use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{Block, InstBuilder, MemFlags, Value};
use cranelift_frontend::Switch;

use super::emit::Emitter;
use super::runtime;
use crate::code::{ConstCall, Pc};
use crate::program::TableKind;
use crate::table::contents::Contents;
use crate::table::row::Shape;
use crate::table::{KeyPart, key_words};

impl Emitter<'_> {
    /// Looks a table up and runs the action, then goes on at `then`. `inline`: an action, by its position, whose code is the
    /// block given instead.
    pub(super) fn apply(&mut self, region: usize, table: u16, inline: Option<(usize, Block)>, then: Block) {
        let code = &self.code.tables[usize::from(table)];
        let [found, missed] = [(); 2].map(|()| self.builder.create_block());
        let row = self.find(table, missed);
        if let Some(row) = row {
            self.branch(row, found, missed);
        }

        self.builder.switch_to_block(missed);
        self.set_hit(false);
        match &code.miss {
            Some(call) => self.call_const(region, call, inline, then),
            None => {
                let number = self.word(table.into());
                let action = self.call(runtime::miss as *const u8, &[self.run, self.slots, number]);
                self.run_action(region, table, action, None, inline, then);
            }
        }

        let Some(row) = row else { return };
        self.builder.switch_to_block(found);
        self.set_hit(true);
        self.count(code.shape, row);
        let action = self.builder.ins().load(I64, MemFlags::trusted(), row, 0);
        self.run_action(region, table, action, Some(row), inline, then);
    }

    /// The packet's row, or 0. Goes to `missed` from a table without entries; always, where there is no key: then there is no row to
    /// look at.
    fn find(&mut self, table: u16, missed: Block) -> Option<Value> {
        let kind = &self.code.tables[usize::from(table)].kind;
        if matches!(kind, TableKind::Keyless) {
            self.jump(missed);
            return None;
        }
        let contents = usize::from(table) * size_of::<Contents>();
        let contents = self.builder.ins().iadd_imm(self.tables, contents as i64);
        let len = offset_of!(Contents, len) as i32;
        let len = self.builder.ins().load(I64, MemFlags::trusted(), contents, len);
        let look = self.builder.create_block();
        self.branch(len, look, missed);
        self.builder.switch_to_block(look);
        let TableKind::Exact { parts } = kind else {
            let number = self.word(table.into());
            return Some(self.call(runtime::search as *const u8, &[self.run, self.slots, number]));
        };
        let words: Vec<Value> =
            (0..key_words(parts)).map(|word| self.pack(parts, 64 * word as u32)).collect();
        let find = match words.len() {
            1 => runtime::find_1 as *const u8,
            2 => runtime::find_2 as *const u8,
            3 => runtime::find_3 as *const u8,
            _ => runtime::find_4 as *const u8,
        };
        Some(self.call(find, &[&[contents], words.as_slice()].concat()))
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
            self.begin(region, position, action.start, inline, then);
        }
        self.builder.switch_to_block(none);
        let no_action = self.word(u64::MAX);
        self.builder.def_var(self.action, no_action);
        self.jump(then);
    }

    /// Ends the block: begins an action whose parameters are there.
    fn begin(
        &mut self,
        region: usize,
        position: usize,
        start: Pc,
        inline: Option<(usize, Block)>,
        then: Block,
    ) {
        match inline {
            Some((at, code)) if at == position => self.jump(code),
            _ => {
                let body = self.builder.create_block();
                self.jump(body);
                self.action_at(body, region, start, then);
            }
        }
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

    /// Counts a hit in the row's counter.
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

    /// Applies a table that is part of the program: its entries become conditions.
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
            self.set_hit(true);
            self.call_const(region, call, None, then);
            if let Some(no) = no {
                self.builder.switch_to_block(no);
            }
        }
        self.set_hit(false);
        match table.calls.last() {
            Some(miss) => self.call_const(region, miss, None, then),
            None => self.jump(then),
        }
    }

    /// Ends the block: runs an action that is part of the program.
    fn call_const(&mut self, region: usize, call: &ConstCall, inline: Option<(usize, Block)>, then: Block) {
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
        self.begin(region, call.position, call.code.start, inline, then);
    }

    fn set_hit(&mut self, hit: bool) {
        let hit = self.word(hit.into());
        self.builder.def_var(self.hit, hit);
    }
}
