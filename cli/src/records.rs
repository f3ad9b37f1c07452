//! Files of keys, and of keys and values: one reader for all commands.
//!
//! A file whose name ends in `.csv` has records of `key,value`, with quotes as in RFC 4180. A value with a comma, a
//! quote or a line break in it stands in quotes, and a quote within is doubled. Any other file has a key a line. In
//! both:
//!
//! * keys are decimal or `0x` hexadecimal, with `_` between digits where that helps;
//! * empty lines, and lines that begin with `#`, are passed over; after a key that stands alone `#` begins a comment, too;
//! * a first line that names the columns, `key` or `key,value`, is passed over, and so is a byte order mark of UTF-8.
//!
//! What YCSB's basic client prints of a load (`ycsb load basic`) is read, too: of the line
//! `INSERT usertable user4711 [ field0=a field1=b ]` the key is the number 4711, and the value the text
//! `field0=a field1=b`. All lines that are no operations are passed over.
//!
//! Keys of bytes are taken as they stand: all of a line, or the first field of a record.
//!
//! A key that is repeated in a file of keys is left out, and a message says so. In a file with values it is refused, because
//! it cannot have two values.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, bail};
use fatbtree_blink::MAX_VALUE;
use fatbtree_workload::ycsb::KeyFile;

use crate::count;

/// Bytes of the longest line: a value of quotes alone, each doubled, and its key.
const LONGEST_LINE: u64 = 2 * MAX_VALUE as u64 + 256;

/// Whether a file has values: one of this name, or with this beginning.
pub(crate) fn has_values(path: &Path) -> bool {
    is_csv(path) || is_ycsb(path)
}

/// Whether a file is the output of YCSB. Its operations follow properties, which are a few KB.
fn is_ycsb(path: &Path) -> bool {
    let mut begin = Vec::new();
    let read = File::open(path).map(|file| file.take(BEGINNING).read_to_end(&mut begin));
    read.is_ok_and(|read| read.is_ok())
        && begin.split(|byte| *byte == b'\n').any(|line| inserted(line).is_some())
}

/// Bytes that are read of a file to find out what it is: the properties of YCSB, and a first record of the usual size.
const BEGINNING: u64 = 1 << 16;

fn is_csv(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"))
}

/// The keys of a file of either kind, in its order.
///
/// # Errors
/// With the line, when something stands there that does not belong there; when there are no keys.
pub(crate) fn keys_of(path: &Path) -> Result<KeyFile> {
    if has_values(path) {
        let keys: Vec<u64> = pairs_of(path)?.places.into_iter().map(|(key, _)| key).collect();
        return Ok(KeyFile::from(keys));
    }
    let name = path.display().to_string();
    let file = KeyFile::from(keys_in(&name, open(path)?)?);
    tell_left_out(&name, file.duplicates());
    Ok(file)
}

fn tell_left_out(name: &str, lines: usize) {
    if lines > 0 {
        let lines = count::of(lines as u64, "line");
        errln!("{name}: {lines} with a key that an earlier line has; left out");
    }
}

/// Refuses keys that cannot be divided among memory servers.
pub(crate) fn check_enough(keys: u64, servers: u64) -> Result<()> {
    if keys < servers {
        let (keys, servers) = (count::of(keys, "key"), count::of(servers, "memory server"));
        bail!("{keys} on {servers}: every server needs at least one key");
    }
    Ok(())
}

/// Keys, ascending, and their values.
#[derive(Debug)]
pub(crate) struct Pairs<K = u64> {
    /// All values.
    text: Vec<u8>,
    /// Each key, and where its value lies.
    places: Vec<(K, Range<usize>)>,
}

impl<K> Pairs<K> {
    /// The value at a position, in the order of the keys.
    pub(crate) fn value(&self, at: usize) -> &[u8] {
        &self.text[self.places[at].1.clone()]
    }

    /// The key at a position.
    pub(crate) fn key(&self, at: usize) -> &K {
        &self.places[at].0
    }

    /// Number of pairs.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }
}

impl Pairs<Vec<u8>> {
    /// The value of a key of bytes.
    pub(crate) fn value_of_bytes(&self, key: &[u8]) -> Option<&[u8]> {
        let at = self.places.binary_search_by(|(other, _)| other[..].cmp(key)).ok()?;
        Some(self.value(at))
    }
}

impl Pairs {
    /// The value of a key.
    pub(crate) fn value_of(&self, key: u64) -> Option<&[u8]> {
        let at = self.places.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        Some(self.value(at))
    }

    /// The keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = u64> {
        self.places.iter().map(|(key, _)| *key)
    }
}

/// The keys and values of a CSV file.
///
/// # Errors
/// As [`keys_of`].
pub(crate) fn pairs_of(path: &Path) -> Result<Pairs> {
    let name = path.display().to_string();
    match is_csv(path) {
        true => pairs_in(&name, open(path)?),
        false => inserts_in(&name, open(path)?),
    }
}

/// The keys of bytes of a file and, if it is CSV, their values.
///
/// # Errors
/// As [`keys_of`].
pub(crate) fn byte_keys_of(path: &Path) -> Result<(Pairs<Vec<u8>>, bool)> {
    let (name, has_values) = (path.display().to_string(), is_csv(path));
    let found = match has_values {
        true => records_in(&name, open(path)?, |_, _, key| Ok(key.to_vec()))?,
        false => {
            let (mut lines, mut found) = (Lines::new(&name, open(path)?)?, Found::default());
            let (mut seen, mut left_out) = (HashSet::new(), 0);
            while lines.next()? {
                let key = lines.content();
                if key.is_empty() || key.starts_with(b"#") {
                    continue;
                }
                match seen.insert(key.to_vec()) {
                    true => found.add(&name, lines.number, key.to_vec(), b"")?,
                    false => left_out += 1,
                }
            }
            tell_left_out(&name, left_out);
            found
        }
    };
    let show = |key: &Vec<u8>| format!("{:?}", String::from_utf8_lossy(key));
    Ok((found.pairs(&name, show)?, has_values))
}

fn open(path: &Path) -> Result<BufReader<File>> {
    let file = File::open(path).with_context(|| format!("--keys {}", path.display()))?;
    Ok(BufReader::with_capacity(1 << 18, file))
}

fn keys_in(name: &str, input: impl BufRead) -> Result<Vec<u64>> {
    let mut lines = Lines::new(name, input)?;
    let (mut keys, mut first) = (vec![], true);
    while lines.next()? {
        let text = lines.content();
        let end = text.iter().position(|byte| *byte == b'#').unwrap_or(text.len());
        let text = text[..end].trim_ascii();
        if text.is_empty() || std::mem::take(&mut first) && text == b"key" {
            continue;
        }
        keys.push(lines.key(lines.number, text)?);
    }
    if keys.is_empty() {
        bail!("{name}: no keys in it");
    }
    Ok(keys)
}

fn pairs_in(name: &str, input: impl BufRead) -> Result<Pairs> {
    records_in(name, input, |lines, line, key| lines.key(line, key))?.pairs(name, u64::to_string)
}

/// The records of a CSV file, whose keys `key` reads.
fn records_in<K: Ord, R: BufRead>(
    name: &str,
    input: R,
    key_of: impl Fn(&Lines<'_, R>, u64, &[u8]) -> Result<K>,
) -> Result<Found<K>> {
    let mut lines = Lines::new(name, input)?;
    let (mut found, mut first) = (Found::default(), true);
    let (mut key, mut value) = (vec![], vec![]);
    while lines.next()? {
        let line = lines.number;
        let content = lines.content().trim_ascii();
        if content.is_empty() || content.starts_with(b"#") {
            continue;
        }
        let fields = lines.record(&mut key, &mut value)?;
        if fields != 2 {
            let found = count::of(fields, "field");
            bail!(
                "{name}:{line}: expected key,value, found {found}; a value with a comma in it stands in quotes"
            );
        }
        if std::mem::take(&mut first) && (&key[..], &value[..]) == (b"key", b"value") {
            continue;
        }
        found.add(name, line, key_of(&lines, line, &key)?, &value)?;
    }
    Ok(found)
}

/// The records that YCSB has inserted.
fn inserts_in(name: &str, input: impl BufRead) -> Result<Pairs> {
    let mut lines = Lines::new(name, input)?;
    let mut found = Found::default();
    while lines.next()? {
        let line = lines.number;
        if let Some((key, value)) = inserted(lines.content()) {
            let key = lines.key(line, key)?;
            found.add(name, line, key, value)?;
        } else if is_of_a_run(lines.content()) {
            bail!(
                "{name}:{line}: expected INSERT lines alone, as of `ycsb load basic`, found an operation of a run; `fatbtree bench --workload` \
                 draws these, from a file of YCSB's properties, too"
            );
        }
    }
    found.pairs(name, u64::to_string)
}

/// Digits of the key, and the text of the fields, of a record that YCSB's basic client has inserted.
fn inserted(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = line.trim_ascii_end().strip_prefix(b"INSERT ")?;
    let table = rest.iter().position(|byte| *byte == b' ')?;
    let rest = rest[table + 1..].strip_prefix(b"user")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let fields = rest[digits..].strip_prefix(b" [ ")?.strip_suffix(b"]")?;
    (digits > 0).then_some((&rest[..digits], fields.strip_suffix(b" ").unwrap_or(fields)))
}

/// Whether YCSB's basic client did another operation here.
fn is_of_a_run(line: &[u8]) -> bool {
    let mut words = line.split(|byte| *byte == b' ');
    let operation = words.next().unwrap_or_default();
    let is_one = [&b"READ"[..], b"UPDATE", b"SCAN", b"DELETE"].contains(&operation);
    is_one && words.nth(1).is_some_and(|key| key.starts_with(b"user"))
}

/// Pairs as they are found.
struct Found<K> {
    text: Vec<u8>,
    /// Each key, its line, and where its value lies.
    places: Vec<(K, u64, Range<usize>)>,
}

impl<K> Default for Found<K> {
    fn default() -> Self {
        Self { text: Vec::new(), places: Vec::new() }
    }
}

impl<K: Ord> Found<K> {
    fn add(&mut self, name: &str, line: u64, key: K, value: &[u8]) -> Result<()> {
        if value.len() > MAX_VALUE as usize {
            bail!("{name}:{line}: a value of {} bytes; up to {MAX_VALUE} are possible", value.len());
        }
        let from = self.text.len();
        self.text.extend_from_slice(value);
        self.places.push((key, line, from..self.text.len()));
        Ok(())
    }

    fn pairs(self, name: &str, show: impl Fn(&K) -> String) -> Result<Pairs<K>> {
        let Self { text, mut places } = self;
        if places.is_empty() {
            bail!("{name}: no keys in it");
        }
        // Stable: the line that came first is named first.
        places.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        if let Some(pair) = places.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let (key, first, second) = (show(&pair[0].0), pair[0].1, pair[1].1);
            bail!("{name}:{second}: key {key} is on line {first} already; each key has one value");
        }
        Ok(Pairs { text, places: places.into_iter().map(|(key, _, place)| (key, place)).collect() })
    }
}

/// The lines of a file, one at a time.
struct Lines<'n, R> {
    name: &'n str,
    input: R,
    /// The line, with its end.
    line: Vec<u8>,
    /// Number of the line, from 1.
    number: u64,
}

impl<'n, R: BufRead> Lines<'n, R> {
    /// Passes over a byte order mark.
    fn new(name: &'n str, mut input: R) -> Result<Self> {
        let begin = input.fill_buf().with_context(|| name.to_owned())?;
        if begin.starts_with(b"\xff\xfe") || begin.starts_with(b"\xfe\xff") {
            bail!("{name}: expected text in UTF-8, found UTF-16; save it as UTF-8");
        }
        if begin.starts_with("\u{feff}".as_bytes()) {
            input.consume("\u{feff}".len());
        }
        Ok(Self { name, input, line: vec![], number: 0 })
    }

    /// Goes to the next line, if there is one.
    fn next(&mut self) -> Result<bool> {
        self.line.clear();
        self.number += 1;
        let (name, number) = (self.name, self.number);
        let read = (&mut self.input).take(LONGEST_LINE).read_until(b'\n', &mut self.line);
        let read = read.with_context(|| format!("{name}:{number}"))?;
        if read as u64 == LONGEST_LINE && self.line.last() != Some(&b'\n') {
            bail!("{name}:{number}: expected lines of less than {LONGEST_LINE} bytes, found a longer one");
        }
        Ok(read > 0)
    }

    /// The line without its end.
    fn content(&self) -> &[u8] {
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        line.strip_suffix(b"\r").unwrap_or(line)
    }

    /// Reads the record that begins on this line, and may end on a later one: the first two fields, and how many there are.
    fn record(&mut self, first: &mut Vec<u8>, second: &mut Vec<u8>) -> Result<u64> {
        let (mut fields, mut at, mut further) = (0, 0, vec![]);
        loop {
            let field = match fields {
                0 => &mut *first,
                1 => &mut *second,
                _ => &mut further,
            };
            field.clear();
            at = match self.line.get(at) {
                Some(b'"') => self.quoted(at + 1, field)?,
                _ => {
                    let rest = &self.content()[at..];
                    let end = rest.iter().position(|byte| *byte == b',').unwrap_or(rest.len());
                    field.extend_from_slice(&rest[..end]);
                    at + end
                }
            };
            fields += 1;
            match self.content().get(at) {
                None => return Ok(fields),
                Some(b',') => at += 1,
                Some(_) => bail!(
                    "{}:{}: expected a comma or the end of the line after the closing quote; a quote within a value is doubled",
                    self.name,
                    self.number
                ),
            }
        }
    }

    /// Reads a field whose opening quote stands before `at`. Returns the place after its closing quote.
    fn quoted(&mut self, mut at: usize, field: &mut Vec<u8>) -> Result<usize> {
        let (name, opened) = (self.name, self.number);
        loop {
            match self.line[at..].iter().position(|byte| *byte == b'"') {
                Some(length) => {
                    field.extend_from_slice(&self.line[at..at + length]);
                    at += length + 1;
                    if self.line.get(at) != Some(&b'"') {
                        return Ok(at);
                    }
                    field.push(b'"');
                    at += 1;
                }
                None => {
                    field.extend_from_slice(&self.line[at..]);
                    if field.len() > MAX_VALUE as usize {
                        bail!(
                            "{name}:{opened}: a value of more than {MAX_VALUE} bytes; is the quote closed that opens on this line?"
                        );
                    }
                    if !self.next()? {
                        bail!(
                            "{name}:{opened}: the quote that opens on this line is not closed; a quote within a value is doubled"
                        );
                    }
                    at = 0;
                }
            }
        }
    }

    fn key(&self, line: u64, found: &[u8]) -> Result<u64> {
        let text = String::from_utf8_lossy(found);
        let key = crate::count::key_of(&text).map(|asked| asked.key);
        key.with_context(|| {
            let (name, most) = (self.name, u64::MAX);
            let found: String = text.chars().take(40).collect();
            format!("{name}:{line}: expected a key, 0 to {most}, decimal or 0x..., found {found:?}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Result<Vec<(u64, String)>> {
        let pairs = pairs_in("k.csv", text.as_bytes())?;
        let value = |(at, key)| (key, String::from_utf8_lossy(pairs.value(at)).into_owned());
        Ok(pairs.keys().enumerate().map(value).collect())
    }

    #[test]
    fn keys_are_read_in_their_order() {
        let text = "\u{feff}key\n9\n0x1_0 # hexadecimal\n\n  # nothing\n 3 \r\n9\n18446744073709551615";
        assert_eq!(keys_in("k", text.as_bytes()).expect("they are keys"), [9, 16, 3, 9, u64::MAX]);
    }

    #[test]
    fn pairs_are_read_with_quotes_comments_and_marks() {
        let text = "\u{feff}key,value\n# a comment, with a \" in it\n7,seven # no comment\r\n\n0x2,\"two, or \"\"2\"\"\n# and more\"\n5,\n1_1,\"\"\n3,say \"x\"";
        let expected = [
            (2, "two, or \"2\"\n# and more"),
            (3, "say \"x\""),
            (5, ""),
            (7, "seven # no comment"),
            (11, ""),
        ];
        assert_eq!(pairs(text).expect("it is CSV"), expected.map(|(key, value)| (key, value.to_owned())));
        assert_eq!(pairs("1,key\n").expect("no header"), [(1, "key".to_owned())]);
        let read = pairs_in("k.csv", &b"1,a\n3,c\n"[..]).expect("it is CSV");
        assert_eq!((read.value_of(3), read.value_of(2)), (Some(&b"c"[..]), None));
    }

    #[test]
    fn what_ycsb_prints_is_read() {
        let text = "***************** properties *****************\n\"recordcount\"=\"3\"\n\
                    INSERT usertable user6284781860667377211 [ field1=a [b] c field0=x=y,\"z ]\n\
                    INSERT usertable user00000012 [ ]\r\n[OVERALL], RunTime(ms), 11\n\
                    INSERT other user7 [ field0=]] ]\n";
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("load.out");
        std::fs::write(&path, text).expect("it is written");
        assert!(has_values(&path));
        let read = pairs_of(&path).expect("it is YCSB's");
        assert_eq!(read.keys().collect::<Vec<_>>(), [7, 12, 6_284_781_860_667_377_211]);
        assert_eq!((read.value(0), read.value(1)), (&b"field0=]]"[..], &b""[..]));
        assert_eq!(read.value(2), b"field1=a [b] c field0=x=y,\"z");
        assert_eq!(keys_of(&path).expect("keys").into_keys().len(), 3);
        let twice =
            inserts_in("l", &b"INSERT t user5 [ f=1 ]\nINSERT t user05 [ f=2 ]\n"[..]).expect_err("twice");
        assert!(twice.to_string().contains("l:2: key 5 is on line 1 already"), "{twice}");
        for line in [
            "READ usertable user5 [ <all fields>]",
            "UPDATE usertable user5 [ field0=a ]",
            "SCAN t user5 9 [ ]",
        ] {
            let text = format!("INSERT t user5 [ f=1 ]\n{line}\n");
            let error = inserts_in("l", text.as_bytes()).expect_err(line).to_string();
            assert!(error.contains("l:2: ") && error.contains("bench --workload"), "{error}");
        }
        std::fs::write(&path, "1\n2\nINSERT\n").expect("it is written");
        assert!(!has_values(&path));
        let far = inserts_in("l", &b"INSERT t user99999999999999999999 [ f=1 ]\n"[..]).expect_err("too far");
        assert!(far.to_string().contains("l:1: expected a key"), "{far}");
    }

    #[test]
    fn what_is_bad_is_told_with_its_line() {
        let key = "expected a key, 0 to 18446744073709551615, decimal or 0x..., found";
        for (text, reason) in [
            ("1\n2\nthree\n", format!("k:3: {key} \"three\"")),
            ("18446744073709551616\n", "k:1: ".into()),
            ("-1\n", "k:1: ".into()),
            ("\n+1\n", "k:2: ".into()),
            ("0x\n", "k:1: ".into()),
            ("3 4\n", "k:1: ".into()),
            ("_1\n", "k:1: ".into()),
            ("1,a\n", format!("k:1: {key} \"1,a\"")),
            ("\n# 5\n", "no keys in it".into()),
            ("", "no keys in it".into()),
        ] {
            let error = format!("{:#}", keys_in("k", text.as_bytes()).expect_err(text));
            assert!(error.contains(&reason), "{text:?}: {error}");
        }
        let utf16 = keys_in("k", &b"\xff\xfe1\0\n\0"[..]).expect_err("UTF-16").to_string();
        assert!(utf16.contains("save it as UTF-8"), "{utf16}");
        let endless =
            keys_in("k", std::io::BufReader::new(std::io::repeat(b'1'))).expect_err("endless").to_string();
        assert!(endless.contains("k:1: expected lines of less than"), "{endless}");
        for (text, reason) in [
            ("key,value\n", "no keys in it"),
            ("1,a\n2,b,c\n", "k.csv:2: expected key,value, found 3 fields"),
            ("1,a\n2\n", "k.csv:2: expected key,value, found 1 field;"),
            ("1,\"a\nb\"\nx,b\n", "k.csv:3: expected a key"),
            ("1,a\n0x1,b\n", "k.csv:2: key 1 is on line 1 already"),
            ("1,\"a\n2,b\n3,c\n", "k.csv:1: the quote that opens on this line is not closed"),
            ("1,a\n2,\"b\"c\n", "k.csv:2: expected a comma or the end of the line after the closing quote"),
            ("key;value\n", "k.csv:1: expected key,value, found 1 field"),
        ] {
            let error = format!("{:#}", pairs(text).expect_err(text));
            assert!(error.contains(reason), "{text:?}: {error}");
        }
        let long = format!("1,a\n2,{}\n", "x".repeat(MAX_VALUE as usize + 1));
        let error = pairs(&long).expect_err("too long").to_string();
        assert!(error.contains("k.csv:2: a value of 1048577 bytes"), "{error}");
        let swallowed = format!("1,\"a\n{}", "2,b\n".repeat(1 << 20));
        let error = pairs(&swallowed).expect_err("too long").to_string();
        assert!(error.contains("k.csv:1: ") && error.contains("is the quote closed"), "{error}");
    }
}
