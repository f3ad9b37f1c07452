//! Values that control software exchanges with a pipeline: matches, actions, entries, counters.
//!
//! Values are plain `u64` because this switch computes on fields of at most 64 bits. Priorities follow
//! P4Runtime §9.1.1: a *larger* number wins. Tables whose key fields are all exact or LPM have no
//! priorities; theirs is 0.

/// A table of the loaded program. Only meaningful for the [`Program`](crate::Program) that gave it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableRef(pub(crate) u16);

/// An action of the loaded program. p4c repeats an action once per table that uses it, under one name and
/// several ids, so resolve actions per table: [`Program::table_action`](crate::Program::table_action).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActionRef(pub(crate) u16);

/// An indirect counter array of the loaded program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterRef(pub(crate) u16);

/// A register array of the loaded program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegisterRef(pub(crate) u16);

impl TableRef {
    /// Position in [`Program::tables`](crate::Program::tables).
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl ActionRef {
    /// Position in [`Program::actions`](crate::Program::actions).
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Way in which one key field of a table is matched.
///
/// BMv2 JSON spells P4Runtime's `OPTIONAL` as `ternary`; such a field takes [`MatchValue::Optional`] as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MatchKind {
    /// Equal to a value.
    Exact,
    /// The leading bits equal a prefix; the longest prefix wins.
    Lpm,
    /// Equal under a mask; the highest priority wins.
    Ternary,
    /// Between two bounds, both included; the highest priority wins.
    Range,
}

impl MatchKind {
    /// The name p4c and P4Info use, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            MatchKind::Exact => "exact",
            MatchKind::Lpm => "lpm",
            MatchKind::Ternary => "ternary",
            MatchKind::Range => "range",
        }
    }
}

/// Match of one key field of an entry. Entries must be canonical (P4Runtime §9.1.1): no bit of
/// `value` outside the prefix or the mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatchValue {
    /// Equal to this value.
    Exact(u64),
    /// The first `prefix_len` bits of the field, counted from its most significant bit. Length 0 matches all.
    Lpm {
        /// The prefix, in place, all other bits zero.
        value: u64,
        /// Bits, 0 to the field's width.
        prefix_len: u16,
    },
    /// `field & mask == value`. Mask 0 matches all.
    Ternary {
        /// The value, all bits outside `mask` zero.
        value: u64,
        /// The bits compared.
        mask: u64,
    },
    /// `low <= field <= high`.
    Range {
        /// Lowest value matched.
        low: u64,
        /// Highest value matched.
        high: u64,
    },
    /// Equal to the value, or anything. Stored as a ternary match with a full or an empty mask.
    Optional(Option<u64>),
}

/// One table entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// One value per key field, in the order of [`TableInfo::key`](crate::TableInfo::key).
    pub key: Vec<MatchValue>,
    /// Larger wins; 0 in tables that have only exact and LPM fields, at least 1 in others.
    pub priority: i32,
    /// Action on a hit.
    pub action: ActionRef,
    /// One value per action parameter.
    pub params: Vec<u64>,
    /// Opaque to the switch; handed back as written (P4Runtime §9.1, `metadata`).
    pub metadata: Vec<u8>,
}

impl Entry {
    /// An entry without priority and metadata, as exact and LPM tables have them.
    pub fn new(key: Vec<MatchValue>, action: ActionRef, params: Vec<u64>) -> Self {
        Entry { key, priority: 0, action, params, metadata: Vec::new() }
    }

    /// Entry with this priority (larger wins).
    pub fn with_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }
}

/// An action and its parameters, as a default action has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActionCall {
    /// The action.
    pub action: ActionRef,
    /// One value per action parameter.
    pub params: Vec<u64>,
}

/// Value of a counter. Both kinds are always counted, as BMv2 does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CounterData {
    /// Packets.
    pub packets: u64,
    /// Bytes of those packets as they came in.
    pub bytes: u64,
}

impl CounterData {
    pub(crate) fn add(&mut self, other: CounterData) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}
