//! What is loaded: keys that are counted, a file of keys, or a CSV file of keys and values.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail};
use fatbtree_index::{MAX_VALUE, value};
use fatbtree_memserver::grpc::LoadData;
use fatbtree_memserver::sort_keys;

use crate::{count, memserver, room};

/// Where keys come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Source {
    Count(u64),
    Keys(PathBuf),
    Csv(PathBuf),
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if count::parse(text).is_some() {
            let count = count::positive(text).map_err(Error::msg)?;
            return Ok(Self::Count(count));
        }
        let path = PathBuf::from(text);
        if !path.exists() {
            bail!("--keys {text}: neither a count such as 4711, 1e6 or 2M, nor a file");
        }
        let is_csv = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"));
        Ok(if is_csv { Self::Csv(path) } else { Self::Keys(path) })
    }
}

/// Keys, strictly ascending, and their values.
#[derive(Debug)]
pub(super) struct Input {
    keys: Vec<u64>,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Made {
        seed: u64,
        bytes: u32,
    },
    /// Text, and for each key where its value lies in it.
    Read {
        text: Vec<u8>,
        places: Vec<Range<usize>>,
    },
}

impl Input {
    pub(super) fn read(source: &Source, seed: u64, value_bytes: u32) -> Result<Self> {
        let values = Values::Made { seed, bytes: value_bytes };
        let input = match source {
            Source::Count(count) => {
                // The memory servers look after themselves; here are the keys.
                room::check(*count, 1, 8)?;
                let mut keys: Vec<u64> = memserver::hashed_keys(*count).collect();
                sort_keys(&mut keys)?;
                Self { keys, values }
            }
            Source::Keys(path) => {
                let keys = in_order(path, keys_of(path)?, |line| *line)?;
                Self { keys: keys.into_iter().map(|(key, _)| key).collect(), values }
            }
            Source::Csv(path) => {
                let (text, lines) = csv_of(path)?;
                let (keys, places) = in_order(path, lines, |(line, _)| *line)?
                    .into_iter()
                    .map(|(key, (_, place))| (key, place))
                    .unzip();
                Self { keys, values: Values::Read { text, places } }
            }
        };
        if let (true, Source::Keys(path) | Source::Csv(path)) = (input.keys.is_empty(), source) {
            bail!("{}: no keys in it; the memory servers would be empty", path.display());
        }
        Ok(input)
    }
}

impl LoadData for Input {
    fn keys(&self) -> &[u64] {
        &self.keys
    }

    fn length(&self, at: usize) -> u32 {
        match &self.values {
            Values::Made { bytes, .. } => *bytes,
            Values::Read { places, .. } => places[at].len() as u32,
        }
    }

    fn append(&self, at: usize, to: &mut Vec<u8>) {
        match &self.values {
            Values::Made { seed, bytes } => {
                let from = to.len();
                to.resize(from + *bytes as usize, 0);
                value::fill(self.keys[at], *seed, &mut to[from..]);
            }
            Values::Read { text, places } => to.extend_from_slice(&text[places[at].clone()]),
        }
    }
}

/// Sorts what was read by its key; `line` says on which line it was.
fn in_order<T>(path: &Path, mut read: Vec<(u64, T)>, line: impl Fn(&T) -> u64) -> Result<Vec<(u64, T)>> {
    // Stable: the line that came first is named first.
    read.sort_by_key(|(key, _)| *key);
    if let Some(pair) = read.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let (key, first, second) = (pair[0].0, line(&pair[0].1), line(&pair[1].1));
        bail!("{}:{second}: key {key} is on line {first} already; each key has one value", path.display());
    }
    Ok(read)
}

/// A key, decimal or hexadecimal; underscores are passed over.
fn key_of(text: &str) -> Option<u64> {
    let plain = text.trim().replace('_', "");
    match plain.strip_prefix("0x").or_else(|| plain.strip_prefix("0X")) {
        Some(hexadecimal) if !hexadecimal.starts_with('+') => u64::from_str_radix(hexadecimal, 16).ok(),
        None if !plain.starts_with('+') => plain.parse().ok(),
        _ => None,
    }
}

fn refuse_key(path: &Path, line: u64, found: &str) -> Error {
    let found: String = found.chars().take(40).collect();
    let most = u64::MAX;
    Error::msg(format!(
        "{}:{line}: expected a key, 0 to {most}, decimal or 0x..., found {found:?}",
        path.display()
    ))
}

/// Keys and their lines, of a file with a key on each line.
fn keys_of(path: &Path) -> Result<Vec<(u64, u64)>> {
    let file = File::open(path).with_context(|| format!("--keys {}", path.display()))?;
    let mut keys = vec![];
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let line = line.with_context(|| format!("{}:{number}", path.display()))?;
        if !line.trim().is_empty() {
            keys.push((key_of(&line).ok_or_else(|| refuse_key(path, number, &line))?, number));
        }
    }
    Ok(keys)
}

/// All values, and for each key its line and where its value lies among them.
type Lines = (Vec<u8>, Vec<(u64, (u64, Range<usize>))>);

fn csv_of(path: &Path) -> Result<Lines> {
    let reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_path(path);
    let mut reader = reader.with_context(|| format!("--keys {}", path.display()))?;
    let (mut text, mut lines, mut record, mut first) = (vec![], vec![], csv::ByteRecord::new(), true);
    while reader.read_byte_record(&mut record).with_context(|| path.display().to_string())? {
        let line = record.position().map_or(0, csv::Position::line);
        let (Some(key), Some(value), 2) = (record.get(0), record.get(1), record.len()) else {
            let found = count::of(record.len() as u64, "field");
            bail!(
                "{}:{line}: expected key,value, found {found}; a value with a comma in it stands in quotes",
                path.display()
            );
        };
        if std::mem::take(&mut first) && (key, value) == (b"key", b"value") {
            continue;
        }
        let key = String::from_utf8_lossy(key);
        let key = key_of(&key).ok_or_else(|| refuse_key(path, line, &key))?;
        if value.len() > MAX_VALUE as usize {
            let found = value.len();
            bail!("{}:{line}: a value of {found} bytes; up to {MAX_VALUE} are possible", path.display());
        }
        let from = text.len();
        text.extend_from_slice(value);
        lines.push((key, (line, from..text.len())));
    }
    Ok((text, lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<Input> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("it is written");
        Input::read(&path.to_str().expect("plain").parse()?, 7, 16)
    }

    fn values(input: &Input) -> Vec<(u64, Vec<u8>)> {
        let value = |at| {
            let mut bytes = vec![];
            input.append(at, &mut bytes);
            assert_eq!(bytes.len(), input.length(at) as usize);
            (input.keys[at], bytes)
        };
        (0..input.keys.len()).map(value).collect()
    }

    #[test]
    fn counts_are_told_from_files() {
        assert_eq!("2k".parse::<Source>().expect("a count"), Source::Count(2000));
        for (text, reason) in [("0", "expected a number"), ("nowhere.txt", "nor a file"), ("1e99", "64 bits")]
        {
            let error = text.parse::<Source>().expect_err(text).to_string();
            assert!(error.contains(reason), "{error}");
        }
        let input = Input::read(&Source::Count(1000), 7, 16).expect("they fit");
        assert!(input.keys.is_sorted_by(|a, b| a < b) && input.keys.len() == 1000);
    }

    #[test]
    fn keys_are_read_and_sorted_and_their_values_made() {
        let input = read("keys.txt", "9\n0x1_0\n\n 3 \r\n18446744073709551615\n").expect("they are keys");
        assert_eq!(input.keys, [3, 9, 16, u64::MAX]);
        assert!(values(&input).iter().all(|(key, bytes)| value::check(*key, 7, bytes) && bytes.len() == 16));
    }

    #[test]
    fn csv_is_read_with_header_quotes_and_empty_values() {
        let text = "key,value\n7,seven\n0x2,\"two, or \"\"2\"\"\nand more\"\n5,\n";
        let input = read("people.CSV", text).expect("it is CSV");
        let expected = [(2, &b"two, or \"2\"\nand more"[..]), (5, b""), (7, b"seven")];
        assert_eq!(values(&input), expected.map(|(key, value)| (key, value.to_vec())));
        assert_eq!(values(&read("x.csv", "1,key\n").expect("no header")), [(1, b"key".to_vec())]);
    }

    #[test]
    fn what_is_bad_is_told_with_its_line() {
        for (name, text, reason) in [
            (
                "k.txt",
                "1\n2\nthree\n",
                "k.txt:3: expected a key, 0 to 18446744073709551615, decimal or 0x..., found \"three\"",
            ),
            ("k.txt", "18446744073709551616\n", "k.txt:1"),
            ("k.txt", "-1\n", "k.txt:1"),
            ("k.txt", "+1\n", "k.txt:1"),
            ("k.txt", "5\n1\n\n5\n", "k.txt:4: key 5 is on line 1 already"),
            ("k.txt", "\n\n", "no keys in it"),
            ("k.csv", "key,value\n", "no keys in it"),
            ("k.csv", "1,a\n2,b,c\n", "k.csv:2: expected key,value, found 3 fields"),
            ("k.csv", "1,a\n2\n", "k.csv:2: expected key,value, found 1 field;"),
            ("k.csv", "1,\"a\nb\"\nx,b\n", "k.csv:3: expected a key"),
            ("k.csv", "1,a\n0x1,b\n", "k.csv:2: key 1 is on line 1 already"),
        ] {
            let error = read(name, text).map(|_| ()).expect_err(text).to_string();
            assert!(error.contains(reason), "{error}");
        }
        let long = format!("1,a\n2,{}\n", "x".repeat(MAX_VALUE as usize + 1));
        let error = read("k.csv", &long).map(|_| ()).expect_err("too long").to_string();
        assert!(error.contains("k.csv:2: a value of 1048577 bytes"), "{error}");
    }
}
