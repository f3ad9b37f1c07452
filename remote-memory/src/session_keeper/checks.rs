//! The checks of a client that settles for a sweep, by name.

crate::named_checks! {
    /// A client settles for a sweep when the operations that were under way have ended.
    SettleOperations,
    /// A client that settles gives back what it has freed.
    SettleBlocks,
    /// A client settles when requests of operations that were dropped are not under way any more.
    SettleRequests,
}
