//! Posting chains, and taking completions.
#![allow(unsafe_code, reason = "posting hands addresses to the card; the block says why that is sound")]

use fatbtree_verbs::{
    Agreed, Buffer, Completion, Operation, PostError, QueuePair, QueuePairState, Remote, Verbs, WorkRequest,
};

use super::RdmaDevice;
use crate::ffi::{self, Request};
use crate::queue::{Entry, Kind};
use crate::table::id_of;

impl RdmaDevice {
    /// Checks whether a chain can be posted.
    fn check(
        &self,
        queue_pair: QueuePair,
        under_way: usize,
        agreed: &Agreed,
        chain: &[WorkRequest<'_>],
    ) -> Result<(), PostError> {
        let limit = self.capabilities.longest_chain;
        if chain.is_empty() || chain.len() > limit {
            return Err(PostError::ChainLength { found: chain.len(), limit });
        }
        let (found, limit) = (under_way + chain.len(), self.capabilities.send_queue);
        if found > limit {
            return Err(PostError::Full { queue_pair, what: "requests", found, limit });
        }
        let found = self.under_way + self.completions.len() + chain.len();
        if found > self.room {
            let what = "requests and completions of all queue pairs";
            return Err(PostError::Full { queue_pair, what, found, limit: self.room });
        }
        chain.iter().try_for_each(|request| self.check_operation(&request.operation, agreed))
    }

    fn check_operation(&self, operation: &Operation<'_>, agreed: &Agreed) -> Result<(), PostError> {
        let limit = self.capabilities.longest_message;
        let mtu = agreed.mtu.bytes() as u32;
        if let Some(address) = operation.atomic_address() {
            let masked =
                matches!(operation, Operation::MaskedCompareSwap { .. } | Operation::MaskedFetchAdd { .. });
            return match (masked, self.atomics) {
                (true, _) => Err(PostError::Unsupported { what: "masked atomics" }),
                (_, false) => Err(PostError::Unsupported { what: "atomics" }),
                _ if !address.is_multiple_of(8) => Err(PostError::Misaligned { address }),
                _ => Ok(()),
            };
        }
        let found = match *operation {
            Operation::IndexRead { len, .. } | Operation::Read { len, .. }
                if len > mtu && operation.as_index_read().is_some() =>
            {
                return Err(PostError::IndexReadTooLong { found: len, limit: mtu });
            }
            Operation::Read { len, .. } | Operation::IndexRead { len, .. } => u64::from(len),
            Operation::Write { data, .. } => data.len() as u64,
            _ => 0,
        };
        if found > limit { Err(PostError::TooLong { found, limit }) } else { Ok(()) }
    }

    /// Translates an operation for the card, and takes the buffer that it needs.
    fn prepare(&self, operation: &Operation<'_>) -> Result<(Request, Option<Buffer>, Kind), PostError> {
        let take = |len: u64| self.buffers.take(len).ok_or(PostError::NoBuffer { len });
        let to = |operation, at: Remote| Request {
            operation,
            remote: at.address,
            remote_key: at.rkey,
            ..Request::default()
        };
        let (mut request, buffer, kind) = match *operation {
            Operation::Read { from, len } => {
                let mut buffer = take(len.into())?;
                buffer.resize(len as usize);
                (Request { len, ..to(ffi::READ, from) }, buffer, Kind::Read)
            }
            Operation::IndexRead { key, len, target } => {
                let mut buffer = take(len.into())?;
                buffer.resize(len as usize);
                let nobody = Remote { address: key, rkey: target.rkey() };
                (Request { len, ..to(ffi::READ, nobody) }, buffer, Kind::Read)
            }
            Operation::Write { to: at, data } => {
                let len = data.len() as u32;
                let request = Request { len, ..to(ffi::WRITE, at) };
                if data.len() <= self.capabilities.inline_bytes {
                    let local = data.as_ptr() as u64;
                    return Ok((Request { inlined: 1, local, ..request }, None, Kind::Write));
                }
                let mut buffer = take(len.into())?;
                buffer.extend(data);
                (request, buffer, Kind::Write)
            }
            Operation::CompareSwap { at, compare, swap } => {
                let request = Request { compare_or_add: compare, swap, ..to(ffi::COMPARE_SWAP, at) };
                (Request { len: 8, ..request }, take(8)?, Kind::Atomic)
            }
            Operation::FetchAdd { at, add } => {
                let request = Request { compare_or_add: add, ..to(ffi::FETCH_ADD, at) };
                (Request { len: 8, ..request }, take(8)?, Kind::Atomic)
            }
            Operation::MaskedCompareSwap { .. } | Operation::MaskedFetchAdd { .. } => {
                return Err(PostError::Unsupported { what: "masked atomics" });
            }
        };
        let mut buffer = buffer;
        if kind == Kind::Atomic {
            buffer.resize(8);
        }
        request.local = buffer.as_ptr() as u64;
        request.local_key = self.buffer_region.local_key();
        Ok((request, Some(buffer), kind))
    }
}

impl Verbs for RdmaDevice {
    fn post(&mut self, queue_pair: QueuePair, chain: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let state = QueuePairState::Reset;
        let pair = self.pairs.get(queue_pair).ok_or(PostError::NotConnected { queue_pair, state })?;
        let (QueuePairState::ReadyToSend, Some(agreed)) = (pair.state, pair.agreed) else {
            return Err(PostError::NotConnected { queue_pair, state: pair.state });
        };
        self.check(queue_pair, pair.queue.len(), &agreed, chain)?;

        // All buffers first: a chain is posted whole or not at all.
        let mut requests = [Request::default(); ffi::LONGEST_CHAIN];
        let mut entries = [const { None }; ffi::LONGEST_CHAIN];
        for ((work, request), entry) in chain.iter().zip(&mut requests).zip(&mut entries) {
            let (prepared, buffer, kind) = self.prepare(&work.operation)?;
            let (tag, signalled) = (work.tag, work.signalled);
            *request = Request { signalled: signalled.into(), ..prepared };
            *entry = Some(Entry { tag, signalled, refused: false, kind, buffer });
        }
        let requests = &mut requests[..chain.len()];
        if let Some(last) = requests.last_mut() {
            last.signalled = 1;
        }
        let pair = self.pairs.get_mut(queue_pair).ok_or(PostError::NotConnected { queue_pair, state })?;
        for (request, entry) in requests.iter_mut().zip(entries.into_iter().flatten()) {
            request.id = id_of(queue_pair, pair.queue.push(entry));
        }
        self.under_way += requests.len();
        // SAFETY: data that goes inline is borrowed from the caller until this function returns. Everything else lies in buffers
        // of the registered pool, which the queue now owns and gives up only when the card has answered or the queue
        // pair is gone; no other code has a reference to them.
        let Err(error) = (unsafe { pair.raw.post(requests) }) else { return Ok(()) };

        // The card may have taken a part of the chain. A queue pair that has failed carries out none of it that has not begun.
        pair.queue.refuse(requests.len());
        let _ = pair.raw.fail();
        self.break_pair(queue_pair);
        Err(PostError::Driver { errno: error.raw_os_error().unwrap_or(0) })
    }

    fn poll(&mut self) -> Option<Completion> {
        if self.completions.is_empty() && self.under_way > 0 {
            self.collect();
        }
        self.completions.pop_front()
    }
}
