//! Calls on a key, their answers, and the behaviour of a single key: the model that histories are checked
//! against.

use std::fmt;

/// A key of a tree.
pub type Key = u64;
/// A value, as a number of its own: give each write another one, and a read says which write it saw.
pub type Value = u64;

/// An operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Call {
    /// Reads the value.
    Get,
    /// Puts a value where none is.
    Insert(Value),
    /// Replaces the value where one is.
    Update(Value),
    /// Puts a value, whether one is there or not.
    Upsert(Value),
    /// Replaces the value where it is `expected`.
    CompareAndSet {
        /// The value that must be there.
        expected: Value,
        /// The value after the change.
        new: Value,
    },
    /// Takes the value away where one is.
    Delete,
}

/// Answer of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    /// A get found this.
    Found(Option<Value>),
    /// The change was applied.
    Applied,
    /// The change was not applied: the key was there (insert), was not there (update, delete), or had another
    /// value.
    NotApplied,
    /// The change was applied, and this was there before.
    AppliedOver(Option<Value>),
    /// The change was not applied, because of this value or absence.
    NotAppliedFor(Option<Value>),
}

impl Call {
    /// State after the call, and whether the call counts as applied.
    #[must_use]
    pub fn apply(self, state: Option<Value>) -> (Option<Value>, bool) {
        match self {
            Call::Get => (state, true),
            Call::Insert(value) => (state.or(Some(value)), state.is_none()),
            Call::Update(value) => (state.map(|_| value), state.is_some()),
            Call::Upsert(value) => (Some(value), true),
            Call::CompareAndSet { expected, new } if state == Some(expected) => (Some(new), true),
            Call::CompareAndSet { .. } => (state, false),
            Call::Delete => (None, state.is_some()),
        }
    }

    /// State after the call, if the call can have answered this.
    #[must_use]
    pub fn explain(self, answer: Answer, state: Option<Value>) -> Option<Option<Value>> {
        let (new, applied) = self.apply(state);
        let possible = match answer {
            Answer::Found(found) => self == Call::Get && found == state,
            Answer::Applied => self != Call::Get && applied,
            Answer::NotApplied => !applied,
            Answer::AppliedOver(found) => self != Call::Get && applied && found == state,
            Answer::NotAppliedFor(found) => !applied && found == state,
        };
        possible.then_some(new)
    }
}

impl Answer {
    /// The answer of a call that tells no more than whether it was applied.
    #[must_use]
    pub fn of(applied: bool) -> Self {
        if applied { Answer::Applied } else { Answer::NotApplied }
    }

    /// Whether the operation changed nothing, wherever it was.
    pub(super) fn is_only_read(self) -> bool {
        matches!(self, Answer::Found(_) | Answer::NotApplied | Answer::NotAppliedFor(_))
    }

    /// The value that it says was there.
    pub(super) fn saw(self) -> Option<Value> {
        match self {
            Answer::Found(found) | Answer::AppliedOver(found) | Answer::NotAppliedFor(found) => found,
            Answer::Applied | Answer::NotApplied => None,
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Get => write!(f, "get"),
            Call::Insert(value) => write!(f, "insert {value}"),
            Call::Update(value) => write!(f, "update {value}"),
            Call::Upsert(value) => write!(f, "upsert {value}"),
            Call::CompareAndSet { expected, new } => write!(f, "compare {expected} and set {new}"),
            Call::Delete => write!(f, "delete"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = |found: &Option<Value>| found.map_or("nothing".to_owned(), |value| value.to_string());
        match self {
            Answer::Found(value) => write!(f, "found {}", found(value)),
            Answer::Applied => write!(f, "applied"),
            Answer::NotApplied => write!(f, "not applied"),
            Answer::AppliedOver(value) => write!(f, "applied over {}", found(value)),
            Answer::NotAppliedFor(value) => write!(f, "not applied, found {}", found(value)),
        }
    }
}
