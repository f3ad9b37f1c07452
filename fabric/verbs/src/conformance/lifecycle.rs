//! Connecting, breaking, reconnecting; and completions that come late.

use super::{Bench, Case, Lab, Verdict, ensure};
use crate::completion::Failure;
use crate::device::{Device as _, QueuePairState, Verbs as _};
use crate::endpoint::{Endpoint, QueuePairNumber};
use crate::error::{ConnectError, PostError};
use crate::request::{Operation, Remote, WorkRequest};

pub(super) fn cases<B: Bench>(cases: &mut Vec<Case<B>>) {
    cases.extend([
        Case { name: "a queue pair takes requests when it is connected, not before", run: not_connected },
        Case { name: "an endpoint that cannot be is refused", run: bad_endpoints },
        Case { name: "a connected queue pair cannot be connected again", run: connected_twice },
        Case { name: "a request that is not signalled speaks up when it fails", run: unsignalled_failure },
        Case { name: "after a failure everything posted completes once, as flushed", run: flush },
        Case { name: "one queue pair breaks, another goes on", run: independent },
        Case {
            name: "a responder that refuses a request breaks its own queue pair too, and names it once",
            run: refuser,
        },
        Case { name: "a broken queue pair is replaced by a new one", run: reconnect },
        Case { name: "a queue pair that is destroyed flushes what is under way, once", run: destroy },
        Case { name: "late completions are not the new queue pair's", run: late },
        Case { name: "a peer that is gone is noticed", run: peer_gone },
    ]);
}

fn not_connected<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let fresh = lab.bench.verbs().create().map_err(|error| error.to_string())?;
    let read = Operation::Read { from: lab.at(0), len: 8 };
    let refused = lab.post_on(fresh, 0, &[read]);
    ensure!(
        matches!(refused, Err(error @ PostError::NotConnected { queue_pair, .. }) if queue_pair == fresh && !error.queue_pair_survived()),
        "a new queue pair took a request: {refused:?}"
    );
    lab.bench.verbs().destroy(fresh);
    let state = lab.bench.verbs().state(fresh);
    ensure!(state.is_none(), "a destroyed queue pair is in state {state:?}");
    ensure!(lab.post_on(fresh, 0, &[read]).is_err(), "a destroyed queue pair took a request");
    let unknown = lab.bench.verbs().endpoint(fresh);
    ensure!(
        unknown == Err(ConnectError::Unknown { queue_pair: fresh }),
        "a destroyed queue pair has an endpoint: {unknown:?}"
    );
    lab.no_more()
}

fn bad_endpoints<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let fresh = lab.bench.verbs().create().map_err(|error| error.to_string())?;
    let good = lab.bench.verbs().endpoint(fresh).map_err(|error| error.to_string())?;
    let bad = [
        Endpoint { queue_pair: QueuePairNumber(1), ..good },
        Endpoint { queue_pair: QueuePairNumber(1 << 24), ..good },
        Endpoint { psn: 1 << 24, ..good },
        Endpoint { responder_reads: 0, ..good },
    ];
    for endpoint in bad {
        let refused = lab.bench.verbs().connect(fresh, &endpoint);
        ensure!(matches!(refused, Err(ConnectError::Endpoint(_))), "{endpoint:?} was taken: {refused:?}");
    }
    // It is as new as before.
    let remote = lab.bench.responder().accept(&good)?;
    lab.bench.verbs().connect(fresh, &remote).map_err(|error| error.to_string())?;
    let read = Operation::Read { from: lab.at(0), len: 8 };
    lab.outputs_on(fresh, &[read]).map(drop)
}

fn connected_twice<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let queue_pair = lab.queue_pair;
    let endpoint = lab.bench.verbs().endpoint(queue_pair).map_err(|error| error.to_string())?;
    let again = lab.bench.verbs().connect(queue_pair, &endpoint);
    let state = QueuePairState::ReadyToSend;
    ensure!(again == Err(ConnectError::State { queue_pair, state }), "connected twice: {again:?}");
    lab.bytes(Operation::Read { from: lab.at(0), len: 8 }).map(drop)
}

fn unsignalled_failure<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let queue_pair = lab.queue_pair;
    let nowhere = Remote { rkey: lab.region.rkey ^ 0x0080_0000, ..lab.at(0) };
    let write =
        |tag, signalled, to| WorkRequest { tag, signalled, operation: Operation::Write { to, data: b"x" } };
    let chain = [write(1, false, lab.at(0)), write(2, false, nowhere), write(3, true, lab.at(0))];
    lab.bench.verbs().post(queue_pair, &chain).map_err(|error| error.to_string())?;
    let found: Vec<_> = lab.take(2)?.into_iter().map(|c| (c.tag, c.result.err())).collect();
    let expected = [(2, Some(Failure::RemoteAccess)), (3, Some(Failure::Flushed))];
    ensure!(found == expected, "{expected:?} expected, found {found:?}");
    lab.is_broken(queue_pair)
}

fn flush<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let queue_pair = lab.queue_pair;
    let (good, bad) = (lab.at(0), Remote { rkey: lab.region.rkey ^ 0x0080_0000, ..lab.at(0) });
    let mut count = 0;
    while count < 30.min(lab.bench.verbs().capabilities().send_queue as u64) {
        let from = if count == 5 { bad } else { good };
        match lab.post_on(queue_pair, count, &[Operation::Read { from, len: 16 }]) {
            Ok(()) => count += 1,
            // The failure may be noticed while posting goes on.
            Err(PostError::NotConnected { .. }) if count > 5 => break,
            Err(error) => return Err(error.to_string()),
        }
    }
    for (tag, completion) in (0..).zip(lab.take(count as usize)?) {
        let found = completion.result.as_ref().err().copied();
        let fine = match tag {
            0..5 => lab.may_precede_failure(found),
            5 => found == Some(Failure::RemoteAccess),
            _ => found == Some(Failure::Flushed),
        };
        ensure!(
            completion.tag == tag && fine,
            "request {tag} of {count}, of which 5 is refused: {completion:?}"
        );
    }
    lab.is_broken(queue_pair)
}

fn independent<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let (other, _) = lab.connect()?;
    let from = Remote { rkey: lab.region.rkey ^ 0x0080_0000, ..lab.at(0) };
    lab.fails(Operation::Read { from, len: 8 }, &[Failure::RemoteAccess])?;
    let read = Operation::Read { from: lab.at(0), len: 8 };
    lab.outputs_on(other, &[read, read])?;
    lab.no_more()
}

fn refuser<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let (bystander, _) = lab.connect()?;
    let from = Remote { rkey: lab.region.rkey ^ 0x0080_0000, ..lab.at(0) };
    lab.fails(Operation::Read { from, len: 8 }, &[Failure::RemoteAccess])?;
    let mut named = Vec::new();
    // The refusal may be here before the other side's owner can know.
    for turn in 0..1000 {
        named.extend(lab.bench.responder().broken()?);
        if !named.is_empty() {
            break;
        }
        lab.bench.advance(turn);
    }
    named.extend(lab.bench.responder().broken()?);
    ensure!(named == [lab.peer], "{} named as broken once expected, found {named:?}", lab.peer);
    lab.outputs_on(bystander, &[Operation::Read { from: lab.at(0), len: 8 }]).map(drop)
}

fn reconnect<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    lab.owner_writes(0, b"still here")?;
    let first = lab.queue_pair;
    for round in 0..5 {
        let from = Remote { rkey: lab.region.rkey ^ 0x0080_0000, ..lab.at(0) };
        lab.fails(Operation::Read { from, len: 8 }, &[Failure::RemoteAccess])?;
        let (old, peer) = (lab.queue_pair, lab.peer);
        lab.bench.verbs().destroy(old);
        lab.bench.responder().disconnect(peer)?;
        (lab.queue_pair, lab.peer) = lab.connect()?;
        ensure!(lab.queue_pair != old && lab.queue_pair != first, "round {round}: {old} was given out again");
        let bytes = lab.bytes(Operation::Read { from: lab.at(0), len: 10 })?;
        ensure!(bytes == b"still here", "round {round}: the memory is another");
    }
    lab.no_more()
}

fn destroy<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let queue_pair = lab.queue_pair;
    let from = lab.at(0);
    for tag in 0..10 {
        lab.post_on(queue_pair, tag, &[Operation::Read { from, len: 64 }])
            .map_err(|error| error.to_string())?;
    }
    lab.bench.verbs().destroy(queue_pair);
    for (tag, completion) in (0..).zip(lab.take(10)?) {
        let fine = matches!(completion.result, Ok(_) | Err(Failure::Flushed));
        ensure!(
            fine && (completion.tag, completion.queue_pair) == (tag, queue_pair),
            "request {tag}: {completion:?}"
        );
    }
    lab.no_more()
}

fn late<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    lab.owner_writes(0, &[0xaa; 64])?;
    let (old, peer) = (lab.queue_pair, lab.peer);
    let from = lab.at(0);
    for tag in 0..8 {
        lab.post_on(old, tag, &[Operation::Read { from, len: 64 }]).map_err(|error| error.to_string())?;
    }
    // Requests are on their way; their answers find no queue pair.
    lab.bench.advance(0);
    lab.bench.verbs().destroy(old);
    lab.bench.responder().disconnect(peer)?;
    (lab.queue_pair, lab.peer) = lab.connect()?;
    let new = lab.queue_pair;
    lab.owner_writes(0, &[0xbb; 64])?;
    for tag in 0..8 {
        lab.post_on(new, 100 + tag, &[Operation::Read { from, len: 64 }])
            .map_err(|error| error.to_string())?;
    }
    let mut tags = (Vec::new(), Vec::new());
    for completion in lab.take(16)? {
        if completion.queue_pair == old {
            tags.0.push(completion.tag);
            continue;
        }
        let fine = matches!(&completion.result, Ok(crate::Output::Read(bytes)) if **bytes == [0xbb; 64]);
        ensure!(completion.queue_pair == new && fine, "on the new queue pair: {completion:?}");
        tags.1.push(completion.tag);
    }
    ensure!(
        tags.0.iter().copied().eq(0..8) && tags.1.iter().copied().eq(100..108),
        "completions came as {tags:?}"
    );
    lab.no_more()
}

fn peer_gone<B: Bench>(lab: &mut Lab<B>) -> Verdict {
    let (queue_pair, peer) = (lab.queue_pair, lab.peer);
    lab.bench.responder().disconnect(peer)?;
    let read = Operation::Read { from: lab.at(0), len: 8 };
    lab.post(&[read, read]).map_err(|error| error.to_string())?;
    let found: Vec<_> = lab.take(2)?.into_iter().map(|completion| completion.result.err()).collect();
    // No answer, or one that says that there is no such queue pair.
    let fine = matches!(
        found[..],
        [
            Some(Failure::RetryExceeded | Failure::RemoteOperational | Failure::RemoteInvalidRequest),
            Some(Failure::Flushed)
        ]
    );
    ensure!(fine, "requests to a peer that is gone gave {found:?}");
    lab.is_broken(queue_pair)
}
