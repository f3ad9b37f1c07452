//! The card's cache of work requests under way.
//!
//! A card needs the work request again when its answer comes. It keeps about a thousand; beyond that it reads some of them
//! from the host once more, and results after such a miss wait (SMART, sections 2.2 and 3.2).

use super::station::Picos;
use fatbtree_sim::world::Kind;

/// A kind of cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct WqeCache {
    /// Requests under way from which on READs miss.
    pub(super) holds: f64,
    /// Requests beyond `holds` with which each READ misses.
    pub(super) all_miss: f64,
    /// Power with which the share of misses grows in between.
    pub(super) power: f64,
    /// Time by which a miss holds up results.
    pub(super) miss: Picos,
    /// Bytes that the card reads for a miss: the request, and a packet header of 24.
    pub(super) miss_bytes: u64,
    /// Time of a WRITE.
    pub(super) write: Picos,
    /// Time of a WRITE beyond the cliff.
    pub(super) write_beyond: Picos,
    /// Requests under way at the cliff's edge and foot.
    pub(super) cliff: (f64, f64),
}

impl WqeCache {
    /// A ConnectX-6, from SMART's figure 4a: the share of READs that miss is ((under way − 1000) / 2072)^1.5, within 8 % on 17
    /// of 19 points above 750 requests under way. A miss takes 9.1 ns, and the 180 − 93 bytes of figure 4b fit one read of
    /// 64 + 24 bytes. WRITEs take 10.8 ns, and 15.9 ns beyond a cliff between 1100 and 1350.
    pub(super) const CX6: Self = Self {
        holds: 1000.0,
        all_miss: 2072.0,
        power: 1.5,
        miss: Picos(9_100),
        miss_bytes: 64 + 24,
        write: Picos(10_800),
        write_beyond: Picos(15_900),
        cliff: (1100.0, 1350.0),
    };

    /// Share of requests that miss with so many under way.
    pub(super) fn misses(&self, kind: Kind, under_way: u64) -> f64 {
        let share = |from: f64, to: f64| ((under_way as f64 - from) / (to - from)).clamp(0.0, 1.0);
        match kind {
            Kind::Write => share(self.cliff.0, self.cliff.1),
            Kind::Read | Kind::Atomic => share(self.holds, self.holds + self.all_miss).powf(self.power),
        }
    }

    /// Time for which a request with this share of misses holds up those after it.
    pub(super) fn stall(&self, kind: Kind, misses: f64) -> Picos {
        match kind {
            Kind::Write => self.write + Picos(self.write_beyond.0 - self.write.0).part(misses),
            Kind::Read | Kind::Atomic => self.miss.part(misses),
        }
    }
}
