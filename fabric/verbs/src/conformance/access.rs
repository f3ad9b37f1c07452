//! Bounds, rights, keys: what must be refused, and what refusing does to the queue pair.

use super::{Bench, Case, Lab, REGION, Verdict, ensure};
use crate::access::Access;
use crate::completion::Failure;
use crate::device::Region;
use crate::error::PostError;
use crate::request::{IndexTarget, Operation, RKEY_NODE_OR_RECORD, Remote};

pub(super) fn cases<B: Bench>(cases: &mut Vec<Case<B>>) {
    cases.extend([
        Case {
            name: "a READ that begins before its region is refused",
            run: |lab| out_of_bounds(lab, -1, 8),
        },
        Case {
            name: "a READ that ends beyond its region is refused",
            run: |lab| out_of_bounds(lab, REGION as i64 - 7, 8),
        },
        Case { name: "a READ beyond its region is refused", run: |lab| out_of_bounds(lab, REGION as i64, 8) },
        Case {
            name: "a WRITE of several packets that ends beyond its region leaves no trace",
            run: long_write,
        },
        Case { name: "an atomic beyond its region is refused", run: atomic_behind },
        Case { name: "an unknown key is refused", run: unknown_key },
        Case { name: "the key of index reads is refused", run: index_keys },
        Case { name: "the key of index reads to nodes is refused", run: index_key_of_nodes },
        Case { name: "reading needs its right", run: no_right_to_read },
        Case { name: "writing needs its right", run: no_right_to_write },
        Case { name: "atomics need their right", run: no_right_to_atomics },
        Case { name: "a region that was taken back is refused", run: deregistered },
        Case {
            name: "an index read that no switch rewrites is refused and breaks the queue pair",
            run: unregistered,
        },
        Case {
            name: "an index read to nodes that no switch rewrites is refused and breaks the queue pair",
            run: unregistered_to_nodes,
        },
        Case { name: "an index read of several packets is refused when it is posted", run: long_index_read },
    ]);
}

const REFUSED: &[Failure] = &[Failure::RemoteAccess];

fn out_of_bounds<B: Bench>(lab: &mut Lab<B>, offset: i64, len: u32) -> Verdict {
    let from = lab.at(offset as u64);
    lab.fails(Operation::Read { from, len }, REFUSED)
}

fn long_write<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let len = 2 * lab.agreed.mtu.bytes() + 100;
    let offset = REGION - len as u64 + 1;
    let to = lab.at(offset);
    // The refusal comes at once or with the packet that reaches too far; what memory holds then is the device's affair,
    // but nothing outside of the region may change, which only the owner of that memory could see.
    lab.fails(Operation::Write { to, data: &vec![7; len] }, REFUSED)
}

fn atomic_behind<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let at = lab.at(REGION);
    lab.fails(Operation::FetchAdd { at, add: 1 }, REFUSED)
}

fn unknown_key<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let from = Remote { rkey: lab.region.rkey ^ 0x0080_0000, ..lab.at(0) };
    lab.fails(Operation::Read { from, len: 8 }, REFUSED)
}

fn index_keys<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let rkey = lab.region.rkey;
    ensure!(IndexTarget::of_rkey(rkey).is_none(), "a region has the rkey {rkey}, as index reads have");
    let from = Remote { rkey: RKEY_NODE_OR_RECORD, ..lab.at(0) };
    lab.fails(Operation::Read { from, len: 8 }, REFUSED)
}

fn index_key_of_nodes<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    for target in IndexTarget::ALL {
        let from = Remote { rkey: target.rkey(), ..lab.at(0) };
        lab.fails(Operation::Read { from, len: 8 }, REFUSED)?;
        (lab.queue_pair, lab.peer) = lab.connect()?;
    }
    Ok(())
}

fn restricted<B: Bench>(lab: &mut Lab<B>, access: Access) -> Result<(Region, Remote), String> {
    let region = lab.bench.responder().register(4096, access)?;
    Ok((region, Remote { address: region.iova, rkey: region.rkey }))
}

fn no_right_to_read<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let (_, from) = restricted(lab, Access::WRITE | Access::ATOMIC)?;
    lab.fails(Operation::Read { from, len: 8 }, REFUSED)
}

fn no_right_to_write<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let (region, to) = restricted(lab, Access::READ)?;
    lab.fails(Operation::Write { to, data: &[1; 8] }, REFUSED)?;
    let found = lab.bench.responder().read(region.rkey, 0, 8)?;
    ensure!(found == [0; 8], "a WRITE without the right changed memory");
    Ok(())
}

fn no_right_to_atomics<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let (region, at) = restricted(lab, Access::READ | Access::WRITE)?;
    lab.fails(Operation::FetchAdd { at, add: 1 }, REFUSED)?;
    let found = lab.bench.responder().read(region.rkey, 0, 8)?;
    ensure!(found == [0; 8], "an atomic without the right changed memory");
    Ok(())
}

fn deregistered<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let (region, from) = restricted(lab, Access::ALL)?;
    lab.bytes(Operation::Read { from, len: 8 })?;
    lab.bench.responder().deregister(region.rkey)?;
    lab.fails(Operation::Read { from, len: 8 }, REFUSED)
}

fn unregistered<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let target = IndexTarget::NodeOrRecord;
    lab.fails(Operation::IndexRead { key: 0x1234_5678_9abc_def0, len: 64, target }, REFUSED)
}

fn unregistered_to_nodes<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let target = IndexTarget::Node;
    lab.fails(Operation::IndexRead { key: 0x1234_5678_9abc_def0, len: 64, target }, REFUSED)
}

fn long_index_read<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let mtu = lab.agreed.mtu.bytes() as u32;
    let len = mtu + 1;
    let operations = IndexTarget::ALL.into_iter().flat_map(|target| {
        let nameless = Operation::Read { from: Remote { address: 99, rkey: target.rkey() }, len };
        [Operation::IndexRead { key: 99, len, target }, nameless]
    });
    for operation in operations {
        let refused = lab.post(&[operation]);
        ensure!(
            matches!(refused, Err(error @ PostError::IndexReadTooLong { limit, .. }) if limit == mtu && error.queue_pair_survived()),
            "{operation:?} over path MTU {mtu}: {refused:?}"
        );
    }
    lab.no_more()?;
    lab.bytes(Operation::Read { from: lab.at(0), len: 8 }).map(drop)
}
