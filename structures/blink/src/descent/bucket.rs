//! Lookups in leaves of buckets: of the leaf only the key's bucket is read.
//!
//! ```text
//!            index read of the bucket's slice            READ of the bucket, at a leaf that is known
//!              │        │          │       │                        │            │
//!   proves     ▼        ▼          ▼       ▼ nothing                ▼ proves     ▼ proves nothing
//!   itself: value   record   inner node    the leaf as a whole    value          the leaf as a whole
//!                            as ever       by an index read                      by its address
//! ```
//!
//! A bucket that does not prove itself was torn, or its leaf was split, merged or freed. The whole leaf tells which: so what a bucket cannot say is
//! found out as in trees with plain leaves, and costs a round trip more.

use fatbtree_remote_memory::record::{RecordHead, is_record, record_bytes};
use fatbtree_verbs::{Buffer, IndexTarget, Verbs};

use super::steps::HintResult;
use super::{Descent, Reason, Step};
use crate::lookup::Place;
use crate::node::{BUCKET_BYTES, Node, NodeHeader, Slice, read_bucket};
use crate::operation::Start;

impl<V: Verbs> Descent<'_, V> {
    /// Walks to the key's entry, in the bucket at `offset` of its leaf. `first` is the node at the start, if it was read already.
    #[inline]
    pub(crate) async fn descend_to_bucket(
        &mut self,
        start: Start,
        mut first: Option<Buffer>,
        offset: u32,
    ) -> Result<(Buffer, Place), Reason> {
        let key = self.key;
        let mut step = self.first_step(start);
        // Once: where one bucket does not prove itself, the leaf says where to go on.
        let mut unread = Some(offset);
        loop {
            if let Step::Node { address, level: 0 } = step
                && first.is_none()
                && let Some(offset) = unread.take()
            {
                let bytes = self.pool.read(&self.lane, address.behind(offset.into()), BUCKET_BYTES).await?;
                let found = read_bucket(self.tree(), address.server(), key, &bytes);
                if let Ok(place) = found.map(|found| Place::of(found, Some(address), &bytes)) {
                    self.arrive_at_bucket();
                    return Ok((bytes, place));
                }
            }
            let mut arrive = |node: &Node<'_>, bytes: &[u8]| Place::in_leaf(node, bytes, key);
            let (bytes, arrived) = self.take_step(&mut step, first.take(), 0, &mut arrive).await?;
            if let Some(place) = arrived {
                return Ok((bytes, place));
            }
        }
    }

    /// Lets the switches lead to the key's bucket or, if `or_record`, to its record.
    #[inline]
    pub(crate) async fn ask_for_bucket(
        &mut self,
        offset: u32,
        or_record: bool,
    ) -> Result<HintResult, Reason> {
        let tree = *self.tree();
        let (key, range, server) = (self.key, self.partition.range, self.partition.root.server());
        let line = (u64::from(offset) / IndexTarget::LINE) as u8;
        let target = IndexTarget::Slice { line, or_record };
        let mut len = self.pool.needs(|needs| needs.of(&range, key, tree.internal_bytes()));
        loop {
            let bytes = self.pool.index_read(self.path(), key, len.max(BUCKET_BYTES), target).await?;
            let bucket = match Slice::of(&tree, server, key, &bytes) {
                Slice::Bucket(found) => Some(Place::of(found, None, &bytes)),
                Slice::Node(header) => return Ok(self.led_to_node(header, bytes)),
                Slice::Else => None,
            };
            if let Some(place) = bucket {
                self.pool.needs(|needs| needs.note(&range, key, BUCKET_BYTES));
                self.arrive_at_bucket();
                self.trips.landed = Some(0);
                return Ok(HintResult::Bucket { bytes, place });
            }
            let whole =
                bytes_of_record(&bytes).filter(|whole| (len + 1..=tree.max_node_bytes()).contains(whole));
            if let Some(whole) = whole {
                self.pool.needs(|needs| needs.note(&range, key, whole));
                len = whole;
                continue;
            }
            let len = bytes.len() as u32;
            return Ok(match self.take_hinted(bytes) {
                HintResult::Record { record, value } => {
                    let needed = bytes_of_record(&record).unwrap_or(len);
                    self.pool.needs(|needs| needs.note(&range, key, needed));
                    HintResult::Record { record, value }
                }
                // Not the key's bucket, or one that was being written.
                HintResult::Node(_) => HintResult::Stale,
                hint => hint,
            });
        }
    }

    /// A node where a bucket was asked for: the switches lead no further, or know nothing of slices.
    fn led_to_node(&mut self, header: NodeHeader, bytes: Buffer) -> HintResult {
        let tree = *self.tree();
        let (key, range, needed) = (self.key, self.partition.range, tree.node_bytes(header.level));
        if header.level != 0 {
            self.pool.needs(|needs| needs.note(&range, key, needed));
        }
        if bytes.len() >= needed as usize {
            return HintResult::Node(bytes);
        }
        if header.address.server() != self.partition.root.server() {
            return HintResult::Stale;
        }
        HintResult::At { address: header.address, level: header.level }
    }

    fn arrive_at_bucket(&mut self) {
        self.by_switches = false;
        self.trips.levels += 1;
    }
}

/// Bytes of the record that begins here, if one does.
fn bytes_of_record(bytes: &[u8]) -> Option<u32> {
    let head = bytes.first_chunk().filter(|_| is_record(bytes)).map(RecordHead::parse)?;
    Some(record_bytes(head.length()))
}
