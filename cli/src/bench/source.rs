//! Source of a bench's operations, a workload or a trace, with the values that its reads may return.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use fatbtree_blink::value::{self, STAMPED_BYTES};
use fatbtree_workload::measure::Recorder;
use fatbtree_workload::trace::Trace;
use fatbtree_workload::transactions::{Filling, Mix, Transactions};
use fatbtree_workload::ycsb::{Properties, Workload, WorkloadSpec};
use fatbtree_workload::{LoadGenerator, Operations, Pace, ScanParts, Values};

use super::keys::Keys;
use super::process::{Load, Measured};
use super::{Arguments, CUSTOMERS};
use crate::interrupted::Interrupted;
use crate::memserver::MadeValues;
use crate::progress;

/// Operations to do, and what is needed to check their answers.
pub(super) struct Source {
    pub(super) operations: Box<dyn Operations>,
    pub(super) values: Values,
    pub(super) parts: ScanParts,
}

/// Files that the command line names.
pub(super) enum Files {
    Workload(Properties, Keys),
    Trace(Trace, PathBuf),
    Transactions(Mix),
}

impl Files {
    /// Reads the files, before anything is asked of the cluster.
    ///
    /// # Errors
    /// When one cannot be read.
    pub(super) fn read(arguments: &Arguments) -> Result<Self> {
        Ok(match &arguments.trace {
            Some(path) => Self::Trace(crate::trace::read(path)?, path.clone()),
            None if let Some(mix) = Mix::of(&arguments.workload) => {
                refuse_with_transactions(arguments)?;
                let customers = arguments.customers;
                mix.check(customers).map_err(|why| anyhow!("--customers {customers}: {why}"))?;
                Self::Transactions(mix)
            }
            None => {
                if arguments.customers != CUSTOMERS {
                    bail!("--customers is for --workload smallbank or tatp, whose records they are");
                }
                let properties = crate::workload::properties(&arguments.workload)?;
                Self::Workload(properties, Keys::read(arguments.keys.as_deref())?)
            }
        })
    }
}

/// Refuses options of keys and values: transactions bring their records.
fn refuse_with_transactions(arguments: &Arguments) -> Result<()> {
    let Arguments { workload, keys, value_bytes, seed, .. } = arguments;
    let given = [
        ("--keys", keys.is_some()),
        ("--value-bytes", *value_bytes != MadeValues::BYTES),
        ("--seed", *seed != MadeValues::SEED),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => bail!(
            "{option} is for workloads of keys and values: --workload {workload} brings its records, of which --customers says how many"
        ),
        None => Ok(()),
    }
}

/// Refuses a value that neither `load` has made, with these options, nor a bench: each answer would count as wrong.
fn check_value(arguments: &Arguments, key: u64, found: &[u8]) -> Result<()> {
    let Arguments { seed, value_bytes, .. } = arguments;
    let is_as_long = found.len() == *value_bytes as usize;
    if value::stamp_of(key, found).is_some() || is_as_long && value::check(key, *seed, found) {
        return Ok(());
    }
    if value::check(key, *seed, found) {
        bail!(
            "--value-bytes {value_bytes}: the memory servers were loaded with values of {0} bytes: give --value-bytes {0}",
            found.len()
        );
    }
    bail!(
        "the value of key {key} was not made by `fatbtree load` with --seed {seed}: give the seed of the load; if the keys are your own, give \
         them with their values by --keys FILE.csv"
    )
}

impl Source {
    /// Compares the files with what the memory servers hold.
    ///
    /// # Errors
    /// When the memory servers hold other keys.
    pub(super) fn open(files: Files, arguments: &Arguments, process: &mut dyn Measured) -> Result<Self> {
        match files {
            Files::Trace(trace, path) => Self::trace(trace, &path, arguments, process),
            Files::Transactions(mix) => Self::transactions(mix, arguments, process),
            Files::Workload(properties, keys) => Self::workload(properties, keys, arguments, process),
        }
    }

    /// Transactions, after the customers or subscribers that are not there yet were made.
    fn transactions(mix: Mix, arguments: &Arguments, process: &mut dyn Measured) -> Result<Self> {
        let Arguments { workload, customers, depth, draw_seed, .. } = arguments;
        if let Some(name) = process.without_transactions() {
            bail!("--workload {workload}: a {name} has no transactions; use --structure dtx");
        }
        let values = Values::new(0, STAMPED_BYTES);
        let last = customers - 1;
        if process.value_of(last)?.flatten().is_none() {
            // The last one after all others, and its parts one after the other: if it is there, all are.
            let bar = progress::bar("customers", *customers);
            for (first, subjects, depth) in [(0, last, *depth), (last, 1, 1)] {
                let (mut filling, mut done) = (Filling::from(mix, first), LoadGenerator::new());
                let count = filling.transactions(subjects);
                let made = |recorder: &Recorder| first + recorder.operations() * subjects / count.max(1);
                let mut shown = |recorder: &Recorder, _| bar.set_position(made(recorder));
                let (pace, operations) = (Pace::Closed { depth: depth.into() }, &mut filling);
                let load = Load { operations, count, pace, values: &values, shown: &mut shown };
                if !process.run(&mut done, load)? {
                    let made = made(done.recorder());
                    bail!(Interrupted(format!("{made} of {customers} customers were made")));
                }
                if let Some(wrong) = done.first_wrong() {
                    bail!("--customers {customers}: not all could be made; the first that failed: {wrong}");
                }
            }
            bar.finish_and_clear();
        }
        let operations = Box::new(Transactions::new(mix, *customers, *draw_seed));
        Ok(Self { operations, values, parts: ScanParts::ONE })
    }

    fn workload(
        mut properties: Properties,
        keys: Keys,
        arguments: &Arguments,
        process: &mut dyn Measured,
    ) -> Result<Self> {
        let records = process.records(&keys)?;
        if records == 0 {
            let cluster = arguments.cluster.display();
            bail!(
                "the memory servers hold no keys that were loaded. If they are empty: fatbtree load --cluster {cluster} --keys 1e6. If they \
                 hold keys of your own, give these with --keys FILE, such as `fatbtree scan .. --csv` writes, and --workload c, which only reads"
            );
        }
        properties.set("recordcount", &records.to_string());
        properties.set("operationcount", &arguments.operations.to_string());
        let spec = WorkloadSpec::from_properties(&properties)?;
        keys.check(&arguments.workload, &spec, records)?;
        if spec.proportions.scan > 0.0
            && let Some(name) = process.without_ranges()
        {
            bail!(
                "--workload {} scans, and a {name} has no order of keys: use one that does not, such as a, b, c, d or f",
                arguments.workload
            );
        }
        let map = keys.map();
        let [insert, update, read_modify_write] =
            [spec.proportions.insert, spec.proportions.update, spec.proportions.read_modify_write];
        if insert + update + read_modify_write > 0.0 && (arguments.value_bytes as usize) < STAMPED_BYTES {
            bail!(
                "--value-bytes {}: --workload {} writes, and a value must have at least {STAMPED_BYTES} bytes to name its writer",
                arguments.value_bytes,
                arguments.workload
            );
        }
        let run: u64 = rand::random();
        let values = Values::new(arguments.seed, arguments.value_bytes as usize).among_others(run);
        let values = match spec.proportions.scan > 0.0 {
            true => values.with_keys(keys.sorted(records).into()),
            false => values,
        };
        let parts = keys.parts(arguments.scan_parts, records);
        if let Some(first) = map.key(0) {
            match process.value_of(first)? {
                Some(None) => bail!(keys.are_missing()),
                Some(Some(found)) if !keys.have_values() => check_value(arguments, first, &found)?,
                _ => {}
            }
        }
        let values = keys.loaded_with(values);
        let workload = Workload::new(&spec, map, arguments.draw_seed)?;
        // 2³¹ numbers for each of 2³² runs.
        let workload = workload.inserting_from(records.saturating_add((run >> 32) << 31));
        Ok(Self { operations: Box::new(workload), values, parts })
    }

    fn trace(trace: Trace, path: &Path, arguments: &Arguments, process: &mut dyn Measured) -> Result<Self> {
        let name = path.display();
        if arguments.operations > trace.len() as u64 {
            bail!(
                "--operations {}: {name} has {}, ask for at most as many",
                arguments.operations,
                crate::count::of(trace.len() as u64, "operation")
            );
        }
        if let Some((first, _)) = trace.preloaded().next()
            && process.value_of(first)? == Some(None)
        {
            let cluster = arguments.cluster.display();
            bail!(
                "the memory servers do not hold the keys that {name} begins with; load them before each run: fatbtree load --cluster {cluster} \
                 --trace {name} --replace"
            );
        }
        let (seed, first, at_first) = (arguments.seed, trace.clone(), trace.clone());
        let values = Values::new(seed, STAMPED_BYTES)
            .among_others(rand::random())
            .without(move |key| at_first.preloaded_bytes(key).is_none())
            .loaded_with(move |key, bytes| {
                first.preloaded_bytes(key) == Some(bytes.len() as u32) && value::check(key, seed, bytes)
            });
        Ok(Self { operations: Box::new(trace), values, parts: ScanParts::ONE })
    }
}
