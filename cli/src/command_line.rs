//! `fatbtree completions` and `fatbtree man`: the command line, described for shells and manual pages.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::count;

/// Print a completion script for a shell.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree completions bash > fatbtree.bash      to be sourced, or put into /usr/share/bash-completion/completions/fatbtree
  fatbtree completions zsh > _fatbtree           in a folder of $fpath
  fatbtree completions fish > fatbtree.fish      in ~/.config/fish/completions")]
pub(crate) struct Completions {
    /// Shell.
    shell: Shell,
}

/// Write manual pages, one for each command.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree man pages            writes pages/fatbtree.1, pages/fatbtree-up.1 and so on; `man -l pages/fatbtree.1` shows one")]
pub(crate) struct Man {
    /// Folder; made if it is not there.
    folder: PathBuf,
}

pub(crate) fn completions(Completions { shell }: &Completions) -> Result<()> {
    let mut script = vec![];
    clap_complete::generate(*shell, &mut crate::Arguments::command(), "fatbtree", &mut script);
    out!("{}", String::from_utf8(script).context("a completion script is text")?);
    Ok(())
}

pub(crate) fn man(Man { folder }: &Man) -> Result<()> {
    let writing = || format!("writing manual pages to {}", folder.display());
    std::fs::create_dir_all(folder).with_context(writing)?;
    clap_mangen::generate_to(crate::Arguments::command(), folder).with_context(writing)?;
    let mut command = crate::Arguments::command().disable_help_subcommand(true);
    command.build();
    outln!("{} in {}", count::of(pages(&command), "manual page"), folder.display());
    Ok(())
}

/// Number of pages of a command: one for itself and for each below.
fn pages(command: &clap::Command) -> u64 {
    1 + command.get_subcommands().map(pages).sum::<u64>()
}
