//! Whether the servers of a structure fit together.
//!
//! A server that begins anew without what it held knows nothing of the other parts. Pointers on other servers lead to its former blocks, and
//! would lead to new ones. So the structure's servers are named once, by the generations of their regions: the first client that opens the
//! structure puts a word of all generations into each server's memory, and every client compares all words. A structure of one server needs
//! no such word.
//!
//! The word is on *each* server, because any of them may begin anew, the one on which the structure begins, too. That one has no word then;
//! the others still have the former one. A word is put when all servers were found without another one. So servers that an operator has
//! begin anew one after the other are never named together with those that are still to come.

use fatbtree_verbs::Verbs;

use crate::address::GlobalAddress;
use crate::checks::Check;
use crate::header::{HEADER_BYTES, RegionHeader};
use crate::memory::{RemoteMemory, Trouble};
use crate::mix::mix;

/// Result of a comparison of all servers' regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Members {
    /// They hold parts of one structure.
    Whole,
    /// They hold parts of different ones.
    Parted,
    /// This server holds no part of such a structure.
    Missing(u16),
}

/// Compares the regions of all servers of a structure: `servers` has a bit for each number below 32. `word` is the offset of the word of
/// generations, the same on each server, and `is_part` looks whether a header that is one of this kind is one of this structure.
///
/// # Errors
/// When a server does not answer.
pub async fn members<V: Verbs>(
    memory: &RemoteMemory<V>,
    (kind, servers): ([u8; 8], u32),
    word: u64,
    lane: u8,
    is_part: impl Fn(&[u8; HEADER_BYTES]) -> bool,
) -> Result<Members, Trouble> {
    if servers.count_ones() == 1 {
        return Ok(Members::Whole);
    }
    let numbers = || (0..32_u16).filter(|server| servers >> server & 1 == 1);
    let mut members = 0;
    for server in numbers() {
        let line = memory.read(lane, GlobalAddress::new(server, 0), HEADER_BYTES as u32).await?;
        let found = line.first_chunk().and_then(|line| Some((line, RegionHeader::parse(line, &kind)?)));
        let Some((line, header)) = found else { return Ok(Members::Missing(server)) };
        if !is_part(line) {
            return Ok(Members::Parted);
        }
        members = mix(members ^ mix(header.generation.wrapping_add(u64::from(server) << 48)));
    }
    let members = members | 1;
    let mut nameless = Vec::new();
    let words = if Check::MembersEverywhere.on() { usize::MAX } else { 1 };
    for server in numbers().take(words) {
        let at = GlobalAddress::new(server, word);
        match memory.read_word(lane, at).await? {
            0 => nameless.push(at),
            found if found == members => {}
            _ => return Ok(Members::Parted),
        }
    }
    for at in nameless {
        let found = memory.compare_swap(lane, at, 0, members).await?;
        if found != 0 && found != members {
            return Ok(Members::Parted);
        }
    }
    Ok(Members::Whole)
}
