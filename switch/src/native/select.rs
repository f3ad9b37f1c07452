//! Emits the conditions that a parser state's select and a const table are made of.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I8;
use cranelift_codegen::ir::{Block, InstBuilder, Value};

use super::emit::Emitter;
use super::runtime;
use crate::code::Part;

impl Emitter<'_> {
    /// Ends the block, and continues where the select says.
    pub(super) fn select(&mut self, region: usize, select: u16) {
        let code = &self.code.selects[usize::from(select)];
        let Some(parts) = code.key.one_word() else {
            let number = self.word(select.into());
            let case = self.call(runtime::select as *const u8, &[self.run, self.slots, number]);
            return self.cases(region, case, &code.to, code.otherwise);
        };
        let (word, known) = self.join(&parts.iter().map(Part::of).collect::<Vec<_>>());
        let mut cases = code.words.iter().zip(&code.to).peekable();
        while let Some((_, &to)) = cases.peek().copied() {
            let same = std::iter::from_fn(|| cases.next_if(|case| *case.1 == to)).map(|case| *case.0);
            let yes = self.block_at(region, to);
            self.unless(word, known, same, yes);
        }
        let otherwise = self.block_at(region, code.otherwise);
        self.jump(otherwise);
    }

    /// Fields side by side, and all bits that they can have.
    pub(super) fn join(&mut self, parts: &[Part]) -> (Value, u64) {
        let mut word = None;
        for part in parts {
            let value = self.slice(part.slot, part.rot, part.mask);
            word = Some(word.map_or(value, |word| self.builder.ins().bor(word, value)));
        }
        let known = parts.iter().fold(0, |known, part| known | part.mask);
        (word.unwrap_or_else(|| self.word(0)), known)
    }

    /// Goes to `yes` if a word has one of these values under its mask, and on in a new block otherwise. `known`: as [`join`](Self::join)
    /// gives it.
    pub(super) fn unless(
        &mut self,
        word: Value,
        known: u64,
        pairs: impl Iterator<Item = (u64, u64)>,
        yes: Block,
    ) {
        let mut truth = None;
        for (value, mask) in pairs {
            let masked = if mask == known { word } else { self.and(word, mask) };
            let equal = self.builder.ins().icmp_imm(IntCC::Equal, masked, value as i64);
            truth = Some(truth.map_or(equal, |truth| self.builder.ins().bor(truth, equal)));
        }
        let truth = truth.unwrap_or_else(|| self.builder.ins().iconst(I8, 0));
        let no = self.builder.create_block();
        self.branch(truth, yes, no);
        self.builder.switch_to_block(no);
    }
}
