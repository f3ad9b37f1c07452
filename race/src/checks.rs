//! The checks that keep the table right among others that change it, by name.
//!
//! With the cargo feature `switchable-checks`, which only tests turn on, one can be left out for the current thread: a simulation that does
//! not notice has not tried hard enough. Some are the published protocol's holes, or those of the code that came with it.

fatbtree_remote::named_checks! {
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
    /// A block that is read at a remembered place counts if its slot is as it was.
    Remembered,
}
