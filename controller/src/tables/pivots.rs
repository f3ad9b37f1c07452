//! The last keys before three of four parts of a node, or of a quarter of it, as far as they are compared.

/// Operands of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Last {
    /// High halves: the pivots' low halves are 0.
    High([u32; 3]),
    /// Low halves: all keys of the node have the same high half.
    Low([u32; 3]),
    /// Whole keys.
    Whole([u64; 3]),
}

impl Last {
    /// Number of operands below a key.
    pub fn below(&self, key: u64) -> usize {
        let (high, low) = ((key >> 32) as u32, key as u32);
        match self {
            Self::High(last) => last.iter().filter(|last| **last < high).count(),
            Self::Low(last) => last.iter().filter(|last| **last < low).count(),
            Self::Whole(last) => last.iter().filter(|last| **last < key).count(),
        }
    }

    /// Whether it is in the tables of whole keys.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Whole(_))
    }

    pub(super) fn values(&self) -> [u64; 3] {
        match *self {
            Self::High(last) | Self::Low(last) => last.map(u64::from),
            Self::Whole(last) => last,
        }
    }

    /// Index of the action that compares these, among those by high halves, low halves and whole keys.
    pub(super) fn call(&self) -> usize {
        match self {
            Self::High(_) => 0,
            Self::Low(_) => 1,
            Self::Whole(_) => 2,
        }
    }

    /// Whether the table at this index has that action: of each two tables the second is of whole keys.
    pub(super) fn is_in(call: usize, table: usize) -> bool {
        (call == 2) == (table % 2 == 1)
    }

    /// The parameters of that action, of so many bytes.
    pub(super) const fn parameters(bytes: usize) -> [(&'static str, usize); 3] {
        [("last_1", bytes), ("last_2", bytes), ("last_3", bytes)]
    }

    /// Operands of that action; `None` if a value is too wide.
    pub(super) fn of(call: usize, values: [u64; 3]) -> Option<Self> {
        let half = |at: usize| u32::try_from(values[at]).ok();
        let halves = || Some([half(0)?, half(1)?, half(2)?]);
        match call {
            0 => halves().map(Self::High),
            1 => halves().map(Self::Low),
            2 => Some(Self::Whole(values)),
            _ => None,
        }
    }
}
