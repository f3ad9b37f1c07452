//! The NIC's interface for its owner: memory regions, queue pairs, chains of requests.

use crate::queue_pair::{INLINE_BYTES, QueuePairCore, Requester, buffer};
use crate::{Nic, Psn, QueuePairOptions};
use fatbtree_verbs::{
    Access, Agreed, BufferPool, Capabilities, Completion, ConnectError, Device, DeviceMemoryError, Endpoint,
    Memory, Message, Messages, PostError, QueuePair, QueuePairState, Received, Region, RegisterError, Verbs,
    WorkRequest,
};
use rand::Rng;
use std::sync::Arc;

impl Nic {
    /// Registers memory as [`register`](Device::register) does, under an rkey of your choice, as tests and replays need.
    ///
    /// # Errors
    /// When the rkey is one of index reads or taken, or as [`register`](Device::register).
    pub fn register_with_rkey(
        &mut self,
        rkey: u32,
        memory: &Arc<Memory>,
        iova: u64,
        access: Access,
    ) -> Result<Region, RegisterError> {
        if !self.regions.is_free(rkey) {
            let reason = format!(
                "expected a free rkey other than those of index reads, found {rkey:#x} taken; choose another"
            );
            return Err(RegisterError::Driver { len: memory.len(), reason });
        }
        self.regions.register(Arc::clone(memory), iova, access, || rkey)
    }

    /// Creates a queue pair as [`create`](Device::create) does, with numbers of your choice, as tests and replays need; the rest is random.
    ///
    /// # Errors
    /// When the number cannot be given, or as [`create`](Device::create).
    pub fn create_with(&mut self, options: QueuePairOptions) -> Result<QueuePair, ConnectError> {
        let random = self.rng.next_u64();
        let number = match options.number {
            Some(number) => self.table.claim(number)?,
            None => self.table.draw((self.rng.next_u32() >> 24) as u8)?,
        };
        let psn = Psn::new(options.psn.unwrap_or(random as u32));
        let port = options.source_port.unwrap_or(0xc000 | (random >> 32) as u16);
        let identification = options.identification.unwrap_or((random >> 48) as u16);
        let make = |handle| QueuePairCore::new(handle, number, psn, port, identification);
        Ok(self.table.insert(number, make))
    }

    fn longest_chain(&self) -> usize {
        self.config.send_queue.min(self.config.completion_queue)
    }

    /// Posts so many requests on a connected queue pair, if there is room for their completions.
    #[inline]
    fn post_some(
        &mut self,
        queue_pair: QueuePair,
        count: Result<usize, PostError>,
        post: impl FnOnce(&mut Requester, &BufferPool) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let Nic { table, sink, buffers, config, .. } = self;
        let posted = table.with(queue_pair, |core| {
            let state = core.state;
            let requester = core.requester().ok_or(PostError::NotConnected { queue_pair, state })?;
            let (found, limit) = (sink.owed + count?, config.completion_queue);
            if found > limit {
                let what = "requests and completions of all queue pairs";
                return Err(PostError::Full { queue_pair, what, found, limit });
            }
            post(requester, buffers)?;
            sink.owed = found;
            Ok(())
        });
        posted.unwrap_or(Err(PostError::NotConnected { queue_pair, state: QueuePairState::Reset }))
    }
}

impl Device for Nic {
    /// Masked atomics travel in packets of our own, so only between two of these NICs. Lines are whole in requests that begin at
    /// the start of a line, as those for nodes do: packets are cut at multiples of a line.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            masked_atomics: true,
            device_memory: self.config.device_memory,
            line_atomicity: true,
            longest_chain: self.longest_chain(),
            inline_bytes: INLINE_BYTES,
            send_queue: self.config.send_queue,
            responder_reads: self.config.responder_reads.max(1),
            initiator_reads: self.config.initiator_reads.max(1),
            longest_message: self.longest_message,
        }
    }

    fn register(&mut self, memory: &Arc<Memory>, iova: u64, access: Access) -> Result<Region, RegisterError> {
        let rng = &mut self.rng;
        self.regions.register(Arc::clone(memory), iova, access, || rng.next_u32())
    }

    fn register_device_memory(
        &mut self,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Region, RegisterError> {
        let rng = &mut self.rng;
        self.regions.register_on_device(len, iova, access, || rng.next_u32())
    }

    fn read_device_memory(&self, rkey: u32, offset: u64, into: &mut [u8]) -> Result<(), DeviceMemoryError> {
        self.regions.read_on_device(rkey, offset, into)
    }

    fn shared_memory(&self, rkey: u32) -> Option<Arc<Memory>> {
        self.regions.memory(rkey)
    }

    fn deregister(&mut self, rkey: u32) {
        self.regions.deregister(rkey);
    }

    fn create(&mut self) -> Result<QueuePair, ConnectError> {
        self.create_with(QueuePairOptions::default())
    }

    fn endpoint(&self, queue_pair: QueuePair) -> Result<Endpoint, ConnectError> {
        let core = self.table.get(queue_pair).ok_or(ConnectError::Unknown { queue_pair })?;
        Ok(core.endpoint(&self.config))
    }

    fn connect(&mut self, queue_pair: QueuePair, remote: &Endpoint) -> Result<Agreed, ConnectError> {
        let core = self.table.get_mut(queue_pair).ok_or(ConnectError::Unknown { queue_pair })?;
        core.connect(remote, &self.config, self.longest_message)
    }

    fn state(&self, queue_pair: QueuePair) -> Option<QueuePairState> {
        self.table.get(queue_pair).map(|core| core.state)
    }

    fn destroy(&mut self, queue_pair: QueuePair) {
        if let Some(core) = self.table.remove(queue_pair) {
            core.close(&mut self.sink);
        }
    }

    fn poll_broken(&mut self) -> Option<QueuePair> {
        self.sink.broken.pop_front()
    }
}

impl Verbs for Nic {
    fn post(&mut self, queue_pair: QueuePair, chain: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let longest = self.longest_chain();
        let count = match chain.len() {
            found if found == 0 || found > longest => Err(PostError::ChainLength { found, limit: longest }),
            found => Ok(found),
        };
        self.post_some(queue_pair, count, |requester, buffers| requester.post(chain, buffers))
    }

    fn poll(&mut self) -> Option<Completion> {
        let completion = self.sink.completions.pop_front()?;
        self.sink.owed -= 1;
        Some(completion)
    }
}

impl Messages for Nic {
    fn send(&mut self, queue_pair: QueuePair, tag: u64, message: Message<'_>) -> Result<(), PostError> {
        self.post_some(queue_pair, Ok(1), |requester, buffers| requester.send(tag, &message, buffers))
    }

    fn receive(&mut self, queue_pair: QueuePair, tag: u64, len: u32) -> Result<(), PostError> {
        let (pool, longest, limit) = (&self.buffers, self.longest_message, self.config.receive_queue);
        let core = self.table.get_mut(queue_pair).filter(|core| core.state != QueuePairState::Error);
        let Some(core) = core else {
            let state = self.state(queue_pair).unwrap_or(QueuePairState::Reset);
            return Err(PostError::NotConnected { queue_pair, state });
        };
        core.receives.post(queue_pair, tag, len, limit, || buffer(pool, len.into(), longest))
    }

    fn poll_received(&mut self) -> Option<Received> {
        self.sink.received.pop_front()
    }
}
