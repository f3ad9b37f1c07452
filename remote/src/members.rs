//! Whether the servers of a structure fit together.
//!
//! A server that begins anew without what it held knows nothing of the other parts. Pointers on other servers lead to its former blocks, and
//! would lead to new ones. So the structure's servers are named once, by the generations of their regions: the first client that opens the
//! structure puts a word of all generations beside its begin, and every client compares. A structure of one server needs no such word.

use fatbtree_verbs::Verbs;

use crate::address::GlobalAddress;
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

/// Compares the regions of all servers of a structure: `servers` has a bit for each number below 32. `word` is the address of the word of
/// generations, and `is_part` looks whether a header that is one of this kind is one of this structure.
///
/// # Errors
/// When a server does not answer.
pub async fn members<V: Verbs>(
    memory: &RemoteMemory<V>,
    (kind, servers): ([u8; 8], u32),
    word: GlobalAddress,
    lane: u8,
    is_part: impl Fn(&[u8; HEADER_BYTES]) -> bool,
) -> Result<Members, Trouble> {
    if servers.count_ones() == 1 {
        return Ok(Members::Whole);
    }
    let mut members = 0;
    for server in (0..32).filter(|server| servers >> server & 1 == 1) {
        let line = memory.read(lane, GlobalAddress::new(server, 0), HEADER_BYTES as u32).await?;
        let found = line.first_chunk().and_then(|line| Some((line, RegionHeader::parse(line, &kind)?)));
        let Some((line, header)) = found else { return Ok(Members::Missing(server)) };
        if !is_part(line) {
            return Ok(Members::Parted);
        }
        members = mix(members ^ mix(header.generation.wrapping_add(u64::from(server) << 48)));
    }
    let members = members | 1;
    let found = memory.compare_swap(lane, word, 0, members).await?;
    Ok(if found == 0 || found == members { Members::Whole } else { Members::Parted })
}
