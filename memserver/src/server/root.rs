//! The header of a living region, which clients write when they move the root; and lost structures.
//!
//! A server that begins with an empty structure cannot know by itself whether there was another one before. Its clients know, and the
//! controller: both say which generation they have known. If it was another one, and this one has not been
//! loaded since, the former structure was lost. A client that has known it is refused then, and not told that its keys
//! are absent. While no client has written to the empty structure, all others are refused as well, until an
//! operator loads the server, with content or without.
//!
//! One write would end that. So a server that begins empty opens no session at first, where a controller can
//! say whether there was another structure. The server waits until a controller has said so, or a bounded time has passed,
//! because a server must start without a controller, too.

use fatbtree_remote_memory::{HEADER_BYTES, Origin};
use fatbtree_verbs::Device;
use fatbtree_verbs::time::Instant;

use super::MemoryServer;
use crate::event::Event;
use crate::moments::OlderCopy;
use crate::tenant::{Seen, Tenant};

impl<D: Device, T: Tenant> MemoryServer<D, T> {
    /// Records that a client or controller has known a structure of this generation here. Returns whether that is
    /// another one than the present one, which was not meant to be its successor. If the present one is still
    /// empty, no client is served from now on: all sessions end.
    pub fn known_before(&mut self, generation: u64) -> bool {
        let is_another = generation != self.info.generation && self.info.origin != Origin::Meant;
        if is_another && self.info.origin == Origin::Begun && self.is_empty() {
            self.info.origin = Origin::Lost;
            self.end_all();
            self.events.push(Event::Lost { partition: self.info.server });
        }
        is_another
    }

    /// Takes the generation that a controller has known here before, if any: from now on sessions are opened, unless that structure was
    /// lost. Says whether it was another one than the present one, as [`known_before`](Self::known_before) does.
    pub fn heard(&mut self, former: Option<u64>) -> bool {
        self.undecided_until = None;
        former.is_some_and(|former| self.known_before(former))
    }

    /// Takes the word of another server that this one's folder is an older copy: no client is served from now on. A structure that is
    /// [installed](Self::install) is served again.
    pub fn found_older(&mut self, older: OlderCopy) {
        if self.older.replace(older).is_none() {
            self.end_all();
            self.events.push(Event::Lost { partition: self.info.server });
        }
    }

    /// Opens no session before it is known whether the structure is in the place of another one, if it may be.
    pub(super) fn begin_undecided(&mut self) {
        let waits = self.info.origin == Origin::Begun && self.is_empty();
        self.undecided_until = waits.then(|| Instant::ZERO + self.options.undecided_for);
    }

    /// Whether the structure may be in the place of another one, as far as a controller has had time to say.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        self.undecided_until.is_some_and(|until| self.now < until)
    }

    /// Whether the structure holds nothing, as far as that can be read now.
    fn is_empty(&mut self) -> bool {
        self.watch_header();
        self.tenant.is_empty(&mut self.chunks.in_use())
    }

    /// Shows the tenant the region's header, if it has changed. [`work`](Self::work) does so, too.
    pub fn watch_header(&mut self) {
        let mut header = [0; HEADER_BYTES];
        if self.region.read(0, &mut header).is_err() || header == self.header {
            return;
        }
        self.header = header;
        match self.tenant.see(&header) {
            Seen::Same => {}
            Seen::Changed => {
                self.info.structure = self.tenant.description();
                self.counters.roots_seen += 1;
                self.events.push(Event::NewRoot(self.info.structure));
            }
            Seen::Refused => self.counters.superblocks_refused += 1,
        }
    }
}
