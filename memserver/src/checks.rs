//! The checks that keep memory safe that a server takes for lost, by name.

fatbtree_remote_memory::named_checks! {
    /// A sweep waits until all sessions have ended that may have what it has noted.
    SweepWaits,
    /// Blocks that came to a list during a sweep are struck off.
    SweepStrikes,
    /// A block is lost only if it has not been written since it was noted.
    SweepStamp,
    /// What leads to a block is looked for again behind the first wait.
    SweepMarksTwice,
    /// A client settles for a sweep when the operations that were under way have ended.
    SettleOperations,
    /// A client that settles gives back what it has freed.
    SettleBlocks,
    /// A client settles when requests of operations that were dropped are not under way any more.
    SettleRequests,
    /// Blocks that a client has given back before it settled, and that come later, are not taken.
    SettleLate,
}
