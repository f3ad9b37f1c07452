//! Moments of memory servers: by which a server whose folder was replaced by an older copy is told from one that was only started again.
//!
//! A *moment* is the time at which a run of a server begins, or ends cleanly. A folder keeps all moments of its server, and for each other
//! server the moment that it has last heard of. Servers do not talk to each other. A client carries moments between them, before its first
//! session and whenever a server was started again:
//!
//! ```text
//!   left: moments 1 2 3              right: moments 1 2 3 4 5; has heard of left: 3
//!   ─────────────────────────────────────────────────────────────────────────────────────────
//!   left is killed, starts:          1 2 3 6            3 is among them           accepted
//!   left's folder is an old copy:    1 2 7              3 is missing              refused
//!   both are copies of one moment:   1 2 7    right: 1 2 3 8, has heard of 2      accepted
//! ```
//!
//! **Why that is right.** A run's moment is on the server's disk before any other server hears of it. So a server that lost nothing has each
//! moment that others have heard of, also where a machine that failed took the last second of its data. And a server writes nothing in a run
//! before all others that live have heard of the run. So a folder from before it lacks a moment that they know. A server that was down all
//! the time has heard of nothing, and holds nothing that depends on that run.
//!
//! Moments belong to one filling of a region, its *generation*. A server that was loaded anew begins another one, and is never taken for
//! an old copy. If a former filling comes back, as from a copy from before the load, others have heard of a later one, and refuse it.
//!
//! A copy of a folder must be made while its server is stopped. What a copy of a running server's folder holds is of no moment.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::folder::{FolderError, MomentsFile};

/// Moments of a server that are kept and told: the last ones.
const MOST: usize = 256;

/// Former fillings of another server that are remembered: the last ones.
const MOST_PAST: usize = 16;

/// Other servers that are remembered.
const MOST_OTHERS: usize = 1024;

/// A moment in the life of a server: nanoseconds since 1970, by the clock of its machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(pub u64);

/// Date and time of day: `2026-11-28 11:02:03 UTC`.
impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = i64::try_from(self.0 / 1_000_000_000).unwrap_or_default();
        let Ok(time) = time::OffsetDateTime::from_unix_timestamp(seconds) else {
            return write!(f, "{}", self.0);
        };
        let (year, month, day) = time.to_calendar_date();
        let (hour, minute, second) = time.to_hms();
        write!(f, "{year}-{:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC", u8::from(month))
    }
}

/// What a server says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    /// Its number.
    pub server: u16,
    /// Filling of its region.
    pub generation: u64,
    /// Its last moments, the present run's at the end.
    pub moments: Vec<Moment>,
}

/// What another server has last heard of one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Heard {
    /// Filling of its region.
    pub generation: u64,
    /// Moment of its run.
    pub moment: Moment,
    /// Fillings before.
    pub past: Vec<u64>,
}

/// A server whose folder is an older copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "memory server of partition {server} was restored from an older copy: its folder is of {found}, but memory server of partition {by} has worked \
     with what it held on {known}; stop all memory servers and restore all of their folders from copies of one moment, or load anew \
     (fatbtree load --replace)"
)]
pub struct OlderCopy {
    /// Its number.
    pub server: u16,
    /// The last moment that its folder knows.
    pub found: Moment,
    /// Server that has heard of a later one.
    pub by: u16,
    /// That moment.
    pub known: Moment,
}

impl Statement {
    /// Moment of the present run.
    #[must_use]
    pub fn present(&self) -> Moment {
        self.moments.last().copied().unwrap_or(Moment(0))
    }

    /// The last moment before the present run.
    fn before(&self) -> Moment {
        self.moments.iter().rev().nth(1).copied().unwrap_or(self.present())
    }

    /// Whether a server that has heard so much of this one can go on with it.
    ///
    /// # Errors
    /// When this one's folder is older.
    pub fn agrees(&self, by: u16, heard: &Heard) -> Result<(), OlderCopy> {
        let is_cut = self.moments.len() >= MOST;
        let agrees = match self.generation == heard.generation {
            true if self.moments.contains(&heard.moment) => true,
            true => is_cut && self.moments.first().is_some_and(|first| *first > heard.moment),
            false => !heard.past.contains(&self.generation),
        };
        let older = OlderCopy { server: self.server, found: self.before(), by, known: heard.moment };
        if agrees { Ok(()) } else { Err(older) }
    }
}

/// Moments as a folder keeps them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct KeptMoments {
    own: Vec<Moment>,
    others: BTreeMap<u16, Heard>,
}

impl KeptMoments {
    fn begin(&mut self, now: Moment) {
        // No two are the same, whatever the clock says.
        let next = self.own.last().map_or(now, |last| Moment(now.0.max(last.0 + 1)));
        self.own.push(next);
        let over = self.own.len().saturating_sub(MOST);
        self.own.drain(..over);
    }

    fn hear(&mut self, statement: &Statement) {
        let Statement { server, generation, .. } = *statement;
        let is_full = self.others.len() >= MOST_OTHERS && !self.others.contains_key(&server);
        if is_full {
            return;
        }
        let new = || Heard { generation, moment: statement.present(), past: Vec::new() };
        let heard = self.others.entry(server).or_insert_with(new);
        if heard.generation != generation {
            heard.past.push(heard.generation);
            let over = heard.past.len().saturating_sub(MOST_PAST);
            heard.past.drain(..over);
        }
        (heard.generation, heard.moment) = (generation, statement.present());
    }
}

/// Moments of one server, and what it has heard of others: in its folder, or as long as its process lives.
#[derive(Debug)]
pub struct Moments {
    file: Option<MomentsFile>,
    kept: Mutex<KeptMoments>,
}

impl Moments {
    /// Begins a run of a server without a folder.
    #[must_use]
    pub fn in_memory(now: Moment) -> Self {
        let mut kept = KeptMoments::default();
        kept.begin(now);
        Self { file: None, kept: kept.into() }
    }

    /// Begins a run of the server whose folder this file lies in. The moment is on the disk when this returns.
    ///
    /// # Errors
    /// When the file is damaged, or the disk fails.
    pub fn begin(file: MomentsFile, now: Moment) -> Result<Self, FolderError> {
        let mut kept = file.read()?.unwrap_or_default();
        kept.begin(now);
        file.write(&kept)?;
        Ok(Self { file: Some(file), kept: kept.into() })
    }

    fn kept(&self) -> MutexGuard<'_, KeptMoments> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the server, whose region has a generation, says of itself.
    #[must_use]
    pub fn statement(&self, server: u16, generation: u64) -> Statement {
        Statement { server, generation, moments: self.kept().own.clone() }
    }

    /// What the server has heard of others, by number.
    #[must_use]
    pub fn heard(&self) -> BTreeMap<u16, Heard> {
        self.kept().others.clone()
    }

    /// Hears what another server says of itself. It is on the disk when this returns.
    ///
    /// # Errors
    /// When the other server's folder is older than what this one, `own`, has heard of; or the disk fails.
    pub fn hear(&self, own: u16, statement: &Statement) -> Result<(), HearError> {
        let mut kept = self.kept();
        if let Some(heard) = kept.others.get(&statement.server) {
            statement.agrees(own, heard)?;
        }
        let mut next = kept.clone();
        next.hear(statement);
        if next != *kept {
            if let Some(file) = &self.file {
                file.write(&next)?;
            }
            *kept = next;
        }
        Ok(())
    }

    /// Ends the run cleanly.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn end(&self, now: Moment) -> Result<(), FolderError> {
        let mut kept = self.kept();
        kept.begin(now);
        self.file.as_ref().map_or(Ok(()), |file| file.write(&kept))
    }
}

/// Reasons for which a server does not hear another one's statement.
#[derive(Debug, thiserror::Error)]
pub enum HearError {
    /// The other one's folder is an older copy.
    #[error(transparent)]
    Older(#[from] OlderCopy),
    /// It is not written down.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cluster of servers whose folders are values: a copy is a clone.
    struct Folder {
        server: u16,
        generation: u64,
        kept: KeptMoments,
    }

    impl Clone for Folder {
        fn clone(&self) -> Self {
            Self { kept: self.kept.clone(), ..*self }
        }
    }

    impl Folder {
        fn new(server: u16) -> Self {
            Self { server, generation: 1 + u64::from(server), kept: KeptMoments::default() }
        }

        fn run(&mut self, now: u64) {
            self.kept.begin(Moment(now));
        }

        fn statement(&self) -> Statement {
            Statement { server: self.server, generation: self.generation, moments: self.kept.own.clone() }
        }
    }

    /// A client carries all statements to all servers.
    fn meet(all: &mut [&mut Folder]) -> Result<(), OlderCopy> {
        let statements: Vec<Statement> = all.iter().map(|folder| folder.statement()).collect();
        for folder in &*all {
            for statement in &statements {
                let heard = folder.kept.others.get(&statement.server);
                heard.map_or(Ok(()), |heard| statement.agrees(folder.server, heard))?;
            }
        }
        for folder in all {
            let own = folder.server;
            statements.iter().filter(|said| said.server != own).for_each(|said| folder.kept.hear(said));
        }
        Ok(())
    }

    #[test]
    fn a_server_that_is_started_again_is_accepted() {
        let (mut left, mut right) = (Folder::new(0), Folder::new(1));
        for now in (10..100).step_by(10) {
            // Stopped cleanly, or killed: then there is no moment of the end.
            left.run(now);
            if now % 20 == 0 {
                left.run(now + 5);
                right.run(now + 6);
            }
            right.run(now + 7);
            assert_eq!(meet(&mut [&mut left, &mut right]), Ok(()));
        }
        // The clock goes back.
        left.run(1);
        assert_eq!(meet(&mut [&mut left, &mut right]), Ok(()));
    }

    #[test]
    fn an_older_copy_is_refused_by_name_and_only_while_the_others_are_newer() {
        let (mut left, mut right) = (Folder::new(0), Folder::new(1));
        left.run(10);
        right.run(11);
        meet(&mut [&mut left, &mut right]).unwrap();
        left.run(12);
        right.run(13);
        let copies = (left.clone(), right.clone());
        left.run(20);
        right.run(21);
        meet(&mut [&mut left, &mut right]).unwrap();
        let (mut old_left, mut old_right) = copies.clone();
        // However often it is started, also past the moment that others know.
        for now in [30, 31, 32] {
            old_left.run(now);
            let refused = meet(&mut [&mut old_left, &mut right.clone()]).unwrap_err();
            assert_eq!((refused.server, refused.by, refused.known), (0, 1, Moment(20)));
            assert!(refused.to_string().contains("1970-01-01 00:00:00 UTC"), "{refused}");
        }
        old_right.run(31);
        let refused = meet(&mut [&mut left, &mut old_right]).unwrap_err();
        assert_eq!((refused.server, refused.by, refused.found), (1, 0, Moment(13)));
        // All of one moment.
        let (mut old_left, mut old_right) = copies;
        old_left.run(40);
        old_right.run(41);
        assert_eq!(meet(&mut [&mut old_left, &mut old_right]), Ok(()));
    }

    #[test]
    fn a_server_that_is_loaded_anew_is_accepted_and_what_it_had_before_is_not() {
        let (mut left, mut right) = (Folder::new(0), Folder::new(1));
        left.run(10);
        right.run(11);
        meet(&mut [&mut left, &mut right]).unwrap();
        let before = left.clone();
        // In its folder, or in a new one.
        left.generation = 7;
        meet(&mut [&mut left, &mut right]).unwrap();
        let mut fresh = Folder { generation: 8, ..Folder::new(0) };
        fresh.run(20);
        meet(&mut [&mut fresh, &mut right]).unwrap();
        let mut old = before;
        old.run(30);
        assert!(meet(&mut [&mut old, &mut right]).is_err());
    }

    #[test]
    fn a_server_that_was_down_meanwhile_hears_of_the_run_later() {
        let (mut left, mut middle, mut right) = (Folder::new(0), Folder::new(1), Folder::new(2));
        for folder in [&mut left, &mut middle, &mut right] {
            folder.run(10);
        }
        meet(&mut [&mut left, &mut middle, &mut right]).unwrap();
        let copy = left.clone();
        left.run(20);
        meet(&mut [&mut left, &mut middle]).unwrap();
        right.run(30);
        let mut old = copy;
        old.run(40);
        let refused = meet(&mut [&mut old, &mut middle, &mut right]).unwrap_err();
        assert_eq!((refused.server, refused.by), (0, 1));
        assert_eq!(meet(&mut [&mut left, &mut middle, &mut right]), Ok(()));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (mut left, mut right) = (Folder::new(0), Folder::new(1));
        right.run(1);
        for now in 0..2 * MOST as u64 {
            left.run(now + 1);
            left.generation = now;
            meet(&mut [&mut left, &mut right]).unwrap();
        }
        assert_eq!((left.kept.own.len(), right.kept.others[&0].past.len()), (MOST, MOST_PAST));
        // One that has not heard of it for as long still knows no better.
        let heard = Heard { generation: left.generation, moment: Moment(3), past: Vec::new() };
        assert_eq!(left.statement().agrees(1, &heard), Ok(()));
    }

    #[test]
    fn moments_are_dates() {
        assert_eq!(Moment(1_795_863_723_000_000_000).to_string(), "2026-11-28 11:02:03 UTC");
    }
}
