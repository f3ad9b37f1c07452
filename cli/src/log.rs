//! Log lines on standard error.

use std::io::IsTerminal as _;

use anyhow::{Result, anyhow};
use clap::Args;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Verbosity of the log.
#[derive(Args)]
pub(crate) struct Verbosity {
    /// Log more on standard error: -v what happens, -vv details, -vvv everything. The environment variable RUST_LOG, such as
    /// `RUST_LOG=info,fatbtree_processes=debug`, chooses by module, and goes before -v.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
}

impl Verbosity {
    /// Sends log lines to standard error from now on, in colour if that is a terminal and `NO_COLOR` is not set.
    ///
    /// # Errors
    /// When `RUST_LOG` cannot be read.
    pub(crate) fn begin(&self) -> Result<()> {
        let wanted = std::env::var("RUST_LOG").ok().filter(|wanted| !wanted.trim().is_empty());
        let filter = filter(wanted.as_deref(), self.verbose)?;
        let is_off = std::env::var_os("NO_COLOR").is_some_and(|off| !off.is_empty());
        let colours = std::io::stderr().is_terminal() && !is_off;
        let lines = tracing_subscriber::fmt::layer().with_ansi(colours).with_writer(std::io::stderr);
        tracing_subscriber::registry().with(lines).with(filter).init();
        Ok(())
    }
}

/// The time, as log lines have it: RFC 3339 in UTC, with microseconds.
pub(crate) fn now() -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

fn filter(wanted: Option<&str>, verbose: u8) -> Result<Targets> {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let Some(wanted) = wanted else { return Ok(Targets::new().with_default(level)) };
    wanted.parse().map_err(|error| {
        anyhow!(
            "RUST_LOG={wanted}: expected a level (error, warn, info, debug, trace, off), or modules with levels such as \
             info,fatbtree_processes=debug: {error}"
        )
    })
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn the_environment_goes_before_the_command_line() {
        let says = |wanted, verbose, target, level| {
            filter(wanted, verbose).expect("it can be read").would_enable(target, &level)
        };
        assert!(says(None, 0, "fatbtree", Level::WARN) && !says(None, 0, "fatbtree", Level::INFO));
        assert!(says(None, 1, "fatbtree", Level::INFO) && !says(None, 1, "fatbtree", Level::DEBUG));
        assert!(says(None, 9, "fatbtree", Level::TRACE));
        let by_module = Some("error,fatbtree_processes=debug");
        assert!(says(by_module, 3, "fatbtree_processes::client", Level::DEBUG));
        assert!(!says(by_module, 3, "fatbtree_port", Level::WARN));
        let error = filter(Some("fatbtree=loud"), 0).expect_err("no level").to_string();
        assert!(error.contains("RUST_LOG=fatbtree=loud: expected a level"), "{error}");
    }
}
