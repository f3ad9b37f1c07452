//! States of servers: whether all have their items, and the begin of new tables.
//!
//! ```text
//!   the servers' states                           what a client does
//!   all whole                                     begins transactions
//!   none whole, or some new                       makes new tables: each server new, and then each whole
//!   some whole, none new; one begun or lost       fills it from the others
//!   some whole, none new; one emptied             refuses: an operator has not emptied the others yet
//!   some whole, of different bulk loads           refuses: a load has not come to all servers
//! ```
//!
//! A server that begins without items cannot know whether it has lost any. While a server is new no transaction was ever begun: a client
//! begins one when all servers are whole, and a server gets new only where none is whole, or another one is new. A client reads all states in
//! sessions that it has with the present memory of each server. So what it reads of the others is later than the loss of one.
//!
//! A server gets new under the lock under which it would be filled: no fill writes to a server that was made whole meanwhile.

use arrayvec::ArrayVec;
use std::rc::Rc;

use fatbtree_remote_memory::{CommonError, HEADER_BYTES, Lane, LockError, LockGuard, word_at};
use fatbtree_verbs::Verbs;

use super::Tables;
use super::coordinator::Identity;
use super::plan::Plan;
use crate::checks::Check;
use crate::error::DtxError;
use crate::layout::{BEGUN, EMPTIED, MAX_SERVERS, NEW, WHOLE};

/// Whether a server of this state is filled from others, if these have items.
pub(super) const fn is_to_be_filled(state: u64) -> bool {
    matches!(state, 0 | BEGUN)
}

/// What is to be done before transactions begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Nothing,
    /// New tables: these servers, by position, are to be new.
    MakeNew(u32),
    /// New tables: these servers are new, and are to be whole.
    MakeWhole(u32),
    Fill(usize),
    /// An operator is to empty the others, too.
    Refuse,
}

/// Next step, by the states of all servers.
fn next_step(states: &[u64]) -> Step {
    let of = |is: &dyn Fn(u64) -> bool| {
        let all = (0..states.len()).filter(|&position| is(states[position]));
        all.fold(0_u32, |all, position| all | 1 << position)
    };
    let (whole, new) = (of(&|state| state == WHOLE), of(&|state| state == NEW));
    let (all, begun) = ((1_u64 << states.len()) - 1, of(&|state| matches!(state, BEGUN | EMPTIED)));
    if u64::from(whole) == all {
        return Step::Nothing;
    }
    let lost = of(&|state| state == 0);
    if (new != 0 || whole == 0 || !Check::NoneWhole.on()) && lost == 0 {
        return if begun == 0 { Step::MakeWhole(new) } else { Step::MakeNew(begun) };
    }
    if of(&|state| state == EMPTIED) != 0 && Check::EmptiedAll.on() {
        return Step::Refuse;
    }
    states.iter().position(|state| *state != WHOLE).map_or(Step::Nothing, Step::Fill)
}

impl<V: Verbs> Tables<V> {
    /// Whether all servers have all of their items. Otherwise takes a step towards it: fills a server, or begins new tables.
    pub(super) async fn are_whole(&self, identity: &Rc<Identity>) -> Result<bool, DtxError> {
        let count = self.shape.server_count();
        if (0..count).all(|position| identity.is_whole(position)) || !Check::Filled.on() {
            return Ok(true);
        }
        let lane = self.memory.take_lane();
        let mut plan = self.take_plan();
        let states = self.states(identity, &lane, &mut plan).await?;
        match next_step(&states) {
            Step::Nothing => {}
            Step::MakeNew(servers) => {
                for position in super::recover::positions(servers) {
                    self.make_new(identity, position, &lane, &mut plan).await?;
                }
            }
            Step::MakeWhole(servers) => {
                plan.clear();
                for position in super::recover::positions(servers) {
                    plan.swap(self.state_at(position), NEW, WHOLE);
                }
                self.carry_out(identity, &lane, &mut plan).await?;
            }
            Step::Fill(position) => {
                self.fill(identity, position).await?;
                // The other servers' eras have changed.
                self.renounce(identity);
            }
            Step::Refuse => return Err(CommonError::Parted.into()),
        }
        self.keep_plan(plan);
        Ok(false)
    }

    /// Makes a server new that has begun, or was emptied.
    async fn make_new(
        &self,
        identity: &Rc<Identity>,
        position: usize,
        lane: &Lane,
        plan: &mut Plan,
    ) -> Result<(), DtxError> {
        let at = self.state_at(position);
        let (guard, line) = match LockGuard::lock_and_read(&self.memory, lane, at, HEADER_BYTES as u32).await
        {
            Ok(taken) => taken,
            // Another client makes it new: its state is read again.
            Err(LockError::Locked) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let is_present = guard.writer().owner == identity.writer(at.server()).owner;
        let found = word_at(&line, 0);
        if is_present && matches!(found, BEGUN | EMPTIED) {
            plan.clear();
            plan.swap(at, found, NEW);
            self.carry_out(identity, lane, plan).await?;
        }
        Ok(guard.release(lane).await?)
    }

    /// State of each server, by position. Those that are whole are noted with their eras and their bulk load.
    async fn states(
        &self,
        identity: &Identity,
        lane: &Lane,
        plan: &mut Plan,
    ) -> Result<ArrayVec<u64, MAX_SERVERS>, DtxError> {
        // Other tasks of this client may learn it meanwhile.
        let unknown: ArrayVec<usize, MAX_SERVERS> =
            (0..self.shape.server_count()).filter(|&position| !identity.is_whole(position)).collect();
        plan.clear();
        for &position in &unknown {
            plan.read(self.state_at(position), 24);
        }
        if !plan.is_empty() {
            self.carry_out(identity, lane, plan).await?;
        }
        let mut states: ArrayVec<u64, MAX_SERVERS> = (0..self.shape.server_count()).map(|_| WHOLE).collect();
        for (step, &position) in unknown.iter().enumerate() {
            states[position] = word_at(plan.bytes(step), 0);
            let [era, load] = [8, 16].map(|at| word_at(plan.bytes(step), at));
            if states[position] == WHOLE && !identity.set_whole(position, era, load) {
                return Err(CommonError::Parted.into());
            }
        }
        Ok(states)
    }

    /// Servers, by position, that have all of their items.
    pub(super) async fn whole_servers(
        &self,
        identity: &Identity,
        lane: &Lane,
        plan: &mut Plan,
    ) -> Result<u32, DtxError> {
        self.states(identity, lane, plan).await?;
        Ok(identity.whole())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_tables_begin_only_where_no_server_has_any() {
        assert_eq!(next_step(&[WHOLE; 3]), Step::Nothing);
        assert_eq!(next_step(&[BEGUN, BEGUN]), Step::MakeNew(0b11));
        assert_eq!(next_step(&[EMPTIED, BEGUN]), Step::MakeNew(0b11));
        assert_eq!(next_step(&[NEW, BEGUN]), Step::MakeNew(0b10));
        assert_eq!(next_step(&[NEW, NEW]), Step::MakeWhole(0b11));
        // A server was lost while the tables were made: no transaction was ever begun.
        assert_eq!(next_step(&[WHOLE, NEW, BEGUN]), Step::MakeNew(0b100));
        assert_eq!(next_step(&[WHOLE, NEW, WHOLE]), Step::MakeWhole(0b010));
        assert_eq!(next_step(&[WHOLE, BEGUN]), Step::Fill(1));
        assert_eq!(next_step(&[0, WHOLE]), Step::Fill(0));
        assert_eq!(next_step(&[0, 0]), Step::Fill(0), "they are known to be lost");
        assert_eq!(next_step(&[WHOLE, EMPTIED]), Step::Refuse);
        assert_eq!(next_step(&[BEGUN; 32]), Step::MakeNew(u32::MAX));
    }
}
