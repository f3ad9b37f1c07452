//! A pipeline: one program with its table contents, counters and registers, in as many pipes as threads forward packets. What control
//! software does to it is in [`control`](crate::control).

use std::collections::BTreeMap;
use std::sync::Arc;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng;

use crate::output::{Drops, Output};
use crate::pipe::Pipe;
use crate::program::Program;
use crate::table::store::Pair;

/// One switch's packet processor: a shared [`Program`] and this switch's own tables, counters and registers.
///
/// Sans-IO: frames and time come in as arguments, frames go out in an [`Output`]. All memory is allocated when
/// tables are filled, none while packets pass.
///
/// **Pipes.** As a Tofino has several pipes, each with tables of its own, a pipeline may have several [`Pipe`]s, one for each thread that
/// forwards packets: nothing is shared while packets pass. Control software sees one pipeline: it changes all pipes, and reads the
/// sum of their counters. For that the owner [takes them back](Pipeline::take_back) between batches, and [lends](Pipeline::lend) them
/// again.
#[derive(Debug)]
pub struct Pipeline {
    pub(crate) program: Arc<Program>,
    pub(crate) pipes: Pipes,
    /// Opaque bytes of entries that have some, by table, key and priority.
    pub(crate) metadata: BTreeMap<(u16, Vec<Pair>, i32), Vec<u8>>,
}

/// The pipes of a pipeline.
#[derive(Debug)]
pub(crate) struct Pipes {
    /// Pipe of the owner.
    pub(crate) first: Pipe,
    /// Pipes of other threads, unless they are lent.
    others: Vec<Pipe>,
    count: usize,
}

impl Pipes {
    /// All pipes, to be changed alike.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pipe> {
        assert_eq!(1 + self.others.len(), self.count, "a pipeline is changed only with all its pipes");
        std::iter::once(&mut self.first).chain(&mut self.others)
    }

    /// Pipes that are not lent.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pipe> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Pipes of other threads that are not lent.
    pub(crate) fn others(&self) -> &[Pipe] {
        &self.others
    }
}

/// One copy that a multicast group makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replica {
    /// Port by which the copy leaves.
    pub port: u16,
    /// `standard_metadata.egress_rid` of the copy.
    pub instance: u16,
}

impl Pipeline {
    /// A pipeline of one pipe with empty tables, the program's const entries and default actions, and zero counters.
    pub fn new(program: Arc<Program>) -> Self {
        Self::with_pipes(program, 1)
    }

    /// Pipeline with several pipes, none of which is lent. 0 counts as 1.
    pub fn with_pipes(program: Arc<Program>, count: usize) -> Self {
        let count = count.max(1);
        // P4's `random` is another in each.
        let pipe = |number| Pipe::new(Arc::clone(&program), number as u64);
        let pipes = Pipes { first: pipe(0), others: (1..count).map(pipe).collect(), count };
        Pipeline { pipes, program, metadata: BTreeMap::new() }
    }

    /// The program it runs.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Lends the pipes with which other threads forward packets: all but the first. Until they are [taken
    /// back](Self::take_back), nothing may be changed, and counters are the first pipe's.
    pub fn lend(&mut self) -> Vec<Pipe> {
        std::mem::take(&mut self.pipes.others)
    }

    /// Takes pipes back that were [lent](Self::lend) by this pipeline.
    pub fn take_back(&mut self, pipes: Vec<Pipe>) {
        self.pipes.others.extend(pipes);
    }

    /// Frames dropped since the pipeline was made, by reason, in the pipes that are not lent.
    pub fn drops(&self) -> Drops {
        let mut all = Drops::default();
        self.pipes.iter().for_each(|pipe| all.add_all(&pipe.drops));
        all
    }

    /// Seeds P4's `random`; pipelines with the same seed and frames behave the same.
    ///
    /// # Panics
    /// Here and wherever a pipeline is changed: when pipes are lent.
    pub fn seed_random(&mut self, seed: u64) {
        for (number, pipe) in self.pipes.iter_mut().enumerate() {
            pipe.state.random = SplitMix64::seed_from_u64(seed.wrapping_add(number as u64));
        }
    }

    /// Sets the copies that a multicast group (1 to 65535) makes; an empty list removes the group.
    pub fn set_multicast_group(&mut self, group: u16, replicas: Vec<Replica>) {
        for pipe in self.pipes.iter_mut() {
            match replicas.is_empty() {
                true => pipe.multicast.remove(&group),
                false => pipe.multicast.insert(group, replicas.clone()),
            };
        }
    }

    /// The copies that a multicast group makes; `None` where there is no such group.
    pub fn multicast_group(&self, group: u16) -> Option<&[Replica]> {
        self.pipes.first.multicast.get(&group).map(Vec::as_slice)
    }

    /// All multicast groups by number.
    pub fn multicast_groups(&self) -> impl Iterator<Item = (u16, &[Replica])> + '_ {
        self.multicast_groups_from(0)
    }

    /// The multicast groups with this number and above.
    pub fn multicast_groups_from(&self, from: u16) -> impl Iterator<Item = (u16, &[Replica])> + '_ {
        let groups = self.pipes.first.multicast.range(from..);
        groups.map(|(&group, replicas)| (group, replicas.as_slice()))
    }

    /// [`Pipe::process`] in the first pipe.
    #[inline]
    pub fn process(&mut self, now_ns: u64, ingress_port: u16, frame: &[u8], out: &mut Output) {
        self.pipes.first.process(now_ns, ingress_port, frame, out);
    }

    /// [`Pipe::forward`] in the first pipe.
    #[inline]
    pub fn forward(&mut self, now_ns: u64, ingress_port: u16, frame: &mut Vec<u8>, out: &mut Output) {
        self.pipes.first.forward(now_ns, ingress_port, frame, out);
    }
}
