//! Full queues, used-up buffers, more READs than may be outstanding.

use super::{Bench, Case, Lab, Verdict, ensure, pattern};
use crate::completion::Output;
use crate::device::{Device as _, Verbs as _};
use crate::error::PostError;
use crate::request::{Operation, WorkRequest};

pub(super) fn cases<B: Bench>(cases: &mut Vec<Case<B>>) {
    cases.extend([
        Case {
            name: "a full send queue refuses, loses nothing, and has room after completions",
            run: full_queue,
        },
        Case { name: "requests that are not signalled give their places back", run: unsignalled },
        Case { name: "a chain is posted whole or not at all", run: all_or_nothing },
        Case { name: "an empty chain and one too long are refused", run: chain_lengths },
        Case { name: "more READs than may be outstanding wait their turn", run: many_reads },
        Case {
            name: "buffers that are held are missed, and come back when they are dropped",
            run: held_buffers,
        },
        Case { name: "a READ longer than any buffer is refused when it is posted", run: too_long },
    ]);
}

fn full_queue<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let queue_pair = lab.queue_pair;
    let limit = lab.bench.verbs().capabilities().send_queue;
    let at = lab.at(0);
    let mut posted = 0u64;
    let refusal = loop {
        match lab.post_on(queue_pair, posted, &[Operation::Write { to: at, data: &posted.to_le_bytes() }]) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        ensure!(posted <= limit as u64, "{posted} requests are on a queue pair that holds {limit}");
    };
    ensure!(
        refusal.is_temporary() && refusal.queue_pair_survived() && posted > 0,
        "after {posted} requests the queue pair says: {refusal}"
    );
    let completions = lab.take(posted as usize)?;
    let tags: Vec<u64> = completions.iter().map(|completion| completion.tag).collect();
    ensure!(tags.iter().copied().eq(0..posted), "completions came as {tags:?}");
    ensure!(completions.iter().all(|completion| completion.result.is_ok()), "some failed: {completions:?}");
    lab.no_more()?;
    lab.bytes(Operation::Read { from: at, len: 8 }).and_then(|bytes| {
        ensure!(bytes == (posted - 1).to_le_bytes(), "the last WRITE is not on top");
        Ok(())
    })
}

fn unsignalled<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let count = 3 * lab.bench.verbs().capabilities().send_queue as u64;
    let at = lab.at(0);
    for tag in 0..count {
        let operation = Operation::Write { to: at, data: &tag.to_le_bytes() };
        post_when_there_is_room(lab, WorkRequest { tag, signalled: false, operation })?;
    }
    let operation = Operation::Read { from: at, len: 8 };
    post_when_there_is_room(lab, WorkRequest { tag: count, signalled: true, operation })?;
    let found = lab.take(1)?;
    let fine = matches!(&found[0].result, Ok(Output::Read(bytes)) if **bytes == (count - 1).to_le_bytes());
    ensure!(fine && found[0].tag == count, "after {count} WRITEs that are not signalled: {found:?}");
    lab.no_more()
}

fn post_when_there_is_room<B: Bench>(lab: &mut Lab<B>, request: WorkRequest<'_>) -> Verdict {
    let (queue_pair, mut turns, mut goes_on) = (lab.queue_pair, 0, true);
    while let Err(error) = lab.bench.verbs().post(queue_pair, &[request]) {
        ensure!(error.is_temporary(), "request {}: {error}", request.tag);
        ensure!(goes_on, "request {} finds no room, and none comes: {error}", request.tag);
        let said = lab.bench.verbs().poll();
        ensure!(said.is_none(), "a request that is not signalled completed: {said:?}");
        goes_on = lab.bench.advance(turns);
        turns += 1;
    }
    Ok(())
}

fn all_or_nothing<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let (queue_pair, longest) = (lab.queue_pair, lab.bench.verbs().capabilities().longest_chain);
    if longest < 2 {
        return Ok(());
    }
    let to = lab.at(0);
    let mut posted = 0;
    // Fill the queue by ones, then offer a chain of two.
    while lab.post_on(queue_pair, posted, &[Operation::Write { to, data: b"fill" }]).is_ok() {
        posted += 1;
    }
    let refused = lab.post(&[Operation::Write { to, data: b"AAAA" }, Operation::Write { to, data: b"BBBB" }]);
    ensure!(
        matches!(refused, Err(error) if error.is_temporary()),
        "a full queue pair took a chain: {refused:?}"
    );
    lab.take(posted as usize)?;
    lab.no_more()?;
    ensure!(lab.owner_reads(0, 4)? == b"fill", "a part of a chain that was refused was carried out");
    Ok(())
}

fn chain_lengths<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let limit = lab.bench.verbs().capabilities().longest_chain;
    let to = lab.at(0);
    let long = vec![Operation::Write { to, data: b"x" }; limit + 1];
    for chain in [&long[..], &[]] {
        let refused = lab.post(chain);
        ensure!(
            matches!(refused, Err(error @ PostError::ChainLength { .. }) if error.queue_pair_survived()),
            "a chain of {}: {refused:?}",
            chain.len()
        );
    }
    lab.outputs(&long[..limit])?;
    lab.no_more()
}

fn many_reads<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let whole = pattern(3, 8192);
    lab.owner_writes(0, &whole)?;
    let queue_pair = lab.queue_pair;
    let outstanding = u64::from(lab.agreed.outstanding_reads);
    let count = (3 * outstanding + 1).min(lab.bench.verbs().capabilities().send_queue as u64).min(60);
    for tag in 0..count {
        let from = lab.at(tag * 64);
        lab.post_on(queue_pair, tag, &[Operation::Read { from, len: 64 }])
            .map_err(|error| error.to_string())?;
    }
    for (tag, completion) in (0..).zip(lab.take(count as usize)?) {
        let fine = completion.tag == tag
            && matches!(&completion.result, Ok(Output::Read(bytes)) if **bytes == whole[tag as usize * 64..][..64]);
        ensure!(fine, "READ {tag} of {count} gave {completion:?}");
    }
    lab.no_more()
}

fn held_buffers<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let from = lab.at(0);
    let mut held = Vec::new();
    let refusal = loop {
        match lab.post(&[Operation::Read { from, len: 64 }]) {
            Ok(()) => held.extend(lab.take(1)?),
            Err(error) => break error,
        }
        ensure!(held.len() < 1 << 20, "a million buffers are held, and none is missed: is the pool bounded?");
    };
    ensure!(
        matches!(refusal, PostError::NoBuffer { .. })
            && refusal.is_temporary()
            && refusal.queue_pair_survived(),
        "with {} buffers held: {refusal}",
        held.len()
    );
    held.truncate(1);
    lab.bytes(Operation::Read { from, len: 64 })?;
    lab.no_more()
}

fn too_long<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let limit = lab.bench.verbs().capabilities().longest_message;
    let Ok(len) = u32::try_from(limit + 1) else { return Ok(()) };
    let refused = lab.post(&[Operation::Read { from: lab.at(0), len }]);
    ensure!(
        matches!(refused, Err(error @ PostError::TooLong { .. }) if error.queue_pair_survived() && !error.is_temporary()),
        "a READ of {len} bytes: {refused:?}"
    );
    lab.no_more()
}
