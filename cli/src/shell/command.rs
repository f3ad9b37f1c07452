//! A line of the shell: its command, and how values are written.

use std::iter::Peekable;
use std::str::Chars;

use anyhow::{Result, anyhow, bail, ensure};
use fatbtree_blink::Keys;
use fatbtree_remote_memory::{BytesRange, KeyRange, Order};

pub(crate) use fatbtree_remote_memory::byte_keys::{hex, show};

use crate::count;

/// Commands that can be typed, for `help`.
pub(super) const HELP: &str = "\
get K               the value of a key
put K V             puts a value, whether the key is there or not
insert K V          puts a value if the key is not there
update K V          replaces the value if the key is there
cas K OLD NEW       replaces the value if it is OLD
delete K            takes a key away
scan A B [LIMIT]    the pairs of the keys A to B, both included
rscan A B [LIMIT]   the same, the last key first
prefix P [LIMIT]    the pairs of the keys of bytes that begin with P
len                 how many keys there are
verify              walks over all of the structure and checks it
begin               begins a transaction (dtx): get, put, insert, update, cas and delete are steps of it
commit              all of its changes take effect, or none
abort               none takes effect
load N              puts the keys 1 to N, or user:1 to user:N
stats               what it has cost so far
help                this
quit                ends

Keys are such as 4711, 1_000, 1e6 or 0x1267; those of bytes are written as values are. Values are text, \"quoted\" where they hold
spaces (\\\" and \\\\ inside), or bytes as 0x hex.
A line that begins with # is a comment.";

/// A key of either kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Key {
    /// A number.
    Number(u64),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl Key {
    /// The key as text: a number, or what can be typed again.
    pub(crate) fn show(&self) -> String {
        match self {
            Self::Number(key) => key.to_string(),
            Self::Bytes(key) => show(key),
        }
    }
}

/// A range of keys of either kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Range {
    Numbers(KeyRange),
    Bytes(BytesRange),
}

/// A line, understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Get(Key),
    Put(Key, Vec<u8>),
    Insert(Key, Vec<u8>),
    Update(Key, Vec<u8>),
    CompareAndSet(Key, Vec<u8>, Vec<u8>),
    Delete(Key),
    Scan { keys: Range, limit: u64, order: Order },
    Len,
    Verify,
    Begin,
    Commit,
    Abort,
    Load(u64),
    Stats,
    Help,
    Quit,
}

/// Keys from the first to the last, both included.
fn range(first: Key, last: Key) -> Result<Range> {
    let is_above = |first: &str, last: &str| anyhow!("the first key, {first}, is above the last, {last}");
    match (first, last) {
        (Key::Number(first), Key::Number(last)) if first <= last => {
            Ok(Range::Numbers(KeyRange::of(first..=last)))
        }
        (Key::Bytes(first), Key::Bytes(last)) if first <= last => {
            Ok(Range::Bytes(BytesRange::of(first..=last)))
        }
        (first, last) => Err(is_above(&first.show(), &last.show())),
    }
}

/// A word of a line. Quoted ones are always text.
#[derive(Debug)]
struct Word {
    text: String,
    quoted: bool,
}

impl Command {
    /// Reads a line of commands on keys of this kind; `None` if it is empty or a comment.
    ///
    /// # Errors
    /// When it is no command.
    pub(super) fn parse(line: &str, keys: Keys) -> Result<Option<Self>> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let mut words = words(line)?;
        let name = words.remove(0).text;
        let words = words.as_slice();
        let key = |word: &Word| match keys {
            Keys::Numbers => number(word).map(Key::Number),
            Keys::Bytes => bytes(word).map(Key::Bytes),
        };
        let most = |limit: &[Word]| limit.first().map_or(Ok(u64::MAX), number);
        let command = match (name.as_str(), words) {
            ("get", [word]) => Self::Get(key(word)?),
            ("put", [word, value]) => Self::Put(key(word)?, bytes(value)?),
            ("insert", [word, value]) => Self::Insert(key(word)?, bytes(value)?),
            ("update", [word, value]) => Self::Update(key(word)?, bytes(value)?),
            ("cas", [word, old, new]) => Self::CompareAndSet(key(word)?, bytes(old)?, bytes(new)?),
            ("delete", [word]) => Self::Delete(key(word)?),
            ("scan" | "rscan", [first, last, limit @ ..]) if limit.len() < 2 => Self::Scan {
                keys: range(key(first)?, key(last)?)?,
                limit: most(limit)?,
                order: if name == "rscan" { Order::Backward } else { Order::Forward },
            },
            ("prefix", [prefix, limit @ ..]) if limit.len() < 2 => {
                ensure!(keys == Keys::Bytes, "prefix is for keys of bytes, and these are numbers; see scan");
                Self::Scan {
                    keys: Range::Bytes(BytesRange::prefix(&bytes(prefix)?)),
                    limit: most(limit)?,
                    order: Order::Forward,
                }
            }
            ("len", []) => Self::Len,
            ("verify", []) => Self::Verify,
            ("begin", []) => Self::Begin,
            ("commit", []) => Self::Commit,
            ("abort", []) => Self::Abort,
            ("load", [count]) => Self::Load(number(count)?),
            ("stats", []) => Self::Stats,
            ("help", []) => Self::Help,
            ("quit", []) => Self::Quit,
            _ => return Err(unknown(&name, words.len())),
        };
        Ok(Some(command))
    }
}

impl Command {
    /// Whether it reads or changes a key.
    pub(super) const fn is_step(&self) -> bool {
        matches!(
            self,
            Self::Get(_)
                | Self::Put(..)
                | Self::Insert(..)
                | Self::Update(..)
                | Self::CompareAndSet(..)
                | Self::Delete(_)
        )
    }

    /// Whether it ends a transaction.
    pub(super) const fn ends(&self) -> bool {
        matches!(self, Self::Commit | Self::Abort)
    }
}

/// Error for a line that is no command: it has another number of words, or another first one.
fn unknown(name: &str, found: usize) -> anyhow::Error {
    let usage = HELP.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.split("  ").next());
    match usage.into_iter().find(|usage| usage.split(' ').next() == Some(name)) {
        Some(usage) => anyhow!("expected `{usage}`, found {found} words after {name}"),
        None => anyhow!("{} is no command; type help to see all", shortened(name)),
    }
}

fn words(line: &str) -> Result<Vec<Word>> {
    let mut chars = line.chars().peekable();
    let mut words = Vec::new();
    loop {
        while chars.next_if(|next| next.is_whitespace()).is_some() {}
        match chars.peek() {
            None => return Ok(words),
            Some('"') => words.push(Word { text: quoted(&mut chars)?, quoted: true }),
            Some(_) => {
                let text = std::iter::from_fn(|| chars.next_if(|next| !next.is_whitespace())).collect();
                words.push(Word { text, quoted: false });
            }
        }
    }
}

fn quoted(chars: &mut Peekable<Chars<'_>>) -> Result<String> {
    let mut text = String::new();
    chars.next();
    loop {
        match chars.next() {
            None => bail!("a quoted value has no closing \""),
            Some('"') => break,
            Some('\\') => match chars.next() {
                Some(escaped @ ('"' | '\\')) => text.push(escaped),
                _ => bail!("in a quoted value \\ stands before \" or \\; give other bytes as 0x hex"),
            },
            Some(other) => text.push(other),
        }
    }
    ensure!(chars.peek().is_none_or(|next| next.is_whitespace()), "after a closing \" comes a space");
    Ok(text)
}

fn number(word: &Word) -> Result<u64> {
    let text = &word.text;
    let parsed = count::key_of(text).filter(|_| !word.quoted);
    parsed.map(|asked| asked.key).ok_or_else(|| {
        let found = shortened(text);
        anyhow!("expected a number from 0 to {}, such as 4711, 1_000, 1e6 or 0x1267, found {found}", u64::MAX)
    })
}

fn bytes(word: &Word) -> Result<Vec<u8>> {
    let Some(hex) = word.text.strip_prefix("0x").filter(|_| !word.quoted) else {
        return Ok(word.text.clone().into_bytes());
    };
    let digits: Option<Vec<u8>> =
        hex.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect();
    match digits {
        Some(digits) if digits.len().is_multiple_of(2) => {
            Ok(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
        }
        _ => bail!(
            "expected two hex digits a byte after 0x, found {}; if it is text, quote it here, or use `fatbtree put KEY --text`",
            shortened(&word.text)
        ),
    }
}

/// Reads a key of the command line.
pub(crate) fn key(text: &str) -> Result<u64, String> {
    number(&Word { text: text.to_owned(), quoted: false }).map_err(|error| error.to_string())
}

/// Reads a value of the command line.
///
/// # Errors
/// When it begins with 0x, and is no hex.
pub(crate) fn value(text: &str) -> Result<Vec<u8>> {
    bytes(&Word { text: text.to_owned(), quoted: false })
}

/// Part of a word that a message shows.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 40;
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_typed_again() {
        let values: [&[u8]; 14] = [
            b"",
            b"plain",
            b"two words",
            b" ",
            b"0x41",
            b"\"",
            b"a\"b",
            b"\"a\\ b\"",
            b"back\\slash",
            b"line\nend",
            b"\x00\xff",
            b"#",
            "größe".as_bytes(),
            "a\u{a0}b".as_bytes(),
        ];
        for value in values {
            let line = format!("put 7 {}", show(value));
            let expected = Command::Put(Key::Number(7), value.to_vec());
            assert_eq!(Command::parse(&line, Keys::Numbers).unwrap(), Some(expected), "{line}");
            let line = format!("cas {0} {0} {0}", show(value));
            let expected = Command::CompareAndSet(Key::Bytes(value.to_vec()), value.to_vec(), value.to_vec());
            assert_eq!(Command::parse(&line, Keys::Bytes).unwrap(), Some(expected), "{line}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_hex() {
        assert_eq!(show(&[0, 0xab, 0x10]), "0x00ab10");
        let put = |line, keys| Command::parse(line, keys).unwrap();
        let (number, key) = (Key::Number(16), Key::Bytes(vec![16]));
        let value = vec![0, 0xab, 0x10];
        assert_eq!(put("put 0x10 0x00aB10", Keys::Numbers), Some(Command::Put(number, value.clone())));
        assert_eq!(put("put 0x10 0x00aB10", Keys::Bytes), Some(Command::Put(key, value)));
        assert_eq!(put("put 1 0x", Keys::Numbers), Some(Command::Put(Key::Number(1), vec![])));
    }
}
