//! Source of a bench's operations, a workload or a trace, with the values that its reads may return.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use fatbtree_blink::value::{self, STAMPED_BYTES};
use fatbtree_workload::byte_keys::value_number;
use fatbtree_workload::measure::Recorder;
use fatbtree_workload::trace::Trace;
use fatbtree_workload::transactions::{Filling, Mix, Transactions};
use fatbtree_workload::ycsb::{Properties, Workload, WorkloadSpec};
use fatbtree_workload::{LoadGenerator, Names, Operations, Pace, ScanParts, Values};

use super::keys::{Keys, Numbered, sorted};
use super::process::{Key, Load, Measured};
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

/// What the command line asks for, as far as it is known before the memory servers have told their keys' kind.
pub(super) enum Asked {
    Workload(Properties),
    /// The file of a trace.
    Trace(PathBuf),
    Transactions(Mix),
}

impl Asked {
    /// # Errors
    /// When there is no such workload or no such file, or options are given that do not go with it.
    pub(super) fn read(arguments: &Arguments) -> Result<Self> {
        let Arguments { workload, customers, keys, trace, .. } = arguments;
        Ok(match (trace, Mix::of(workload)) {
            (Some(path), _) => {
                is_readable("--trace", path)?;
                Self::Trace(path.clone())
            }
            (None, Some(mix)) => {
                refuse_with_transactions(arguments)?;
                mix.check(*customers).map_err(|why| anyhow!("--customers {customers}: {why}"))?;
                Self::Transactions(mix)
            }
            (None, None) => {
                if *customers != CUSTOMERS {
                    bail!("--customers is for --workload smallbank or tatp, whose records they are");
                }
                keys.as_ref().map_or(Ok(()), |path| is_readable("--keys", path))?;
                Self::Workload(crate::workload::properties(workload)?)
            }
        })
    }
}

fn is_readable(option: &str, path: &Path) -> Result<()> {
    File::open(path).map(drop).with_context(|| format!("{option} {}", path.display()))
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
fn check_value(arguments: &Arguments, key: Key<'_>, found: &[u8]) -> Result<()> {
    let Arguments { seed, value_bytes, .. } = arguments;
    let is_as_long = found.len() == *value_bytes as usize;
    let (number, shown) = match key {
        Key::Number(key) => (key, key.to_string()),
        Key::Bytes(key) => (value_number(key), key.escape_ascii().to_string()),
    };
    if value::stamp_of(number, found).is_some() || is_as_long && value::check(number, *seed, found) {
        return Ok(());
    }
    if value::check(number, *seed, found) {
        bail!(
            "--value-bytes {value_bytes}: the memory servers were loaded with values of {0} bytes: give --value-bytes {0}",
            found.len()
        );
    }
    bail!(
        "the value of key {shown} was not made by `fatbtree load` with --seed {seed}: give the seed of the load; if the keys are your own, \
         give them with their values by --keys FILE.csv"
    )
}

impl Source {
    /// Reads the files of keys, and compares them with what the memory servers hold.
    ///
    /// # Errors
    /// When a file cannot be read, or the memory servers hold other keys.
    pub(super) fn open(asked: Asked, arguments: &Arguments, process: &mut dyn Measured) -> Result<Self> {
        let are_bytes = process.has_byte_keys();
        match asked {
            Asked::Trace(path) if are_bytes => {
                let (trace, names) = crate::trace::read_named(&path)?;
                Self::trace(trace, Some(names.into()), &path, arguments, process)
            }
            Asked::Trace(path) => Self::trace(crate::trace::read(&path)?, None, &path, arguments, process),
            Asked::Transactions(mix) => Self::transactions(mix, arguments, process),
            Asked::Workload(properties) => {
                Self::workload(properties, Keys::read(arguments, are_bytes)?, arguments, process)
            }
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
        if process.value_of(Key::Number(last))?.flatten().is_none() {
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
        let records = keys.records(process)?;
        if records == 0 {
            bail!(keys.are_absent(&arguments.cluster));
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
        let numbered = keys.numbered(records, run, &spec, arguments)?;
        let map = keys.map(numbered.as_ref());
        let mut values = Values::new(arguments.seed, arguments.value_bytes as usize).among_others(run);
        if let Some(Numbered { names, .. }) = &numbered {
            values = values.named(Arc::clone(names));
        }
        if spec.proportions.scan > 0.0 {
            values = values.with_keys(sorted(&map, records).into());
        }
        let parts = keys.parts(arguments.scan_parts, records);
        if let Some(first) = map.key(0) {
            let first = key_of(values.names(), first);
            match process.value_of(first)? {
                Some(None) => bail!(keys.are_missing(&arguments.cluster)),
                Some(Some(found)) if !keys.have_values() => check_value(arguments, first, &found)?,
                _ => {}
            }
        }
        let workload = keys.inserting(Workload::new(&spec, map, arguments.draw_seed)?, records, run);
        let values = keys.loaded_with(values);
        Ok(Self { operations: Box::new(workload), values, parts })
    }

    fn trace(
        trace: Trace,
        names: Option<Arc<Names>>,
        path: &Path,
        arguments: &Arguments,
        process: &mut dyn Measured,
    ) -> Result<Self> {
        let name = path.display();
        if arguments.operations > trace.len() as u64 {
            bail!(
                "--operations {}: {name} has {}, ask for at most as many",
                arguments.operations,
                crate::count::of(trace.len() as u64, "operation")
            );
        }
        if let Some((first, _)) = trace.preloaded().next()
            && process.value_of(key_of(names.as_ref(), first))? == Some(None)
        {
            let cluster = arguments.cluster.display();
            let key_type = if names.is_some() { " --key-type bytes" } else { "" };
            bail!(
                "the memory servers do not hold the keys that {name} begins with; load them before each run: fatbtree load --cluster {cluster} \
                 --trace {name}{key_type} --replace"
            );
        }
        let (seed, first, at_first, at) = (arguments.seed, trace.clone(), trace.clone(), names.clone());
        let number = move |key| match key_of(at.as_ref(), key) {
            Key::Number(key) => key,
            Key::Bytes(name) => value_number(name),
        };
        let mut values = Values::new(seed, STAMPED_BYTES)
            .among_others(rand::random())
            .without(move |key| at_first.preloaded_bytes(key).is_none())
            .loaded_with(move |key, bytes| {
                first.preloaded_bytes(key) == Some(bytes.len() as u32)
                    && value::check(number(key), seed, bytes)
            });
        if let Some(names) = names {
            values = values.named(names);
        }
        Ok(Self { operations: Box::new(trace), values, parts: ScanParts::ONE })
    }
}

/// The key of an operation, which is a number of a name where there are names.
fn key_of(names: Option<&Arc<Names>>, key: u64) -> Key<'_> {
    let name = names.map(|names| names.name_of(key).expect("operations have numbers of names"));
    name.map_or(Key::Number(key), Key::Bytes)
}
