//! Questions between the memory servers of one structure, by which each finds the blocks that clients have lost.
//!
//! A part of a structure may lead to blocks on other servers. So a server that sweeps asks all others which of its blocks their parts lead
//! to, and takes their word only if all parts stood still at one moment:
//!
//! ```text
//!   asking server                            each other server
//!   no session is open
//!   what does your part lead to?    ────►    no session is open: walks over its part, syncs its disk
//!                                   ◄────    marks, and the number of its quiet time
//!   (all have answered)
//!   is that quiet time still on?    ────►    no session was opened since, and nothing was loaded
//!                                   ◄────    yes
//!   still no session was open: what nothing leads to is free
//! ```
//!
//! **Why that is right.** A quiet time is one without sessions in one life of a server, with one content. Between the last of the marks and the
//! first confirmation all servers were quiet: nothing was written anywhere, because queue pairs end with their sessions. The walks have read
//! what lay there at that moment. A block to which nothing led then is linked by no client later: a client links a block in the session in
//! which it took it, and that had ended. Nor is it given out, for it is on no list.
//!
//! A refusal, an answer of another sweep, a session that opens, or silence ends a sweep without effect.
//!
//! The servers of a structure know each other by the word of all [generations](fatbtree_remote_memory::name_of), which lies in each part. One
//! that has begun anew has another word or none, and neither asks nor answers.

use fatbtree_remote_memory::ServerSet;

use crate::marked::Marked;

/// Bytes of the largest region of which a server is asked: pointers of no structure reach farther.
const MOST_BYTES: u64 = 64 << 30;

/// Other servers of a structure, as one of them knows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fellows {
    /// None if the structure lies on one server.
    pub servers: ServerSet,
    /// Word of the generations of all servers of the structure; 0 while no client has opened it.
    pub members: u64,
}

impl Fellows {
    /// Fellows of server `own` in a structure over `servers`, a bit for each number.
    #[must_use]
    pub fn of(own: u16, servers: u32, members: u64) -> Self {
        Self { servers: ServerSet(servers).without(own), members }
    }
}

/// A question of one memory server to another one of its structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Number of the asking server's sweep.
    pub sweep: u64,
    /// The server that asks.
    pub by: u16,
    /// The server that is asked.
    pub of: u16,
    /// Word of the structure's servers, as the asking one has it.
    pub members: u64,
    /// The question.
    pub question: Question,
}

/// What a server is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// Which blocks of the asking server does your part lead to?
    Marks {
        /// Bytes of the asking server's region.
        bytes: u64,
    },
    /// Does the quiet time of this number go on?
    IsQuiet(u64),
}

/// Answer of a server.
#[derive(Clone, Debug)]
pub enum Answer {
    /// What its part leads to.
    Marks {
        /// Number of the quiet time of the walk.
        quiet: u64,
        /// Blocks of the asking server.
        marks: Marked,
    },
    /// The quiet time goes on.
    Quiet,
}

/// Reasons for which a server does not answer another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unanswered {
    /// The servers are not of one structure.
    #[error(
        "memory server {by} asks what leads to its blocks, but is no other server of this structure, or of another filling of it: compare the \
         cluster files, and load anew if a server has begun anew"
    )]
    Stranger {
        /// The server that asks.
        by: u16,
    },
    /// Clients may change the part.
    #[error(
        "clients have sessions here: what the part leads to can be told only while there are none; ask again later"
    )]
    Sessions,
    /// The quiet time has ended.
    #[error("this quiet time has ended: ask again what the part leads to")]
    Ended,
    /// A question of this server is being answered.
    #[error("an earlier question of memory server {by} is being answered; ask again later")]
    Busy {
        /// The server that asks.
        by: u16,
    },
    /// A region that cannot be.
    #[error("a region of {bytes} bytes: pointers of a structure over several servers reach {MOST_BYTES}")]
    Region {
        /// Bytes that were named.
        bytes: u64,
    },
    /// The disk fails.
    #[error("what the part leads to cannot be brought to the disk; see the server's log")]
    Disk,
}

impl Ask {
    /// Whether the asking server is a fellow of server `own`, and its region possible.
    ///
    /// # Errors
    /// When it is not.
    pub(crate) fn check(&self, own: u16, fellows: Fellows, checks_members: bool) -> Result<(), Unanswered> {
        let Self { by, of, members, question, .. } = *self;
        let is_same = members == fellows.members && members != 0 || !checks_members;
        if of != own || !fellows.servers.has(by) || !is_same {
            return Err(Unanswered::Stranger { by });
        }
        match question {
            Question::Marks { bytes } if bytes > MOST_BYTES => Err(Unanswered::Region { bytes }),
            _ => Ok(()),
        }
    }
}
