//! Java's `.properties` syntax, which YCSB's workload files are written in.
//!
//! One property per logical line; the name ends at the first unescaped `=`, `:` or white space. `#` and `!`
//! open a comment line. An odd number of backslashes at the end of a line continues it on the next, whose
//! leading white space is dropped. `\t \n \r \f \uXXXX` are escapes, a backslash before any other character
//! is that character. (java.util.Properties, method `load`.)
//!
//! Unlike Java, a name given twice is an error and not "the last one wins": in a workload file it is a
//! mistake.

use std::fmt;

use thiserror::Error;

/// Source of a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Line of a file, from 1.
    Line(usize),
    /// Set by the program, as from a command line.
    Set,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Line(line) => write!(f, "line {line}"),
            Origin::Set => f.write_str("set outside the file"),
        }
    }
}

/// One property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Property {
    /// Name, as written.
    pub name: String,
    /// Value, escapes resolved, trailing white space kept out.
    pub value: String,
    /// Source of the property.
    pub origin: Origin,
}

/// Errors in a file's `.properties` syntax.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PropertiesError {
    /// A name occurs twice.
    #[error(
        "{file}, line {second}: property `{name}` was already given on line {first}; keep one of the two"
    )]
    Twice {
        /// The file.
        file: String,
        /// The property.
        name: String,
        /// Line of the first occurrence.
        first: usize,
        /// Line of the second occurrence.
        second: usize,
    },
    /// A `\u` escape lacks its four hexadecimal digits.
    #[error("{file}, line {line}: expected 4 hexadecimal digits after `\\u`, found `{found}`")]
    Unicode {
        /// The file.
        file: String,
        /// Line in the file.
        line: usize,
        /// Text found instead.
        found: String,
    },
    /// A separator without a name in front.
    #[error("{file}, line {line}: expected `name=value`, found a value without a name: `{found}`")]
    NoName {
        /// The file.
        file: String,
        /// Line in the file.
        line: usize,
        /// Text found instead.
        found: String,
    },
}

/// Properties of one file, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties {
    file: String,
    entries: Vec<Property>,
}

impl Properties {
    /// Parses `text`; errors call the file `file`.
    pub fn parse(file: &str, text: &str) -> Result<Self, PropertiesError> {
        let mut properties = Properties { file: file.to_owned(), entries: Vec::new() };
        let mut lines = text.lines().enumerate();
        while let Some((index, first)) = lines.next() {
            let line = index + 1;
            let start = first.trim_start_matches(BLANK);
            if start.is_empty() || start.starts_with(['#', '!']) {
                continue;
            }
            let mut logical = start.to_owned();
            while ends_open(&logical) {
                logical.pop();
                match lines.next() {
                    Some((_, next)) => logical.push_str(next.trim_start_matches(BLANK)),
                    None => break,
                }
            }
            properties.add_line(line, &logical)?;
        }
        Ok(properties)
    }

    fn add_line(&mut self, line: usize, logical: &str) -> Result<(), PropertiesError> {
        let (name, value) = split(logical);
        let unescaped = |text: &str| {
            unescape(text).map_err(|found| PropertiesError::Unicode { file: self.file.clone(), line, found })
        };
        let name = unescaped(name)?;
        let value = unescaped(value)?.trim_end_matches(BLANK).to_owned();
        if name.is_empty() {
            return Err(PropertiesError::NoName { file: self.file.clone(), line, found: logical.to_owned() });
        }
        if let Some(Property { origin: Origin::Line(first), .. }) = self.get(&name) {
            return Err(PropertiesError::Twice {
                file: self.file.clone(),
                name,
                first: *first,
                second: line,
            });
        }
        self.entries.push(Property { name, value, origin: Origin::Line(line) });
        Ok(())
    }

    /// Name of the file, for messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Property of that name.
    pub fn get(&self, name: &str) -> Option<&Property> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// All properties of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Property> {
        self.entries.iter()
    }

    /// Sets a property from outside the file, overriding the file's value (YCSB's `-p name=value`).
    pub fn set(&mut self, name: &str, value: &str) {
        self.entries.retain(|entry| entry.name != name);
        self.entries.push(Property { name: name.to_owned(), value: value.to_owned(), origin: Origin::Set });
    }
}

/// Java's white space within a line.
const BLANK: [char; 3] = [' ', '\t', '\x0c'];

fn ends_open(line: &str) -> bool {
    line.bytes().rev().take_while(|&b| b == b'\\').count() % 2 == 1
}

/// Cuts a logical line at the end of its name.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line
        .char_indices()
        .find(|&(_, c)| {
            let ends = !escaped && (c == '=' || c == ':' || BLANK.contains(&c));
            escaped = c == '\\' && !escaped;
            ends
        })
        .map_or(line.len(), |(at, _)| at);
    let rest = line[end..].trim_start_matches(BLANK);
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start_matches(BLANK);
    (&line[..end], value)
}

/// The text with its escapes resolved, or what stands where four hexadecimal digits should.
fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('t') => out.push('\t'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('f') => out.push('\x0c'),
            Some('u') => {
                let digits: String = chars.by_ref().take(4).collect();
                let valid = digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_hexdigit());
                let code = u32::from_str_radix(&digits, 16).ok().filter(|_| valid).ok_or(digits)?;
                out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        let properties = Properties::parse("test", text).unwrap();
        properties.iter().map(|p| (p.name.clone(), p.value.clone())).collect()
    }

    #[test]
    fn every_separator() {
        for text in ["a=b", "a:b", "a b", "a = b", "a\t:\tb", "  a  =  b  ", "a=b\r\n"] {
            assert_eq!(pairs(text), [("a".into(), "b".into())], "{text:?}");
        }
        assert_eq!(pairs("a"), [("a".into(), String::new())]);
        assert_eq!(pairs("a==b"), [("a".into(), "=b".into())]);
    }

    #[test]
    fn comments_and_blank_lines() {
        assert_eq!(pairs("# x=1\n! y=2\n\n   # z\\\na=b"), [("a".into(), "b".into())]);
    }

    #[test]
    fn continuation_lines() {
        assert_eq!(pairs("a=one,\\\n   two,\\\n\tthree"), [("a".into(), "one,two,three".into())]);
        assert_eq!(pairs("a=even\\\\\nb=c"), [("a".into(), "even\\".into()), ("b".into(), "c".into())]);
        assert_eq!(pairs("a=end\\"), [("a".into(), "end".into())]);
    }

    #[test]
    fn escapes() {
        assert_eq!(pairs("a\\=b=c\\td"), [("a=b".into(), "c\td".into())]);
        assert_eq!(pairs("k\\u0041=\\u00e9"), [("kA".into(), "é".into())]);
    }

    #[test]
    fn mistakes_name_their_line() {
        let twice = Properties::parse("w", "a=1\n\na=2").unwrap_err();
        assert_eq!(twice, PropertiesError::Twice { file: "w".into(), name: "a".into(), first: 1, second: 3 });
        let unicode = Properties::parse("w", "\na=\\u12").unwrap_err();
        assert_eq!(unicode.to_string(), "w, line 2: expected 4 hexadecimal digits after `\\u`, found `12`");
        assert!(matches!(Properties::parse("w", "=x"), Err(PropertiesError::NoName { line: 1, .. })));
    }

    #[test]
    fn settings_from_outside_win() {
        let mut properties = Properties::parse("w", "a=1\nb=2").unwrap();
        properties.set("a", "3");
        assert_eq!(properties.get("a").unwrap().value, "3");
        assert_eq!(properties.get("a").unwrap().origin, Origin::Set);
        assert_eq!(properties.iter().count(), 2);
    }

    proptest! {
        #[test]
        fn never_panics(text in "[ -~\\n\\r\\t\\\\é]{0,200}") {
            let _ = Properties::parse("fuzz", &text);
        }

        #[test]
        fn plain_pairs_come_back(pairs_in in prop::collection::btree_map("[a-z][a-z.]{0,10}", "[a-z0-9.]{0,10}", 0..8)) {
            let text: String = pairs_in.iter().map(|(k, v)| format!("{k}={v}\n")).collect();
            prop_assert_eq!(pairs(&text), pairs_in.into_iter().collect::<Vec<_>>());
        }
    }
}
