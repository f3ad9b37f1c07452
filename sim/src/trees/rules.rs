//! What whoever writes a tree promises its readers, by name: a test breaks one at a time, to see whether the seeds notice.

/// A rule for writers (ARCHITECTURE.md "Memory rules").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// A node's version goes on from the one found in memory.
    VersionsGoOn,
    /// A node's version is one that none of the lines found in memory has: a WRITE that was cut short leaves some behind.
    VersionsAreNew,
    /// The version of an entry of two lines goes on from the one found there.
    EntryVersionsGoOn,
    /// A record's version goes on from the one that its place had before.
    RecordVersionsGoOn,
    /// A record is marked as one that no leaf leads to before its entry leads elsewhere.
    UnpublishedFirst,
    /// A record is marked as one that a leaf leads to after its entry does.
    PublishedLast,
    /// Memory that was a node is never a record.
    NodesStayNodes,
    /// Memory that was a record is never a node.
    RecordsStayRecords,
    /// A node that leaves the tree is marked as freed.
    FreedMark,
    /// A node that is split gives up the keys that it no longer has.
    Fences,
    /// A node that nothing leads to yet says nothing that the tree does not say: a node is split first, and changed after that.
    NothingEarly,
    /// Whoever follows a writer that died finishes what was begun.
    Finish,
    /// Behind the last node are as many bytes as the largest node has.
    Padding,
}

impl Rule {
    /// All of them.
    pub const ALL: &[Rule] = &[
        Rule::VersionsGoOn,
        Rule::VersionsAreNew,
        Rule::EntryVersionsGoOn,
        Rule::RecordVersionsGoOn,
        Rule::UnpublishedFirst,
        Rule::PublishedLast,
        Rule::NodesStayNodes,
        Rule::RecordsStayRecords,
        Rule::FreedMark,
        Rule::Fences,
        Rule::NothingEarly,
        Rule::Finish,
        Rule::Padding,
    ];
}
