//! The environment abstraction layer: started once per process, with the usual arguments of DPDK.
#![allow(unsafe_code, reason = "calls of the shim")]

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::DpdkError;
use crate::error::meaning;
use crate::ffi;

/// Environment variable with the EAL's arguments.
pub const ARGUMENTS: &str = "FATBTREE_EAL";

/// Bytes that are kept of the EAL's messages.
const LOG: usize = 1 << 16;

/// The process's EAL. References to it are given out only after the EAL has started.
#[derive(Debug)]
pub struct Eal(());

static EAL: Eal = Eal(());

/// Arguments and result of the first start.
type Started = Option<(String, Result<(), DpdkError>)>;

static STARTED: Mutex<Started> = Mutex::new(None);

/// Whether threads are bound to the EAL's cores, because its arguments name cores.
static BINDS: AtomicBool = AtomicBool::new(false);

impl Eal {
    /// Starts the EAL with the arguments in [`FATBTREE_EAL`](ARGUMENTS), or returns the one that was started.
    ///
    /// # Errors
    /// When it does not start: wrong arguments, no huge pages.
    pub fn of_environment() -> Result<&'static Self, DpdkError> {
        let arguments = std::env::var(ARGUMENTS).unwrap_or_default();
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        first(&mut started, arguments.trim()).1.clone().map(|()| &EAL)
    }

    /// Starts the EAL with these arguments, separated by spaces. Returns at once if it was started with the same
    /// ones.
    ///
    /// Defaults for what the arguments leave open:
    /// * without `--file-prefix`, `--proc-type` or `--huge-dir`, the process keeps to itself (`--in-memory` or `--no-shconf`, `--no-telemetry`);
    /// * without a list of cores (`-l`, `-c`, `--lcores`), threads run where the system puts them;
    /// * without a list of cards (`-a`, `-b`, `--no-pci`), only those are touched that a device names;
    /// * without `--log-level`, warnings and errors are told.
    ///
    /// # Errors
    /// When it does not start, or was started with other ones.
    pub fn start(arguments: &str) -> Result<&'static Self, DpdkError> {
        // A thread that panics here leaves `STARTED` empty, so a poisoned lock is usable.
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        let (told, done) = first(&mut started, arguments);
        if told != arguments {
            let (started, arguments) = (told.clone(), arguments.to_owned());
            return Err(DpdkError::Started { started, arguments });
        }
        done.clone().map(|()| &EAL)
    }
}

/// Result of the first start; starts the EAL if there was none.
fn first<'s>(started: &'s mut Started, arguments: &str) -> &'s (String, Result<(), DpdkError>) {
    started.get_or_insert_with(|| (arguments.to_owned(), init(arguments)))
}

/// Whether a word is one of these options, or one of them with its value.
fn is_one_of(word: &str, options: &[&str]) -> bool {
    options.iter().any(|option| match option.strip_prefix("--") {
        Some(_) => word.split('=').next() == Some(option),
        None => word.starts_with(option) && !word.starts_with("--"),
    })
}

fn init(arguments: &str) -> Result<(), DpdkError> {
    let mut words: Vec<String> = vec!["fatbtree".to_owned()];
    words.extend(arguments.split_whitespace().map(str::to_owned));
    let says = |options: &[&str]| words[1..].iter().any(|word| is_one_of(word, options));
    let names_cores = says(&["-l", "-c", "--lcores"]);
    let is_known = says(&["--in-memory", "--no-shconf", "--file-prefix", "--proc-type", "--huge-dir"]);
    let no_huge = says(&["--no-huge"]);
    let names_cards = says(&["-a", "-b", "-w", "--allow", "--block", "--no-pci"]);
    let talks = says(&["--log-level", "-v"]);
    if !is_known {
        // (--in-memory is for huge pages)
        words.push(if no_huge { "--no-shconf" } else { "--in-memory" }.to_owned());
        words.push("--no-telemetry".to_owned());
    }
    if !names_cores {
        words.extend(["-l".to_owned(), ffi::fatbtree_dpdk_first_core().to_string()]);
    }
    if !names_cards {
        // A bridge, which is no card: then only those cards are taken from the system that ports name.
        words.extend(["-a", "0000:00:00.0"].map(str::to_owned));
    }
    if !talks {
        // Warnings, and errors; that processes do not speak with each other is as we want it.
        words.extend(["--log-level=lib.*:5", "--log-level=pmd.net.memif:4"].map(str::to_owned));
    }
    let failed = |reason: String| DpdkError::Eal { arguments: arguments.to_owned(), reason };
    let words: Result<Vec<CString>, _> = words.into_iter().map(CString::new).collect();
    let words = words.map_err(|_| failed("a zero byte is in them".to_owned()))?;
    // The calling thread would be bound to the main core for ever, and all that it starts.
    let started = std::thread::Builder::new().name("eal".to_owned()).spawn(move || start_here(words));
    let started = started.map_err(|error| failed(error.to_string()))?.join();
    let (error, log) = started.map_err(|_| failed("its thread panicked".to_owned()))?;
    if error < 0 {
        let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(4)..].join("; ");
        let mut reason = if last.is_empty() { meaning(error) } else { format!("{}: {last}", meaning(error)) };
        if !no_huge {
            reason.push_str("; on a machine without huge pages: --no-huge, with -m MEGABYTES");
        }
        return Err(failed(reason));
    }
    log.lines().for_each(tell);
    BINDS.store(names_cores, Ordering::Release);
    Ok(())
}

#[allow(clippy::print_stderr, reason = "as the EAL itself does")]
fn tell(line: &str) {
    eprintln!("{line}");
}

/// Starts the EAL with the calling thread as its main one. Returns an error number, and the EAL's messages.
fn start_here(words: Vec<CString>) -> (c_int, String) {
    // The EAL keeps the pointers, and changes the order of those that it is given.
    let words: Vec<*mut c_char> = words.into_iter().map(CString::into_raw).collect();
    let count = words.len() as c_int;
    let mut all = words;
    all.push(std::ptr::null_mut());
    let all = all.leak();
    let mut log = vec![0; LOG];
    // SAFETY: `all` has `count` strings and a null pointer after them, and lives for ever; `log` has so many bytes. It is the first and only
    // start in this process: the caller holds the lock, and does it once.
    let error = unsafe {
        ffi::fatbtree_dpdk_start_eal(count, all.as_mut_ptr(), log.as_mut_ptr().cast::<c_char>(), log.len())
    };
    let log = CStr::from_bytes_until_nul(&log).map(|log| log.to_string_lossy().into_owned());
    (error, log.unwrap_or_default())
}

/// Registration of a thread with the EAL, until the thread ends.
struct Seat(Cell<bool>);

impl Drop for Seat {
    fn drop(&mut self) {
        if self.0.get() {
            // SAFETY: this thread was registered, and is not any more from now on.
            unsafe { ffi::fatbtree_dpdk_unregister_thread() };
        }
    }
}

thread_local! {
    static SEAT: Seat = take_a_seat();
}

fn take_a_seat() -> Seat {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    if BINDS.load(Ordering::Acquire) {
        // A core that is not there any more: then the thread runs where the system puts it.
        // SAFETY: the EAL has started: threads ask for seats only after that.
        let _ = unsafe { ffi::fatbtree_dpdk_bind_thread(NEXT.fetch_add(1, Ordering::Relaxed)) };
    }
    // All seats are taken when there are more than a hundred threads; the others do without caches of their own.
    // SAFETY: the EAL has started, and this thread has no seat yet.
    Seat(Cell::new(unsafe { ffi::fatbtree_dpdk_register_thread() } == 0))
}

/// Registers the calling thread with the EAL, and binds it to a core if cores were named. The EAL must have started.
#[inline]
pub(crate) fn be_seated() {
    // Fails in a thread that is ending: then it does without.
    let _ = SEAT.try_with(|_| ());
}

#[cfg(test)]
mod tests {
    use super::is_one_of;

    #[test]
    fn options_are_known_with_their_values() {
        for word in ["-l", "-l2", "-l2-4", "--lcores", "--lcores=0-3"] {
            assert!(is_one_of(word, &["-l", "--lcores"]), "{word}");
        }
        for word in ["--log-level=8", "--legacy-mem", "-m", "0-3"] {
            assert!(!is_one_of(word, &["-l", "--lcores"]), "{word}");
        }
    }
}
