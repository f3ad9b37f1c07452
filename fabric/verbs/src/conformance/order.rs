//! Single operations, and the order within a chain.

use super::{Bench, Case, Lab, Verdict, ensure, pattern};
use crate::completion::Output;
use crate::device::{Device as _, Verbs as _};
use crate::request::{Operation, WorkRequest};

pub(super) fn cases<B: Bench>(cases: &mut Vec<Case<B>>) {
    cases.extend([
        Case { name: "a READ brings the bytes that are there, of any length", run: reads },
        Case { name: "a WRITE lands where it says and nowhere else", run: writes },
        Case { name: "operations of no bytes need no right and no memory", run: no_bytes },
        Case { name: "a later WRITE of a chain lands on an earlier one", run: writes_in_order },
        Case { name: "a READ sees what was written before it in its chain", run: read_after_write },
        Case {
            name: "an atomic sees what was written before it, and a READ what the atomic left",
            run: atomic_between,
        },
        Case { name: "only signalled requests complete, in the order of posting", run: signals },
        Case {
            name: "requests that are not signalled make room when a later one completes",
            run: unsignalled_make_room,
        },
        Case { name: "chains that follow each other are carried out in order", run: chains_in_order },
        Case { name: "data may be changed as soon as it is posted", run: data_is_copied },
    ]);
}

fn reads<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let whole = pattern(1, 40_000);
    lab.owner_writes(100, &whole)?;
    let mtu = lab.agreed.mtu.bytes();
    for len in [1, 7, 8, 63, 64, 65, mtu - 1, mtu, mtu + 1, 3 * mtu, 33_333] {
        for offset in [0, 1, 61] {
            let from = lab.at(100 + offset);
            let bytes = lab.bytes(Operation::Read { from, len: len as u32 })?;
            ensure!(
                bytes == whole[offset as usize..][..len],
                "{len} bytes at offset {offset} are not those that are there"
            );
        }
    }
    lab.no_more()
}

fn writes<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let (mtu, inline) = (lab.agreed.mtu.bytes(), lab.capabilities()?.0.inline_bytes);
    let mut model = vec![0; 32_768];
    let lengths = [1, 7, 8, 17, 63, 64, 65, inline.max(1), inline + 1, mtu - 1, mtu, mtu + 1, 3 * mtu];
    for (seed, len) in (1..).zip(lengths) {
        let (offset, data) = (seed * 61, pattern(seed, len));
        let to = lab.at(offset);
        let written = lab.outputs(&[Operation::Write { to, data: &data }])?;
        ensure!(matches!(written[..], [Output::Written]), "{written:?} where a WRITE was posted");
        model[offset as usize..][..len].copy_from_slice(&data);
        ensure!(lab.owner_reads(0, 32_768)? == model, "a WRITE of {len} bytes at offset {offset} went wrong");
    }
    lab.no_more()
}

fn no_bytes<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let nowhere = crate::Remote { address: 0, rkey: 0 };
    let chain = [Operation::Read { from: nowhere, len: 0 }, Operation::Write { to: nowhere, data: &[] }];
    let outputs = lab.outputs(&chain)?;
    let fine = matches!(&outputs[..], [Output::Read(bytes), Output::Written] if bytes.is_empty());
    ensure!(fine, "an empty READ and an empty WRITE gave {outputs:?}");
    lab.no_more()
}

fn writes_in_order<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let to = lab.at(1000);
    for round in 0..50u8 {
        let (long, short) = ([round; 3000], [round ^ 0xff; 40]);
        lab.outputs(&[Operation::Write { to, data: &long }, Operation::Write { to, data: &short }])?;
        let found = lab.owner_reads(1000, 3000)?;
        ensure!(
            found[..40] == short && found[40..] == long[40..],
            "round {round}: the second WRITE is not on top"
        );
    }
    Ok(())
}

fn read_after_write<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let at = lab.at(8);
    for round in 0..50 {
        let data = pattern(round, 2000);
        let outputs = lab
            .outputs(&[Operation::Write { to: at, data: &data }, Operation::Read { from: at, len: 2000 }])?;
        let fine = matches!(&outputs[..], [_, Output::Read(bytes)] if **bytes == data[..]);
        ensure!(fine, "round {round}: the READ did not see the WRITE before it");
    }
    Ok(())
}

fn atomic_between<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let at = lab.at(512);
    for round in 0..50u64 {
        let chain = [
            Operation::Write { to: at, data: &(7 * round).to_le_bytes() },
            Operation::FetchAdd { at, add: 5 },
            Operation::CompareSwap { at, compare: 7 * round + 5, swap: round },
            Operation::Read { from: at, len: 8 },
        ];
        let outputs = lab.outputs(&chain)?;
        let fine = matches!(&outputs[..], [_, Output::Atomic(added), Output::Atomic(swapped), Output::Read(bytes)]
            if *added == 7 * round && *swapped == 7 * round + 5 && **bytes == round.to_le_bytes());
        ensure!(fine, "round {round}: WRITE, FAA, CAS, READ gave {outputs:?}");
    }
    Ok(())
}

fn signals<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let at = lab.at(0);
    let request = |tag, signalled, operation| WorkRequest { tag, signalled, operation };
    let write = |data| Operation::Write { to: at, data };
    // No more than a send queue of the smallest kind holds.
    let rounds = 20.min(lab.capabilities()?.0.send_queue as u64 / 4).max(1);
    for round in 0..rounds {
        let chain = [
            request(10 * round, false, write(b"one")),
            request(10 * round + 1, true, write(b"two")),
            request(10 * round + 2, false, write(b"three")),
            request(10 * round + 3, true, Operation::Read { from: at, len: 5 }),
        ];
        let queue_pair = lab.queue_pair;
        lab.bench.verbs().post(queue_pair, &chain).map_err(|error| error.to_string())?;
    }
    let tags: Vec<u64> = lab.take(2 * rounds as usize)?.iter().map(|completion| completion.tag).collect();
    let expected: Vec<u64> = (0..rounds).flat_map(|round| [10 * round + 1, 10 * round + 3]).collect();
    ensure!(tags == expected, "completions came as {tags:?}");
    lab.no_more()
}

fn unsignalled_make_room<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let (at, queue_pair) = (lab.at(0), lab.queue_pair);
    let capabilities = lab.bench.verbs().capabilities();
    let length = capabilities.longest_chain.min(4) as u64;
    let rounds: u64 = 2 * capabilities.send_queue as u64 / length + 1;
    for round in 0..rounds {
        let data = round.to_le_bytes();
        let chain: Vec<WorkRequest<'_>> = (1..=length)
            .map(|tag| WorkRequest {
                tag,
                signalled: tag == length,
                operation: Operation::Write { to: at, data: &data },
            })
            .collect();
        lab.bench
            .verbs()
            .post(queue_pair, &chain)
            .map_err(|error| format!("chain {round} of {rounds}, all before it are complete: {error}"))?;
        let completions = lab.take(1)?;
        ensure!(
            matches!(completions[..], [crate::Completion { tag, result: Ok(_), .. }] if tag == length),
            "chain {round}: {completions:?}"
        );
    }
    lab.no_more()
}

fn chains_in_order<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let at = lab.at(64);
    let rounds = 30.min(lab.capabilities()?.0.send_queue) as u8;
    for round in 0..rounds {
        lab.post_on(lab.queue_pair, u64::from(round), &[Operation::Write { to: at, data: &[round; 1500] }])
            .map_err(|error| error.to_string())?;
    }
    lab.take(rounds.into())?;
    ensure!(lab.owner_reads(64, 1500)? == [rounds - 1; 1500], "the last WRITE is not on top");
    lab.no_more()
}

fn data_is_copied<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let to = lab.at(0);
    for len in [8, 64, 65, 2000] {
        let mut data = pattern(9, len);
        lab.post(&[Operation::Write { to, data: &data }]).map_err(|error| error.to_string())?;
        data.fill(0xee);
        lab.take(1)?;
        ensure!(
            lab.owner_reads(0, len as u64)? == pattern(9, len),
            "a WRITE of {len} bytes took data after it was posted"
        );
    }
    Ok(())
}
