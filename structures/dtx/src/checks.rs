//! The checks that keep transactions right among others and across deaths, by name.
//!
//! With the cargo feature `switchable-checks`, which only tests turn on, one can be left out for the current thread: a simulation that does
//! not notice has not tried hard enough. The first six are holes of the published code or protocol (SMART-DTX, FORD).

fatbtree_remote_memory::named_checks! {
    /// A transaction releases only locks that it has acquired. The published code notes a lock when the CAS is posted, so an abort releases
    /// another transaction's lock.
    OwnLocks,
    /// The undo log has content. The published code writes an empty one.
    UndoLog,
    /// A lock of a dead coordinator is recovered. The published lock word names no owner, so such a lock stays for ever.
    Recovery,
    /// Each backup has an offset of its own. In the published code all backups after the first one use the wrong one.
    BackupOffsets,
    /// A locked item is not read. The published protocol reads it until the commit begins: that is serializable, not strictly.
    LockedReads,
    /// Locks are released after the data of all replicas.
    ReleaseLast,
    /// Data is written after the log of all replicas.
    LogFirst,
    /// Items that were read are read again before the commit.
    Validation,
    /// An item is accepted only if its checksum is right.
    Checksum,
    /// An absence is validated, and an insertion locks it.
    Absence,
    /// An item at a remembered address is the key's.
    Address,
    /// A transaction is recovered only when its coordinator is dead at each server that takes part.
    AllDead,
    /// One client at a time recovers a transaction.
    Claim,
    /// A recovery undoes what did not reach all replicas.
    Undo,
    /// A server that has lost its memory takes no transaction before it is filled.
    Filled,
    /// New tables begin only where no server has any.
    NoneWhole,
    /// Tables that an operator has emptied on some servers only take no transaction.
    EmptiedAll,
    /// Servers whose items are of different bulk loads take no transaction.
    OneLoad,
    /// A server is filled only when no transaction on it is under way.
    ResolvedFirst,
    /// A key that a transaction wants twice is fetched once.
    OnceEach,
    /// What was read first and locked later has not changed in between.
    ReadsLocked,
    /// What is locked, and does not change, is validated.
    LockedValidation,
    /// A lock that is another's ends the transaction.
    TakenLocks,
    /// A lock whose compare-and-swap has no answer may be the transaction's.
    AskedLocks,
    /// A key is not absent while a slot of its node is being filled.
    Filling,
    /// A slot that is to be filled is still free when it is locked.
    StillFree,
    /// A transaction whose log came after the begin of a fill writes no data.
    Eras,
    /// A fill looks for logs on each server.
    EachLog,
    /// A coordinator is looked for at each participant, not at the first one only.
    EachServer,
    /// A transaction that others have brought to its end is not taken for undone.
    Outcome,
    /// A lock that is another's, or gone, says that its transaction has ended.
    LocksTell,
    /// While a server is filled, the client that fills it alone recovers transactions with items of it.
    FillerAlone,
    /// A seat of a dead coordinator is taken only if its log is closed.
    OpenSeat,
    /// Transactions of dead coordinators are recovered when their seats are wanted.
    SeatsAgain,
    /// The owner is told when something was left.
    Told,
    /// An export takes no item that is locked.
    ExportWaits,
    /// Versions tell transactions apart.
    Tags,
}
