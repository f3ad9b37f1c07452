//! Commands of the shell on a hash table: of a running cluster, or one to be tried in this process.

use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use anyhow::{Result, anyhow};
use fatbtree_blink::Contention;
use fatbtree_memserver::session_keeper::{KeeperOptions, SessionKeeper};
use fatbtree_memserver::{ClientId, MemoryServer, ServerOptions};
use fatbtree_node::{Adapter, ClientOptions, HashProcess};
use fatbtree_race::host::{HashTable, TableInfo};
use fatbtree_race::{Answer, Change, Shape, Table, Verified};
use fatbtree_remote::{RemoteConfig, RemoteMemory};
use fatbtree_topology::Cluster;
use fatbtree_verbs::Access;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration as Span, Instant};

use super::command::{Command, show};
use super::{Database, Trouble};
use crate::nic::Nic;
use crate::structure::{client_of, open_table};

/// Time limit for memory servers to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Memory of each server of a table in this process.
const SPARE: u64 = 1 << 30;

/// Where the table is.
enum Place {
    Cluster(Box<HashProcess>),
    Own(Box<Own>),
}

/// A table and what it takes to print answers.
pub(super) struct Shell<W> {
    place: Place,
    trips: bool,
    out: W,
    operations: u64,
    round_trips: u64,
}

impl<W: Write> Shell<W> {
    /// Connects as a client of the cluster file, by default the first one.
    pub(super) fn connect(
        cluster: &Cluster,
        file: &Path,
        client: Option<&str>,
        nic: &Nic,
        out: W,
    ) -> Result<Self> {
        let described = client_of(cluster, client)?;
        let trust = crate::topology::trust(cluster, file, &described.name)?;
        let process = open_table(nic, cluster, described, |host, nic| ClientOptions {
            host,
            nic,
            servers: cluster.servers().to_vec(),
            lanes: 1,
            controllers: Vec::new(),
            trust: trust.clone(),
            metrics: None,
            patience: PATIENCE,
            contention: Contention::default(),
        })?;
        let place = Place::Cluster(Box::new(process));
        Ok(Self { place, trips: false, out, operations: 0, round_trips: 0 })
    }

    /// A table in this process, with the keys 1 to `keys`.
    pub(super) fn own(servers: u16, keys: u64, trips: bool, out: W) -> Result<Self> {
        let own = Own::new(servers)?;
        let mut shell = Self { place: Place::Own(Box::new(own)), trips, out, operations: 0, round_trips: 0 };
        for key in 1..=keys {
            shell.change(key, Change::Upsert(format!("v{key}").as_bytes()))?.result?;
        }
        Ok(shell)
    }

    pub(super) fn close(self) {
        if let Place::Cluster(process) = self.place {
            process.close();
        }
    }

    fn search(&mut self, key: u64) -> Result<Answer<Option<Vec<u8>>>> {
        let search = async |table: Rc<Table<_>>| table.search(key).await;
        let owned = |answer: Answer<Option<fatbtree_race::Value>>| {
            let Answer { result, round_trips } = answer;
            Answer { result: result.map(|value| value.map(|value| value.to_vec())), round_trips }
        };
        Ok(owned(match &mut self.place {
            Place::Cluster(process) => on_cluster(process, search)?,
            Place::Own(own) => own.run(async |table| table.search(key).await),
        }))
    }

    fn change(&mut self, key: u64, change: Change<'_>) -> Result<Answer<bool>> {
        Ok(match &mut self.place {
            Place::Cluster(process) => {
                on_cluster(process, async |table: Rc<Table<_>>| table.change(key, change).await)?
            }
            Place::Own(own) => own.run(async |table| table.change(key, change).await),
        })
    }

    fn verify(&mut self) -> Result<Verified> {
        match &mut self.place {
            Place::Cluster(_) => {
                Err(anyhow!("verify works without --cluster only: it needs a table at rest"))
            }
            Place::Own(own) => Ok(own.run(async |table| table.verify().await)?),
        }
    }

    /// Writes an answer and what it has cost.
    fn answer(&mut self, answer: &str, round_trips: u32) -> Result<(), Trouble> {
        writeln!(self.out, "{answer}")?;
        self.operations += 1;
        self.round_trips += u64::from(round_trips);
        if self.trips {
            let s = if round_trips == 1 { "" } else { "s" };
            writeln!(self.out, "({round_trips} round trip{s})")?;
        }
        Ok(())
    }

    fn mutate(&mut self, key: u64, change: Change<'_>, answers: [&str; 2]) -> Result<(), Trouble> {
        let Answer { result, round_trips } = self.change(key, change)?;
        let applied = result.map_err(anyhow::Error::from)?;
        self.answer(answers[usize::from(!applied)], round_trips)
    }
}

/// Does something with the table of a cluster. The table is opened again where a server has begun anew.
fn on_cluster<T>(process: &mut HashProcess, work: impl AsyncFnOnce(Rc<Table<Adapter>>) -> T) -> Result<T> {
    let client = process.client().clone();
    let done = process.run(async move {
        let table = client.table().await?;
        Ok::<_, fatbtree_race::TableError>(work(table).await)
    })?;
    Ok(done?)
}

impl<W: Write> Database for Shell<W> {
    fn out(&mut self) -> &mut impl Write {
        &mut self.out
    }

    fn carry_out(&mut self, command: Command) -> Result<(), Trouble> {
        match command {
            Command::Get(key) => {
                let Answer { result, round_trips } = self.search(key)?;
                let answer = match result.map_err(anyhow::Error::from)? {
                    Some(value) => show(&value),
                    None => "not there".to_owned(),
                };
                self.answer(&answer, round_trips)
            }
            Command::Put(key, value) => self.mutate(key, Change::Upsert(&value), ["ok", "ok"]),
            Command::Insert(key, value) => {
                self.mutate(key, Change::Insert(&value), ["inserted", "there already"])
            }
            Command::Update(key, value) => self.mutate(key, Change::Update(&value), ["updated", "not there"]),
            Command::Delete(key) => self.mutate(key, Change::Delete, ["deleted", "not there"]),
            Command::Load(count) => {
                let mut all = 0;
                for key in 1..=count {
                    let Answer { result, round_trips } =
                        self.change(key, Change::Upsert(format!("v{key}").as_bytes()))?;
                    result.map_err(anyhow::Error::from)?;
                    all += round_trips;
                }
                self.answer("ok", all)
            }
            Command::Verify => {
                let found = self.verify()?;
                let Verified { keys, subtables, former, depth, block_bytes, .. } = found;
                Ok(writeln!(
                    self.out,
                    "whole: {keys} keys in {subtables} subtables, {former} former ones; directory of depth {depth}; {block_bytes} bytes of blocks"
                )?)
            }
            Command::Stats => Ok(writeln!(
                self.out,
                "gets, changes and loads: {}; round trips one after another: {}",
                self.operations, self.round_trips
            )?),
            Command::Scan { .. } | Command::Len => {
                Err(anyhow!("a hash table has no order of keys: scan, rscan and len are for trees").into())
            }
            Command::CompareAndSet(..) => {
                Err(anyhow!("cas is for trees; a hash table has get and update").into())
            }
            Command::Help | Command::Quit => Ok(()),
        }
    }
}

/// A table in this process: memory servers and a client, and no network between them.
struct Own {
    servers: Vec<MemoryServer<PlainDevice, HashTable>>,
    memory: Rc<RemoteMemory<PlainDevice>>,
    keeper: SessionKeeper<TableInfo>,
    table: Option<Rc<Table<PlainDevice>>>,
    now: Instant,
}

impl Own {
    fn new(count: u16) -> Result<Self> {
        let network = PlainNetwork::new();
        let numbers = 0..count.min(fatbtree_race::MAX_SERVERS);
        let shape =
            Shape { servers: numbers.clone().fold(0, |all, number| all | 1 << number), ..Shape::default() };
        // Sessions in one process do not end before it does.
        let lease = Span::from_secs(1 << 33);
        let options = ServerOptions { access: Access::ALL, lease, ..ServerOptions::writable() };
        let servers = numbers.clone().map(|number| {
            let part = HashTable::make(number, shape, SPARE)?;
            Ok(MemoryServer::new(network.device(), part, &options, 1)?)
        });
        let servers = servers.collect::<Result<Vec<_>>>()?;
        let memory = Rc::new(RemoteMemory::new(network.device(), numbers, RemoteConfig::default(), 1)?);
        let keeper = SessionKeeper::new(memory.connections(), KeeperOptions::default());
        let mut own = Self { servers, memory, keeper, table: None, now: Instant::ZERO };
        let memory = Rc::clone(&own.memory);
        own.table = Some(Rc::new(own.drive(Table::open(memory, 0))?));
        Ok(own)
    }

    fn run<T>(&mut self, work: impl AsyncFnOnce(Rc<Table<PlainDevice>>) -> T) -> T {
        let table = Rc::clone(self.table.as_ref().expect("it was opened at the start"));
        self.drive(work(table))
    }

    /// Runs a future of the client's to its end.
    fn drive<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            self.memory.turn(self.now);
            while let Some((id, call)) = self.keeper.poll_call(self.now, &*self.memory) {
                // The network numbers its devices in the order in which they were made.
                let roce = Ipv4Addr::from_bits(self.servers.len() as u32);
                let client = ClientId { host: [127, 0, 0, 1].into(), roce };
                let server = &mut self.servers[usize::from(id.server())];
                let answer = server.carry_out(self.now, client, call);
                self.keeper.handle_answer(self.now, &*self.memory, id, answer);
            }
            if let Poll::Ready(done) = future.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
                return done;
            }
            // Nothing here takes time; it lets paused operations go on.
            self.now += Span::from_micros(1);
        }
    }
}
