//! The checks that keep memory safe that a server takes for lost, by name.

fatbtree_remote_memory::named_checks! {
    /// A sweep waits until all sessions have ended that may have what it has noted.
    SweepWaits,
    /// Blocks that came to a list during a sweep are struck off.
    SweepStrikes,
    /// A block is lost only if it has not been written since it was noted.
    SweepStamp,
    /// What leads to a block is looked for again after the first wait.
    SweepMarksTwice,
    /// Blocks that a client has given back before it settled, and that come later, are not taken.
    SettleLate,
}
