//! `fatbtree control`: asks a cluster's controller, and tells it what to do.

mod print;
mod wait;
mod watch;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use fatbtree_controller::grpc::Controllers;
use fatbtree_controller::operator::{
    Counters, Difference, Drops, Explanation, Planned, Question, Reloaded, SavedPlan, Status, Synced,
};
use fatbtree_processes::LivePage;
use fatbtree_trust::{CONTROLLER, OPERATOR};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;

use crate::count::{AskedKey, key};
use crate::output::Output;

/// Ask a cluster's controller, and tell it what to do.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree control status --cluster cluster.toml            every role and its state, and how full switches are
  fatbtree control status --cluster cluster.toml --watch    the same, again and again, with hit rates
  fatbtree control wait-ready --cluster cluster.toml        until every role is settled and no cable is down
  fatbtree control plan --cluster cluster.toml --save p.json   what a plan made now would hold; keeps it
  fatbtree control diff --cluster cluster.toml              what it would change
  fatbtree control reload --cluster cluster.toml            plan anew, and load it: lookups go on throughout
  fatbtree control reload --cluster cluster.toml --plan p.json   load a plan that was kept
  fatbtree control rollback --cluster cluster.toml          back to the plan before
  fatbtree control show --cluster cluster.toml              the active plan
  fatbtree control explain 4711 --cluster cluster.toml      where an index read for a key ends, and why there
  fatbtree control counters --cluster cluster.toml          where index reads have stopped
  fatbtree control drops --cluster cluster.toml             what switches have dropped, and why; some of the packets
  fatbtree control page --cluster cluster.toml              a live page of all that at http://127.0.0.1:8088
  fatbtree control sync --cluster cluster.toml              read all switches back, and mend what is wrong

`plan`, `diff`, `reload` and `rollback` wait while the controller makes or loads another plan; --no-wait fails instead.

Exit code 1: the controller refuses, or does not answer; with `sync`, a switch that could not be read.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show every role with its state, and every switch with epoch, entries, program, and the shares in use of its
    /// fullest tables in TCAM and SRAM.
    ///
    /// `--json` tells of each table how many entries it has, and for how many it has room; of ranges in a Tofino, TCAM rows as well.
    Status {
        /// Show it again and again until Ctrl-C, with hit rates of the last second.
        #[arg(long, conflicts_with = "json")]
        watch: bool,
        #[command(flatten)]
        asked: Asked,
    },
    /// Wait until the cluster is whole: every switch and memory server is settled, no switch or cable is down, and no reload is under way.
    ///
    /// Exit code 1 after the patience, with what is missing. `--json` prints the status then, as `status` does.
    WaitReady {
        #[command(flatten)]
        asked: Asked,
    },
    /// Plan by what is known now, and check it against the switches' budget; nothing is loaded.
    Plan {
        /// Keep the plan in a file.
        #[arg(long, value_name = "FILE")]
        save: Option<PathBuf>,
        #[command(flatten)]
        turn: Turn,
        #[command(flatten)]
        asked: Asked,
    },
    /// Plan anew and load the plan, under traffic.
    Reload {
        /// A plan that `plan --save` or `show --save` has kept, instead of a new one.
        #[arg(long, value_name = "FILE")]
        plan: Option<PathBuf>,
        #[command(flatten)]
        turn: Turn,
        #[command(flatten)]
        asked: Asked,
    },
    /// Show the active plan.
    Show {
        /// Keep the plan in a file.
        #[arg(long, value_name = "FILE")]
        save: Option<PathBuf>,
        #[command(flatten)]
        asked: Asked,
    },
    /// Show what a plan made now would change in each switch.
    Diff {
        #[command(flatten)]
        turn: Turn,
        #[command(flatten)]
        asked: Asked,
    },
    /// Show where an index read for a key ends, switch by switch, and why there.
    Explain {
        /// The key, decimal or 0x-hexadecimal.
        #[arg(value_parser = key)]
        key: AskedKey,
        #[command(flatten)]
        asked: Asked,
    },
    /// Show what the switches have counted since the plan was loaded.
    Counters {
        #[command(flatten)]
        asked: Asked,
    },
    /// Show what the switches have dropped, by reason, and some of the packets.
    Drops {
        #[command(flatten)]
        asked: Asked,
    },
    /// Load the plan that was active before. Once more: the plan that this one has replaced.
    Rollback {
        #[command(flatten)]
        turn: Turn,
        #[command(flatten)]
        asked: Asked,
    },
    /// Serve a live page of the cluster for browsers, until Ctrl-C.
    Page {
        /// Address at which browsers find the page.
        #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8088")]
        listen: String,
        /// Cluster file (TOML): where the controller is.
        #[arg(long, value_name = "FILE")]
        cluster: PathBuf,
    },
    /// Read all switches back, and make them hold what they should.
    Sync {
        #[command(flatten)]
        asked: Asked,
    },
}

/// What to do while the controller is busy.
#[derive(Args)]
struct Turn {
    /// Fail while the controller makes or loads another plan, instead of waiting for it.
    #[arg(long)]
    no_wait: bool,
}

/// Controller to ask, and form of the answer.
#[derive(Args)]
struct Asked {
    /// Cluster file (TOML): where the controller is.
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// Tell the answer as JSON.
    #[arg(long)]
    json: bool,
    /// Seconds to wait for the answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
}

/// Time between two questions to a controller that is busy.
const BUSY: Duration = Duration::from_millis(100);

/// Time limit for reaching the controller.
const CONNECT: Duration = Duration::from_secs(5);

impl Asked {
    fn controllers(&self) -> Result<Controllers> {
        let cluster = crate::topology::load(&self.cluster)?;
        if cluster.controllers().is_empty() {
            bail!("{} has no [controller]: add its gRPC address", self.cluster.display());
        }
        let trust = crate::topology::trust(&cluster, &self.cluster, OPERATOR)?;
        Ok(Controllers::new(cluster.controllers().iter().map(|address| trust.to(address, CONTROLLER))))
    }

    async fn ask<T: DeserializeOwned>(&self, question: Question) -> Result<T> {
        let patience = Duration::from_secs(self.patience);
        Ok(self.controllers()?.ask(&question, CONNECT, patience).await?)
    }

    /// Asks for something that the controller does one at a time: it plans by itself, too. Waits while it is busy, as long as patience lasts.
    async fn ask_in_turn<T: DeserializeOwned>(&self, question: Question, no_wait: bool) -> Result<T> {
        let (began, patience) = (Instant::now(), Duration::from_secs(self.patience));
        let controllers = self.controllers()?;
        loop {
            let left = patience.saturating_sub(began.elapsed());
            match controllers.ask(&question, CONNECT, left).await {
                Err(error) if error.is_busy() && !no_wait && left > BUSY => tokio::time::sleep(BUSY).await,
                answer => return Ok(answer?),
            }
        }
    }

    /// Prints an answer, as JSON or for people.
    fn tell<T: Serialize>(&self, answer: &T, print: impl FnOnce(&T)) -> Result<()> {
        if self.json {
            outln!("{}", serde_json::to_string_pretty(answer)?);
        } else {
            print(answer);
        }
        Ok(())
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(ask(&arguments.command))
}

async fn ask(command: &Command) -> Result<()> {
    match command {
        Command::Status { watch: true, asked } => watch::watch(asked).await,
        Command::Status { asked, .. } => {
            let status: Status = asked.ask(Question::Status).await?;
            asked.tell(&status, print::status)
        }
        Command::WaitReady { asked } => wait::wait_ready(asked).await,
        Command::Plan { save, turn, asked } => {
            let file = Output::optional("--save", save.as_ref())?;
            let planned: Planned = asked.ask_in_turn(Question::Plan, turn.no_wait).await?;
            let saved = file.map(|file| file.write("plan", &serde_json::to_string(&planned.saved)?));
            saved.transpose()?;
            asked.tell(&planned, print::planned)
        }
        Command::Reload { plan, turn, asked } => {
            let plan = plan.as_ref().map(|file| {
                let text =
                    std::fs::read_to_string(file).with_context(|| format!("--plan {}", file.display()))?;
                serde_json::from_str::<SavedPlan>(&text).with_context(|| {
                    format!("--plan {} is none that `control plan --save` has kept", file.display())
                })
            });
            let question = Question::Reload { plan: plan.transpose()? };
            let reloaded: Reloaded = asked.ask_in_turn(question, turn.no_wait).await?;
            asked.tell(&reloaded, print::reloaded)
        }
        Command::Show { save, asked } => {
            let file = Output::optional("--save", save.as_ref())?;
            let saved: SavedPlan = asked.ask(Question::Show).await?;
            file.map(|file| file.write("plan", &serde_json::to_string(&saved)?)).transpose()?;
            let plan = fatbtree_controller::Plan::from_json(&saved.plan.to_string())?;
            asked.tell(&saved, |_| out!("{}", plan.print()))
        }
        Command::Diff { turn, asked } => {
            let difference: Difference = asked.ask_in_turn(Question::Diff, turn.no_wait).await?;
            asked.tell(&difference, print::difference)
        }
        Command::Explain { key, asked } => {
            let explanation: Explanation = asked.ask(Question::Explain { key: key.key }).await?;
            asked.tell(&explanation, |explanation| print::explanation(*key, explanation))
        }
        Command::Counters { asked } => {
            let counters: Counters = asked.ask(Question::Counters).await?;
            asked.tell(&counters, print::counters)
        }
        Command::Drops { asked } => {
            let drops: Drops = asked.ask(Question::Drops).await?;
            asked.tell(&drops, print::drops)
        }
        Command::Rollback { turn, asked } => {
            let reloaded: Reloaded = asked.ask_in_turn(Question::Rollback, turn.no_wait).await?;
            asked.tell(&reloaded, |reloaded| {
                print::reloaded(reloaded);
                outln!("this is the plan that was active before; `rollback` again loads the one that it has replaced");
            })
        }
        Command::Page { listen, cluster } => page(listen, cluster).await,
        Command::Sync { asked } => {
            let synced: Synced = asked.ask(Question::Sync).await?;
            asked.tell(&synced, |synced| {
                outln!("{} switches hold what they should, {} entries mended", synced.settled, synced.mended);
            })?;
            match synced.others.first() {
                None => Ok(()),
                Some((name, reason)) => {
                    bail!("{} switches could not be read; the first, {name}: {reason}", synced.others.len())
                }
            }
        }
    }
}

/// Serves the live page until Ctrl-C or SIGTERM.
async fn page(listen: &str, file: &Path) -> Result<()> {
    let cluster = crate::topology::load(file)?;
    let trust = crate::topology::trust(&cluster, file, OPERATOR)?;
    let page = LivePage::new(&cluster, &trust);
    let listener =
        TcpListener::bind(listen).await.with_context(|| format!("--listen {listen}: listening there"))?;
    // Before the line that a reader may answer by Ctrl-C.
    let stopped = fatbtree_processes::stop_signal()?;
    outln!("page at http://{}; Ctrl-C stops it", listener.local_addr()?);
    tokio::select! {
        () = stopped => {}
        () = page.serve(listener) => {}
    }
    Ok(())
}
