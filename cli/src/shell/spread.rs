//! Commands of the shell on a structure over all memory servers: of a running cluster, or one to be tried in this process.

use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use fatbtree_blink::Contention;
use fatbtree_memserver::{Part, PartOptions, make};
use fatbtree_processes::{ClientOptions, Spread, SpreadProcess};
use fatbtree_remote_memory::{Answer, Change, KeyRange, KeyValue, Portion};
use fatbtree_topology::Cluster;
use fatbtree_verbs::plain::PlainDevice;

use super::command::{Command, show};
use super::{Database, PAIRS_AT_ONCE, Trouble};
use crate::in_process::InProcess;
use crate::nic::Nic;
use crate::structure::{client_of, open_spread};

/// Time limit for memory servers to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Memory of each server of a structure in this process.
const SPARE: u64 = 1 << 30;
/// Servers of a structure in this process, at most.
const MAX_SERVERS: u16 = 32;

/// Keys with their values.
type Pairs = Vec<(u64, Vec<u8>)>;

/// Where a structure is.
pub(super) trait Place {
    /// The structure.
    type Structure: KeyValue;

    /// Why a walk over the structure would tell nothing, if it would not.
    const UNVERIFIED: Option<&'static str>;

    /// Does something with the structure.
    fn with<T>(&mut self, work: impl AsyncFnOnce(Rc<Self::Structure>) -> T) -> Result<T>;
}

impl<S: Spread> Place for SpreadProcess<S> {
    type Structure = S;

    const UNVERIFIED: Option<&'static str> =
        Some("verify works without --cluster only: it needs a structure at rest");

    /// The structure is opened again where a server has begun anew.
    fn with<T>(&mut self, work: impl AsyncFnOnce(Rc<S>) -> T) -> Result<T> {
        let client = self.client().clone();
        let done = self.run(async move { Ok::<_, S::Error>(work(client.structure().await?).await) })?;
        Ok(done?)
    }
}

/// Connects as a client of the cluster file, by default the first one.
pub(super) fn connect<S: Spread>(
    cluster: &Cluster,
    file: &Path,
    client: Option<&str>,
    nic: &Nic,
) -> Result<SpreadProcess<S>> {
    let described = client_of(cluster, client)?;
    let trust = crate::topology::trust(cluster, file, &described.name)?;
    let options = |host, nic| ClientOptions {
        host,
        nic,
        servers: cluster.servers().to_vec(),
        lanes: 1,
        controllers: Vec::new(),
        trust: trust.clone(),
        metrics: None,
        patience: PATIENCE,
        contention: Contention::default(),
    };
    let open = |host, nic| SpreadProcess::open_without_absent(&options(host, nic));
    open_spread(nic, cluster, described, PATIENCE, open)
}

/// A structure and what it takes to print answers.
pub(super) struct Shell<P, W> {
    place: P,
    trips: bool,
    out: W,
    operations: u64,
    round_trips: u64,
}

impl<P: Place, W: Write> Shell<P, W> {
    pub(super) fn new(place: P, trips: bool, out: W) -> Self {
        Self { place, trips, out, operations: 0, round_trips: 0 }
    }

    pub(super) fn into_place(self) -> P {
        self.place
    }

    /// Puts the keys 1 to `count`. Returns the round trips.
    pub(super) fn load(&mut self, count: u64) -> Result<u32> {
        let mut all = 0;
        for key in 1..=count {
            let Answer { result, round_trips } =
                self.change(key, Change::Upsert(format!("v{key}").as_bytes()))?;
            result?;
            all += round_trips;
        }
        Ok(all)
    }

    fn change(
        &mut self,
        key: u64,
        change: Change<'_>,
    ) -> Result<Answer<bool, <P::Structure as KeyValue>::Error>> {
        self.place.with(async |structure| structure.change(key, change).await)
    }

    /// Writes an answer and what it has cost.
    fn answer(&mut self, answer: &str, round_trips: u32) -> Result<(), Trouble> {
        writeln!(self.out, "{answer}")?;
        self.cost(round_trips)
    }

    fn cost(&mut self, round_trips: u32) -> Result<(), Trouble> {
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

    /// Reads the next pairs of a range, and what that took.
    fn pairs(&mut self, range: KeyRange, most: usize) -> Result<(Pairs, u32)> {
        let scanned = self.place.with(async |structure| match structure.scan(range, most) {
            Some(scan) => {
                let Answer { result, round_trips } = scan.await;
                let owned = |(key, value): (u64, <P::Structure as KeyValue>::Value)| (key, value.to_vec());
                Some((result.map(|pairs| pairs.into_iter().map(owned).collect()), round_trips))
            }
            None => None,
        })?;
        let (pairs, round_trips) = scanned
            .context("a hash table has no order of keys: `fatbtree scan` without a range prints all pairs")?;
        Ok((pairs?, round_trips))
    }

    /// Counts all pairs. Returns their number, and the round trips.
    fn count(&mut self) -> Result<(u64, u32)> {
        let (mut next, mut found, mut all) = (Some(Default::default()), 0, 0);
        while let Some(cursor) = next {
            let export = async |structure: Rc<P::Structure>| structure.export(cursor, PAIRS_AT_ONCE).await;
            let Answer { result, round_trips } = self.place.with(export)?;
            let Portion { pairs, rest } = result?;
            (next, found, all) = (rest, found + pairs.len() as u64, all + round_trips);
        }
        Ok((found, all))
    }

    /// Scans forward, some pairs at a time: a long scan is printed as it goes. Returns the number of pairs, and the round trips.
    fn scan(
        &mut self,
        (first, last): (u64, u64),
        limit: u64,
        mut show: impl FnMut(&mut W, u64, &[u8]) -> std::io::Result<()>,
    ) -> Result<(u64, u32), Trouble> {
        let (mut next, mut found, mut all) = (first, 0, 0);
        while found < limit {
            let most = (limit - found).min(PAIRS_AT_ONCE as u64);
            let (pairs, round_trips) = self.pairs(KeyRange::of(next..=last), most as usize)?;
            all += round_trips;
            found += pairs.len() as u64;
            for (key, value) in &pairs {
                show(&mut self.out, *key, value)?;
            }
            match pairs.last() {
                Some((key, _)) if *key < last && pairs.len() as u64 == most => next = key + 1,
                _ => break,
            }
        }
        Ok((found, all))
    }
}

impl<P: Place, W: Write> Database for Shell<P, W> {
    fn out(&mut self) -> &mut impl Write {
        &mut self.out
    }

    fn carry_out(&mut self, command: Command) -> Result<(), Trouble> {
        match command {
            Command::Get(key) => {
                let get = async |structure: Rc<P::Structure>| {
                    let Answer { result, round_trips } = structure.get(key).await;
                    Answer { result: result.map(|value| value.map(|value| show(&value))), round_trips }
                };
                let Answer { result, round_trips } = self.place.with(get)?;
                let answer = result.map_err(anyhow::Error::from)?;
                self.answer(answer.as_deref().unwrap_or("not there"), round_trips)
            }
            Command::Put(key, value) => self.mutate(key, Change::Upsert(&value), ["ok", "ok"]),
            Command::Insert(key, value) => {
                self.mutate(key, Change::Insert(&value), ["inserted", "there already"])
            }
            Command::Update(key, value) => self.mutate(key, Change::Update(&value), ["updated", "not there"]),
            Command::Delete(key) => self.mutate(key, Change::Delete, ["deleted", "not there"]),
            Command::Load(count) => {
                let round_trips = self.load(count)?;
                self.answer("ok", round_trips)
            }
            Command::Verify => {
                if let Some(why) = P::UNVERIFIED {
                    return Err(anyhow!(why).into());
                }
                let found = self.place.with(async |structure| structure.verify().await)?;
                Ok(writeln!(self.out, "{}", found.map_err(anyhow::Error::from)?)?)
            }
            Command::Stats => Ok(writeln!(
                self.out,
                "gets, changes and loads: {}; round trips one after another: {}",
                self.operations, self.round_trips
            )?),
            Command::Scan { backward: true, .. } => {
                Err(anyhow!("rscan is for trees; other structures scan forward").into())
            }
            Command::Scan { first, last, .. } if first > last => {
                Err(anyhow!("the first key, {first}, is above the last, {last}").into())
            }
            Command::Scan { first, last, limit, .. } => {
                let print = |out: &mut W, key: u64, value: &[u8]| writeln!(out, "{key} {}", show(value));
                let (_, round_trips) = self.scan((first, last), limit, print)?;
                self.cost(round_trips)
            }
            Command::Len => {
                let (count, round_trips) = self.count()?;
                self.answer(&count.to_string(), round_trips)
            }
            Command::CompareAndSet(..) => {
                Err(anyhow!("cas is for trees; other structures have get and update").into())
            }
            Command::Help | Command::Quit => Ok(()),
        }
    }
}

impl<S: KeyValue<Verbs = PlainDevice>, P: Part> Place for InProcess<S, P> {
    type Structure = S;

    const UNVERIFIED: Option<&'static str> = None;

    fn with<T>(&mut self, work: impl AsyncFnOnce(Rc<S>) -> T) -> Result<T> {
        let structure = self.structure();
        Ok(self.drive(work(structure)))
    }
}

/// A structure in this process on `count` memory servers, empty.
pub(super) fn own<S: KeyValue<Verbs = PlainDevice>, P: Part>(
    count: u16,
    shape: impl Fn(u32) -> P::Shape,
) -> Result<InProcess<S, P>> {
    let numbers = 0..count.min(MAX_SERVERS);
    let shape = shape(numbers.clone().fold(0, |all, number| all | 1 << number));
    let part = |number| make::<P>(&PartOptions { spare_bytes: SPARE, ..PartOptions::new(number, shape) });
    let parts = numbers.map(part).collect::<Result<Vec<_>, _>>()?;
    InProcess::serve(parts, S::REMEMBERED)
}
