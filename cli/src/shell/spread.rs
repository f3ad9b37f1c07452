//! Commands of the shell on a structure over all memory servers: of a running cluster, or one to be tried in this process.

use std::io::Write;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use fatbtree_blink::Contention;
use fatbtree_memserver::{Part, PartOptions, make};
use fatbtree_processes::{Adapter, ClientOptions, SpreadClient, StructureClient, StructureProcess};
use fatbtree_registry::{Kind, MAX_SERVERS};
use fatbtree_remote_memory::{Answer, Change, KeyRange, Pairs, Portion, Spread, Structure};
use fatbtree_topology::Cluster;
use fatbtree_verbs::plain::PlainDevice;

use super::command::{Command, show};
use super::transaction::Open;
use super::{Database, PAIRS_AT_ONCE, Trouble, without_transactions};
use crate::in_process::InProcess;
use crate::nic::Nic;
use crate::structure::{client_of, open_client};

/// Time limit for memory servers to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Memory of each server of a structure in this process.
const SPARE: u64 = 1 << 30;

/// Where a structure is.
pub(super) trait Place {
    /// The structure.
    type Structure: Structure + 'static;

    /// The structure, or a handle to it.
    fn structure(&self) -> Rc<Self::Structure>;

    /// Runs an operation to its end.
    fn run<T>(&mut self, work: impl Future<Output = T>) -> Result<T>;

    /// Walks over the whole structure and checks it. Returns what it finds, in words.
    fn verify(&mut self) -> Result<String>;
}

/// The structure is opened again where a server has begun anew.
impl<S: Spread<Verbs = Adapter>> Place for StructureProcess<SpreadClient<S>>
where
    SpreadClient<S>: StructureClient + Structure,
{
    type Structure = SpreadClient<S>;

    fn structure(&self) -> Rc<SpreadClient<S>> {
        Rc::new(self.client().clone())
    }

    fn run<T>(&mut self, work: impl Future<Output = T>) -> Result<T> {
        Ok(self.run(work)?)
    }

    fn verify(&mut self) -> Result<String> {
        let client = self.client().clone();
        let verified = self
            .run(async { Ok::<_, anyhow::Error>(client.structure().await?.verify().await?.to_string()) })?;
        verified.context(
            "the walk has met a fault, or a change of another client on its way: repeat it when nothing changes the structure",
        )
    }
}

/// Connects as a client of the cluster file, by default the first one.
pub(super) fn connect<C: StructureClient>(
    cluster: &Cluster,
    file: &Path,
    client: Option<&str>,
    nic: &Nic,
) -> Result<StructureProcess<C>> {
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
    let open = |host, nic| StructureProcess::open_without_absent(&options(host, nic));
    open_client(nic, cluster, described, PATIENCE, open)
}

/// A structure and what it takes to print answers.
pub(super) struct Shell<P: Place, W> {
    place: P,
    trips: bool,
    out: W,
    operations: u64,
    round_trips: u64,
    transaction: Option<Open<<P::Structure as Structure>::Error>>,
}

impl<P: Place, W: Write> Shell<P, W> {
    pub(super) fn new(place: P, trips: bool, out: W) -> Self {
        Self { place, trips, out, operations: 0, round_trips: 0, transaction: None }
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
    ) -> Result<Answer<bool, <P::Structure as Structure>::Error>> {
        let structure = self.place.structure();
        self.place.run(structure.change(key, change))
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
        if P::Structure::LACKS.contains(&"scan") {
            bail!(
                "a {} has no order of keys: `fatbtree scan` without a range prints all pairs",
                P::Structure::NAME
            );
        }
        let structure = self.place.structure();
        let Answer { result, round_trips } = self.place.run(structure.scan(range, most))?;
        Ok((result?, round_trips))
    }

    /// Counts all pairs. Returns their number, and the round trips.
    fn count(&mut self) -> Result<(u64, u32)> {
        let (mut next, mut found, mut all) = (Some(Default::default()), 0, 0);
        while let Some(cursor) = next {
            let structure = self.place.structure();
            let Answer { result, round_trips } = self.place.run(structure.export(cursor, PAIRS_AT_ONCE))?;
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
            match Portion::in_order(pairs, most as usize).rest {
                Some(key) if key <= last => next = key,
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
        let command = match self.in_transaction(command)? {
            None => return Ok(()),
            Some(command) => command,
        };
        match command {
            Command::Get(key) => {
                let structure = self.place.structure();
                let Answer { result, round_trips } = self.place.run(structure.get(key))?;
                let answer = result.map_err(anyhow::Error::from)?.map(|value| show(value.as_ref()));
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
                let found = self.place.verify()?;
                Ok(writeln!(self.out, "{found}")?)
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
            Command::CompareAndSet(..) if P::Structure::LACKS.contains(&"compare_and_swap") => {
                Err(anyhow!("a {} has no cas; it has get and update", P::Structure::NAME).into())
            }
            Command::CompareAndSet(key, expected, value) => {
                let change = Change::CompareAndSwap { expected: &expected, value: &value };
                self.mutate(key, change, ["set", "not set"])
            }
            Command::Begin | Command::Commit | Command::Abort | Command::Help | Command::Quit => Ok(()),
        }
    }
}

impl<P: Place, W: Write> Shell<P, W> {
    /// Carries out what begins or ends a transaction, or is a step of one. Returns any other command.
    fn in_transaction(&mut self, command: Command) -> Result<Option<Command>, Trouble> {
        let is_step = command.is_step();
        match command {
            Command::Begin | Command::Commit | Command::Abort if !P::Structure::TRANSACTS => {
                Err(without_transactions(P::Structure::NAME).into())
            }
            Command::Begin => {
                if self.transaction.is_some() {
                    return Err(anyhow!("a transaction has begun; commit or abort it first").into());
                }
                let structure = self.place.structure();
                self.transaction =
                    Some(self.place.run(Open::begin(structure))?.map_err(anyhow::Error::from)?);
                Ok(writeln!(self.out, "ok").map(|()| None)?)
            }
            command if !is_step && !command.ends() => Ok(Some(command)),
            command => {
                let Some(open) = &mut self.transaction else {
                    return match command.ends() {
                        true => Err(anyhow!("no transaction has begun; type begin first").into()),
                        false => Ok(Some(command)),
                    };
                };
                let ends = command.ends();
                let answer = self.place.run(open.carry_out(command))?;
                // After an error nothing of it can be committed.
                let failed = answer.is_err();
                if failed && !ends {
                    self.place.run(open.carry_out(Command::Abort))?.map_err(anyhow::Error::from)?;
                }
                if failed || ends {
                    self.transaction = None;
                }
                let answer = answer
                    .map_err(|error| anyhow::Error::from(error).context("the transaction is aborted"))?;
                Ok(writeln!(self.out, "{answer}").map(|()| None)?)
            }
        }
    }
}

impl<S: Spread<Verbs = PlainDevice>, P: Part> Place for InProcess<S, P> {
    type Structure = S;

    fn structure(&self) -> Rc<S> {
        self.structure()
    }

    fn run<T>(&mut self, work: impl Future<Output = T>) -> Result<T> {
        Ok(self.drive(work))
    }

    fn verify(&mut self) -> Result<String> {
        let structure = self.structure();
        Ok(self.drive(structure.verify())?.to_string())
    }
}

/// A structure in this process on `count` memory servers, empty.
pub(super) fn own<K: Kind>(count: u16) -> Result<InProcess<K::Client<PlainDevice>, K::Part>> {
    let numbers = 0..count.min(MAX_SERVERS);
    let shape = K::shape(numbers.clone().fold(0, |all, number| all | 1 << number));
    let part =
        |number| make::<K::Part>(&PartOptions { spare_bytes: SPARE, ..PartOptions::new(number, shape) });
    let parts = numbers.map(part).collect::<Result<Vec<_>, _>>()?;
    InProcess::serve(parts, K::Client::<PlainDevice>::REMEMBERED)
}

#[cfg(test)]
mod tests {
    use fatbtree_registry::{WORDS, with_kind};

    use super::*;

    /// What a structure says to lack fails and changes nothing, and all else works.
    fn check<K: Kind>() {
        let mut own = own::<K>(1).expect("there is memory");
        let structure = own.structure();
        let lacks = |operation| K::Client::<PlainDevice>::LACKS.contains(&operation);
        assert!(own.drive(structure.change(7, Change::Upsert(b"one"))).result.expect("there is room"));
        let swap = Change::CompareAndSwap { expected: b"one", value: b"two" };
        let swapped = own.drive(structure.change(7, swap)).result;
        assert_eq!(swapped.is_err(), lacks("compare_and_swap"), "{}", K::NAME);
        let scanned = own.drive(structure.scan(KeyRange::ALL, 10)).result;
        assert_eq!(scanned.map(|pairs| pairs.len()).ok(), (!lacks("scan")).then_some(1), "{}", K::NAME);
        let found = own.drive(structure.get(7)).result.expect("it is there").expect("it is there");
        assert_eq!(found.as_ref(), if lacks("compare_and_swap") { b"one" } else { b"two" });
        assert!(own.drive(structure.change(7, Change::Delete)).result.expect("it is there"));
    }

    #[test]
    fn operations_that_a_structure_lacks_are_refused() {
        for word in WORDS {
            with_kind!(word, K => check::<K>());
        }
    }
}
