//! Where nodes and records of one region lie.
//!
//! ```text
//! 0       64                                                                    region end
//! ┌───────┬─────────┬────────┬───────────────────────────────┬───────┬─────────┐
//! │ super │ records │ litter │ places for nodes, any level   │ small │ padding │
//! └───────┴─────────┴────────┴───────────────────────────────┴───────┴─────────┘
//! ```
//!
//! Each place for a node is as large as the larger kind of node, so that it can become any node; but the last one only fits the
//! smaller kind: a READ of the larger one that lands there needs the padding.

use fatbtree_blink::node::LINE;
use fatbtree_blink::{GlobalAddress, SUPERBLOCK_BYTES, TreeConfig};
use rand::RngExt as _;

use super::rules::Rule;
use crate::world::Random;

/// Bytes of a place for a record: not a multiple of a line, so that records lie anyhow in their lines.
const RECORD_PLACE: u64 = 584;
/// Bytes for litter.
pub(super) const LITTER: u64 = 32 * 1024;

/// A place for a record.
#[derive(Debug)]
struct RecordPlace {
    at: GlobalAddress,
    /// Of the last record that was written there.
    version: u32,
    /// The key that had it last.
    last: Option<u64>,
}

/// The places of one region.
#[derive(Debug)]
pub(super) struct Space {
    config: TreeConfig,
    /// Never used.
    fresh: Vec<GlobalAddress>,
    /// The small one behind them.
    small: Option<GlobalAddress>,
    /// Freed, and whether it was a leaf.
    freed: Vec<(GlobalAddress, bool)>,
    /// All places for nodes, used or not: where a stale pointer may lead.
    pub(super) all_nodes: Vec<GlobalAddress>,
    /// Free places for records; the one freed last is last.
    records: Vec<RecordPlace>,
    /// Those in use.
    taken: Vec<RecordPlace>,
    pub(super) litter: GlobalAddress,
    pub(super) region_bytes: u64,
    broken: Option<Rule>,
}

impl Space {
    pub(super) fn new(
        server: u16,
        config: &TreeConfig,
        nodes: u64,
        records: u64,
        broken: Option<Rule>,
    ) -> Self {
        let at = |offset| GlobalAddress::new(server, offset);
        let records_from = u64::from(SUPERBLOCK_BYTES);
        let records = if config.leaf_shape().is_inline() { 0 } else { records };
        let litter_from = (records_from + records * RECORD_PLACE).next_multiple_of(LINE as u64);
        let nodes_from = litter_from + LITTER;
        let (large, leaf) = (u64::from(config.max_node_bytes()), u64::from(config.leaf_bytes()));
        let small_at = nodes_from + nodes * large;
        let nodes_end = small_at + leaf.min(u64::from(config.internal_bytes()));
        let padding = if broken == Some(Rule::Padding) { 0 } else { large };
        let fresh: Vec<_> = (0..nodes).map(|number| at(nodes_from + number * large)).collect();
        let place =
            |number| RecordPlace { at: at(records_from + number * RECORD_PLACE), version: 0, last: None };
        Self {
            config: *config,
            all_nodes: fresh.iter().copied().chain([at(small_at)]).collect(),
            fresh,
            small: Some(at(small_at)),
            freed: Vec::new(),
            records: (0..records).map(place).collect(),
            taken: Vec::new(),
            litter: at(litter_from),
            region_bytes: nodes_end + padding,
            broken,
        }
    }

    /// A place for a node: mostly one that was freed, so that stale pointers meet what is written there.
    pub(super) fn take_node(&mut self, level: u8, random: &mut Random) -> Option<GlobalAddress> {
        let is_leaf = level == 0;
        let wide = self.config.leaf_shape().is_wide();
        // Lines of wide leaves have their versions elsewhere: a mixture with another kind of node could pass.
        let fits = |(_, was_leaf): &(GlobalAddress, bool)| !wide || *was_leaf == is_leaf;
        let again: Vec<usize> = (0..self.freed.len()).filter(|&at| fits(&self.freed[at])).collect();
        let small = self.config.node_bytes(level) < self.config.max_node_bytes();
        if small && let Some(small) = self.small.take() {
            return Some(small);
        }
        if !again.is_empty() && (self.fresh.is_empty() || random.random_bool(0.8)) {
            let at = again[random.random_range(0..again.len())];
            return Some(self.freed.swap_remove(at).0);
        }
        if self.fresh.is_empty() {
            return None;
        }
        let at = random.random_range(0..self.fresh.len());
        Some(self.fresh.swap_remove(at))
    }

    /// Places for nodes that can be taken.
    pub(super) fn free_nodes(&self) -> usize {
        self.fresh.len() + self.freed.len()
    }

    pub(super) fn give_node(&mut self, at: GlobalAddress, was_leaf: bool) {
        // The small one fits one kind only; it is used once.
        if self.all_nodes.last() != Some(&at) {
            self.freed.push((at, was_leaf));
        }
    }

    /// A freed node whose memory is to be used for something else, and how many bytes before it are to be, too.
    pub(super) fn misuse_node(&mut self) -> Option<(GlobalAddress, usize)> {
        let before = u64::from(self.config.max_node_bytes());
        let find = |freed: &[(GlobalAddress, bool)], raw| freed.iter().position(|(at, _)| at.raw() == raw);
        let has_one_before =
            |&(at, _): &(GlobalAddress, bool)| find(&self.freed, at.raw() - before).is_some();
        let (at, _) = *self.freed.iter().find(|freed| has_one_before(freed))?;
        self.freed.retain(|(freed, _)| *freed != at && freed.raw() != at.raw() - before);
        Some((at, before as usize))
    }

    /// The record that was freed last, its version and its key, if its memory is to be used for something else and lies so in its line.
    pub(super) fn misuse_record(&mut self, within_line: u64) -> Option<(GlobalAddress, u32, u64)> {
        let fits =
            |place: &mut RecordPlace| place.last.is_some() && place.at.offset() % LINE as u64 == within_line;
        self.records.pop_if(fits).and_then(|place| Some((place.at, place.version, place.last?)))
    }

    /// A place for a record of `key`, and the record's version.
    pub(super) fn take_record(&mut self, key: u64, random: &mut Random) -> Option<(GlobalAddress, u32)> {
        // The one freed last is the one that somebody still reads; fresh ones lie in front.
        let at = match self.records.len().checked_sub(1)? {
            last if random.random_bool(0.7) => last,
            last => random.random_range(0..=last),
        };
        let mut place = self.records.remove(at);
        place.last = Some(key);
        if self.broken != Some(Rule::RecordVersionsGoOn) {
            place.version += 1;
        }
        let taken = (place.at, place.version);
        self.taken.push(place);
        Some(taken)
    }

    /// Any place for records, used or not: where a stale address may lead.
    pub(super) fn any_record(&self, random: &mut Random) -> Option<GlobalAddress> {
        let all = self.records.len() + self.taken.len();
        let number = random.random_range(0..all.max(1));
        self.records.iter().chain(&self.taken).nth(number).map(|place| place.at)
    }

    pub(super) fn give_record(&mut self, at: GlobalAddress) {
        if let Some(number) = self.taken.iter().position(|place| place.at == at) {
            self.records.push(self.taken.swap_remove(number));
        }
    }
}
