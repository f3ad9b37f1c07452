//! Reasons for dropped packets and refused index reads, by the numbers under which the programs count them.

/// A counter of a program that has an entry for each reason.
#[derive(Debug)]
pub(crate) struct Reasons {
    /// Its name in P4.
    pub(crate) counter: &'static str,
    /// The number of the first reason.
    first: usize,
    names: &'static [&'static str],
}

/// Dropped packets (`p4/include/hosts.p4`). Number 0 is for forwarded packets, which are not counted.
const DROPS: Reasons = Reasons {
    counter: "drops",
    first: 1,
    names: &[
        "neither IPv4 nor ARP",
        "IPv6",
        "damaged",
        "IPv4 options",
        "TTL",
        "no route",
        "forged index header",
        "unanswered ARP",
        "to the switch itself",
    ],
};

/// READs with a key that a first switch did not admit, and which passed as they were (`p4/include/roce.p4`).
const REFUSED_INDEX_READS: Reasons = Reasons {
    counter: "refused_index_reads",
    first: 0,
    names: &["index read, not registered", "index read, too long"],
};

/// Packets in the pipes of a second pass that did not come by a loopback port, or are for a partition that is nowhere (`p4/fatbtree_tna.p4`).
const SECOND_PASS_DROPS: Reasons =
    Reasons { counter: "second_pass_drops", first: 0, names: &["no way back from the second pass"] };

impl Reasons {
    /// All counters with reasons.
    pub(crate) const ALL: [Self; 3] = [DROPS, REFUSED_INDEX_READS, SECOND_PASS_DROPS];

    /// Reason with a number; `None` for one that is not counted. A program that is newer than this one may have more.
    pub(crate) fn name(&self, number: usize) -> Option<String> {
        let name = self.names.get(number.checked_sub(self.first)?);
        Some(name.map_or_else(|| format!("{} {number}", self.counter), |name| (*name).to_owned()))
    }
}

/// Reason for which the programs drop a packet, by the number under which they count it.
pub fn drop_reason(number: usize) -> String {
    DROPS.name(number).unwrap_or_else(|| "none".to_owned())
}
