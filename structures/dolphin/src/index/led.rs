//! Index reads: switches on the way lead a READ with a key to the key's leaf.
//!
//! ```text
//!   client ── READ, key in va ──► switches ── READ, address in va ──► leaf of the key       1 round trip
//!                                                              └────► a leaf beside it      + parent, leaf
//!                                                              └────► anything else         the usual walk
//! ```
//!
//! Switches are hints, like the cache. Bytes that come back count if they are a whole leaf that is in use
//! and covers the key. A change announces itself on the leaf, at the address that the leaf says is its own, and
//! reads it again.
//!
//! Tables of ranges take the key as it is. A table that matches exactly has room for a key an entry: the
//! client leaves out low bits of the key, so that one entry serves a *block* of keys. Any leaf of the block is a good
//! place to land, because its parent leads to the others.

use fatbtree_remote_memory::{GlobalAddress, Path, Trouble};
use fatbtree_verbs::{Buffer, IndexTarget, Operation, Verbs};

use super::descend::Held;
use super::{Index, Op};
use crate::checks::Check;
use crate::entry::Entry;
use crate::error::Stop;
use crate::key::Prefix;
use crate::leaf::{HEADER_LINE, Header, LEAF_BYTES, Leaf, Use};

/// Where an index read has ended.
pub(super) enum Led<'i, V: Verbs> {
    /// At the key's leaf, which answers.
    To(Held<'i, V>),
    /// At the key's leaf, to be read again.
    At { at: GlobalAddress, parent: Entry },
    /// At a leaf that has keys nearby: the node above it.
    Beside(Entry),
    /// At nothing of use.
    Astray,
}

impl<V: Verbs> Index<V> {
    /// Lets switches lead operations whose leaf the cache does not know, on connections that are
    /// registered with them. Index reads carry the key without its `low` bits. `None`: operations walk.
    ///
    /// # Panics
    /// When there are no 64 bits that can be left out.
    pub fn set_led(&self, low: Option<u8>) {
        assert!(low.is_none_or(|low| low < 64), "a key has 64 bits");
        self.led.set(low);
    }

    /// Whether the switches are to be asked for the operation's key: once.
    pub(super) fn may_ask_switches(&self, op: &Op) -> bool {
        self.led.get().is_some() && !op.state.was_led && self.memory.is_registered(self.nearest(op).id)
    }

    /// The connection to the server that most likely has the key's leaf.
    fn nearest<'o>(&self, op: &'o Op) -> Path<'o> {
        let server = self.shape.server_of(Prefix::of(op.key, self.depth.get()));
        op.lane.to(server)
    }

    /// Takes whatever an index read has brought for the key's leaf, as must not be.
    fn unchecked(&self, bytes: Buffer, how: Use) -> Led<'_, V> {
        match how {
            Use::Read => {
                let (at, parent) = (GlobalAddress::NULL, self.shape.root());
                Led::To(Held { bytes, at, parent, below: None, announced: None })
            }
            // A change reads the leaf once more.
            Use::Change => Led::Astray,
        }
    }

    /// Posts an index read: a round trip.
    pub(super) async fn ask_switches(&self, op: &mut Op, how: Use) -> Result<Led<'_, V>, Stop> {
        op.state.was_led = true;
        // A change reads the leaf once more, so its header is enough.
        let len = match how {
            Use::Read => LEAF_BYTES,
            Use::Change => HEADER_LINE,
        };
        let Some(bytes) = self.index_read(op, len as u32).await? else { return Ok(Led::Astray) };
        let header = Header::parse(&bytes);
        let Some(Header { own, parent, .. }) = header.filter(|header| header.covers(op.key)) else {
            if !Check::Landing.on() {
                return Ok(self.unchecked(bytes, how));
            }
            let depth = self.depth.get();
            let is_near = |min| Prefix::of(min, depth).covers(op.key);
            let near = header.filter(|header| is_near(header.min) && header.parent.is_inner());
            return Ok(near.map_or(Led::Astray, |header| Led::Beside(header.parent)));
        };
        let is_right = |leaf: Leaf<'_>| leaf.check(Use::Read).is_ok() || !Check::LandingState.on();
        let answers = how == Use::Read && Leaf::new(&bytes).is_some_and(is_right);
        Ok(match answers {
            true => Led::To(Held { bytes, at: own, parent, below: None, announced: None }),
            false => Led::At { at: own, parent },
        })
    }

    /// `None`: the connection is not there now, or its packets are too short.
    async fn index_read(&self, op: &mut Op, len: u32) -> Result<Option<Buffer>, Stop> {
        let (path, low) = (self.nearest(op), self.led.get().unwrap_or_default());
        let Ok((queue_pair, _)) = self.memory.link(path.id) else { return Ok(None) };
        let (key, target) = (op.key >> low << low, IndexTarget::NodeOrRecord);
        match self.memory.fetch(path, queue_pair, [Operation::IndexRead { key, len, target }]).await {
            Ok([bytes]) => Ok(Some(bytes)),
            Err(Trouble::Refused(error)) if !error.is_temporary() => {
                self.led.set(None);
                Ok(None)
            }
            Err(trouble) => Err(trouble.into()),
        }
    }
}
