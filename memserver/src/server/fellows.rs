//! Questions to other servers of the structure, and answers to theirs: see [`fellows`](crate::fellows).

use std::collections::{BTreeMap, VecDeque};

use fatbtree_remote_memory::{Origin, ServerSet};
use fatbtree_verbs::Device;
use fatbtree_verbs::journal::JournalError;
use fatbtree_verbs::time::{Duration, Instant};
use rand::RngExt;

use super::{MemoryServer, Reply};
use crate::checks::Check;
use crate::fellows::{Answer, Ask, Question, Unanswered};
use crate::tenant::Tenant;

/// Longest time for which a sweep waits for answers: each server walks over its part meanwhile.
const PATIENCE: Duration = Duration::from_secs(300);

/// Questions of a sweep.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// Number of the sweep: an answer to another one counts for nothing.
    sweep: u64,
    /// Servers that have not answered the present question.
    left: ServerSet,
    /// Quiet times that the servers have told; all of them are asked for once more.
    quiet: BTreeMap<u16, u64>,
    is_confirming: bool,
    /// Time at which the sweep ends without an answer.
    pub(super) until: Instant,
    /// Questions that the owner has not taken yet.
    asks: VecDeque<Ask>,
}

impl Asking {
    pub(super) fn next(&mut self) -> Option<Ask> {
        self.asks.pop_front()
    }
}

/// A question of another server, with the number of the quiet time in which it came.
#[derive(Debug)]
struct Waiting {
    ask: Ask,
    bytes: u64,
    quiet: u64,
    reply: Reply<Result<Answer, Unanswered>>,
}

/// Questions of others: one of each at most.
#[derive(Debug, Default)]
pub(super) struct Answering {
    waiting: VecDeque<Waiting>,
    /// Whether the tenant walks for the first of them.
    is_walking: bool,
}

impl Answering {
    pub(super) const fn is_walking(&self) -> bool {
        self.is_walking
    }
}

impl<D: Device, T: Tenant> MemoryServer<D, T> {
    // ---- questions of this server ----

    /// Asks all other servers of the structure what their parts lead to. Says whether there are any: otherwise this walk was all.
    pub(super) fn begin_asking(&mut self) -> bool {
        let fellows = self.tenant.fellows();
        if fellows.servers.is_empty() || !Check::SweepAsks.on() {
            return false;
        }
        self.asking = Asking {
            sweep: self.random.random(),
            left: fellows.servers,
            until: self.now + PATIENCE,
            ..Asking::default()
        };
        let bytes = self.info.region.len;
        for of in fellows.servers.numbers() {
            self.push_ask(of, Question::Marks { bytes });
        }
        true
    }

    fn push_ask(&mut self, of: u16, question: Question) {
        let members = self.tenant.fellows().members;
        self.asking.asks.push_back(Ask {
            sweep: self.asking.sweep,
            by: self.info.server,
            of,
            members,
            question,
        });
    }

    /// Whether all servers have answered, and stood still at one moment. Asks once more before.
    pub(super) fn have_answered(&mut self) -> bool {
        if !self.asking.left.is_empty() {
            return false;
        }
        if self.asking.is_confirming || !Check::SweepConfirms.on() {
            return true;
        }
        self.asking.is_confirming = true;
        self.asking.left = self.asking.quiet.keys().copied().collect();
        for (of, quiet) in self.asking.quiet.clone() {
            self.push_ask(of, Question::IsQuiet(quiet));
        }
        false
    }

    /// Takes the answer of another server to a question of this one.
    pub(super) fn answered(&mut self, ask: &Ask, answer: Option<Answer>) {
        let asking = &mut self.asking;
        if !self.reclaim.is_asking() || ask.sweep != asking.sweep || !asking.left.has(ask.of) {
            return;
        }
        let is_taken = match (answer, asking.is_confirming) {
            (Some(Answer::Marks { quiet, marks }), false) => {
                asking.quiet.insert(ask.of, quiet);
                self.reclaim.join(&marks)
            }
            (Some(Answer::Quiet), true) => true,
            _ => false,
        };
        self.asking.left = self.asking.left.without(ask.of);
        if !is_taken {
            self.give_up_sweep();
        }
    }

    // ---- questions of others ----

    /// Number of the present quiet time: another one after each session, and in each life of a server. `None` while clients may change the
    /// structure, and where it is not served.
    fn quiet(&mut self) -> Option<u64> {
        let is_alone = self.sessions.is_empty() || !Check::AnswersAlone.on();
        if !is_alone || self.older.is_some() || self.info.origin == Origin::Lost {
            return None;
        }
        Some(*self.reclaim.quiet.get_or_insert_with(|| self.random.random()))
    }

    /// Answers another server of the structure, now or in [`work`](Self::work).
    pub(super) fn asked(&mut self, now: Instant, ask: Ask, reply: Reply<Result<Answer, Unanswered>>) {
        self.advance(now);
        if let Some(answer) = self.answer(ask).transpose() {
            let _ = reply.send(answer);
            return;
        }
        let (Question::Marks { bytes }, Some(quiet)) = (ask.question, self.quiet()) else { return };
        self.answering.waiting.push_back(Waiting { ask, bytes, quiet, reply });
    }

    /// The answer to a question; `None` if it takes a walk.
    fn answer(&mut self, ask: Ask) -> Result<Option<Answer>, Unanswered> {
        ask.check(self.info.server, self.tenant.fellows(), Check::AnswersFellows.on())?;
        match ask.question {
            Question::Marks { .. } => {
                if self.answering.waiting.iter().any(|waiting| waiting.ask.by == ask.by) {
                    return Err(Unanswered::Busy { by: ask.by });
                }
                self.quiet().ok_or(Unanswered::Sessions).map(|_| None)
            }
            Question::IsQuiet(quiet) => match self.quiet() == Some(quiet) {
                true => Ok(Some(Answer::Quiet)),
                false => Err(Unanswered::Ended),
            },
        }
    }

    /// Walks on for the first question of another server, reading up to `budget` blocks. Says whether there is more to do at once.
    pub(super) fn answer_others(&mut self, budget: usize) -> bool {
        let Some(Waiting { ask, bytes, quiet, .. }) = self.answering.waiting.front() else { return false };
        // A walk of this server comes to its end first.
        if self.reclaim.is_walking() {
            return false;
        }
        let (by, bytes, quiet) = (ask.by, *bytes, *quiet);
        let is_over = self.quiet() != Some(quiet);
        if !is_over {
            if !std::mem::replace(&mut self.answering.is_walking, true) {
                let Self { tenant, chunks, .. } = self;
                tenant.begin_marks(by, bytes, &|class| chunks.parts(class));
                return true;
            }
            if self.tenant.mark(budget) {
                return true;
            }
        }
        let marks = self.tenant.take_marks();
        self.answering.is_walking = false;
        let answer = match is_over {
            true => Err(Unanswered::Ended),
            false => self.synced().map(|()| Answer::Marks { quiet, marks }).map_err(|error| {
                tracing::warn!(%error, "memory server {by} is not told what leads to its blocks");
                Unanswered::Disk
            }),
        };
        if let Some(Waiting { reply, .. }) = self.answering.waiting.pop_front() {
            let _ = reply.send(answer);
        }
        !self.answering.waiting.is_empty()
    }

    /// Brings the part to the disk: a block that the asking server gives out again must not be led to once more when this one loses its power.
    fn synced(&self) -> Result<(), JournalError> {
        match Check::AnswersSynced.on() {
            true => self.sync_journal(),
            false => Ok(()),
        }
    }

    /// Brings everything that was carried out before to the disk. Nothing to do where the region lies in memory.
    pub(super) fn sync_journal(&self) -> Result<(), JournalError> {
        let Some(journal) = self.region.journal() else { return Ok(()) };
        journal.commit().and_then(|()| journal.sync())
    }
}
