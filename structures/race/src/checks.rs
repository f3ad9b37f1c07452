//! The checks that keep the table right among others that change it, by name.
//!
//! With the cargo feature `switchable-checks`, which only tests turn on, one can be left out for the current thread: a simulation that does
//! not notice has not tried hard enough. Some are the published protocol's holes, or those of the code that came with it.

fatbtree_remote_memory::named_checks! {
    /// A compare-and-swap compares what it replaces.
    Compares,
    /// An insertion looks for others of its key before it counts. Without this a key may be there twice.
    Duplicates,
    /// Readers take no notice of insertions under way. As published, they see duplicates that are taken away later.
    Tentative,
    /// An insertion that another one was to take away has gone, and does not count by now.
    Removed,
    /// The version of a block goes on from the one that its place had before, so that no slot holds the same word twice (ABA).
    /// The published code never frees a block.
    VersionGoesOn,
    /// A block that a client has unlinked is used again. The published code never frees one.
    Freed,
    /// A subtable whose buckets are full is split. The published evaluation never comes so far.
    Splits,
    /// A client that meets a split that does not go on completes it. The published lock of a split has no owner, and stays for ever.
    Helping,
    /// A client that finds frozen slots asks whether the subtable has successors.
    Successors,
    /// The suffix in a bucket's header is the key's.
    Suffix,
    /// A subtable is copied when all of its slots are frozen.
    FrozenAll,
    /// A client freezes slots when it has what the split needs.
    Reserves,
    /// A split that cannot be completed is taken back.
    Thaws,
    /// A split that was taken back since it was begun announces nothing.
    Revoked,
    /// A frozen tentative pointer is emptied, not thawed.
    ThawEmpties,
    /// A block that is read at a remembered place counts if its slot is as it was.
    Remembered,
    /// A frozen slot is not remembered: it stays as it is when its subtable was split.
    RememberFrozen,
    /// An insertion that sees frozen slots beside its own begins anew.
    FrozenRivals,
    /// An insertion that finds another's block freed begins anew.
    FreedRival,
    /// A block that was not linked gets another version, too.
    DiscardedVersion,
    /// A block that was unlinked gets another version.
    FreedVersion,
    /// A block that an attempt has filled is used by the next one in the same session.
    KeptSession,
    /// A block is linked in the session in which it was taken.
    LinkedInSession,
    /// A block that may be linked is not used again.
    UnknownBlock,
    /// A block that is not what its slot says was freed: the slot is read again.
    FreedBlock,
    /// A change that finds frozen slots waits for the split.
    FrozenBuckets,
    /// Tentative pointers are not copied into new subtables.
    CopiesCommitted,
    /// A slot whose check bits are wrong is damaged, and is no word that hides a key.
    SoundSlots,
    /// A block with a key that cannot be in its slot was reached by a damaged pointer.
    OthersKey,
    /// A block is a key's if it has all of the key's bytes, and not just a key of its hash.
    WholeKey,
    /// A table takes keys of its own kind alone.
    Kind,
    /// An export finds a key once, though it was deleted and put into a later slot meanwhile.
    ExportedOnce,
}
