//! Simplifications after lowering, which need the whole program.
//!
//! - Actions that stand in the flow are not needed on their own.
//! - Copies and slices that p4c makes of what is hashed and matched are [read in the original](super::originals).
//! - Variables that nothing reads are not written, nor are zeroes that are there from the start.
//! - Small tables that are part of the program become a list of masked compares.

use std::collections::BTreeSet;

use super::originals::read_originals;
use crate::code::{ActionCode, ConstCall, ConstTable, Op, Part, Pc, Slot};
use crate::program::{Code, TableInfo, TableKind};

/// Tidies the lowered code. `tables` tells which tables never change.
pub(super) fn tidy(code: &mut Code, tables: &[TableInfo]) {
    compile_const_tables(code, tables);
    compile_const_misses(code, tables);
    let nowhere = unreachable(code);
    remove(code, &nowhere);
    let targets = jump_targets(code);
    read_originals(code, &targets);
    let zeroes = first_zeroes(code, &targets);
    remove(code, &zeroes);
    loop {
        let dead = dead_writes(code);
        if dead.is_empty() {
            break;
        }
        remove(code, &dead);
    }
    code.calculations.iter_mut().for_each(|calculation| calculation.finish(&code.constants));
    let busy =
        |phases: &[Pc]| phases.iter().copied().filter(|&pc| code.ops[pc as usize] != Op::End).collect();
    let (before, after) =
        (busy(&[code.parser, code.verify, code.ingress]), busy(&[code.egress, code.update]));
    (code.before, code.after) = (before, after);
}

/// Every position that something other than the operation before it may lead to.
type Targets = BTreeSet<Pc>;

fn jump_targets(code: &mut Code) -> Targets {
    let mut targets = Targets::new();
    for_each_target(code, |to| _ = targets.insert(*to));
    targets
}

fn for_each_target(code: &mut Code, mut visit: impl FnMut(&mut Pc)) {
    for op in &mut code.ops {
        if let Some(to) = op.target() {
            visit(to);
        }
    }
    for select in &mut code.selects {
        select.to.iter_mut().chain([&mut select.otherwise]).for_each(&mut visit);
    }
    for table in &mut code.tables {
        table.next.iter_mut().chain([&mut table.next_without_action]).for_each(&mut visit);
        table.actions.iter_mut().for_each(|action| visit(&mut action.start));
        table.miss.iter_mut().for_each(|call| visit(&mut call.code.start));
    }
    for table in &mut code.const_tables {
        table.calls.iter_mut().for_each(|call| visit(&mut call.code.start));
    }
    let entries = [&mut code.parser, &mut code.verify, &mut code.ingress, &mut code.egress, &mut code.update];
    entries.into_iter().for_each(visit);
}

fn compile_const_tables(code: &mut Code, tables: &[TableInfo]) {
    let mut compiled = vec![None; tables.len()];
    for (at, info) in tables.iter().enumerate() {
        let table = &code.tables[at];
        let TableKind::Scan { key } = &table.kind else { continue };
        let Some(parts) = key.one_word() else { continue };
        if !info.const_entries || !info.const_default || table.shape.counted {
            continue;
        }
        let call = |call| table.const_call(info, call);
        let mut entries: Vec<_> = code.entries[at].iter().collect();
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.1)); // stable: the first stays first
        let mut words = Vec::new();
        entries.iter().for_each(|entry| key.pack_entry(&entry.0, &mut words));
        let no_action = ActionCode { start: 0, param_base: 0, params: 0 };
        let nothing = ConstCall { position: usize::MAX, code: no_action, params: Box::new([]) };
        let default = info.initial_default.as_ref().map_or(Some(nothing), call);
        let calls: Option<Box<[ConstCall]>> = entries.iter().map(|e| call(&e.2)).chain([default]).collect();
        if let Some(calls) = calls {
            compiled[at] = Some(code.const_tables.len() as u16);
            let parts = parts.iter().map(Part::of).collect();
            code.const_tables.push(ConstTable { parts, words: words.into(), calls });
        }
    }
    for op in &mut code.ops {
        if let Op::Apply { table } = *op
            && let Some(table) = compiled[usize::from(table)]
        {
            *op = Op::ApplyConst { table };
        }
    }
}

fn compile_const_misses(code: &mut Code, tables: &[TableInfo]) {
    for (table, info) in code.tables.iter_mut().zip(tables).filter(|(_, info)| info.const_default) {
        table.miss = info.initial_default.as_ref().and_then(|call| table.const_call(info, call));
    }
}

/// Operations that no packet comes to.
fn unreachable(code: &mut Code) -> BTreeSet<usize> {
    let mut reached = vec![false; code.ops.len()];
    let mut work: Vec<Pc> = vec![code.parser, code.verify, code.ingress, code.egress, code.update];
    while let Some(pc) = work.pop() {
        let at = pc as usize;
        if at >= reached.len() || std::mem::replace(&mut reached[at], true) {
            continue;
        }
        let op = &mut code.ops[at];
        work.extend(op.target().copied());
        match *op {
            Op::Jump { .. } | Op::Loop { .. } | Op::Return | Op::End => continue,
            Op::Apply { table } | Op::ApplyInto { table, .. } => {
                work.extend(code.tables[usize::from(table)].actions.iter().map(|action| action.start));
            }
            Op::ApplyConst { table } => {
                work.extend(code.const_tables[usize::from(table)].calls.iter().map(|call| call.code.start));
            }
            Op::Switch { table } => {
                let table = &code.tables[usize::from(table)];
                work.extend(table.next.iter().chain([&table.next_without_action]));
                continue;
            }
            Op::Select { select } => {
                let select = &code.selects[usize::from(select)];
                work.extend(select.to.iter().chain([&select.otherwise]));
                continue;
            }
            _ => {}
        }
        work.push(pc + 1);
    }
    (0..reached.len()).filter(|&at| !reached[at]).collect()
}

/// Operations at the beginning of ingress that set variables to 0 which nothing has written before.
fn first_zeroes(code: &mut Code, targets: &Targets) -> BTreeSet<usize> {
    let Some(&(zero, _)) = code.constants.iter().find(|c| c.1 == 0) else { return BTreeSet::new() };
    let metadata = &code.metadata;
    let set_outside = [
        metadata.ingress_port,
        metadata.packet_length,
        metadata.parser_error,
        metadata.ingress_timestamp,
        metadata.instance_type,
        metadata.egress_rid,
    ];
    let mut written: BTreeSet<Slot> = set_outside.into_iter().flatten().collect();
    written.extend(code.headers.iter().flat_map(|h| h.loads.iter().map(|f| f.slot).chain([h.valid])));
    // The parser and what verifies checksums lie between these two.
    let before = code.parser.min(code.verify) as usize..code.ingress as usize;
    written.extend(code.ops[before].iter_mut().filter_map(|op| op.dst().copied()));
    let mut zeroes = BTreeSet::new();
    for at in code.ingress as usize..code.ops.len() {
        // Only the first phase's entry leads to the first operation.
        if at > code.ingress as usize && targets.contains(&(at as Pc)) {
            break;
        }
        match code.ops[at] {
            Op::Mov { dst, a } if a == zero && !written.contains(&dst) => {
                zeroes.insert(at);
            }
            mut op => match op.dst().copied() {
                Some(dst) => {
                    written.insert(dst);
                }
                None => break,
            },
        }
    }
    zeroes
}

/// Operations that only write a slot that nothing reads.
fn dead_writes(code: &Code) -> BTreeSet<usize> {
    let mut read: BTreeSet<Slot> = code.ops.iter().flat_map(|op| op.reads()).flatten().collect();
    for op in &code.ops {
        let (Op::Apply { table } | Op::ApplyInto { table, .. }) = *op else { continue };
        match &code.tables[usize::from(table)].kind {
            TableKind::Keyless => {}
            TableKind::Exact { parts } | TableKind::Lpm { parts } => {
                read.extend(parts.iter().map(|p| p.slot))
            }
            TableKind::Range { parts, slot, .. } => read.extend(parts.iter().map(|p| p.slot).chain([*slot])),
            TableKind::Scan { key } => read.extend(key.slots()),
        }
    }
    read.extend(code.const_tables.iter().flat_map(|t| t.parts.iter()).map(|p| p.slot));
    read.extend(code.calculations.iter().flat_map(|c| c.slots()));
    read.extend(code.selects.iter().flat_map(|s| s.key.slots()));
    read.extend(code.headers.iter().flat_map(|h| h.stores.iter().map(|f| f.slot).chain([h.valid])));
    read.extend(code.copies.iter().flat_map(|c| c.fields.iter().map(|&(_, from)| from)));
    read.extend([code.metadata.egress_spec]);
    read.extend(code.metadata.multicast_group);
    let dead = |op: &Op| {
        // What draws random numbers or may end the parser stays.
        let pure = !matches!(op, Op::Random { .. } | Op::Lookahead { .. });
        let mut op = *op;
        pure && op.dst().is_some_and(|dst| !read.contains(dst))
    };
    code.ops.iter().enumerate().filter(|(_, op)| dead(op)).map(|(at, _)| at).collect()
}

fn remove(code: &mut Code, dead: &BTreeSet<usize>) {
    let mut position = Vec::with_capacity(code.ops.len() + 1);
    let mut kept = 0;
    for at in 0..=code.ops.len() {
        position.push(kept);
        if !dead.contains(&at) {
            kept += 1;
        }
    }
    let mut at = 0;
    code.ops.retain(|_| {
        at += 1;
        !dead.contains(&(at - 1))
    });
    for_each_target(code, |to| *to = position[*to as usize]);
}
