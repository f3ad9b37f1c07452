//! Emits checksums and CRCs of fields.

use cranelift_codegen::ir::{InstBuilder, MemFlags, Value};

use super::emit::Emitter;
use crate::code::{Op, Pc, Slot};
use crate::hash::{Fast, Linear, Term};
use crate::table::ones;

impl Emitter<'_> {
    /// Emits a calculation; `false` if the runtime has to do it.
    pub(super) fn calculate(&mut self, region: usize, pc: Pc, dst: Slot, calculation: u16) -> bool {
        let (fast, headers) = self.code.calculations[usize::from(calculation)].fast();
        if !matches!(fast, Fast::Sum(_) | Fast::Linear(_)) {
            return false;
        }
        let done = self.builder.create_block();
        if let Some((&first, others)) = headers.split_first() {
            let mut complete = self.get(first);
            for &header in others {
                let valid = self.get(header);
                complete = self.builder.ins().band(complete, valid);
            }
            let [all, some] = [(); 2].map(|()| self.builder.create_block());
            self.branch(complete, all, some);
            self.builder.switch_to_block(some);
            self.builder.set_cold_block(some);
            self.step(region, pc, &Op::Calculate { dst, calculation });
            self.jump(done);
            self.builder.switch_to_block(all);
        }
        let value = match fast {
            Fast::Sum(terms) => self.sum(terms),
            Fast::Linear(linear) => self.crc(linear),
            Fast::Bytes(_) | Fast::None => return false,
        };
        self.set(dst, value);
        self.jump(done);
        self.builder.switch_to_block(done);
        true
    }

    /// The Internet checksum.
    fn sum(&mut self, terms: &[Term]) -> Value {
        let mut sum = self.word(0);
        // The largest sum there can be: what is smaller than 16 bits is not folded.
        let mut top = 0;
        for term in terms {
            let value = self.get(term.slot);
            let value = self.builder.ins().ishl_imm(value, i64::from(term.shift));
            let most = ones(term.width.into()) << term.shift;
            // Wide terms are folded before they are added: so no sum has more than 64 bits.
            let (value, most) =
                if most > u64::from(u32::MAX) { self.fold(value, most, 32) } else { (value, most) };
            sum = self.builder.ins().iadd(sum, value);
            top += most;
        }
        while top > 0xffff {
            (sum, top) = self.fold(sum, top, 16);
        }
        let not = self.builder.ins().bnot(sum);
        self.and(not, 0xffff)
    }

    /// Adds a number's upper bits, from `at` on, to its lower ones. Also returns the maximum of the sum, if the number is at most `top`.
    fn fold(&mut self, value: Value, top: u64, at: u16) -> (Value, u64) {
        let low = self.and(value, ones(at));
        let high = self.builder.ins().ushr_imm(value, i64::from(at));
        let sum = self.builder.ins().iadd(low, high);
        let carry = top >> at;
        (sum, ((top & ones(at)) + carry).max(ones(at) + carry.saturating_sub(1)))
    }

    fn crc(&mut self, linear: &Linear) -> Value {
        let mut crc = self.word(linear.base.into());
        let mut tables = linear.bytes.iter();
        for &(slot, bytes) in &linear.fields {
            let value = self.get(slot);
            for (byte, table) in tables.by_ref().take(bytes.into()).enumerate() {
                let shifted = self.builder.ins().ushr_imm(value, 8 * byte as i64);
                let index = self.builder.ins().band_imm(shifted, 255);
                let offset = self.builder.ins().ishl_imm(index, 2);
                // The tables live as long as this code: both are the program's.
                let base = self.word(table.as_ptr() as u64);
                let at = self.builder.ins().iadd(base, offset);
                let contribution = self.builder.ins().uload32(MemFlags::trusted().with_readonly(), at, 0);
                crc = self.builder.ins().bxor(crc, contribution);
            }
        }
        crc
    }
}
