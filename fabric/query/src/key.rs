//! Client keys, and the tags that authenticate datagrams with them.

use std::fmt;
use std::hash::Hasher as _;

use fatbtree_wire::query::{QueryHeader, datagram, parts};
use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128 as _, SipHasher24 as SipHasher24Of128};

/// Key of one client. It is never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key([u8; 16]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

impl Key {
    /// A key of these bytes.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Bytes of the key, for the control channel that hands it out.
    pub const fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Tag of a datagram. Nothing is allocated.
    pub fn tag(&self, header: &QueryHeader, part: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&header.signed());
        hasher.write(part);
        hasher.finish()
    }
}

/// Identity of a client, for servers that require a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Number of the client.
    pub client: u64,
    /// Key of the client.
    pub key: Key,
}

/// Secret that the memory servers of a cluster share, and from which they derive client keys. Servers therefore need
/// not store keys. The secret is never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

impl Secret {
    /// A secret of these bytes.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The key of the client with this number.
    pub fn key_of(&self, client: u64) -> Key {
        let mut hasher = SipHasher24Of128::new_with_key(&self.0);
        hasher.write_u64(client.to_be());
        Key(hasher.finish128().as_bytes())
    }

    /// Identity of the client with this number, which must be drawn at random.
    pub fn identity(&self, client: u64) -> Identity {
        Identity { client, key: self.key_of(client) }
    }
}

/// Datagrams of a payload, each with its tag if there is a key.
pub(crate) fn sealed(
    header: &QueryHeader,
    payload: &[u8],
    most: usize,
    key: Option<Key>,
) -> impl Iterator<Item = Vec<u8>> {
    parts(header, payload, most).map(move |(header, part)| {
        let tag = key.map_or(0, |key| key.tag(&header, part));
        datagram(&QueryHeader { tag, ..header }, part)
    })
}

#[cfg(test)]
mod tests {
    use fatbtree_wire::query::Op;

    use super::*;

    #[test]
    fn keys_differ_by_client_and_secret_and_are_not_printed() {
        let secrets = [Secret::new([1; 16]), Secret::new([2; 16])];
        let keys: Vec<_> =
            secrets.iter().flat_map(|secret| [7, 8].map(|client| secret.key_of(client))).collect();
        for (n, key) in keys.iter().enumerate() {
            assert!(keys[..n].iter().all(|other| other != key));
        }
        let printed = format!("{:?} {:?} {:?}", secrets[0], keys[0], secrets[0].identity(7));
        let hidden = "Secret(hidden) Key(hidden) Identity { client: 7, key: Key(hidden) }";
        assert_eq!(printed, hidden);
    }

    /// The vectors of SipHash's authors (`siphash24.c`: key 0, 1, …, 15): of 15 bytes.
    #[test]
    fn the_tag_is_the_siphash_that_others_know() {
        let key: [u8; 16] = std::array::from_fn(|n| n as u8);
        let mut hasher = SipHasher24::new_with_key(&key);
        hasher.write(&std::array::from_fn::<u8, 15, _>(|n| n as u8));
        assert_eq!(hasher.finish(), 0xa129_ca61_49be_45e5);
        // A tag covers the part as well, and which header it belongs to.
        let header = QueryHeader::request(Op::Put, 7, 1, 2);
        let tag = Key(key).tag(&header, b"part");
        assert_ne!(tag, Key(key).tag(&header, b"parT"));
        assert_ne!(tag, Key(key).tag(&QueryHeader { request: 3, ..header }, b"part"));
        assert_ne!(tag, Key([0; 16]).tag(&header, b"part"));
    }
}
