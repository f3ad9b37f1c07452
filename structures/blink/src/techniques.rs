//! Sherman's techniques, each of which can be left out, to measure what it brings.

use fatbtree_remote_memory::Combine;

/// Optimisations that make a client's writes cheap (Sherman sections 4.3 to 4.5). All are on by default;
/// without any of them it is the baseline that the paper calls FG+ (section 5.1.2). Changes are right in
/// every combination. [`Combine::LockToo`] is not Sherman's.
///
/// Clients of one tree may differ in these, but for what `on_chip` says.
///
/// ```
/// use fatbtree_blink::Techniques;
/// assert_eq!(Techniques::default(), Techniques::ALL);
/// let names = Techniques::steps().map(|(name, _)| name);
/// assert_eq!(names, ["FG+", "+Combine", "+On-Chip", "+Hierarchical", "+2-Level Ver", "+Lock with read"]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Techniques {
    /// Operations that depend on each other and share a doorbell.
    pub combine: Combine,
    /// The lock table lies on the servers' cards. The servers put it there; what the client knows of it is how to release: by an
    /// atomic, which costs the card no more than a WRITE. Off: the table lies in the servers' memory, where an atomic costs the
    /// card two transfers over PCIe, and a lock is released by a WRITE of its two bytes, as FG+ does. The servers' cards must then
    /// carry out a WRITE of two bytes and an atomic on the eight around them one after the other.
    pub on_chip: bool,
    /// Operations of one client that want the same lock wait in a queue, and hand it over. Off: each of them asks the server by
    /// itself, again and again without a pause. Where a connection breaks while one of them has a lock, it cannot find out what
    /// became of its change, and says so.
    pub hierarchical: bool,
    /// Only the changed entry of a leaf is written back. Off: the leaf is, as FG+ must whose leaves are sorted. (Ours stay
    /// unsorted: what a client does with a leaf in its own memory costs no round trip and no byte.)
    pub two_level_versions: bool,
}

impl Default for Techniques {
    fn default() -> Self {
        Self::ALL
    }
}

impl Techniques {
    /// All of them.
    pub const ALL: Self = Self { combine: Combine::LockToo, ..Self::SHERMAN };
    /// Those of Sherman as it is published: a lock is taken in a round trip of its own.
    pub const SHERMAN: Self =
        Self { combine: Combine::Writes, on_chip: true, hierarchical: true, two_level_versions: true };
    /// None of them.
    pub const FG_PLUS: Self =
        Self { combine: Combine::Off, on_chip: false, hierarchical: false, two_level_versions: false };

    /// One after the other, in the order and by the names of Sherman's figures 10 and 11; and what is added here.
    #[must_use]
    pub fn steps() -> [(&'static str, Self); 6] {
        let combine = Self { combine: Combine::Writes, ..Self::FG_PLUS };
        let on_chip = Self { on_chip: true, ..combine };
        let hierarchical = Self { hierarchical: true, ..on_chip };
        [
            ("FG+", Self::FG_PLUS),
            ("+Combine", combine),
            ("+On-Chip", on_chip),
            ("+Hierarchical", hierarchical),
            ("+2-Level Ver", Self::SHERMAN),
            ("+Lock with read", Self::ALL),
        ]
    }
}
