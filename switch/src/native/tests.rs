//! Tests that compiled code does what the machine's own loop does, operation by operation.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::code::{FieldAt, HeaderCode, Op, SelectCode, Slot};
use crate::entry::MatchKind;
use crate::hash::{Algorithm, CalculationCode, InputPart};
use crate::machine::Machine;
use crate::program::Program;
use crate::table::ones;
use crate::table::scan::ScanKey;

/// Slots that operations read and write.
const USED: Slot = 6;

fn slot() -> impl Strategy<Value = Slot> {
    0..USED
}

fn op() -> impl Strategy<Value = Op> {
    let rots = (0..64u8, 0..64u8);
    let masks = prop_oneof![any::<u64>(), Just(u64::MAX), (0..64u32).prop_map(|n| u64::MAX >> n)];
    (0..34u8, [slot(), slot(), slot(), slot()], rots, [masks.clone(), masks], 1..=64u8).prop_map(
        |(kind, [dst, a, b, cond], (a_rot, b_rot), [mask, other], width)| match kind {
            0 => Op::Mov { dst, a },
            1 => Op::Slice { dst, a, rot: a_rot, mask },
            2 => Op::SliceNot { dst, a, rot: a_rot, mask },
            3 => Op::Swap { dst, a, shift: a_rot },
            4 => Op::Join { dst, a, b, a_rot, b_rot, b_not: width > 32, a_mask: mask, b_mask: other },
            5 => Op::XorSlices { dst, a, b, a_rot, b_rot, a_mask: mask, b_mask: other },
            6 => Op::AddSlices { dst, a, b, a_rot, b_rot, width, a_mask: mask, b_mask: other },
            7 => Op::SubSlices { dst, a, b, a_rot, b_rot, width, a_mask: mask, b_mask: other },
            8 => Op::Add { dst, a, b, mask },
            9 => Op::Sub { dst, a, b, mask },
            10 => Op::Mul { dst, a, b, mask },
            11 => Op::Div { dst, a, b, mask },
            12 => Op::Rem { dst, a, b, mask },
            13 => Op::And { dst, a, b, mask },
            14 => Op::Or { dst, a, b, mask },
            15 => Op::Xor { dst, a, b, mask },
            16 => Op::Not { dst, a, mask },
            17 => Op::Shl { dst, a, b, mask },
            18 => Op::Shr { dst, a, b, mask },
            19 => Op::Sar { dst, a, b, mask },
            20 => Op::SignExtend { dst, a, width: width.into() },
            21 => Op::AddSaturating { dst, a, b, mask },
            22 => Op::SubSaturating { dst, a, b },
            23 => Op::Clamp { dst, a, width: width.min(63).into(), signed: a_rot > 31 },
            24 => Op::Eq { dst, a, b },
            25 => Op::Ne { dst, a, b },
            26 => Op::Lt { dst, a, b },
            27 => Op::Le { dst, a, b },
            28 => Op::LtSigned { dst, a, b },
            29 => Op::LeSigned { dst, a, b },
            30 => Op::Choose { dst, cond, a, b },
            31 => Op::Assert { a },
            32 => Op::Touch { headers: mask },
            _ => Op::Truncate { a },
        },
    )
}

/// Jumps forwards, by this many operations at most.
fn jump() -> impl Strategy<Value = Op> {
    (0..7u8, slot(), slot(), 1..6u32).prop_map(|(kind, a, b, to)| match kind {
        0 => Op::Jump { to },
        1 => Op::JumpIf { a, to },
        2 => Op::JumpUnless { a, to },
        3 => Op::JumpEq { a, b, to },
        4 => Op::JumpNe { a, b, to },
        5 => Op::JumpLt { a, b, to },
        _ => Op::JumpLe { a, b, to },
    })
}

/// A program of these operations alone, its jumps counted from where they stand.
fn program(ops: &[Op]) -> Arc<Program> {
    let mut program = Program::load_interpreted(include_str!("../../tests/data/router.json")).unwrap();
    let code = &mut Arc::get_mut(&mut program).unwrap().code;
    code.ops = ops.to_vec();
    code.ops.push(Op::End);
    for at in 0..ops.len() {
        if let Some(to) = code.ops[at].target() {
            *to = (at as u32 + *to).min(ops.len() as u32);
        }
    }
    (code.before, code.after) = (vec![0], vec![]);
    code.constants = vec![(Slot::MAX, 1)];
    program
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn compiled_is_interpreted(
        ops in prop::collection::vec(prop_oneof![4 => op(), 1 => jump()], 1..24),
        values in prop::collection::vec(prop_oneof![any::<u64>(), 0..3u64], usize::from(USED)),
    ) {
        let program = program(&ops);
        let code = &program.code;
        let native = Native::compile(code).unwrap();
        let run = |compiled: bool| {
            let mut state = crate::control::initial_state(&program);
            let mut machine = Machine::new(code);
            machine.reset(code, &[]);
            for (slot, &value) in (0..).zip(&values) {
                machine.slots.set(slot, value);
            }
            if compiled {
                native.before(machine.job(code, &mut state, &[]));
            } else {
                machine.run(code, &mut state, &[], &code.before);
            }
            let slots: Vec<u64> = (0..USED).map(|slot| machine.slots.get(slot)).collect();
            (slots, machine.packet.fault, machine.packet.touched, machine.packet.truncate)
        };
        prop_assert_eq!(run(true), run(false));
    }
}

/// A header's bytes and its fields, each with its first bit and its width.
fn header() -> impl Strategy<Value = (usize, Vec<(u32, u16)>)> {
    (1..24usize).prop_flat_map(|len| {
        let bits = 8 * len as u32;
        let field = (0..bits).prop_flat_map(move |first| (Just(first), 1..=(bits - first).min(64) as u16));
        (Just(len), prop::collection::vec(field, 0..usize::from(USED)))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A header is taken from the frame, summed, changed and written.
    #[test]
    fn headers_are_what_they_are_interpreted(
        (len, fields) in header(),
        frame in prop::collection::vec(any::<u8>(), 0..64),
        algorithm in prop_oneof![Just(Algorithm::Csum16), Just(Algorithm::Crc32)],
        changes in prop::collection::vec((slot(), slot()), 0..4),
    ) {
        const VALID: Slot = USED;
        const SUM: Slot = USED + 1;
        let run = |compiled: bool| {
            let mut ops = vec![Op::Extract { header: 0 }, Op::Calculate { dst: SUM, calculation: 0 }];
            // Into the frame the other way round.
            ops.extend(changes.iter().map(|&(dst, a)| Op::Mov { dst, a }));
            ops.push(Op::Touch { headers: 1 });
            let mut program = program(&ops);
            let code = &mut Arc::get_mut(&mut program).unwrap().code;
            let at = |(slot, &(bit, width)): (Slot, &(u32, u16))| FieldAt::new(slot, bit, width);
            let loads: Vec<FieldAt> = (0..).zip(&fields).map(at).collect();
            let parts = (0..).zip(&fields).map(|(slot, &(_, width))| {
                InputPart { slot, width: width.into(), valid: Some(VALID) }
            });
            code.calculations = vec![CalculationCode::new(algorithm, parts.collect(), false)];
            code.calculations[0].finish(&[]);
            code.headers = vec![HeaderCode { valid: VALID, len, stores: loads.clone(), loads }];
            code.deparser = vec![0];
            code.state = usize::from(SUM) + 1;
            let code = &mut Arc::get_mut(&mut program).unwrap().code;
            code.native = compiled.then(|| Native::compile(code).unwrap());
            let mut state = crate::control::initial_state(&program);
            let code = &program.code;
            let mut machine = Machine::new(code);
            machine.reset(code, &frame);
            machine.run_before(code, &mut state, &frame);
            let slots: Vec<u64> = (0..=SUM).map(|slot| machine.slots.get(slot)).collect();
            let mut out = Vec::new();
            machine.deparse(code, &frame, &mut out);
            (slots, machine.packet.touched, machine.packet.cursor, machine.packet.origins, out)
        };
        prop_assert_eq!(run(true), run(false));
    }

    /// A select goes where the first case that matches says.
    #[test]
    fn selects_are_what_they_are_interpreted(
        widths in prop::collection::vec(1..24u16, 1..4),
        cases in prop::collection::vec((prop::collection::vec((0..4u64, 0..4u64), 4), 0..3u32), 0..6),
        values in prop::collection::vec(0..4u64, 4),
    ) {
        let run = |compiled: bool| {
            // Each case's code writes its own number.
            let one = Slot::MAX;
            let ops: Vec<Op> = (0..4)
                .flat_map(|_| [Op::Add { dst: USED, a: USED, b: one, mask: u64::MAX }, Op::End])
                .collect();
            let mut program = program(&[&[Op::Select { select: 0 }][..], &ops].concat());
            let code = &mut Arc::get_mut(&mut program).unwrap().code;
            for number in 0..4 {
                code.ops[1 + 2 * number] = Op::Slice { dst: USED, a: one, rot: 63 - number as u8, mask: u64::MAX };
            }
            let fields: Vec<_> = (0..).zip(&widths).map(|(slot, &width)| (MatchKind::Ternary, slot, width)).collect();
            let key = ScanKey::new(&fields);
            let mut select = SelectCode { key, words: Vec::new(), to: Vec::new(), otherwise: 7 };
            for (pairs, to) in &cases {
                let cut = |(&(value, mask), &width): (&(u64, u64), &u16)| {
                    let mask = mask & ones(width);
                    (value & mask, mask)
                };
                let pairs: Vec<_> = pairs.iter().zip(&widths).map(cut).collect();
                select.key.pack_entry(&pairs, &mut select.words);
                select.to.push(1 + 2 * to);
            }
            code.selects = vec![select];
            let native = Native::compile(code).unwrap();
            let code = &program.code;
            let mut state = crate::control::initial_state(&program);
            let mut machine = Machine::new(code);
            machine.reset(code, &[]);
            for (slot, (&value, &width)) in (0..).zip(values.iter().zip(&widths)) {
                machine.slots.set(slot, value & ones(width));
            }
            match compiled {
                true => native.before(machine.job(code, &mut state, &[])),
                false => machine.run(code, &mut state, &[], &code.before),
            }
            (machine.slots.get(USED), machine.packet.fuel)
        };
        prop_assert_eq!(run(true), run(false));
    }
}

/// A loop that does not end, ends.
#[test]
fn rounds_are_counted() {
    let mut program = program(&[Op::Add { dst: 0, a: 0, b: Slot::MAX, mask: u64::MAX }]);
    let code = &mut Arc::get_mut(&mut program).unwrap().code;
    code.ops[1] = Op::Loop { to: 0 };
    let code = &program.code;
    let native = Native::compile(code).unwrap();
    let mut state = crate::control::initial_state(&program);
    let mut machine = Machine::new(code);
    machine.reset(code, &[]);
    native.before(machine.job(code, &mut state, &[]));
    assert_eq!(machine.packet.fault, Some(crate::DropReason::Loop));
    assert_eq!(machine.slots.get(0), 10_001);
}
