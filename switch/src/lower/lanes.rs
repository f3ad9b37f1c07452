//! Finds tables of one shape that follow each other: see [`crate::lanes`].

use std::collections::{BTreeMap, BTreeSet};

use crate::code::{ConstTable, Op, Pc, Slot};
use crate::lanes::{BIT_TABLE_ENTRIES, BitCall, BitTable, Lane, RowLanes};
use crate::moves::{operands, with_operands};
use crate::program::Code;

use super::tidy::{Targets, insert, jump_targets, remove};

/// Fewer lanes are not worth it.
const WORTH: usize = 3;

/// Puts a [`RowLanes`] in front of each run of look-ups that it can stand for. What it stands for stays behind it, for packets
/// that find something else there.
pub(super) fn row_lanes(code: &mut Code) {
    let mut inserted = BTreeMap::new();
    let mut at = 0;
    while at < code.ops.len() {
        let run = blocks(code, at);
        if run.len() >= WORTH
            && let Some(lanes) = lanes_of(code, &run)
        {
            inserted.insert(at, Op::RowLanes { lanes: code.row_lanes.len() as u16 });
            code.row_lanes.push(lanes);
        }
        at = run.last().map_or(at + 1, |last| last.end);
    }
    insert(code, &inserted);
}

/// A look-up and its usual action: `ops[begin..end]`.
struct Block {
    begin: usize,
    end: usize,
}

/// Blocks from `at` on that lie side by side in one group's rows.
fn blocks(code: &Code, at: usize) -> Vec<Block> {
    let mut run: Vec<Block> = Vec::new();
    let mut begin = at;
    while let Some(Op::ApplyNextInto { group, offset, skip, .. }) = code.ops.get(begin).copied() {
        let end = skip as usize;
        if end <= begin
            || end > code.ops.len()
            || code.ops[begin + 1..end].iter().any(|op| operands(op).is_none())
        {
            break;
        }
        if let Some(first) = run.first()
            && let Op::ApplyNextInto { group: own, offset: from, params, .. } = code.ops[first.begin]
            && (group != own || offset != from + run.len() as u16 * (params + 1))
        {
            break;
        }
        run.push(Block { begin, end });
        begin = end;
    }
    run
}

/// The lanes of these blocks, if they differ in their slots alone, by constant steps, and none reads what another writes.
fn lanes_of(code: &Code, run: &[Block]) -> Option<RowLanes> {
    let [first, second, ..] = run else { return None };
    let head = |block: &Block| match code.ops[block.begin] {
        Op::ApplyNextInto { table, group, offset, action, params, param_base, .. } => {
            Some((table, group, offset, action, params, param_base))
        }
        _ => None,
    };
    let (_, group, offset, action, params, param_base) = head(first)?;
    let param_step = head(second)?.5.wrapping_sub(param_base);
    let mut body = Vec::new();
    for (op, next) in code.ops[first.begin + 1..first.end].iter().zip(&code.ops[second.begin + 1..second.end])
    {
        let (at, to) = (operands(op)?, operands(next)?);
        let step = [0, 1, 2].map(|i| to[i].wrapping_sub(at[i]));
        body.push(Lane { op: *op, at, step });
    }
    let mut writer: BTreeMap<Slot, usize> = BTreeMap::new();
    for (lane, block) in run.iter().enumerate() {
        let (table, _, _, own_action, own_params, own_base) = head(block)?;
        let moved = |slot: Slot, step: Slot| slot.wrapping_add(step.wrapping_mul(lane as u16));
        let words = code.tables[usize::from(table)].words;
        if (own_action, own_params, own_base) != (action, params, moved(param_base, param_step))
            || words != usize::from(params) + 1
            || block.end - block.begin != body.len() + 1
        {
            return None;
        }
        for (own, lane) in code.ops[block.begin + 1..block.end].iter().zip(&body) {
            let slots = [0, 1, 2].map(|i| moved(lane.at[i], lane.step[i]));
            if with_operands(lane.op, slots) != *own {
                return None;
            }
        }
        let written = code.ops[block.begin + 1..block.end].iter().filter_map(operands).map(|slots| slots[0]);
        for slot in written.chain((0..params).map(|at| own_base.wrapping_add(at))) {
            if writer.insert(slot, lane).is_some_and(|other| other != lane) {
                return None;
            }
        }
    }
    for (lane, block) in run.iter().enumerate() {
        for [_, a, b] in code.ops[block.begin + 1..block.end].iter().filter_map(operands) {
            if [a, b].iter().any(|slot| writer.get(slot).is_some_and(|&other| other != lane)) {
                return None;
            }
        }
    }
    let (words, lanes) = (params + 1, run.len() as u16);
    let to = run.last()?.end as Pc;
    Some(RowLanes {
        group,
        offset,
        words,
        lanes,
        action,
        params,
        param_base,
        param_step,
        body: body.into(),
        to,
    })
}

/// Turns runs of const tables that set bits into one operation each.
pub(super) fn bit_tables(code: &mut Code) {
    let targets = jump_targets(code);
    let mut stood_for = BTreeSet::new();
    let mut at = 0;
    while at < code.ops.len() {
        let run = const_run(code, &targets, at);
        let next = at + run.len().max(1);
        if run.len() >= WORTH {
            code.ops[at] = Op::BitTables { first: code.bit_tables.len() as u16, count: run.len() as u16 };
            code.bit_tables.extend(run);
            stood_for.extend(at + 1..next);
        }
        at = next;
    }
    remove(code, &stood_for);
}

fn const_run(code: &Code, targets: &Targets, at: usize) -> Vec<BitTable> {
    let mut run = Vec::new();
    for here in at..code.ops.len() {
        let Op::ApplyConst { table } = code.ops[here] else { break };
        if here > at && targets.contains_key(&(here as Pc)) {
            break; // one may come here from elsewhere
        }
        let Some(table) = bit_table(code, &code.const_tables[usize::from(table)]) else { break };
        run.push(table);
    }
    run
}

fn bit_table(code: &Code, table: &ConstTable) -> Option<BitTable> {
    let (default, entries) = table.calls.split_last()?;
    if entries.len() > BIT_TABLE_ENTRIES {
        return None;
    }
    let mut field = None;
    let mut call = |call: &crate::code::ConstCall| {
        if call.position == usize::MAX {
            return Some(BitCall { position: call.position, keep: u64::MAX, a: 0, rot: 0, flip: 0, mask: 0 });
        }
        let start = call.code.start as usize;
        let [Op::Join { dst, a, b, a_rot: 0, b_rot, b_not, a_mask, b_mask }, Op::Return] =
            *code.ops.get(start..start + 2)?
        else {
            return None;
        };
        let same = a == dst && *field.get_or_insert(dst) == dst && call.params.is_empty();
        let flip = u64::from(b_not).wrapping_neg();
        same.then_some(BitCall {
            position: call.position,
            keep: a_mask,
            a: b,
            rot: b_rot,
            flip,
            mask: b_mask,
        })
    };
    let mut calls = [call(default)?; BIT_TABLE_ENTRIES + 1];
    let mut words = [BitTable::NO_ENTRY; BIT_TABLE_ENTRIES];
    for (at, entry) in entries.iter().enumerate() {
        (calls[at], words[at]) = (call(entry)?, table.words[at]);
    }
    Some(BitTable { parts: table.parts.clone(), words, dst: field?, calls })
}
