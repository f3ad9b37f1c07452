//! Blocks that clients have lost: found by a walk over everything that leads to blocks, and given out again.
//!
//! A client that dies leaves blocks that nothing leads to: those of operations under way, and those that it had freed and kept. So does a
//! server that starts anew and forgets its lists. Where the [tenant](crate::Tenant::swept) can tell what leads to blocks, the server finds
//! them:
//!
//! ```text
//!   mark      walk over everything that leads to blocks                    (saves notes below; decides nothing)
//!   note      each written block that nothing leads to, with its stamp     time 1
//!   wait      until all sessions that were open at time 1 have ended or settled
//!   mark      what something leads to by now is not lost                   time 2
//!   wait      until all sessions that were open at time 2 have ended or settled
//!   collect   what has its stamp still, and is on no list: it is free      time 3
//! ```
//!
//! A client is told of a wait when it renews its session, and *settles*: its operations that were under way by then end, and all of their
//! requests. Blocks that it has freed it sets aside from then on, and gives them back. Its next renewal says so. It works meanwhile, with
//! memory that the server gives. A client that does not answer has a session that ends.
//!
//! **Why nobody has such a block.** Each writing of a block changes its stamp; a record has a version and a checksum. Assume that at time 3 a
//! client holds a block that was noted, or something leads to it, and its stamp is that of time 1.
//!
//! 1. Its last record was written before time 1. An operation that links it without writing it again was under way at time 1. It had ended by
//!    time 2, because its client had settled, or its session had ended: a client's operations end with its session, and its queue pairs are
//!    destroyed with it. So nothing links the block after time 2.
//! 2. The walk at time 2 met nothing that leads to it. By 1 nothing leads to it since then. So it is not in the structure at time 3.
//! 3. The client that holds it has unlinked it, or was given it. If it was given it by the server after time 1, the block was on a list then:
//!    one that was on a list at time 1 was not noted, and one that came to a list later was struck off. What it was given before time 1 it
//!    had got when it settled first: a client settles when no call is under way. So it was unlinked; by 2 before the
//!    walk of time 2 had ended; by a client with a session at that time. If that session had ended by time 3, that is a contradiction.
//!    Otherwise its client was told after the walk, and settled. The block was among those that it had freed, or came to them when the
//!    operation that had it ended. Both were set aside until the client had settled, and given back before. The server struck them off, or
//!    never got them, and then the client has forgotten them. A call that comes later than the client's word is refused.
//!
//! Readers hold no block. One that has an old slot in hand finds another version when the block is written anew.
//!
//! So a sweep goes on while clients live that renew their sessions: it takes a few renewals.
//!
//! **Without sessions.** Where no session is open from the first walk until all blocks are noted, no client has anything. What nothing
//! leads to is free at once. So is what a server finds in memory that was served before: it sweeps before the first session. A tenant may be
//! able to tell only then: [`Tenant::sweeps_alone`]. Where other servers have parts of the structure, all of them are asked after the first walk,
//! and none may have a session: see [`fellows`](crate::fellows).
//!
//! ```text
//!   mark      walk over this server's part
//!   ask       what do other parts lead to? do their quiet times go on?       no session is open, here or there
//!   note      each written block that nothing leads to
//!   collect   what is on no list: it is free
//! ```

use std::collections::BTreeMap;

use fatbtree_remote_memory::{GlobalAddress, SizeClass};
use fatbtree_verbs::Device;
use fatbtree_verbs::time::{Duration, Instant};

use super::MemoryServer;
use super::fellows::Asking;
use crate::checks::Check;
use crate::marked::Marked;
use crate::tenant::{Found, Tenant};

/// Blocks that one sweep notes at most; others are found by the next one.
const MOST: usize = 1 << 20;

/// Blocks that are looked at in one step before the first session.
const AT_START: usize = 1 << 12;

/// Pause after a sweep that has ended without effect; after each further one it is twice as long, up to the time between two sweeps.
const RETRY: Duration = Duration::from_secs(1);

/// A block that nothing led to, by its offset.
#[derive(Clone, Copy, Debug)]
struct Noted {
    class: SizeClass,
    bytes: u32,
    stamp: u64,
}

/// Step of a sweep.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Step {
    #[default]
    Idle,
    /// The first walk, or the second.
    Mark {
        is_second: bool,
    },
    /// Waits for other servers of the structure.
    Ask,
    /// Looks for written blocks of a class from this offset on. Classes are numbered as the tenant names them.
    Note {
        class: usize,
        from: u64,
    },
    /// Waits for sessions, before the second walk or after it.
    Wait {
        is_second: bool,
    },
    Collect,
}

/// Sweeps of a server, one after the other.
#[derive(Debug, Default)]
pub(super) struct Reclaim {
    step: Step,
    /// Whether something may have been lost since the last sweep began.
    is_due: bool,
    /// Whether a session has ended or was renewed since the sessions were looked at.
    has_ended: bool,
    /// Whether no session was open since this sweep began.
    is_alone: bool,
    /// Time of the next sweep at the earliest.
    not_before: Instant,
    /// Pause after the last sweep, if that has ended without effect.
    pause: Duration,
    /// Number of the present wait: sessions that are opened in it have it.
    wait: u64,
    noted: BTreeMap<u64, Noted>,
    /// What something leads to.
    marks: Marked,
    /// Number of the present quiet time, if another server was told.
    pub(super) quiet: Option<u64>,
    /// Sweeps that have ended.
    pub(super) sweeps: u64,
    /// Sweeps that have ended without effect.
    pub(super) void: u64,
    /// Blocks that were found.
    pub(super) blocks: u64,
    /// Bytes that belong to no client that lives and that no sweep has found, as far as is known.
    pub(super) lost: u64,
    /// Bytes of blocks that this sweep has found and for which there was no room on a list.
    left: u64,
}

impl Reclaim {
    /// A session has ended, or the server has just begun.
    pub(super) fn note_loss(&mut self) {
        (self.is_due, self.has_ended, self.pause) = (true, true, Duration::ZERO);
    }

    /// Bytes were lost, perhaps.
    pub(super) fn note_lost(&mut self, bytes: u64) {
        self.lost = self.lost.saturating_add(bytes);
    }

    /// A session was opened.
    pub(super) fn note_session(&mut self) {
        (self.is_alone, self.quiet) = (false, None);
    }

    /// Whether other servers are asked.
    pub(super) fn is_asking(&self) -> bool {
        self.step == Step::Ask
    }

    /// Whether the tenant walks.
    pub(super) fn is_walking(&self) -> bool {
        matches!(self.step, Step::Mark { .. })
    }

    /// Takes what another server's part leads to. Says whether that is of this region.
    pub(super) fn join(&mut self, marks: &Marked) -> bool {
        self.marks.join(marks)
    }

    /// Number for a session that is opened now.
    pub(super) fn wait(&self) -> u64 {
        self.wait
    }

    /// The wait that goes on, if one does.
    pub(super) fn present_wait(&self) -> Option<u64> {
        matches!(self.step, Step::Wait { .. }).then_some(self.wait)
    }

    /// A session may hold up a wait no more.
    pub(super) fn look(&mut self) {
        self.has_ended = true;
    }

    /// Blocks came to a list of the server: they are not lost.
    pub(super) fn strike(&mut self, addresses: &[GlobalAddress]) {
        if !self.noted.is_empty() && Check::SweepStrikes.on() {
            for address in addresses {
                self.noted.remove(&address.offset());
            }
        }
    }
}

impl<D: Device, T: Tenant> MemoryServer<D, T> {
    /// Whether blocks are swept.
    fn sweeps(&self) -> bool {
        self.options.reclaim_every > Duration::ZERO && !self.tenant.swept().is_empty()
    }

    /// Time at which the next sweep begins, if one is due.
    pub(super) fn sweep_due(&self) -> Option<Instant> {
        let Reclaim { step, is_due, not_before, .. } = self.reclaim;
        match step {
            Step::Idle => (self.sweeps() && is_due).then_some(not_before),
            Step::Ask => Some(self.asking.until),
            _ => None,
        }
    }

    /// Whether the structure can tell only while no session is open.
    fn sweeps_alone(&self) -> bool {
        self.tenant.sweeps_alone() || !self.tenant.fellows().servers.is_empty()
    }

    /// Ends a sweep without effect: another one begins after a time.
    pub(super) fn give_up_sweep(&mut self) {
        self.reclaim.step = Step::Idle;
        (self.reclaim.marks, self.asking) = (Marked::default(), Asking::default());
        self.reclaim.void += 1;
        self.reclaim.is_due = true;
        // Sessions of one client end within moments on all servers.
        self.reclaim.pause = (self.reclaim.pause * 2).max(RETRY).min(self.options.reclaim_every);
        self.reclaim.not_before = self.now + self.reclaim.pause;
    }

    /// Whether no session was opened since the sweep began.
    fn was_alone(&self) -> bool {
        self.reclaim.is_alone || !self.tenant.fellows().servers.is_empty() && !Check::AsksAlone.on()
    }

    fn begin_walk(&mut self, is_second: bool) {
        let Self { tenant, chunks, info, .. } = self;
        tenant.begin_marks(info.server, info.region.len, &|class| chunks.parts(class));
        self.reclaim.step = Step::Mark { is_second };
    }

    /// Finds what is free in memory that was served before: what was never written, and, where the structure can tell, blocks to which
    /// nothing leads. No session is open yet.
    pub(super) fn find_former(&mut self) {
        while self.chunks.look(&self.tenant, AT_START).1 {}
        if self.chunks.outlives() {
            // Where no chunk was given out yet, clients may have freed loaded blocks: that can wait.
            self.reclaim.note_loss();
            // Other servers cannot be asked yet.
            let is_only = self.tenant.fellows().servers.is_empty();
            while is_only && self.chunks.has_former() && self.reclaim(AT_START) {}
        }
    }

    /// Goes on with a sweep, looking at up to `budget` blocks. Says whether there is more to do at once.
    pub(super) fn reclaim(&mut self, budget: usize) -> bool {
        if !self.sweeps() {
            return false;
        }
        match self.reclaim.step {
            Step::Idle => {
                let is_due = self.reclaim.is_due && self.now >= self.reclaim.not_before;
                if !is_due || self.answering.is_walking() {
                    return false;
                }
                (self.reclaim.is_due, self.reclaim.left) = (false, 0);
                self.reclaim.is_alone = self.sessions.is_empty();
                let fellows = self.tenant.fellows();
                // The end of the last session makes it due again. Where no client has opened the structure, none has lost anything.
                if self.sweeps_alone() && !self.reclaim.is_alone
                    || !fellows.servers.is_empty() && fellows.members == 0
                {
                    return false;
                }
                self.reclaim.noted.clear();
                self.begin_walk(false);
            }
            Step::Mark { is_second } => {
                if self.tenant.mark(budget) {
                    return true;
                }
                self.reclaim.marks = self.tenant.take_marks();
                if is_second {
                    let Self { reclaim: Reclaim { noted, marks, .. }, tenant, .. } = self;
                    let is_lost = |at: u64, noted: &Noted| {
                        !tenant.is_marked(marks, noted.class, at..at + u64::from(noted.bytes))
                            || !Check::SweepMarksTwice.on()
                    };
                    noted.retain(|&at, noted| is_lost(at, noted));
                    self.begin_wait(true);
                } else if self.begin_asking() {
                    self.reclaim.step = Step::Ask;
                    return false;
                } else {
                    self.reclaim.step = Step::Note { class: 0, from: 0 };
                }
            }
            Step::Ask => {
                if !self.was_alone() || self.now >= self.asking.until {
                    self.give_up_sweep();
                    return false;
                }
                if !self.have_answered() {
                    return false;
                }
                self.reclaim.step = Step::Note { class: 0, from: 0 };
            }
            Step::Note { class, from } => self.note_blocks(class, from, budget),
            Step::Wait { is_second } => {
                let looks = std::mem::take(&mut self.reclaim.has_ended) || !Check::SweepWaits.on();
                if !looks || !self.sessions.all_since(self.reclaim.wait) && Check::SweepWaits.on() {
                    return false;
                }
                match is_second {
                    true => self.reclaim.step = Step::Collect,
                    false => self.begin_walk(true),
                }
            }
            Step::Collect => self.collect(budget),
        }
        self.reclaim.step != Step::Idle
    }

    fn begin_wait(&mut self, is_second: bool) {
        self.reclaim.wait += 1;
        self.reclaim.step = Step::Wait { is_second };
        self.reclaim.has_ended = true;
    }

    /// Notes written blocks that nothing leads to.
    fn note_blocks(&mut self, number: usize, mut from: u64, budget: usize) {
        let Some(&class) = self.tenant.swept().get(number) else {
            self.reclaim.marks = Marked::default();
            return match self.was_alone() {
                true => self.reclaim.step = Step::Collect,
                false if self.sweeps_alone() => {
                    self.reclaim.noted.clear();
                    self.give_up_sweep();
                }
                false => self.begin_wait(false),
            };
        };
        for _ in 0..budget {
            let Some(blocks) = self.chunks.blocks_after(class, from) else {
                self.reclaim.step = Step::Note { class: number + 1, from: 0 };
                return;
            };
            let at = blocks.start.max(from);
            let (end, stamp) = match self.tenant.find(class, at..blocks.end) {
                Found::Block { end, stamp } => (end, Some(stamp)),
                Found::Nothing(end) | Found::Unclear(end) => (end, None),
            };
            // Whatever a tenant says, a sweep comes to its end.
            from = end.clamp(at + 1, blocks.end);
            let Some(stamp) = stamp else { continue };
            let bytes = (from - at) as u32;
            let is_known = self.tenant.is_marked(&self.reclaim.marks, class, at..from)
                || self.places.is_listed(at, bytes);
            if !is_known && self.reclaim.noted.len() < MOST {
                self.reclaim.noted.insert(at, Noted { class, bytes, stamp });
            }
        }
        self.reclaim.step = Step::Note { class: number, from };
    }

    /// Puts blocks that no client has on the lists.
    fn collect(&mut self, budget: usize) {
        for _ in 0..budget {
            let Some((at, Noted { class, bytes, stamp })) = self.reclaim.noted.pop_first() else {
                self.reclaim.step = Step::Idle;
                self.reclaim.sweeps += 1;
                self.reclaim.lost = self.reclaim.left;
                self.reclaim.not_before = self.now + self.options.reclaim_every;
                return;
            };
            let end = at + u64::from(bytes);
            let is_same = match self.tenant.find(class, at..end) {
                Found::Block { end: found, stamp: now } => {
                    found == end && (now == stamp || !Check::SweepStamp.on())
                }
                _ => false,
            };
            if is_same {
                let address = GlobalAddress::new(self.info.server, at);
                let put = self.places.put(&self.tenant, &self.chunks, class, bytes, &[address]);
                self.reclaim.blocks += u64::from(put.kept);
                self.reclaim.left += u64::from(put.dropped) * u64::from(bytes);
            }
        }
    }
}
