//! `fatbtree`: one binary, a subcommand per role.
//!
//! ```text
//!   fatbtree demo        the whole path in one process, measured
//!   fatbtree shell       a tree to try by hand
//!   fatbtree controller  the controller of a cluster
//!   fatbtree control     asks the controller, and tells it what to do
//!   fatbtree plan        look at saved plans, and compare them
//!   fatbtree topology    show, draw and check networks and cluster files
//!   fatbtree up          all roles of a cluster file, on this machine
//!   fatbtree switch      the software switch, programmed over P4Runtime
//!   fatbtree memserver   a memory server
//!   fatbtree load        fill the memory servers of a cluster
//!   fatbtree get, put, delete, scan   single operations on a running cluster
//!   fatbtree bench       a client, measured
//!   fatbtree simulate    the whole path under virtual time, with faults and a seed
//!   fatbtree figures     Sherman's figures in virtual time
//!   fatbtree completions, man   the command line, for shells and manual pages
//! ```

#![deny(clippy::print_stdout, clippy::print_stderr)] // these panic when a disk is full: see `stdout`

#[macro_use]
mod stdout;

mod bench;
mod command_line;
mod control;
mod controller;
mod count;
mod demo;
mod figures;
mod in_process;
mod interrupted;
mod key_shape;
mod keys;
mod layout;
mod load;
mod log;
mod memserver;
mod nic;
mod output;
mod plan;
mod progress;
mod records;
mod role;
mod room;
mod shell;
mod simulate;
mod structure;
mod switch;
mod topology;
mod trace;
mod up;
mod workload;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Fast indexes on disaggregated memory, with the network doing the walking.
#[derive(Parser)]
#[command(name = "fatbtree", version, propagate_version = true, arg_required_else_help = true, after_help = AFTER_HELP)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
    #[command(flatten)]
    log: log::Verbosity,
}

const AFTER_HELP: &str = "Exit codes:
  0    done; a role that runs until it is told to stop (switch, memserver, controller, up) was told so
  1    refused or failed, or an answer was wrong
  2    the command line cannot be read
  3, 4 of get, put, delete and scan only: their --help explains
  5    done, but the output could not be written: the disk is full (a reader that closes the pipe is no error)
  130  interrupted by Ctrl-C or SIGTERM before the work was done; the message says how far it came";

#[derive(Subcommand)]
enum Role {
    Demo(demo::Arguments),
    Shell(shell::Arguments),
    Controller(controller::Arguments),
    Control(control::Arguments),
    Plan(plan::Arguments),
    Topology(topology::Arguments),
    Up(up::Arguments),
    Switch(switch::Arguments),
    Memserver(memserver::Arguments),
    Load(load::Arguments),
    Get(keys::Get),
    Put(keys::Put),
    Delete(keys::Delete),
    Scan(keys::Scan),
    Bench(bench::Arguments),
    Merge(bench::merge::Arguments),
    Trace(trace::Arguments),
    Simulate(simulate::Arguments),
    Figures(figures::Arguments),
    Completions(command_line::Completions),
    Man(command_line::Man),
}

fn main() -> ExitCode {
    let Arguments { role, log } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return ExitCode::from(not_run(&error)),
    };
    let done = log.begin().and_then(|()| run(role));
    let code = done.unwrap_or_else(|error| {
        errln!("error: {}", describe(&error));
        interrupted::exit_code(&error)
    });
    ExitCode::from(stdout::end(code))
}

/// Prints what was asked for instead of a command (help, version), or what is wrong with the command line. Returns the exit code.
fn not_run(error: &clap::Error) -> u8 {
    if error.use_stderr() {
        // If that is not possible either, the exit code tells it.
        let _ = error.print();
        return 2;
    }
    let text = error.render();
    match std::io::stdout().is_terminal() {
        true => out!("{}", text.ansi()),
        false => out!("{text}"),
    }
    stdout::end(0)
}

/// Runs a command. Returns its exit code.
fn run(role: Role) -> anyhow::Result<u8> {
    match role {
        Role::Get(arguments) => return Ok(keys::get(&arguments)),
        Role::Put(arguments) => return Ok(keys::put(&arguments)),
        Role::Delete(arguments) => return Ok(keys::delete(&arguments)),
        Role::Scan(arguments) => return Ok(keys::scan(&arguments)),
        Role::Demo(arguments) => demo::run(&arguments),
        Role::Shell(arguments) => shell::run(&arguments),
        Role::Controller(arguments) => controller::run(&arguments),
        Role::Control(arguments) => control::run(&arguments),
        Role::Plan(arguments) => plan::run(&arguments),
        Role::Topology(arguments) => topology::run(&arguments),
        Role::Up(arguments) => up::run(&arguments),
        Role::Memserver(arguments) => memserver::run(&arguments),
        Role::Load(arguments) => load::run(&arguments),
        Role::Bench(arguments) => bench::run(&arguments),
        Role::Merge(arguments) => bench::merge::run(&arguments),
        Role::Trace(arguments) => trace::run(&arguments),
        Role::Switch(arguments) => switch::run(&arguments),
        Role::Simulate(arguments) => simulate::run(&arguments),
        Role::Figures(arguments) => figures::run(&arguments),
        Role::Completions(arguments) => command_line::completions(&arguments),
        Role::Man(arguments) => command_line::man(&arguments),
    }?;
    Ok(0)
}

/// An error and its causes, each once: some say themselves what caused them.
fn describe(error: &anyhow::Error) -> String {
    let mut text = String::new();
    // A gRPC status prints its metadata as well; what the peer said is enough.
    let status = |cause: &(dyn std::error::Error + 'static)| {
        let boxed = cause.downcast_ref::<Box<tonic::Status>>().map(|status| status.message().to_owned());
        boxed.or_else(|| Some(cause.downcast_ref::<tonic::Status>()?.message().to_owned()))
    };
    let said = |cause: &(dyn std::error::Error + 'static)| status(cause).unwrap_or_else(|| cause.to_string());
    for cause in error.chain().map(said) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    match advice(&text) {
        // What the library suspects is not the cause.
        Some(advice) => {
            let suspected = [": is it running?", ": it hangs, or was stopped"];
            let text = suspected.iter().fold(text, |text, words| text.replace(words, ""));
            format!("{text}; {advice}")
        }
        None => text,
    }
}

/// What to do about a channel that is not trusted. Libraries of TLS and HTTP say what they have met, and not what it comes from.
fn advice(text: &str) -> Option<&'static str> {
    if text.contains("invalid peer certificate") {
        return Some(
            "its certificate is of another authority than those of this cluster file: use the folder that [trust] names where the server runs",
        );
    }
    let is_plain = [
        "frame with invalid size",
        "stream closed because of a broken pipe",
        "Connection reset",
        "connection closed",
    ];
    is_plain.iter().any(|words| text.contains(words)).then_some(
        "if it runs, it wants certificates: use the cluster file with [trust], and the folder that it names, of the server's machine",
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Command, CommandFactory as _};

    use super::{Arguments, describe};

    fn options(command: &Command) -> BTreeSet<String> {
        let own = command.get_arguments().filter_map(|argument| argument.get_long().map(str::to_owned));
        own.chain(command.get_subcommands().flat_map(options)).collect()
    }

    fn help(command: &mut Command) -> String {
        let mut text = command.render_long_help().to_string();
        command.get_subcommands_mut().for_each(|command| text += &help(command));
        text
    }

    /// A help text names options of its own subcommand, and of those that it names as `fatbtree NAME`.
    #[test]
    fn help_names_only_options_that_exist() {
        let mut all = Arguments::command();
        all.build();
        let known: Vec<(String, BTreeSet<String>)> =
            all.get_subcommands().map(|command| (command.get_name().to_owned(), options(command))).collect();
        for command in all.get_subcommands_mut() {
            let (name, text) = (command.get_name().to_owned(), help(command));
            let is_named = |other: &str| other == name || text.contains(&format!("fatbtree {other}"));
            let may: BTreeSet<&String> =
                known.iter().filter(|(other, _)| is_named(other)).flat_map(|(_, options)| options).collect();
            let parts = text.split("--").skip(1);
            let words = parts.map(|part| part.split(|c: char| !c.is_ascii_lowercase() && c != '-').next());
            for word in words.flatten().map(|word| word.trim_end_matches('-')).filter(|word| !word.is_empty())
            {
                assert!(may.contains(&word.to_owned()), "`fatbtree {name} --help` names --{word}");
            }
        }
    }

    #[test]
    fn a_cause_is_told_once() {
        let cause = || std::io::Error::other("no such thing");
        let told = anyhow::Error::new(cause()).context("reading it: no such thing");
        assert_eq!(describe(&told), "reading it: no such thing");
        assert_eq!(describe(&anyhow::Error::new(cause()).context("reading it")), "reading it: no such thing");
        let status = anyhow::Error::new(tonic::Status::unavailable("it stops"));
        assert_eq!(describe(&status.context("asking it")), "asking it: it stops");
        let foreign = std::io::Error::other("invalid peer certificate: BadSignature");
        assert!(describe(&anyhow::Error::new(foreign)).contains("another authority"));
    }
}
