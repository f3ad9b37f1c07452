//! `fatbtree get`, `put`, `delete` and `scan`: single operations on a running cluster.

use std::io::{ErrorKind, Write as _, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use fatbtree::blocking::Client;
use fatbtree::{Options, Protocol};
use serde_json::json;

use crate::nic::Nic;
use crate::shell::command::{key, show, value};
use crate::structure::StructureArgument;

/// Options to reach the cluster.
#[derive(Args)]
struct At {
    /// Cluster file (TOML).
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// Client of the file; by default the first. Two processes cannot be the same client at once.
    #[arg(long, value_name = "NAME")]
    client: Option<String>,
    #[command(flatten)]
    structure: StructureArgument,
    #[command(flatten)]
    nic: Nic,
    /// Ask the processors of the memory servers, started with `fatbtree memserver --serve queries`, instead of using RDMA.
    #[arg(long, conflicts_with = "nic")]
    query: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// Time limit in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,
}

impl At {
    fn connect(&self) -> Result<Client> {
        let time = Duration::from_secs(self.patience);
        let mut options = Options::new(&self.cluster).patience(time).time_limit(time);
        if let Some(name) = &self.client {
            options = options.client(name);
        }
        if let Some(structure) = self.structure.given() {
            options = options.structure(structure);
        }
        if let Some(device) = self.nic.device() {
            options = options.rdma_device(device);
        }
        if self.query {
            options = options.protocol(Protocol::Query);
        }
        Ok(Client::connect(options)?)
    }
}

/// Exit code of an operation on a key that is not there.
const NOT_THERE: u8 = 1;
/// Exit code of an operation that was not carried out.
const FAILED: u8 = 3;
/// Exit code of a change that may have been carried out or not.
const UNKNOWN: u8 = 4;

/// Print the value of a key.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree get 4711 --cluster cluster.toml
  fatbtree get 0x1267 --cluster cluster.toml --json

Exit codes: 0, the value is printed; 1, the key is not there; 3, refused or failed. A value that is no text is printed as 0x hex.")]
pub(crate) struct Get {
    /// Key, decimal or 0x hex.
    #[arg(value_parser = key)]
    key: u64,
    #[command(flatten)]
    at: At,
}

/// Put a value, whether the key is there or not.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree put 4711 hello --cluster cluster.toml
  fatbtree put 4711 0x00ff --cluster cluster.toml

Exit codes: 0, put; 3, refused or failed; 4, it may have been put or not.")]
pub(crate) struct Put {
    /// Key, decimal or 0x hex.
    #[arg(value_parser = key)]
    key: u64,
    /// Value: text, or bytes as 0x hex.
    value: String,
    #[command(flatten)]
    at: At,
}

/// Take a key away.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree delete 4711 --cluster cluster.toml

Exit codes: 0, deleted; 1, the key was not there; 3, refused or failed; 4, it may have been deleted or not.")]
pub(crate) struct Delete {
    /// Key, decimal or 0x hex.
    #[arg(value_parser = key)]
    key: u64,
    #[command(flatten)]
    at: At,
}

/// Print the pairs of a range of keys.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree scan 4000..5000 --cluster cluster.toml --limit 10    the keys 4000 to 4999
  fatbtree scan 4000..=4999 --cluster cluster.toml --csv        the same keys, as lines that `fatbtree load` reads

Exit codes: 0, all pairs were printed, if there are any; 3, refused or failed.")]
pub(crate) struct Scan {
    /// FROM..TO without TO, or FROM..=TO with it; either may be left out.
    #[arg(value_parser = range)]
    keys: (u64, u64),
    /// Print so many pairs at most.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print lines of key,value that `fatbtree load` reads from a file `.csv`. Values that are no text are written as they are.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    at: At,
}

/// Keys of a range, both ends included.
fn range(text: &str) -> Result<(u64, u64), String> {
    let expected = || format!("expected a range of keys such as 10..20 or 10..=19, found {text:?}");
    let (from, to) = text.split_once("..").ok_or_else(expected)?;
    let from = if from.is_empty() { 0 } else { key(from)? };
    let to = match (to.strip_prefix('='), to) {
        (Some(last), _) => key(last)?,
        (None, "") => u64::MAX,
        (None, end) => key(end)?.checked_sub(1).ok_or_else(expected)?,
    };
    if from > to { Err(expected()) } else { Ok((from, to)) }
}

/// Runs an operation, and closes the connection. `false`: the key is not there.
fn done(at: &At, operation: impl FnOnce(&Client) -> Result<bool>) -> ExitCode {
    let done = at.connect().and_then(|db| {
        let done = operation(&db);
        db.close();
        done
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(NOT_THERE),
        Err(error) => {
            eprintln!("error: {}", crate::describe(&error));
            let error = error.downcast_ref::<fatbtree::Error>();
            let unknown = error.is_some_and(fatbtree::Error::may_have_happened);
            ExitCode::from(if unknown { UNKNOWN } else { FAILED })
        }
    }
}

pub(crate) fn get(Get { key, at }: &Get) -> ExitCode {
    done(at, |db| {
        let found = db.get(*key)?;
        let shown = found.as_deref().map(show);
        if at.json {
            println!("{}", json!({ "key": key, "value": shown }));
        } else if let Some(shown) = &shown {
            println!("{shown}");
        }
        Ok(found.is_some())
    })
}

pub(crate) fn put(Put { key, value: text, at }: &Put) -> ExitCode {
    done(at, |db| {
        db.put(*key, value(text)?)?;
        if at.json {
            println!("{}", json!({ "key": key, "put": true }));
        }
        Ok(true)
    })
}

pub(crate) fn delete(Delete { key, at }: &Delete) -> ExitCode {
    done(at, |db| {
        let deleted = db.delete(*key)?;
        if at.json {
            println!("{}", json!({ "key": key, "deleted": deleted }));
        }
        Ok(deleted)
    })
}

pub(crate) fn scan(Scan { keys: (from, to), limit, csv, at }: &Scan) -> ExitCode {
    done(at, |db| {
        for pair in db.scan(*from..=*to).take(limit.unwrap_or(usize::MAX)) {
            let (key, value) = pair?;
            if at.json {
                println!("{}", json!({ "key": key, "value": show(&value) }));
            } else if *csv {
                match stdout().write_all(&csv_line(key, &value)) {
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
                    written => written.context("writing to standard output")?,
                }
            } else {
                println!("{key} {}", show(&value));
            }
        }
        Ok(true)
    })
}

/// A line of a CSV file, quoted as in RFC 4180. The bytes of a value remain what they are, text or not.
fn csv_line(key: u64, value: &[u8]) -> Vec<u8> {
    let mut line = format!("{key},").into_bytes();
    let is_plain = value.trim_ascii() == value && !value.iter().any(|byte| b",\"\n\r".contains(byte));
    if is_plain {
        line.extend_from_slice(value);
    } else {
        let doubled =
            value.iter().flat_map(|byte| std::iter::repeat_n(*byte, 1 + usize::from(*byte == b'"')));
        line.push(b'"');
        line.extend(doubled);
        line.push(b'"');
    }
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::{csv_line, range};

    #[test]
    fn values_are_quoted_where_a_reader_would_take_them_apart() {
        assert_eq!(csv_line(7, b"plain value"), b"7,plain value\n");
        assert_eq!(csv_line(7, b""), b"7,\n");
        assert_eq!(csv_line(7, b"a,b"), b"7,\"a,b\"\n");
        assert_eq!(csv_line(7, b" say \"yes\"\r\n"), b"7,\" say \"\"yes\"\"\r\n\"\n");
        assert_eq!(csv_line(7, b"\x00\xff"), b"7,\x00\xff\n");
    }

    #[test]
    fn ranges_are_read_as_rust_has_them() {
        assert_eq!(range("10..20"), Ok((10, 19)));
        assert_eq!(range("10..=0x14"), Ok((10, 20)));
        assert_eq!(range("..5"), Ok((0, 4)));
        assert_eq!(range("5.."), Ok((5, u64::MAX)));
        assert_eq!(range(".."), Ok((0, u64::MAX)));
        for bad in ["", "5", "5..5", "9..3", "..0", "a..b", "1..-2"] {
            assert!(range(bad).is_err(), "{bad:?}");
        }
    }
}
