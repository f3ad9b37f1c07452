//! `fatbtree get`, `put`, `delete` and `scan`: single operations on a running cluster.

use std::borrow::Cow;
use std::fs::File;
use std::io::{IsTerminal as _, Read as _, Write as _, stdin, stdout};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use fatbtree::blocking::Client;
use fatbtree::{Bytes, BytesRange, Options, Protocol};
use fatbtree_blink::MAX_VALUE;
use serde_json::{Value, json};

use crate::nic::Nic;
use crate::shell::command::{Key, hex, key, show, value};
use crate::stdout::{Out, is_lost};
use crate::structure::StructureArgument;

/// Options to reach the cluster.
#[derive(Args)]
struct At {
    /// Cluster file (TOML).
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// Client of the file; by default the first. As many processes can be it at once as the file gives its host UDP ports.
    #[arg(long, value_name = "NAME")]
    client: Option<String>,
    #[command(flatten)]
    structure: StructureArgument,
    #[command(flatten)]
    nic: Nic,
    /// Ask the processors of the memory servers, started with `fatbtree memserver --serve queries`, instead of using RDMA.
    #[arg(long, conflicts_with = "nic")]
    query: bool,
    /// The keys are bytes, whatever they look like: text, or bytes as 0x hex. Without this a key that is no number is bytes.
    #[arg(long)]
    bytes: bool,
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

impl At {
    /// Reads a key.
    fn key(&self, text: &str) -> Result<Key> {
        match key(text) {
            Ok(number) if !self.bytes => Ok(Key::Number(number)),
            _ => Ok(Key::Bytes(value(text)?)),
        }
    }
}

impl Key {
    fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Number(number) => number.to_string().into_bytes().into(),
            Self::Bytes(bytes) => bytes.into(),
        }
    }

    /// It and a field about it as JSON: exactly its text, or, where it is no text, its bytes as hex digits in a field of their own.
    fn json(&self, field: &str, content: Value) -> Value {
        match self {
            Self::Number(number) => json!({ "key": number, field: content }),
            Self::Bytes(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => json!({ "key": text, field: content }),
                Err(_) => json!({ "key": null, "key_hex": hex(bytes), field: content }),
            },
        }
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
  fatbtree get user:4711 --cluster cluster.toml        where keys are bytes
  fatbtree get 4711 --cluster cluster.toml > value     exactly the bytes of the value, without a line end

A terminal is shown the value as --quote prints it.

Exit codes: 0, the value is printed; 1, the key is not there; 3, refused or failed; 5, it could not be printed: the disk is full.")]
pub(crate) struct Get {
    /// Key: a number, as 4711, 1_000, 1e6 or 0x hex; or, where keys are bytes, text.
    key: String,
    /// Print a line of text, \"quoted\" where it holds spaces, or 0x hex where the value is no text, as `fatbtree shell` reads it.
    #[arg(long, conflicts_with = "json")]
    quote: bool,
    #[command(flatten)]
    at: At,
}

/// Put a value, whether the key is there or not.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree put 4711 hello --cluster cluster.toml
  fatbtree put user:4711 hello --cluster cluster.toml        where keys are bytes
  fatbtree put 4711 0x00ff --cluster cluster.toml            two bytes
  fatbtree put 4711 --text 0x00ff --cluster cluster.toml     six letters
  fatbtree put 4711 --file picture.png --cluster cluster.toml
  printf hello | fatbtree put 4711 - --cluster cluster.toml

Exit codes: 0, put; 3, refused or failed; 4, it may have been put or not; 5, put, but the result could not be printed: the disk is full.")]
pub(crate) struct Put {
    /// Key: a number, as 4711, 1_000, 1e6 or 0x hex; or, where keys are bytes, text.
    key: String,
    /// Value: text, or bytes as 0x hex; `-` reads the bytes from standard input. Up to 1 MiB.
    #[arg(allow_hyphen_values = true, required_unless_present = "file", conflicts_with = "file")]
    value: Option<String>,
    /// The value is text, whatever it begins with.
    #[arg(long, conflicts_with = "file")]
    text: bool,
    /// Put the bytes of a file.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    at: At,
}

/// Take a key away.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree delete 4711 --cluster cluster.toml

Exit codes: 0, deleted; 1, the key was not there; 3, refused or failed; 4, it may have been deleted or not; 5, deleted, but the result could
not be printed: the disk is full.")]
pub(crate) struct Delete {
    /// Key: a number, as 4711, 1_000, 1e6 or 0x hex; or, where keys are bytes, text.
    key: String,
    #[command(flatten)]
    at: At,
}

/// Print the pairs of a range of keys, or all pairs.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree scan 4000..5000 --cluster cluster.toml --limit 10    the keys 4000 to 4999
  fatbtree scan 4000..=4999 --cluster cluster.toml --csv        the same keys, as lines that `fatbtree load` reads
  fatbtree scan ..5000 --cluster cluster.toml --backward --limit 10    the ten keys before 5000, the last one first
  fatbtree scan --cluster cluster.toml --csv > all.csv          all pairs; those of a hash table are in no order
  fatbtree scan --prefix user: --cluster cluster.toml           keys of bytes that begin so
  fatbtree scan user:1..user:3 --cluster cluster.toml           a range of them
  fatbtree scan --bytes --cluster cluster.toml                  all of them

A hash table has no order of keys, so a range of it is refused, and so are --prefix and --backward. A key that is there during the whole scan
is printed once, and no key is printed twice. One that is changed meanwhile is printed as it was at some moment, or not at all.

Exit codes: 0, all pairs were printed, if there are any; 3, refused or failed; 5, they could not be printed: the disk is full.")]
pub(crate) struct Scan {
    /// FROM..TO without TO, or FROM..=TO with it; either may be left out. Without a range: all pairs, of a hash table, too.
    keys: Option<String>,
    /// The keys of bytes that begin so.
    #[arg(long, value_name = "TEXT", conflicts_with = "keys")]
    prefix: Option<String>,
    /// Print so many pairs at most.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print lines of key,value that `fatbtree load` reads from a file `.csv`. Values that are no text are written as they are.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// In descending order.
    #[arg(long)]
    backward: bool,
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

/// Time for an operation of a client that has connected in the last moment.
const LEAST: Duration = Duration::from_millis(100);

/// Runs an operation, and closes the connection. `false`: the key is not there. Returns the exit code.
fn done(at: &At, operation: impl FnOnce(&Client) -> Result<bool>) -> u8 {
    let (began, patience) = (Instant::now(), Duration::from_secs(at.patience));
    let done = at.connect().and_then(|db| {
        // One limit for all of it. What is connected late has a moment left.
        let left = patience.saturating_sub(began.elapsed()).max(LEAST);
        let done = operation(&db.with_time_limit(left));
        db.close();
        done
    });
    match done {
        Ok(true) => 0,
        Ok(false) => NOT_THERE,
        Err(error) => {
            errln!("error: {}", crate::describe(&error));
            let error = error.downcast_ref::<fatbtree::Error>();
            let unknown = error.is_some_and(fatbtree::Error::may_have_happened);
            if unknown { UNKNOWN } else { FAILED }
        }
    }
}

/// A key with its value as JSON: exactly its text, or, where it is no text, its bytes as hex digits in another field.
fn pair(key: &Key, value: Option<&[u8]>) -> Value {
    let (field, content) = match value.map(std::str::from_utf8) {
        None => ("value", Value::Null),
        Some(Ok(text)) => ("value", json!(text)),
        Some(Err(_)) => ("hex", json!(value.map(hex))),
    };
    key.json(field, content)
}

pub(crate) fn get(Get { key, quote, at }: &Get) -> u8 {
    done(at, |db| {
        let key = at.key(key)?;
        let found = match &key {
            Key::Number(key) => db.get(*key)?,
            Key::Bytes(key) => db.bytes().get(key)?,
        };
        match &found {
            value if at.json => outln!("{}", pair(&key, value.as_deref())),
            Some(value) if *quote || stdout().is_terminal() => outln!("{}", show(value)),
            // `stdout::end` knows of an error.
            Some(value) => drop(Out.write_all(value)),
            None => {}
        }
        Ok(found.is_some())
    })
}

impl Put {
    /// The value's bytes.
    ///
    /// # Errors
    /// When they cannot be read, are too many, or are no hex.
    fn bytes(&self) -> Result<Vec<u8>> {
        match (&self.file, &self.value) {
            (Some(path), _) => {
                let source = || format!("--file {}", path.display());
                read_value(File::open(path).with_context(source)?).with_context(source)
            }
            (None, Some(value)) if value == "-" && !self.text => {
                read_value(stdin().lock()).context("standard input")
            }
            (None, Some(text)) if self.text => Ok(text.clone().into_bytes()),
            (None, Some(text)) => value(text),
            (None, None) => Ok(Vec::new()),
        }
    }
}

/// Reads a value to its end, and no more of it than a value may have.
fn read_value(input: impl std::io::Read) -> Result<Vec<u8>> {
    let most = u64::from(MAX_VALUE);
    let mut bytes = Vec::new();
    input.take(most + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= most, "expected a value of up to {most} bytes, found more");
    Ok(bytes)
}

pub(crate) fn put(put: &Put) -> u8 {
    let Put { key, at, .. } = put;
    let bytes = match put.bytes() {
        Ok(bytes) => bytes,
        Err(error) => {
            errln!("error: {}", crate::describe(&error));
            return FAILED;
        }
    };
    done(at, |db| {
        let key = at.key(key)?;
        match &key {
            Key::Number(key) => db.put(*key, bytes)?,
            Key::Bytes(key) => db.bytes().put(key, bytes)?,
        }
        if at.json {
            outln!("{}", key.json("put", json!(true)));
        }
        Ok(true)
    })
}

pub(crate) fn delete(Delete { key, at }: &Delete) -> u8 {
    done(at, |db| {
        let key = at.key(key)?;
        let deleted = match &key {
            Key::Number(key) => db.delete(*key)?,
            Key::Bytes(key) => db.bytes().delete(key)?,
        };
        if at.json {
            outln!("{}", key.json("deleted", json!(deleted)));
        }
        Ok(deleted)
    })
}

/// Pairs of a scan, whatever its keys are.
type Found<'c> = Box<dyn Iterator<Item = Result<(Key, Bytes), fatbtree::Error>> + 'c>;

impl Scan {
    /// Begins the scan.
    fn begin<'c>(&self, db: &'c Client) -> Result<Found<'c>> {
        let Self { keys, prefix, backward, at, .. } = self;
        let numbers = keys.as_deref().map(range).transpose();
        let is_bytes = at.bytes || prefix.is_some() || numbers.is_err();
        if is_bytes {
            let range = match (keys, prefix) {
                (Some(keys), _) => Some(range_of_bytes(keys)?),
                (None, Some(prefix)) => Some(BytesRange::prefix(&value(prefix)?)),
                (None, None) => backward.then(BytesRange::all),
            };
            let db = db.bytes();
            let pairs = range.map_or_else(|| db.pairs(), |range| db.scan_range(range, *backward));
            return Ok(Box::new(pairs.map(|pair| pair.map(|(key, value)| (Key::Bytes(key.into()), value)))));
        }
        let pairs = match numbers.ok().flatten() {
            keys if *backward => {
                keys.map_or_else(|| db.scan_backward(..), |(from, to)| db.scan_backward(from..=to))
            }
            Some((from, to)) => db.scan(from..=to),
            None => db.pairs(),
        };
        Ok(Box::new(pairs.map(|pair| pair.map(|(key, value)| (Key::Number(key), value)))))
    }
}

/// A range of keys of bytes.
fn range_of_bytes(text: &str) -> Result<BytesRange> {
    let expected =
        || format!("expected a range of keys such as 10..20, 10..=19 or user:1..user:3, found {text:?}");
    let (from, to) = text.split_once("..").with_context(expected)?;
    let range = match (to.strip_prefix('='), to) {
        (Some(last), _) => BytesRange::of(value(from)?..=value(last)?),
        (None, "") => BytesRange::of(value(from)?..),
        (None, end) => BytesRange::of(value(from)?..value(end)?),
    };
    ensure!(range.high.as_ref().is_none_or(|high| range.low < *high), expected());
    Ok(range)
}

pub(crate) fn scan(scan: &Scan) -> u8 {
    let Scan { limit, csv, at, .. } = scan;
    done(at, |db| {
        for found in scan.begin(db)?.take(limit.unwrap_or(usize::MAX)) {
            let (key, value) = found?;
            if at.json {
                outln!("{}", pair(&key, Some(&value)));
            } else if *csv {
                // `stdout::end` knows of an error.
                let _ = Out.write_all(&csv_line(&key.bytes(), &value));
            } else {
                outln!("{} {}", key.show(), show(&value));
            }
            if is_lost() {
                break;
            }
        }
        Ok(true)
    })
}

/// A line of a CSV file, quoted as in RFC 4180. The bytes of a value remain what they are, text or not.
fn csv_line(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut line = Vec::with_capacity(key.len() + value.len() + 2);
    add_field(&mut line, key);
    line.push(b',');
    add_field(&mut line, value);
    line.push(b'\n');
    line
}

fn add_field(line: &mut Vec<u8>, field: &[u8]) {
    let is_plain = field.trim_ascii() == field && !field.iter().any(|byte| b",\"\n\r".contains(byte));
    // A line that begins so would be a comment.
    if is_plain && !(line.is_empty() && (field.is_empty() || field.starts_with(b"#"))) {
        line.extend_from_slice(field);
        return;
    }
    let doubled = field.iter().flat_map(|byte| std::iter::repeat_n(*byte, 1 + usize::from(*byte == b'"')));
    line.push(b'"');
    line.extend(doubled);
    line.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::{Key, csv_line, pair, range, range_of_bytes, read_value};

    #[test]
    fn values_are_quoted_where_a_reader_would_take_them_apart() {
        assert_eq!(csv_line(b"7", b"plain value"), b"7,plain value\n");
        assert_eq!(csv_line(b"7", b""), b"7,\n");
        assert_eq!(csv_line(b"7", b"a,b"), b"7,\"a,b\"\n");
        assert_eq!(csv_line(b"7", b" say \"yes\"\r\n"), b"7,\" say \"\"yes\"\"\r\n\"\n");
        assert_eq!(csv_line(b"7", b"\x00\xff"), b"7,\x00\xff\n");
        assert_eq!(csv_line(b"#a,b", b"c"), b"\"#a,b\",c\n");
        assert_eq!(
            (csv_line(b"#a", b"c"), csv_line(b"", b"")),
            (b"\"#a\",c\n".to_vec(), b"\"\",\n".to_vec())
        );
    }

    #[test]
    fn json_has_exactly_the_value() {
        let is = |value: Option<&[u8]>, expected: &str| {
            let text = pair(&Key::Number(7), value).to_string();
            assert_eq!(text, expected);
            // As a program reads it.
            let read: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let text = value.and_then(|value| std::str::from_utf8(value).ok());
            assert_eq!(read.get("value").and_then(serde_json::Value::as_str), text);
        };
        is(Some(b"a b"), r#"{"key":7,"value":"a b"}"#);
        is(Some(b""), r#"{"key":7,"value":""}"#);
        is(Some(b"say \"yes\"\n\0"), r#"{"key":7,"value":"say \"yes\"\n\u0000"}"#);
        is(Some(b"0x00ff"), r#"{"key":7,"value":"0x00ff"}"#);
        is(Some(b"\x00\xff"), r#"{"hex":"00ff","key":7}"#);
        is(None, r#"{"key":7,"value":null}"#);
        let of = |key: &[u8]| pair(&Key::Bytes(key.to_vec()), Some(b"x")).to_string();
        assert_eq!(of(b"user:1"), r#"{"key":"user:1","value":"x"}"#);
        assert_eq!(of(b"\xff"), r#"{"key":null,"key_hex":"ff","value":"x"}"#);
    }

    #[test]
    fn a_value_is_read_up_to_the_limit() {
        let most = super::MAX_VALUE as usize;
        let of = |bytes: usize| read_value(&vec![7; bytes][..]).map(|read| read.len());
        assert_eq!((of(0).ok(), of(most).ok()), (Some(0), Some(most)));
        assert!(of(most + 1).is_err_and(|error| error.to_string().contains("up to 1048576 bytes")));
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
        let all = range_of_bytes("a..").expect("a range");
        assert!(all.contains(b"a") && all.contains(b"\xff") && !all.contains(b"A"));
        let some = range_of_bytes("a..=0x6200").expect("a range");
        assert!(some.contains(b"b\0") && !some.contains(b"b\0\0"));
        for bad in ["a", "b..a", "a..a", "0x1..b"] {
            assert!(range_of_bytes(bad).is_err(), "{bad:?}");
        }
    }
}
