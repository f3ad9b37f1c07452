//! Lookup by name: exact, by alias, or by dotted suffix.
//!
//! A program compiled for v1model calls a table `ingress.node_set_a.child`; compiled for a Tofino it is
//! `pipe.ingress.node_set_a.child`. `node_set_a.child` names both, so that one controller drives both.

use thiserror::Error;

/// A name that does not lead to exactly one object.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LookupError {
    /// Nothing has this name.
    #[error("no {kind} is called `{name}` in {place}; there are: {available}")]
    NotFound {
        /// Kind of the missing thing: "table", "action", …
        kind: &'static str,
        /// The name that was asked for.
        name: String,
        /// Place of the search: the program, or a table.
        place: String,
        /// The names there are, comma-separated, shortened when there are many.
        available: String,
    },
    /// The suffix fits several.
    #[error("`{name}` fits several {kind}s in {place}: {}; write more of the name", candidates.join(", "))]
    Ambiguous {
        /// Kind of the missing thing.
        kind: &'static str,
        /// The name that was asked for.
        name: String,
        /// Place of the search: the program, or a table.
        place: String,
        /// All full names that end in it.
        candidates: Vec<String>,
    },
}

/// Whether `name` is `suffix` or ends in `.suffix`.
pub fn has_suffix(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix)
        .is_some_and(|head| head.is_empty() || (head.ends_with('.') && !suffix.is_empty()))
}

/// Finds the one object called `name`: the exact name wins, then an alias, then a unique dotted suffix.
pub(crate) fn find<'a, T>(
    kind: &'static str,
    place: impl Fn() -> String,
    objects: impl Iterator<Item = &'a T> + Clone,
    names: impl Fn(&'a T) -> (&'a str, &'a str),
    name: &str,
) -> Result<&'a T, LookupError> {
    if let Some(exact) = objects.clone().find(|object| names(object).0 == name) {
        return Ok(exact);
    }
    // An alias is unique among objects of a kind, by the specification; if it is not, it falls under "ambiguous".
    let by_alias: Vec<&T> = objects.clone().filter(|object| names(object).1 == name).collect();
    if let [one] = by_alias[..] {
        return Ok(one);
    }
    let by_suffix: Vec<&T> = objects.clone().filter(|object| has_suffix(names(object).0, name)).collect();
    match by_suffix[..] {
        [one] => Ok(one),
        [] => {
            const SHOWN: usize = 24;
            let all: Vec<&str> = objects.map(|object| names(object).0).collect();
            let mut available = all.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
            if all.is_empty() {
                available.push_str("none");
            } else if all.len() > SHOWN {
                available.push_str(&format!(" and {} more", all.len() - SHOWN));
            }
            Err(LookupError::NotFound { kind, name: name.to_owned(), place: place(), available })
        }
        _ => Err(LookupError::Ambiguous {
            kind,
            name: name.to_owned(),
            place: place(),
            candidates: by_suffix.iter().map(|object| names(object).0.to_owned()).collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::has_suffix;

    #[test]
    fn suffixes_end_at_dots() {
        assert!(has_suffix("ingress.node_set_a.coarse", "node_set_a.coarse"));
        assert!(has_suffix("coarse", "coarse"));
        assert!(!has_suffix("ingress.fat_root_0", "root_0"));
        assert!(!has_suffix("ingress.", ""));
        assert!(!has_suffix("x", "ingress.x"));
    }
}
