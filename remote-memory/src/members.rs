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
//!
//! A server that is away when a client begins is *awaited*: the others must have one word, and what can be verified of the awaited server is
//! verified when it comes. A word lies in the memory that it names, so a server that has it is the one that was named: it has not begun
//! anew. Nothing is named while a server is awaited.

use std::cell::Cell;
use std::fmt;

use fatbtree_verbs::Verbs;

use crate::address::GlobalAddress;
use crate::checks::Check;
use crate::header::{HEADER_BYTES, RegionHeader};
use crate::memory::{RemoteMemory, Trouble};
use crate::mix::mix;
use crate::operation::Lane;

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
    lane: &Lane,
    is_part: impl Fn(&[u8; HEADER_BYTES]) -> bool,
) -> Result<Members, Trouble> {
    if servers.count_ones() == 1 {
        return Ok(Members::Whole);
    }
    let numbers = || ServerSet(servers).numbers();
    let awaited = memory.shared::<Awaited>();
    if let Some(found) = without_awaited(memory, (kind, servers), word, lane, &is_part, &awaited).await? {
        return Ok(found);
    }
    let mut generations = Vec::new();
    for server in numbers() {
        let line = memory.read(lane, GlobalAddress::new(server, 0), HEADER_BYTES as u32).await?;
        let found = line.first_chunk().and_then(|line| Some((line, RegionHeader::parse(line, &kind)?)));
        let Some((line, header)) = found else { return Ok(Members::Missing(server)) };
        if !is_part(line) {
            return Ok(Members::Parted);
        }
        generations.push((server, header.generation));
    }
    let members = name_of(generations);
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

/// The word that names these servers by the generations of their regions, in the order of their numbers.
pub fn name_of(generations: impl IntoIterator<Item = (u16, u64)>) -> u64 {
    let name = generations.into_iter().fold(0, |name, (server, generation)| {
        mix(name ^ mix(generation.wrapping_add(u64::from(server) << 48)))
    });
    name | 1
}

/// Servers of a client's structure that were away when the client began, and have not come yet:
/// [`shared`](RemoteMemory::shared) by all that know of them.
#[derive(Debug, Default)]
pub struct Awaited {
    /// A bit for each number below 32.
    servers: Cell<u32>,
    /// The word of the others, if it was read without these.
    word: Cell<Option<u64>>,
}

impl Awaited {
    /// Lets the structure be opened without a server. The owner promises to tell [when it has come](Self::came), before the first connection
    /// to it is up.
    pub fn wait_for(&self, server: u16) {
        self.servers.set(self.servers.get() | bit(server));
    }

    /// The servers, a bit for each number.
    pub fn servers(&self) -> u32 {
        self.servers.get()
    }

    /// A server has come; `generations` are those of all servers that are known now. Returns whether what is open can be used with it. If not,
    /// the structure must be opened anew.
    pub fn came(&self, server: u16, generations: impl IntoIterator<Item = (u16, u64)>) -> bool {
        if self.servers.get() & bit(server) == 0 {
            return true;
        }
        self.servers.set(self.servers.get() & !bit(server));
        // While another one is still awaited, the word says nothing of this one alone: its own must be read.
        let is_the_one = |word| self.servers.get() == 0 && word == name_of(generations);
        !Check::Awaited.on() || self.word.get().is_none_or(is_the_one)
    }
}

/// Servers, a bit for each number below 32; in words for people `memory servers 0, 2`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ServerSet(pub u32);

impl ServerSet {
    /// Their numbers, in ascending order.
    pub fn numbers(self) -> impl Iterator<Item = u16> {
        (0..32).filter(move |&server| self.has(server))
    }

    /// Whether a server is among them.
    #[must_use]
    pub const fn has(self, server: u16) -> bool {
        self.0 & bit(server) != 0
    }

    /// All but one.
    #[must_use]
    pub const fn without(self, server: u16) -> Self {
        Self(self.0 & !bit(server))
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<u16> for ServerSet {
    /// The servers of these numbers. One from 32 on is left out: it is of no structure.
    fn from_iter<T: IntoIterator<Item = u16>>(numbers: T) -> Self {
        Self(numbers.into_iter().fold(0, |all, server| all | bit(server)))
    }
}

impl fmt::Display for ServerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.numbers().map(|server| server.to_string()).collect();
        let of = if numbers.len() == 1 { "memory server" } else { "memory servers" };
        write!(f, "{of} {}", numbers.join(", "))
    }
}

const fn bit(server: u16) -> u32 {
    if server < 32 { 1 << server } else { 0 }
}

/// Compares the servers that are not awaited. `None` if all must be compared: none is awaited, or the others have no word yet.
async fn without_awaited<V: Verbs>(
    memory: &RemoteMemory<V>,
    (kind, servers): ([u8; 8], u32),
    word: u64,
    lane: &Lane,
    is_part: &impl Fn(&[u8; HEADER_BYTES]) -> bool,
    awaited: &Awaited,
) -> Result<Option<Members>, Trouble> {
    let present = servers & !awaited.servers();
    if present == servers || present == 0 {
        return Ok(None);
    }
    let mut name = None;
    for server in ServerSet(present).numbers() {
        let line = memory.read(lane, GlobalAddress::new(server, 0), HEADER_BYTES as u32).await?;
        let Some(line) = line.first_chunk().filter(|line| RegionHeader::parse(line, &kind).is_some()) else {
            return Ok(Some(Members::Missing(server)));
        };
        let found = memory.read_word(lane, GlobalAddress::new(server, word)).await?;
        if !is_part(line) || found != *name.get_or_insert(found) {
            return Ok(Some(Members::Parted));
        }
    }
    let name = name.filter(|name| *name != 0);
    awaited.word.set(name);
    Ok(name.map(|_| Members::Whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_told_by_their_numbers() {
        assert_eq!(ServerSet(0b101).to_string(), "memory servers 0, 2");
        assert_eq!(ServerSet(2).to_string(), "memory server 1");
        let set = ServerSet(0b101);
        assert!(set.has(2) && !set.has(1) && !set.has(99) && set.numbers().eq([0, 2]));
        assert!(set.without(2) == ServerSet(1) && set.without(99) == set && ServerSet(0).is_empty());
        assert_eq!([2, 0, 99].into_iter().collect::<ServerSet>(), ServerSet(0b101));
    }

    #[test]
    fn a_server_that_was_awaited_is_the_one_that_was_named() {
        let awaited = || {
            let awaited = Awaited::default();
            awaited.wait_for(1);
            awaited.word.set(Some(name_of([(0, 7), (1, 8)])));
            awaited
        };
        assert!(awaited().came(1, [(0, 7), (1, 8)]));
        assert!(!awaited().came(1, [(0, 7), (1, 9)]), "it has begun anew");
        #[cfg(feature = "switchable-checks")]
        assert!(Check::Awaited.without(|| awaited().came(1, [(0, 7), (1, 9)])));
        // With another one that is away nothing can be said yet.
        let two = awaited();
        two.wait_for(2);
        assert!(!two.came(1, [(0, 7), (1, 8)]) && two.servers() == 4);
        assert!(awaited().came(0, [(0, 7)]), "it was not awaited");
    }
}
