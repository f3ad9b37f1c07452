//! The checks that keep memory safe that a server takes for lost, by name.
//!
//! Those from [`SweepAsks`](Check::SweepAsks) on are of structures over several servers: see `fellows`.

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
    /// A sweep asks all other servers of the structure what their parts lead to.
    SweepAsks,
    /// A sweep makes sure that all servers stood still at one moment.
    SweepConfirms,
    /// A server answers others only while it has no session.
    AnswersAlone,
    /// A server asks others only while it has no session.
    AsksAlone,
    /// A server answers others of its structure only.
    AnswersFellows,
    /// What a part leads to is on its server's disk before others rely on it.
    AnswersSynced,
}
