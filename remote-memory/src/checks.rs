//! The checks that keep a stale pointer or a torn read from becoming a wrong answer, by name.
//!
//! Each is one comparison somewhere in this crate. With the cargo feature `switchable-checks`, which only tests turn on, one
//! can be left out for the current thread: a simulation that does not notice has not tried hard enough.

/// Declares the enumeration `Check` of a crate: safety checks by name, of which each asks whether it [is on](Check::on).
///
/// The crate has a cargo feature `switchable-checks`, which only its tests turn on. Then `Check::without` leaves one out for the current
/// thread. Without the feature every check is made, and asking costs nothing.
#[macro_export]
macro_rules! named_checks {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A check by name.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
        pub enum Check {
            $($(#[$doc])* $name,)*
        }

        impl Check {
            /// All of them.
            pub const ALL: &[Check] = &[$(Check::$name,)*];
        }

        #[cfg(not(feature = "switchable-checks"))]
        impl Check {
            /// Whether the check is made: always.
            #[inline(always)]
            pub fn on(self) -> bool {
                true
            }
        }

        #[cfg(feature = "switchable-checks")]
        mod switch {
            use std::cell::Cell;

            use super::Check;

            const _: () = assert!(Check::ALL.len() <= 64, "a check is a bit of a word");

            thread_local!(static OFF: Cell<u64> = const { Cell::new(0) });

            impl Check {
                /// Whether the check is made in this thread.
                #[inline]
                pub fn on(self) -> bool {
                    OFF.get() & 1 << self as u64 == 0
                }

                /// Does something without the check, in this thread.
                pub fn without<T>(self, work: impl FnOnce() -> T) -> T {
                    struct Restore(u64);
                    impl Drop for Restore {
                        fn drop(&mut self) {
                            OFF.set(self.0);
                        }
                    }
                    let _restore = Restore(OFF.get());
                    OFF.set(OFF.get() | 1 << self as u64);
                    work()
                }
            }
        }
    };
}

named_checks! {
    /// As many bytes were read as the node has. A second line: where fewer come, the node is of another level than expected, and
    /// [`Level`](Self::Level) refuses it.
    Length,
    /// A node lies there.
    Magic,
    /// The node belongs to this tree, and to its level.
    Format,
    /// An internal node has a possible number of children. A second line: with a wrong number a walk takes another child or none,
    /// and whatever it takes is checked for itself.
    Count,
    /// The key range of a node is not empty, the pivots of an internal node ascend within it, and no child is null. Readers check each child
    /// as well; writers that write a node back rely on this check alone.
    Structure,
    /// All lines have one version: the node was not rewritten while it was read.
    LineVersion,
    /// Each line is as it was written, where lines are not read whole.
    LineChecksum,
    /// A leaf entry of two lines has one version.
    EntryVersion,
    /// A leaf has each key once: one that has a key twice was changed while it was read.
    KeyTwice,
    /// The node has not been freed.
    Free,
    /// The node has the level that its parent or sibling promised.
    Level,
    /// The node lies at the address in its header.
    Address,
    /// An index read landed on a node of the server that answered.
    Server,
    /// The key is not left of the node.
    LowFence,
    /// The key is not right of the node; if it is, it is the sibling's.
    HighFence,
    /// A node with a key right of it has a sibling.
    Sibling,
    /// A node with a partner asks the partner which of the two has the upper keys.
    Partner,
    /// A lock is only taken from an owner whose session has ended.
    OwnerLife,
    /// Writes under a lock happen in the session of the lock.
    Session,
    /// Sessions are told apart by their names: the number of an owner comes again when a server is started anew.
    SessionIdentity,
    /// With a session, the rests of chunks that were given in it are forgotten, and nodes that were freed.
    ForgetsChunks,
    /// With a session, the places of records that were freed in it are forgotten.
    ForgetsPlaces,
    /// A lock of another owner is not taken.
    Lock,
    /// A lock is given back after what was written under it.
    UnlockLast,
    /// A node's version goes on from what its memory held.
    VersionGoesOn,
    /// A node's version is one that none of the lines in its memory has.
    VersionIsNew,
    /// The version of a leaf entry goes on from the one in its slot.
    EntryVersionGoesOn,
    /// The version of a record goes on from the one that its place had before.
    RecordVersionGoesOn,
    /// A node that is merged away is marked as freed.
    FreedMark,
    /// A node that is split gives up the keys that its new neighbour has.
    SplitFence,
    /// A new node on another server than its neighbour lies in memory that was no node before.
    FreshElsewhere,
    /// A node that is split names its partner before the partner is written.
    PartnerFirst,
    /// A node is told to its parent only if it is still there.
    ChildThere,
    /// Siblings are not followed without end.
    SiblingChain,
    /// On a walk along a level each node begins where the one before it ends, so that no walk goes round in a circle.
    LevelOrder,
    /// A pointer to a child or a record is not null.
    NullPointer,
    /// A record belongs to the key.
    RecordKey,
    /// The record is as it was written.
    RecordChecksum,
    /// The record is the one that the entry was written with.
    RecordVersion,
    /// A record that switches have led to is the one that its key's leaf entry names.
    Published,
    /// A record is marked as one that no leaf leads to before its entry leads elsewhere.
    UnpublishedFirst,
    /// A record is marked as one that a leaf leads to after its entry does.
    PublishedLast,
    /// The superblock is one, whole.
    Superblock,
    /// A place in the entry cache is of the tree that the client was last told of.
    SpeculatedTree,
    /// The header beside a speculated entry is that of a leaf of this tree, at its address, for keys with the one looked for.
    SpeculatedLeaf,
    /// The leaf of a speculated entry has not been freed.
    SpeculatedFree,
    /// The leaf of a speculated entry is not being split or merged.
    SpeculatedPartner,
    /// A speculated entry and its leaf's header are of one whole write of the leaf.
    SpeculatedVersion,
    /// The lines of a speculated entry are as they were written, where lines are not read whole.
    SpeculatedChecksum,
    /// A speculated entry is the key's.
    SpeculatedKey,
    /// A speculated entry of two lines has one version.
    SpeculatedEntryVersion,
    /// A line of a bucket is one, and the one that was asked for.
    BucketLine,
    /// The lines of a bucket are of one whole write of the leaf.
    BucketVersion,
    /// The lines of a bucket are as they were written, where lines are not read whole.
    BucketChecksum,
    /// The leaf of a bucket has not been freed.
    BucketFree,
    /// The leaf of a bucket is not being split or merged.
    BucketPartner,
    /// The leaf of a bucket is responsible for the key.
    BucketRange,
    /// Each server of a structure says which servers it was used with, not only the one on which the structure begins.
    MembersEverywhere,
    /// A block rests until the word that led to it from another server is gone on that server's disk.
    Rests,
    /// What another server is about to lead to is on the disk of its own server.
    SyncedFirst,
    /// A server that was away when a structure was opened is the one that was used with the others.
    Awaited,
}
