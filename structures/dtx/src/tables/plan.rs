//! Steps on several servers that are carried out in one round trip.

use fatbtree_remote_memory::{GlobalAddress, Lane, MAX_SHARES, Op, Share, Trouble};
use fatbtree_verbs::{MAX_BATCH, Operation, Output, Remote, Verbs};

use super::Tables;
use super::coordinator::Identity;
use crate::error::DtxError;

/// One operation on one server.
#[derive(Clone, Copy, Debug)]
enum Act {
    Read(u32),
    Swap {
        compare: u64,
        swap: u64,
    },
    /// Bytes of the plan's data.
    Write {
        from: usize,
        to: usize,
    },
}

#[derive(Clone, Copy, Debug)]
struct Step {
    at: GlobalAddress,
    act: Act,
}

/// Steps that are carried out together. Those on one server are carried out in their order; its memory is used again.
#[derive(Debug, Default)]
pub(super) struct Plan {
    steps: Vec<Step>,
    data: Vec<u8>,
    outputs: Vec<Option<Output>>,
}

impl Plan {
    /// Removes all steps.
    pub(super) fn clear(&mut self) {
        self.steps.clear();
        self.data.clear();
        self.outputs.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    fn push(&mut self, at: GlobalAddress, act: Act) -> usize {
        self.steps.push(Step { at, act });
        self.steps.len() - 1
    }

    /// Adds a READ. Returns the number of the step.
    pub(super) fn read(&mut self, at: GlobalAddress, len: u64) -> usize {
        self.push(at, Act::Read(len as u32))
    }

    /// Adds a compare-and-swap. Returns the number of the step.
    pub(super) fn swap(&mut self, at: GlobalAddress, compare: u64, swap: u64) -> usize {
        self.push(at, Act::Swap { compare, swap })
    }

    /// Adds a WRITE of what `fill` appends.
    pub(super) fn write(&mut self, at: GlobalAddress, fill: impl FnOnce(&mut Vec<u8>)) {
        let from = self.data.len();
        fill(&mut self.data);
        self.push(at, Act::Write { from, to: self.data.len() });
    }

    /// Bytes that a READ has brought; none if it was not carried out.
    pub(super) fn bytes(&self, step: usize) -> &[u8] {
        match self.outputs.get(step) {
            Some(Some(Output::Read(bytes))) => bytes,
            _ => &[],
        }
    }

    /// Word that a compare-and-swap has found. `None` if it is unknown whether it was carried out.
    pub(super) fn found(&self, step: usize) -> Option<u64> {
        match self.outputs.get(step) {
            Some(Some(Output::Atomic(found))) => Some(*found),
            _ => None,
        }
    }
}

/// The operations of one server in a plan, up to [`MAX_BATCH`].
#[derive(Clone, Debug)]
struct Operations<'p> {
    steps: std::slice::Iter<'p, Step>,
    data: &'p [u8],
    server: u16,
    rkey: u32,
    left: usize,
}

impl<'p> Iterator for Operations<'p> {
    type Item = Operation<'p>;

    fn next(&mut self) -> Option<Operation<'p>> {
        self.left = self.left.checked_sub(1)?;
        let step = self.steps.find(|step| step.at.server() == self.server)?;
        let at = Remote { address: step.at.raw(), rkey: self.rkey };
        Some(match step.act {
            Act::Read(len) => Operation::Read { from: at, len },
            Act::Swap { compare, swap } => Operation::CompareSwap { at, compare, swap },
            Act::Write { from, to } => Operation::Write { to: at, data: &self.data[from..to] },
        })
    }
}

/// One server's chain of a plan: steps of this server from `first` on, up to [`MAX_BATCH`].
#[derive(Clone, Copy, Debug)]
struct Chain {
    server: u16,
    first: usize,
}

/// Bytes of READs that are carried out together, if there are several: buffers of long ones are few.
const MOST_OF_BATCH: u64 = 16 << 10;

/// Number of READs of so many bytes that are carried out together.
pub(super) fn batch(bytes: u64) -> usize {
    ((MOST_OF_BATCH / bytes.max(1)) as usize).clamp(1, MAX_BATCH)
}

impl<V: Verbs> Tables<V> {
    /// Carries out a plan of READs, again if a connection breaks, as long as patience lasts.
    ///
    /// # Errors
    /// When connections are given up, or break too often.
    pub(super) async fn read_patiently(&self, plan: &mut Plan) -> Result<(), DtxError> {
        let mut op = self.memory.waiting_op(self.memory.take_lane());
        let read = async |op: &mut Op| {
            let identity = self.identity().await?;
            Ok(self.carry_out(&identity, &op.lane, plan).await?)
        };
        self.memory.attempt(&mut op, read).await
    }

    /// Carries out a plan, in the sessions of an identity: one round trip, if it has no more than [`MAX_SHARES`] chains.
    ///
    /// # Errors
    /// The first trouble. Steps of other connections may have been carried out; their outputs are there.
    pub(super) async fn carry_out(
        &self,
        identity: &Identity,
        lane: &Lane,
        plan: &mut Plan,
    ) -> Result<(), Trouble> {
        plan.outputs.clear();
        plan.outputs.resize_with(plan.steps.len(), || None);
        let mut trouble = Ok(());
        let mut done = 0;
        loop {
            let chains = chains(&plan.steps).skip(done).take(MAX_SHARES);
            let count = chains.clone().count();
            if count == 0 {
                return trouble;
            }
            let (steps, data) = (&plan.steps[..], &plan.data[..]);
            let shares = chains.clone().map(|Chain { server, first }| {
                let operations = move |rkey| Operations {
                    steps: steps[first..].iter(),
                    data,
                    server,
                    rkey,
                    left: MAX_BATCH,
                };
                Share { server, writer: identity.writer(server), operations }
            });
            let results = self.memory.scatter(lane, shares).await?;
            for (Chain { server, first }, result) in chains.zip(results) {
                match result {
                    Ok(outputs) => {
                        let numbers = (first..).zip(&steps[first..]);
                        let of_chain = numbers.filter(|(_, step)| step.at.server() == server);
                        for ((number, _), output) in of_chain.zip(outputs) {
                            plan.outputs[number] = Some(output);
                        }
                    }
                    Err(other) => trouble = trouble.and(Err(other)),
                }
            }
            done += count;
        }
    }
}

/// Chains of a plan, by the first step of each.
fn chains(steps: &[Step]) -> impl Iterator<Item = Chain> + Clone + '_ {
    steps.iter().enumerate().filter_map(|(first, step)| {
        let server = step.at.server();
        let before = steps[..first].iter().filter(|other| other.at.server() == server).count();
        before.is_multiple_of(MAX_BATCH).then_some(Chain { server, first })
    })
}
