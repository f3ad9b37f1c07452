//! Many seeds over all processors, and the command that replays one that fails.
//!
//! ```
//! use fatbtree_sim::seeds::{Campaign, Seeds};
//!
//! let campaign = Campaign { command: "fatbtree simulate reads --seed", ..Campaign::default() };
//! let report = campaign.run(Seeds::fixed(100), |seed| match seed {
//!     66 => Err("the tree has lost a key"),
//!     _ => Ok(1u64),
//! });
//! assert_eq!((report.passed, report.total), (99, 99));
//! let text = report.to_string();
//! assert!(text.contains("seed 66, commit "), "{text}");
//! assert!(text.contains("replay: fatbtree simulate reads --seed 66"), "{text}");
//! ```

use std::any::Any;
use std::fmt;
use std::ops::{AddAssign, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The commit that the sources are at, so that a seed that fails can be replayed; "unknown" where they are no repository, or are gone. Asked for when a seed fails:
/// what notes it at each build makes each commit a build of all simulations.
static COMMIT: LazyLock<String> = LazyLock::new(|| {
    let git = Command::new("git")
        .args(["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "--short=12", "HEAD"])
        .output();
    let commit = git.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    let commit = commit.and_then(|commit| String::from_utf8(commit).ok()).unwrap_or_default();
    if commit.trim().is_empty() { "unknown".to_owned() } else { commit.trim().to_owned() }
});

/// Seeds that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds {
    first: u64,
    count: u64,
}

impl Seeds {
    /// The first `count` seeds from 0, the same each time: for CI.
    #[must_use]
    pub fn fixed(count: u64) -> Self {
        Self { first: 0, count }
    }

    /// A single seed.
    #[must_use]
    pub fn one(seed: u64) -> Self {
        Self { first: seed, count: 1 }
    }

    /// Other seeds for each `base`, far from those of other bases and from the fixed ones.
    #[must_use]
    pub fn nightly(base: u64, count: u64) -> Self {
        // Multiplying by an odd number mixes the bits upward; half of the space is left for counting.
        let first = base.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16 << 15;
        Self { first, count: count.min(1 << 15) }
    }

    /// New seeds at each call: the base is the time of day. No simulation sees this clock.
    #[must_use]
    pub fn tonight(count: u64) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::nightly(since.as_nanos() as u64, count)
    }

    /// Number of seeds.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The lowest.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }
}

impl From<Range<u64>> for Seeds {
    fn from(range: Range<u64>) -> Self {
        Self { first: range.start, count: range.end.saturating_sub(range.start) }
    }
}

/// Options of running seeds.
#[derive(Clone, Copy)]
pub struct Campaign<'a> {
    /// Command that replays a seed, without the seed at its end.
    pub command: &'a str,
    /// Threads; 0: as many as there are processors.
    pub threads: usize,
    /// Failures after which no further seeds are begun.
    pub most_failures: usize,
    /// Called by the threads whenever a seed is done, for progress bars.
    pub done: &'a (dyn Fn() + Sync),
    /// Real time after which a seed is taken for one that has no end. A thread cannot be stopped: the process says which seed
    /// it is, and aborts.
    pub longest: Duration,
}

impl fmt::Debug for Campaign<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Campaign")
            .field("command", &self.command)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

impl Default for Campaign<'_> {
    fn default() -> Self {
        let longest = Duration::from_secs(300);
        Self {
            command: "fatbtree simulate reads --seed",
            threads: 0,
            most_failures: 10,
            done: &|| {},
            longest,
        }
    }
}

/// Results of some seeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report<T> {
    /// The sum over all seeds that passed.
    pub total: T,
    /// Seeds that passed.
    pub passed: u64,
    /// Seeds that failed, the lowest first.
    pub failures: Vec<SeedFailure>,
}

/// A seed that failed. It prints what is needed to see it again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeedFailure {
    /// The seed.
    pub seed: u64,
    /// The cause.
    pub why: String,
    /// Command that replays it.
    pub command: String,
}

impl fmt::Display for SeedFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, why, command } = self;
        write!(f, "seed {seed}, commit {} (or changed since): {why}\n  replay: {command}", *COMMIT)
    }
}

impl<T> fmt::Display for Report<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.failures.len();
        write!(f, "{failed} of {} seeds failed", self.passed + failed as u64)?;
        self.failures.iter().try_for_each(|failure| write!(f, "\n{failure}"))
    }
}

impl<T> Report<T> {
    /// The total, if all seeds passed.
    ///
    /// # Errors
    /// The report itself as a text, if one did not.
    pub fn into_result(self) -> Result<T, String> {
        if self.failures.is_empty() { Ok(self.total) } else { Err(self.to_string()) }
    }
}

impl Campaign<'_> {
    /// Runs `scenario` for each seed. A panic is a failure like others; where panics abort, the seed is printed before.
    ///
    /// Which thread runs which seed is left to chance, the outcome of a seed is not.
    pub fn run<T, E>(&self, seeds: Seeds, scenario: impl Fn(u64) -> Result<T, E> + Sync) -> Report<T>
    where
        T: AddAssign + Default + Send,
        E: fmt::Display,
    {
        let next = AtomicU64::new(0);
        let enough = AtomicBool::new(false);
        let report = Mutex::new(Report { total: T::default(), passed: 0, failures: Vec::new() });
        let lock = || report.lock().unwrap_or_else(PoisonError::into_inner);
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if self.threads == 0 { processors } else { self.threads };
        let running: Vec<Mutex<Option<(u64, Instant)>>> = (0..threads).map(|_| Mutex::default()).collect();
        let work = |thread: usize| {
            while !enough.load(Ordering::Relaxed) {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= seeds.count {
                    return;
                }
                let seed = seeds.first + number;
                let command = format!("{} {seed}", self.command);
                let _guard = announce(seed, &command);
                set(&running[thread], Some((seed, Instant::now())));
                let outcome = catch_unwind(AssertUnwindSafe(|| scenario(seed)));
                set(&running[thread], None);
                let why = match outcome {
                    Ok(Ok(outcome)) => {
                        let mut report = lock();
                        report.total += outcome;
                        report.passed += 1;
                        None
                    }
                    Ok(Err(error)) => Some(error.to_string()),
                    Err(panic) => Some(format!("panicked: {}", said(&*panic))),
                };
                if let Some(why) = why {
                    let mut report = lock();
                    report.failures.push(SeedFailure { seed, why, command });
                    enough.store(report.failures.len() >= self.most_failures, Ordering::Relaxed);
                }
                (self.done)();
            }
        };
        std::thread::scope(|scope| {
            let (working, all_done) = mpsc::channel::<()>();
            scope.spawn(|| self.watch(&running, all_done));
            let work = &work;
            for thread in 1..threads {
                let working = working.clone();
                scope.spawn(move || {
                    let _working = working;
                    work(thread);
                });
            }
            work(0);
            drop(working);
        });
        let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
        report.failures.sort();
        report
    }

    /// Looks at what is running until all is done.
    fn watch(&self, running: &[Mutex<Option<(u64, Instant)>>], all_done: mpsc::Receiver<()>) {
        while all_done.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
            for place in running {
                let seed = *place.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((seed, since)) = seed
                    && since.elapsed() > self.longest
                {
                    let (longest, command) = (self.longest, self.command);
                    eprintln!(
                        "seed {seed}, commit {} (or changed since) has no end within {longest:?}\n  replay: {command} {seed}",
                        *COMMIT
                    );
                    std::process::abort();
                }
            }
        }
    }
}

fn set<T>(place: &Mutex<T>, value: T) {
    *place.lock().unwrap_or_else(PoisonError::into_inner) = value;
}

/// Message of a panic.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("something that is no text")
}

/// Notes the running seed for a panic hook that prints it, because a panic that ends the process cannot report it
/// later.
#[cfg(panic = "abort")]
fn announce(seed: u64, command: &str) -> impl Drop + use<> {
    use std::cell::RefCell;
    use std::sync::Once;

    thread_local!(static RUNNING: RefCell<Option<(u64, String)>> = const { RefCell::new(None) });
    struct Guard;
    impl Drop for Guard {
        fn drop(&mut self) {
            RUNNING.with(|running| *running.borrow_mut() = None);
        }
    }
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            RUNNING.with(|running| {
                if let Ok(running) = running.try_borrow()
                    && let Some((seed, command)) = &*running
                {
                    eprintln!(
                        "seed {seed}, commit {} (or changed since) panics\n  replay: {command}",
                        *COMMIT
                    );
                }
            });
            before(panic);
        }));
    });
    RUNNING.with(|running| *running.borrow_mut() = Some((seed, command.to_owned())));
    Guard
}

/// Notes nothing: a panic is caught and reported with the other failures.
#[cfg(not(panic = "abort"))]
fn announce(_seed: u64, _command: &str) -> Option<std::convert::Infallible> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_seeds_run_once_and_are_summed() {
        let seen = Mutex::new(BTreeSet::new());
        let done = AtomicU64::new(0);
        let count = || _ = done.fetch_add(1, Ordering::Relaxed);
        let campaign = Campaign { threads: 3, done: &count, ..Campaign::default() };
        let report = campaign.run(Seeds::from(10..500), |seed| {
            assert!(seen.lock().unwrap().insert(seed), "twice");
            Ok::<_, String>(seed)
        });
        assert_eq!((report.passed, report.total), (490, (10..500).sum()));
        assert_eq!(done.into_inner(), 490);
        assert_eq!(seen.into_inner().unwrap().len(), 490);
        assert_eq!(report.into_result(), Ok((10..500).sum()));
    }

    #[test]
    fn the_last_seed_is_one_too() {
        let report = Campaign::default().run(Seeds::one(u64::MAX), |seed| match seed {
            u64::MAX => Ok::<_, String>(1),
            other => Err(format!("{other}")),
        });
        assert_eq!((report.passed, report.total), (1, 1));
    }

    #[test]
    fn failures_and_panics_are_reported_by_seed_and_stop_the_rest() {
        let campaign =
            Campaign { threads: 2, most_failures: 3, command: "replay it by", ..Campaign::default() };
        let report = campaign.run(Seeds::fixed(100_000), |seed| match seed {
            7 => Err("broken"),
            5 => panic!("number {seed}"),
            _ => Ok(u64::from(seed % 1000 == 999)),
        });
        assert_eq!(report.passed, 99_998, "two failures are not three");
        let text = report.into_result().unwrap_err();
        let commit = &*COMMIT;
        let expected = format!(
            "2 of 100000 seeds failed\nseed 5, commit {commit} (or changed since): panicked: number 5\n  replay: replay it by 5\n\
             seed 7, commit {commit} (or changed since): broken\n  replay: replay it by 7"
        );
        assert_eq!(text, expected);
        let report = campaign.run(Seeds::fixed(100_000), |_| Err::<u64, _>("all broken"));
        assert!(report.failures.len() <= 4 && report.passed == 0, "{report}");
    }

    #[test]
    fn nights_differ_from_each_other_and_from_days() {
        let firsts: BTreeSet<u64> = (0..1000).map(|base| Seeds::nightly(base, 20_000).first()).collect();
        assert_eq!(firsts.len(), 1000);
        let starts: Vec<u64> = firsts.into_iter().collect();
        assert!(starts.windows(2).all(|two| two[1] - two[0] >= 20_000), "nights overlap");
        assert_eq!(Seeds::nightly(3, 10), Seeds::nightly(3, 10));
        let (one, two) = (Seeds::tonight(10), Seeds::tonight(10));
        assert_eq!((one.count(), two.count()), (10, 10));
    }
}
