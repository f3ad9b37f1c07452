//! Commands, as they come in frames.

use bytes::Bytes;
use redis_protocol::resp2::types::BytesFrame;

/// When a SET is carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum When {
    Always,
    /// NX
    Absent,
    /// XX
    Present,
}

/// Keys that a SCAN is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Match {
    Prefix(Bytes),
    Key(Bytes),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    Ping(Option<Bytes>),
    Get(Bytes),
    Set {
        key: Bytes,
        value: Bytes,
        when: When,
    },
    Delete(Vec<Bytes>),
    Exists(Vec<Bytes>),
    GetMany(Vec<Bytes>),
    Scan {
        cursor: u64,
        keys: Match,
        count: usize,
    },
    Info,
    /// What programs ask for when they connect: an empty list is the answer.
    Nothing,
    /// Something that has no effect here.
    Ok,
}

impl Command {
    /// Keys that it touches.
    pub(crate) fn keys(&self) -> &[Bytes] {
        match self {
            Self::Get(key) | Self::Set { key, .. } => std::slice::from_ref(key),
            Self::Delete(keys) | Self::Exists(keys) | Self::GetMany(keys) => keys,
            Self::Ping(_) | Self::Scan { .. } | Self::Info | Self::Nothing | Self::Ok => &[],
        }
    }

    /// Whether it changes them.
    pub(crate) fn is_change(&self) -> bool {
        matches!(self, Self::Set { .. } | Self::Delete(_))
    }

    /// Reads a frame. The error is what the client is told.
    pub(crate) fn of(frame: BytesFrame) -> Result<Self, String> {
        let BytesFrame::Array(frames) = frame else {
            return Err("ERR Protocol error: expected an array of bulk strings".to_owned());
        };
        let words: Option<Vec<Bytes>> = frames
            .into_iter()
            .map(|frame| if let BytesFrame::BulkString(word) = frame { Some(word) } else { None })
            .collect();
        let words = words.ok_or("ERR Protocol error: expected an array of bulk strings")?;
        let Some((name, rest)) = words.split_first() else {
            return Err("ERR Protocol error: expected a command".to_owned());
        };
        let name = String::from_utf8_lossy(name).to_ascii_uppercase();
        let arity = || format!("ERR wrong number of arguments for '{}' command", name.to_ascii_lowercase());
        match (name.as_str(), rest) {
            ("PING", []) => Ok(Self::Ping(None)),
            ("PING", [text]) => Ok(Self::Ping(Some(text.clone()))),
            ("GET", [key]) => Ok(Self::Get(key.clone())),
            ("SET", [key, value, options @ ..]) => set(key, value, options),
            ("DEL" | "UNLINK", [_, ..]) => Ok(Self::Delete(rest.to_vec())),
            ("EXISTS", [_, ..]) => Ok(Self::Exists(rest.to_vec())),
            ("MGET", [_, ..]) => Ok(Self::GetMany(rest.to_vec())),
            ("SCAN", [cursor, options @ ..]) => scan(cursor, options),
            ("INFO", _) => Ok(Self::Info),
            ("COMMAND" | "CONFIG", _) => Ok(Self::Nothing),
            ("CLIENT", _) => Ok(Self::Ok),
            ("SELECT", [number]) if **number == *b"0" => Ok(Self::Ok),
            ("SELECT", [_]) => Err("ERR DB index is out of range: there is one database here, 0".to_owned()),
            ("HELLO", _) => Err("NOPROTO unsupported protocol version".to_owned()),
            ("PING" | "GET" | "SET" | "DEL" | "UNLINK" | "EXISTS" | "MGET" | "SCAN" | "SELECT", _) => {
                Err(arity())
            }
            _ => Err(format!(
                "ERR unknown command '{name}': this server has GET, SET, DEL, EXISTS, MGET, SCAN, PING and INFO"
            )),
        }
    }
}

fn set(key: &Bytes, value: &Bytes, options: &[Bytes]) -> Result<Command, String> {
    let mut when = When::Always;
    for option in options {
        when = match (option.to_ascii_uppercase().as_slice(), when) {
            (b"NX", When::Always) => When::Absent,
            (b"XX", When::Always) => When::Present,
            (b"EX" | b"PX" | b"EXAT" | b"PXAT" | b"KEEPTTL", _) => {
                return Err("ERR keys of this server do not expire: SET has NX and XX".to_owned());
            }
            _ => return Err("ERR syntax error: SET has NX or XX".to_owned()),
        };
    }
    Ok(Command::Set { key: key.clone(), value: value.clone(), when })
}

fn scan(cursor: &[u8], options: &[Bytes]) -> Result<Command, String> {
    let number = |text: &[u8]| std::str::from_utf8(text).ok().and_then(|text| text.parse::<u64>().ok());
    let cursor = number(cursor).ok_or("ERR invalid cursor")?;
    let (mut keys, mut count) = (Match::Prefix(Bytes::new()), 10);
    for option in options.chunks(2) {
        match option {
            [name, pattern] if name.eq_ignore_ascii_case(b"MATCH") => keys = pattern_of(pattern)?,
            [name, most] if name.eq_ignore_ascii_case(b"COUNT") => {
                let most = number(most).filter(|most| *most > 0).ok_or("ERR syntax error")?;
                count = usize::try_from(most).unwrap_or(usize::MAX).min(MOST);
            }
            _ => return Err("ERR syntax error: SCAN has MATCH prefix* and COUNT".to_owned()),
        }
    }
    Ok(Command::Scan { cursor, keys, count })
}

/// Most keys of one answer of SCAN.
const MOST: usize = 10_000;

/// The keys of a pattern: `prefix*`, or one key.
fn pattern_of(pattern: &Bytes) -> Result<Match, String> {
    let (text, is_prefix) = match pattern.strip_suffix(b"*") {
        Some(prefix) => (prefix, true),
        None => (&pattern[..], false),
    };
    if text.iter().any(|byte| b"*?[]\\".contains(byte)) {
        return Err("ERR keys lie in order here, so MATCH takes prefix* or one key".to_owned());
    }
    let text = pattern.slice_ref(text);
    Ok(if is_prefix { Match::Prefix(text) } else { Match::Key(text) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&'static str]) -> Result<Command, String> {
        let words = words.iter().map(|word| BytesFrame::BulkString(Bytes::from_static(word.as_bytes())));
        Command::of(BytesFrame::Array(words.collect()))
    }

    #[test]
    fn commands_are_read_with_their_options() {
        let key = || Bytes::from_static(b"k");
        let set = |when| Command::Set { key: key(), value: Bytes::from_static(b"v"), when };
        assert_eq!(read(&["set", "k", "v"]), Ok(set(When::Always)));
        assert_eq!(read(&["SET", "k", "v", "nx"]), Ok(set(When::Absent)));
        assert_eq!(read(&["SET", "k", "v", "XX"]), Ok(set(When::Present)));
        let scan = |cursor, keys, count| Ok(Command::Scan { cursor, keys, count });
        assert_eq!(read(&["scan", "0"]), scan(0, Match::Prefix(Bytes::new()), 10));
        let user = Match::Prefix(Bytes::from_static(b"user:"));
        assert_eq!(read(&["scan", "7", "match", "user:*", "count", "99"]), scan(7, user, 99));
        assert_eq!(read(&["scan", "0", "MATCH", "k"]), scan(0, Match::Key(key()), 10));
        assert_eq!(read(&["select", "0"]), Ok(Command::Ok));
    }

    #[test]
    fn what_is_not_here_is_refused_in_words() {
        for (words, reason) in [
            (&["lpush", "a", "b"][..], "ERR unknown command 'LPUSH'"),
            (&["set", "k", "v", "EX", "10"], "do not expire"),
            (&["set", "k", "v", "NX", "XX"], "syntax error"),
            (&["get"], "wrong number of arguments for 'get'"),
            (&["scan", "x"], "invalid cursor"),
            (&["scan", "0", "match", "a*b"], "prefix*"),
            (&["scan", "0", "count", "0"], "syntax error"),
            (&["select", "1"], "out of range"),
            (&["hello", "3"], "NOPROTO"),
            (&[], "expected a command"),
        ] {
            let error = read(words).expect_err("it is refused");
            assert!(error.contains(reason), "{words:?}: {error}");
        }
        assert!(Command::of(BytesFrame::Integer(1)).is_err());
        assert!(Command::of(BytesFrame::Array(vec![BytesFrame::Null])).is_err());
    }
}
