//! Final phase after the faults, in which everything must work again.
//!
//! Safety alone is easy: a client that never answers is never wrong. So at the end of a scenario the world is healed, and then each
//! operation must succeed, soon.

use std::fmt;

use fatbtree_verbs::time::Duration;

use super::machine::Task;
use super::run::World;

/// An operation of the final phase: its name for messages, and its task.
pub type FinalOperation<E> = (String, Task<Result<(), E>>);

/// Error of a final phase in which not all operations succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotLive {
    /// Time that was given.
    pub within: Duration,
    /// Operations that failed, and why.
    pub failed: Vec<(String, String)>,
    /// Operations that were not done in time.
    pub waiting: Vec<String>,
}

impl fmt::Display for NotLive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { within, failed, waiting } = self;
        write!(f, "after everything was healed, {} operations failed", failed.len())?;
        write!(f, " and {} were not done within {within}", waiting.len())?;
        failed.iter().try_for_each(|(name, why)| write!(f, "\n  {name}: {why}"))?;
        waiting.iter().try_for_each(|name| write!(f, "\n  {name}: not done"))
    }
}

impl std::error::Error for NotLive {}

impl World {
    /// The final phase: [heals](Self::heal) everything, lets `begin` boot what is dead and start operations, and runs until all of
    /// them have succeeded. Returns how long that took.
    ///
    /// # Errors
    /// When one failed, was taken away, or was not done in time.
    pub fn final_phase<E: fmt::Display>(
        &self,
        within: Duration,
        begin: impl FnOnce() -> Vec<FinalOperation<E>>,
    ) -> Result<Duration, NotLive> {
        self.heal();
        let operations = begin();
        let ended = self.run_until(|| operations.iter().all(|(_, task)| task.has_ended()), within);
        let (mut failed, mut waiting) = (Vec::new(), Vec::new());
        for (name, task) in operations {
            match task.take() {
                Some(Ok(())) => {}
                Some(Err(why)) => failed.push((name, why.to_string())),
                None if task.has_ended() => failed.push((name, "its machine died".to_owned())),
                None => waiting.push(name),
            }
        }
        match ended {
            Ok(took) if failed.is_empty() => Ok(took),
            _ => Err(NotLive { within, failed, waiting }),
        }
    }
}
