//! The bytes of each step of a change: what is read first, and what is written over it.

use fatbtree_blink::node::{
    LINE, LeafBuilder, LeafEditor, NewValue, NodeHeader, NodeSpec, mark_free, next_version, write_internal,
};
use fatbtree_blink::record::{UNPUBLISHED, record_bytes, write_record};
use fatbtree_blink::{GlobalAddress, Integrity, Superblock, ValueLayout};
use rand::RngExt as _;

use super::model::{Body, Model, Node, Payload, Step};
use super::rules::Rule;
use super::values;
use crate::world::Random;

/// Where a superblock has its version. It is looked up also where the superblock is torn.
const SUPERBLOCK_VERSION: usize = 59;

impl Model {
    /// What is read before a step.
    pub(super) fn place(&self, step: Step) -> (GlobalAddress, u32) {
        match step {
            Step::Record { at, length, .. } => (at, record_bytes(length)),
            Step::Mark { at, mark } => (at, mark.len() as u32),
            Step::Entry { leaf, .. } => (leaf, self.config.leaf_bytes()),
            Step::Node(at) => (at, self.config.node_bytes(self.nodes[&at].level)),
            Step::Free(at) => (at, LINE as u32),
            Step::Superblock => (GlobalAddress::new(self.server, 0), LINE as u32),
        }
    }

    /// What is written after `memory` was read at the step's place, and where. Nothing where nothing is to be done.
    pub(super) fn bytes(
        &self,
        step: Step,
        mut memory: Vec<u8>,
        random: &mut Random,
    ) -> Option<(GlobalAddress, Vec<u8>)> {
        let place = self.place(step).0;
        match step {
            Step::Record { key, word, version, .. } => {
                write_record(&mut memory, key, version, UNPUBLISHED, |value| values::fill(key, word, value));
            }
            Step::Mark { mark, .. } => memory = mark.to_vec(),
            Step::Entry { leaf, key } => {
                let range = self.entry(leaf, key, &mut memory)?;
                let at = GlobalAddress::new(self.server, place.offset() + range.start as u64);
                return Some((at, memory[range].to_vec()));
            }
            Step::Node(at) => self.node(at, &mut memory, random),
            Step::Free(_) => mark_free(memory.first_chunk_mut()?),
            Step::Superblock => {
                let version = memory.get(SUPERBLOCK_VERSION).map_or(0, |version| version.wrapping_add(1));
                let superblock = Superblock {
                    partition: self.partition(),
                    config: self.config,
                    generation: 1,
                    region_bytes: self.space.region_bytes,
                    version,
                };
                memory = superblock.to_bytes().to_vec();
            }
        }
        Some((place, memory))
    }

    /// Changes the entry of a key in the bytes of its leaf; says which bytes.
    fn entry(&self, leaf: GlobalAddress, key: u64, memory: &mut [u8]) -> Option<std::ops::Range<usize>> {
        let Body::Leaf(entries) = &self.nodes[&leaf].body else { return None };
        let shape = *self.config.leaf_shape();
        let mut editor = LeafEditor::new(memory, &shape);
        let slot = editor.slot_of(key).expect("the model has each key once");
        let Some(Payload { word, record }) = entries.get(&key) else { return Some(editor.remove(slot?)) };
        let slot = slot.or_else(|| editor.free_slot()).expect("a leaf is split before it is full");
        let range = match (*record, self.config.values()) {
            (Some(record), _) => editor.put(slot, key, NewValue::Record(record)),
            (None, ValueLayout::Inline(size)) => {
                let mut value = vec![0; usize::from(size)];
                values::fill(key, *word, &mut value);
                editor.put(slot, key, NewValue::Inline(&value))
            }
            (None, ValueLayout::OutOfLine) => unreachable!("each value has a record"),
        };
        let lines = self.config.integrity() == Integrity::LineVersions;
        if self.broken == Some(Rule::EntryVersionsGoOn) && shape.is_wide() && lines {
            for at in [range.start, range.end - 1] {
                memory[at] = 0x81;
            }
        }
        Some(range)
    }

    fn node(&self, at: GlobalAddress, memory: &mut [u8], random: &mut Random) {
        let Node { level, range, sibling, body } = &self.nodes[&at];
        let version = match self.broken {
            Some(Rule::VersionsGoOn) => 1,
            Some(Rule::VersionsAreNew) => version_of_header(memory),
            _ => next_version(memory),
        };
        let mut range = *range;
        if self.broken == Some(Rule::Fences) && !sibling.is_null() {
            range.high = self.nodes.get(sibling).map_or(range.high, |right| right.range.high);
        }
        let spec = NodeSpec { address: at, level: *level, range, sibling: *sibling, version };
        match body {
            Body::Internal(children) => write_internal(memory, &spec, children, self.config.integrity()),
            Body::Leaf(entries) => {
                let mut entries: Vec<(u64, Payload)> =
                    entries.iter().map(|(key, payload)| (*key, *payload)).collect();
                for last in (1..entries.len()).rev() {
                    entries.swap(last, random.random_range(0..=last));
                }
                let mut leaf = LeafBuilder::new(memory, self.config.leaf_shape(), spec);
                for (key, Payload { word, record }) in entries {
                    match record {
                        Some(record) => leaf.push_record(key, record),
                        None => values::fill(key, word, leaf.push_inline(key)),
                    }
                }
                leaf.finish();
            }
        }
    }
}

/// One more than the header says.
fn version_of_header(memory: &[u8]) -> u32 {
    memory.first_chunk::<LINE>().map_or(0, |line| NodeHeader::parse(line).version.wrapping_add(1))
}
