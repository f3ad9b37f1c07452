//! The checks that keep the index right among others that change it, by name.
//!
//! Most are what closes a hole of the published index or of the code that came with it. With the
//! cargo feature `switchable-checks`, which only tests turn on, one can be left out for the current
//! thread. Then the index behaves as published, and a simulation must notice.

fatbtree_remote_memory::named_checks! {
    /// A compare-and-swap compares what it replaces.
    Compares,
    /// All lines of a leaf have one stamp. As published, a split's WRITE is torn for readers (hole 1).
    Stamps,
    /// A key without a value is absent. As published, readers see the key with value 0 (hole 2).
    NoValue,
    /// A deletion leaves a tombstone. As published, the slot is free for another key (hole 3).
    Tombstone,
    /// Insertions fill the first free slot. With any other order a key may be there twice (hole 4).
    FirstFree,
    /// Readers look at all slots. As published, they stop at the first free one (hole 5).
    AllSlots,
    /// Leaves are chosen by range also where a node was read. The published walk wants the exact
    /// byte there (hole 6).
    RangeMatch,
    /// A long value is written to new memory. As published, it is written over the old one (hole 7).
    NewRecord,
    /// An operation ends when its last WRITE is done. As published, that is not waited for (hole 8).
    AwaitsLast,
    /// Each client counts its operations in a line of its own. As published, all add to one word of
    /// the leaf, and what a dead client has added stays for ever (holes 9 and 11).
    OwnCounts,
    /// Operations that find a leaf locked pause. As published, they read without end (hole 10).
    Pauses,
    /// A structure change waits until no operation is announced on the leaf.
    Drains,
    /// Updates leave a leaf alone that is locked by a structure change.
    Locked,
    /// A key outside of a leaf's range is looked for elsewhere.
    Range,
    /// What switches have led to answers only if it is a leaf with the key in its range.
    Landing,
    /// A leaf that switches have led to answers only if it is in use and whole.
    LandingState,
    /// A node whose prefix is another one is not the key's.
    Prefix,
    /// What is written before a structure change counts is not used before it does.
    Unborn,
    /// A structure change that its client left half done is completed before anything else is done.
    Settles,
    /// The version of a record goes on from the one that its place had before (ABA).
    VersionGoesOn,
    /// What is new is opened after the leaf in whose place it comes says so. Before, two leaves would answer for one key.
    OpensLast,
    /// A leaf that a dead client has left half changed says nothing of the gap that begins at its end.
    GapSettled,
    /// A structure change takes back what dropped operations of its own client have announced.
    TakesBack,
    /// A split links the upper leaf before it opens the lower one, and a leaf is retired when no node leads to it any more.
    LinksFirst,
    /// A merge links the new leaf after the upper one's entry is gone, also where it is completed. Otherwise nothing says any more that the
    /// upper leaf is a part of the new one.
    LinksLast,
    /// The completion of a merge locks all of its leaves before it opens the new one.
    LocksAll,
    /// A leaf is free memory when it is retired, and not before.
    FreesRetired,
    /// Room for a key is made in a leaf with the key in its range, as the leaf is when it is locked.
    RoomInRange,
    /// Blocks that a chain was to link are left alone where its connection broke: they may be linked.
    HoldsDoubtful,
    /// The leaf in a node's place is on its server's disk before the node says so.
    CollapseSynced,
    /// A node between two others is on its server's disk before the upper one leads there.
    BetweenSynced,
    /// What a node that has moved holds is on its server's disk before the node above leads past it.
    RelinkSynced,
    /// A leaf whose header does not match its sum is damaged, and says nothing of a range.
    SoundHeaders,
    /// A node with an entry, or a state, that no client writes is damaged.
    SoundNodes,
}
