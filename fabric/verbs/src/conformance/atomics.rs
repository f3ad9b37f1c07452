//! Atomics, alone and against each other.

use std::collections::BTreeSet;

use super::{Bench, Case, Lab, Verdict, ensure};
use crate::access::Access;
use crate::completion::{Failure, Output};
use crate::error::PostError;
use crate::request::{Operation, Remote};

pub(super) fn cases<B: Bench>(cases: &mut Vec<Case<B>>) {
    cases.extend([
        Case { name: "compare and swap, fetch and add return what they found", run: plain },
        Case { name: "masked atomics touch their bits only, or are refused", run: masked },
        Case { name: "an atomic at an odd address is refused when it is posted", run: misaligned },
        Case { name: "atomics of two queue pairs do not lose an update", run: contended },
        Case { name: "device memory has its own key, or is refused", run: device_memory },
        Case { name: "the owner of device memory reads what others have written there", run: owner_reads },
    ]);
}

fn value<B: Bench>(lab: &mut Lab<B>, offset: u64) -> Result<u64, String> {
    let bytes = lab.owner_reads(offset, 8)?;
    Ok(bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
}

fn plain<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let at = lab.at(64);
    lab.owner_writes(64, &5u64.to_le_bytes())?;
    let original = lab.original(Operation::CompareSwap { at, compare: 4, swap: 9 })?;
    ensure!(
        original == 5 && value(lab, 64)? == 5,
        "a CAS that does not match found {original} and changed memory"
    );
    let original = lab.original(Operation::CompareSwap { at, compare: 5, swap: u64::MAX })?;
    ensure!(
        original == 5 && value(lab, 64)? == u64::MAX,
        "a CAS that matches found {original}, or did not swap"
    );
    let original = lab.original(Operation::FetchAdd { at, add: 3 })?;
    ensure!(original == u64::MAX && value(lab, 64)? == 2, "an FAA found {original}, or did not wrap");
    ensure!(value(lab, 56)? == 0 && value(lab, 72)? == 0, "an atomic touched its neighbours");
    lab.no_more()
}

fn masked<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let (local, remote) = lab.capabilities()?;
    let at = lab.at(128);
    let lock = |swap: u64| Operation::MaskedCompareSwap {
        at,
        compare: 0,
        compare_mask: 0xffff << 16,
        swap: swap << 16,
        swap_mask: 0xffff << 16,
    };
    if !local.masked_atomics {
        let refused = lab.post(&[lock(1)]);
        ensure!(
            matches!(refused, Err(error @ PostError::Unsupported { .. }) if error.queue_pair_survived()),
            "a masked atomic on a device that has none: {refused:?}"
        );
        return lab.no_more();
    }
    if !remote.masked_atomics {
        return lab.fails(lock(1), &[Failure::RemoteInvalidRequest, Failure::RemoteAccess]);
    }
    let before = 0x1111_2222_0000_4444_u64;
    lab.owner_writes(128, &before.to_le_bytes())?;
    let original = lab.original(lock(0xabcd))?;
    ensure!(
        original == before && value(lab, 128)? == 0x1111_2222_abcd_4444,
        "a masked CAS touched other bits"
    );
    let original = lab.original(lock(0x9999))?;
    ensure!(
        original == 0x1111_2222_abcd_4444 && value(lab, 128)? == original,
        "a masked CAS that does not match swapped"
    );
    // Two fields of 32 bits; the lower one overflows.
    lab.owner_writes(128, &0x0000_0007_ffff_ffff_u64.to_le_bytes())?;
    lab.original(Operation::MaskedFetchAdd { at, add: 0x1_0000_0002, boundary: 1 << 31 | 1 << 63 })?;
    let found = value(lab, 128)?;
    ensure!(found == 0x0000_0008_0000_0001, "a masked FAA over two fields made {found:#x}");
    lab.no_more()
}

fn misaligned<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let at = lab.at(4);
    for operation in [Operation::FetchAdd { at, add: 1 }, Operation::CompareSwap { at, compare: 0, swap: 1 }]
    {
        let refused = lab.post(&[Operation::Read { from: lab.at(0), len: 8 }, operation]);
        ensure!(
            matches!(refused, Err(error @ PostError::Misaligned { .. }) if error.queue_pair_survived()),
            "a misaligned atomic: {refused:?}"
        );
    }
    // Nothing of the chains was posted, and the queue pair still works.
    lab.no_more()?;
    lab.bytes(Operation::Read { from: lab.at(0), len: 8 }).map(drop)
}

fn contended<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    const ROUNDS: u64 = 40;
    let (second, _) = lab.connect()?;
    let pairs = [lab.queue_pair, second];
    let at = lab.at(256);
    let mut originals = BTreeSet::new();
    for round in 0..ROUNDS {
        for queue_pair in pairs {
            let chain = [Operation::FetchAdd { at, add: 1 }, Operation::FetchAdd { at, add: 1 }];
            lab.post_on(queue_pair, round, &chain).map_err(|error| error.to_string())?;
        }
        for completion in lab.take(4)? {
            match completion.result {
                Ok(Output::Atomic(original)) => _ = originals.insert(original),
                other => return Err(format!("an FAA gave {other:?}")),
            }
        }
    }
    let (sum, seen) = (value(lab, 256)?, originals.len() as u64);
    ensure!(
        sum == 4 * ROUNDS && seen == sum,
        "{} additions made {sum}, and {seen} different values were seen",
        4 * ROUNDS
    );
    lab.no_more()
}

fn device_memory<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let (_, remote) = lab.capabilities()?;
    let registered = lab.bench.responder().register_device_memory(4096, Access::ALL);
    if remote.device_memory < 4096 {
        ensure!(registered.is_err(), "a device without memory of its own registered {registered:?}");
        return Ok(());
    }
    let region = registered?;
    ensure!(region.rkey != lab.region.rkey, "device memory and tree memory have one key");
    let at = Remote { address: region.iova + 8, rkey: region.rkey };
    let chain = [
        Operation::CompareSwap { at, compare: 0, swap: 77 },
        Operation::Write { to: Remote { address: region.iova, ..at }, data: b"8 bytes." },
        Operation::Read { from: Remote { address: region.iova, ..at }, len: 16 },
    ];
    let outputs = lab.outputs(&chain)?;
    let fine = matches!(&outputs[..], [Output::Atomic(0), _, Output::Read(bytes)] if **bytes == *b"8 bytes.\x4d\0\0\0\0\0\0\0");
    ensure!(fine, "CAS, WRITE and READ of device memory gave {outputs:?}");
    let foreign = Remote { address: region.iova, rkey: lab.region.rkey };
    lab.fails(Operation::Read { from: foreign, len: 8 }, &[Failure::RemoteAccess])
}

fn owner_reads<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let (_, remote) = lab.capabilities()?;
    if remote.device_memory < 4096 {
        return Ok(());
    }
    let region = lab.bench.responder().register_device_memory(4096, Access::ALL)?;
    let read = |lab: &mut Lab<B>, offset, len| lab.bench.responder().read(region.rkey, offset, len);
    let zeros = read(lab, 0, 4096)?;
    ensure!(zeros == [0; 4096], "device memory that was never written is not zero");
    let end = Remote { address: region.iova + 4088, rkey: region.rkey };
    let at = Remote { address: region.iova + 64, ..end };
    let chain = [
        Operation::CompareSwap { at, compare: 0, swap: 0x0123_4567 },
        Operation::Write { to: end, data: b"the end." },
    ];
    lab.outputs(&chain)?;
    let found = read(lab, 60, 16)?;
    ensure!(found == *b"\0\0\0\0\x67\x45\x23\x01\0\0\0\0\0\0\0\0", "after a CAS the owner reads {found:?}");
    let found = read(lab, 4088, 8)?;
    ensure!(found == *b"the end.", "after a WRITE the owner reads {found:?}");
    for (offset, len) in [(4089, 8), (4096, 1), (u64::MAX, 8)] {
        let beyond = read(lab, offset, len);
        ensure!(beyond.is_err(), "the owner reads {len} bytes at {offset} of 4096: {beyond:?}");
    }
    let rkey = region.rkey;
    lab.bench.responder().deregister(rkey)?;
    let gone = read(lab, 0, 8);
    ensure!(gone.is_err(), "the owner reads memory that it has taken back: {gone:?}");
    lab.no_more()
}
