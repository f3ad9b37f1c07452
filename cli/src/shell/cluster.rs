//! Commands of the shell on a running cluster, through the client library.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, anyhow};
use fatbtree::Options;
use fatbtree::blocking::Client;

use super::command::{Command, show};
use super::{Database, PAIRS_AT_ONCE, Trouble, without_transactions};
use crate::nic::Nic;

/// A client of the cluster.
pub(super) struct Shell<W> {
    db: Client,
    out: W,
}

impl<W: Write> Shell<W> {
    /// Connects as a client of the cluster file, by default the first one.
    pub(super) fn connect(file: &Path, client: Option<&str>, nic: &Nic, out: W) -> Result<Self> {
        let mut options = Options::new(file);
        if let Some(name) = client {
            options = options.client(name);
        }
        if let Some(device) = nic.device() {
            options = options.rdma_device(device);
        }
        Ok(Self { db: Client::connect(options)?, out })
    }

    pub(super) fn close(self) {
        self.db.close();
    }

    fn scan(&mut self, first: u64, last: u64, limit: u64) -> Result<(), Trouble> {
        if first > last {
            return Err(anyhow!("the first key, {first}, is above the last, {last}").into());
        }
        for pair in self.db.scan(first..=last).take(usize::try_from(limit).unwrap_or(usize::MAX)) {
            let (key, value) = pair?;
            writeln!(self.out, "{key} {}", show(&value))?;
        }
        Ok(())
    }

    fn load(&mut self, count: u64) -> Result<(), Trouble> {
        let mut next = 1;
        while next <= count {
            let last = count.min(next + PAIRS_AT_ONCE as u64 - 1);
            for put in self.db.put_many((next..=last).map(|key| (key, format!("v{key}"))))? {
                put?;
            }
            next = last + 1;
        }
        Ok(writeln!(self.out, "ok")?)
    }
}

impl From<fatbtree::Error> for Trouble {
    fn from(error: fatbtree::Error) -> Self {
        Self::Command(error.into())
    }
}

impl<W: Write> Database for Shell<W> {
    fn out(&mut self) -> &mut impl Write {
        &mut self.out
    }

    fn carry_out(&mut self, command: Command) -> Result<(), Trouble> {
        let db = &self.db;
        let answer = match command {
            Command::Get(key) => match db.get(key)? {
                Some(value) => show(&value),
                None => "not there".to_owned(),
            },
            Command::Put(key, value) => {
                db.put(key, value)?;
                "ok".to_owned()
            }
            Command::Insert(key, value) => of(db.insert(key, value)?, ["inserted", "there already"]),
            Command::Update(key, value) => of(db.update(key, value)?, ["updated", "not there"]),
            Command::CompareAndSet(key, expected, value) => {
                of(db.compare_and_swap(key, expected, value)?, ["set", "not set"])
            }
            Command::Delete(key) => of(db.delete(key)?, ["deleted", "not there"]),
            Command::Scan { first, last, limit, backward: false } => return self.scan(first, last, limit),
            Command::Len => db.scan(..).try_fold(0_u64, |count, pair| pair.map(|_| count + 1))?.to_string(),
            Command::Load(count) => return self.load(count),
            Command::Stats => {
                let stats = db.stats();
                format!(
                    "lookups {}, changes {}, parts of scans {}; failed {}, of unknown result {}; mean time {:?}",
                    stats.reads,
                    stats.changes,
                    stats.scans,
                    stats.failed,
                    stats.unknown,
                    stats.mean_time().unwrap_or_default()
                )
            }
            Command::Scan { backward: true, .. } => {
                return Err(
                    anyhow!("rscan works without --cluster only: clients scan a cluster forward").into()
                );
            }
            Command::Verify => {
                return Err(anyhow!("verify works without --cluster only: it needs a tree at rest").into());
            }
            Command::Begin | Command::Commit | Command::Abort => {
                return Err(without_transactions("tree").into());
            }
            Command::Help | Command::Quit => return Ok(()),
        };
        Ok(writeln!(self.out, "{answer}")?)
    }
}

/// The first answer if the change was carried out, or the second.
fn of(applied: bool, answers: [&str; 2]) -> String {
    answers[usize::from(!applied)].to_owned()
}
