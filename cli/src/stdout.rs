//! Standard output and standard error: the one way by which commands print.
//!
//! A full disk or a closed pipe does not end a command in the middle of its work: it goes on, prints no more, and [`end`] says so with an
//! exit code of its own. Lints refuse `println!`, which panics instead.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of a command that has done its work, and whose output could not be written.
pub(crate) const NOT_PRINTED: u8 = 5;

/// The first error of standard output. Nothing is printed after it.
static LOST: OnceLock<io::Error> = OnceLock::new();

/// Whether what is printed is a role's log.
static IS_LOG: AtomicBool = AtomicBool::new(false);

/// Prints a line, as `println!` does.
macro_rules! outln {
    () => { $crate::stdout::print(format_args!("\n")) };
    ($($what:tt)*) => { $crate::stdout::print(format_args!("{}\n", format_args!($($what)*))) };
}

/// Prints, as `print!` does.
macro_rules! out {
    ($($what:tt)*) => { $crate::stdout::print(format_args!($($what)*)) };
}

/// Prints a line on standard error. If that is not possible either, nothing is left to tell it to.
macro_rules! errln {
    () => { $crate::stdout::complain(format_args!("\n")) };
    ($($what:tt)*) => { $crate::stdout::complain(format_args!("{}\n", format_args!($($what)*))) };
}

/// Carries out [`out`] and [`outln`].
pub(crate) fn print(what: fmt::Arguments<'_>) {
    // The error is kept for the end.
    let _ = Out.write_fmt(what);
}

/// Carries out [`errln`].
pub(crate) fn complain(what: fmt::Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(what);
}

/// Standard output as a writer, for bytes and for long output. Its errors are known to [`end`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out;

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        kept(|| io::stdout().lock().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        kept(|| io::stdout().lock().flush())
    }
}

/// Does this unless output was lost before, and keeps the first error.
fn kept<T>(write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if let Some(lost) = LOST.get() {
        return Err(lost.kind().into());
    }
    write().inspect_err(|error| {
        if error.kind() == ErrorKind::Interrupted {
            return;
        }
        let error = match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => error.kind().into(),
        };
        if LOST.set(error).is_ok() && IS_LOG.load(Ordering::Relaxed) {
            tracing::warn!("standard output cannot be written: this role goes on without its lines");
        }
    })
}

/// Whether nothing can be printed any more: a command that prints without end has nothing left to do.
pub(crate) fn is_lost() -> bool {
    LOST.get().is_some()
}

/// What is printed is the log of a role, which works without a reader of it.
pub(crate) fn is_log() {
    IS_LOG.store(true, Ordering::Relaxed);
}

/// The exit code of a command that ends with `code` and has printed all that it has to say. A reader that has closed the pipe has read all
/// that it wanted, as with `| head`. A command that has failed keeps its code.
pub(crate) fn end(code: u8) -> u8 {
    let _ = Out.flush();
    match LOST.get() {
        Some(error) if error.kind() != ErrorKind::BrokenPipe && !IS_LOG.load(Ordering::Relaxed) => {
            errln!("error: the output could not be written: {error}");
            if code == 0 { NOT_PRINTED } else { code }
        }
        _ => code,
    }
}
