//! Waiting until no living client is announced on a leaf.

use fatbtree_remote_memory::{GlobalAddress, Writer, bytes_of, word_at};
use fatbtree_verbs::{Buffer, MAX_BATCH, Operation, Remote, Verbs};

use super::{Index, Op};
use crate::checks::Check;
use crate::error::Stop;
use crate::layout::{LINE_BYTES, line_offset};
use crate::leaf::COUNT;

/// Bytes of a server's table of owners: a bit for each.
const OWNERS_BYTES: u32 = (1 << 16) / 8;

/// Owners whose lines one READ brings, at most.
const RUN: u16 = 64;

/// Part of an operation's patience for which a structure change waits for others.
const SHARE: u64 = 4;

impl<V: Verbs> Index<V> {
    /// Waits until no operation is announced on leaves that are frozen. Says whether none is; otherwise
    /// it has waited too long.
    pub(super) async fn drain(
        &self,
        writer: &Writer,
        leaves: &[GlobalAddress],
        op: &mut Op,
    ) -> Result<bool, Stop> {
        let Some(server) = leaves.first().map(|leaf| leaf.server()) else { return Ok(true) };
        if !Check::Drains.on() {
            return Ok(true);
        }
        if Check::TakesBack.on() {
            self.take_back(server, op).await?;
        }
        let began = self.memory.reactor().now();
        for attempt in 0.. {
            let busy = match Check::OwnCounts.on() {
                true => self.any_announced(server, writer, leaves, op).await?,
                false => self.any_counted(server, writer, leaves, op).await?,
            };
            if !busy {
                return Ok(true);
            }
            let waited = self.memory.reactor().now() - began;
            if waited * SHARE > self.memory.config().patience {
                return Ok(false);
            }
            self.memory.pause(attempt).await;
        }
        unreachable!("it ends when time has passed")
    }

    /// Reads the counts of the published lock.
    async fn any_counted(
        &self,
        server: u16,
        writer: &Writer,
        leaves: &[GlobalAddress],
        op: &mut Op,
    ) -> Result<bool, Stop> {
        let path = op.lane.to(server);
        for &leaf in leaves {
            let from = leaf.behind(COUNT).raw();
            let read = |rkey| [Operation::Read { from: Remote { address: from, rkey }, len: 8 }];
            let [count] = self.memory.chain(path, writer, read).await?;
            if word_at(&bytes_of(count)?, 0) != 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads which owners live, and the lines of those: a round trip, if the owners are those that
    /// lived before.
    async fn any_announced(
        &self,
        server: u16,
        writer: &Writer,
        leaves: &[GlobalAddress],
        op: &mut Op,
    ) -> Result<bool, Stop> {
        let path = op.lane.to(server);
        let own = writer.owner.number;
        let known = self.lives.borrow().iter().find(|(of, ..)| *of == server).copied();
        let (first, last) = known.map_or((own, own), |(_, first, last)| (first, last));
        let last = last.min(first.saturating_add(RUN - 1));
        let owners = writer.owners;
        let reads = |rkey| {
            let lives = Operation::Read { from: owners, len: OWNERS_BYTES };
            [lives, read_lines(server, first, last, rkey)]
        };
        let [lives, lines] = self.memory.chain(path, writer, reads).await?;
        let lives = bytes_of(lives)?;
        let lives = || living(&lives);
        if any_in(&bytes_of(lines)?, first, &lives, leaves) {
            return Ok(true);
        }
        let mut runs: Vec<(u16, u16)> = Vec::new();
        for owner in lives().filter(|owner| !(first..=last).contains(owner)) {
            match runs.last_mut() {
                Some((from, to)) if owner - *from < RUN => *to = owner,
                _ => runs.push((owner, owner)),
            }
        }
        for runs in runs.chunks(MAX_BATCH) {
            let reads = |rkey| runs.iter().map(move |&(from, to)| read_lines(server, from, to, rkey));
            let lines = self.memory.batch(path, writer, reads).await?;
            for (&(from, _), lines) in runs.iter().zip(lines) {
                if any_in(&bytes_of(lines)?, from, &lives, leaves) {
                    return Ok(true);
                }
            }
        }
        if let (Some(first), Some(last)) = (lives().next(), lives().last()) {
            let mut all = self.lives.borrow_mut();
            all.retain(|(of, ..)| *of != server);
            all.push((server, first, last));
        }
        Ok(false)
    }
}

fn read_lines(server: u16, first: u16, last: u16, rkey: u32) -> Operation<'static> {
    let address = GlobalAddress::new(server, line_offset(first)).raw();
    let len = (u32::from(last - first) + 1) * LINE_BYTES as u32;
    Operation::Read { from: Remote { address, rkey }, len }
}

/// Owners whose bits are set.
fn living(table: &Buffer) -> impl Iterator<Item = u16> + '_ {
    let words = (0..OWNERS_BYTES as usize / 8).map(|at| (at, word_at(table, at * 8)));
    words.filter(|(_, bits)| *bits != 0).flat_map(|(at, bits)| {
        (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| (at * 64 + bit) as u16)
    })
}

/// Whether a line of a living owner says one of these leaves.
fn any_in<I: Iterator<Item = u16>>(
    lines: &Buffer,
    first: u16,
    lives: &impl Fn() -> I,
    leaves: &[GlobalAddress],
) -> bool {
    let count = lines.len() / LINE_BYTES as usize;
    lives().filter(|owner| (first..first.saturating_add(count as u16)).contains(owner)).any(|owner| {
        let line = usize::from(owner - first) * LINE_BYTES as usize;
        let mut words = (0..LINE_BYTES as usize).step_by(8).map(|at| word_at(lines, line + at));
        words.any(|word| leaves.iter().any(|leaf| leaf.raw() == word))
    })
}

#[cfg(test)]
mod tests {
    use fatbtree_remote_memory::{Owner, SessionId};

    use super::*;
    use crate::index::announce::line_of;

    #[test]
    fn lines_lie_at_their_owners_places() {
        let owner = Owner { session: SessionId(1), number: 3 };
        let Operation::Read { from, len } = read_lines(2, 3, 5, 9) else { panic!("a READ") };
        assert_eq!((from.address, len), (line_of(2, owner).raw(), 192));
    }
}
