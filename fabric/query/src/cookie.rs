//! Address-validation cookies: returning one proves that the client receives packets at its source address.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use rand::Rng as _;
use rand_chacha::ChaCha8Rng;
use sha2::{Digest as _, Sha256};

/// Generator of all clients' cookies.
///
/// After a client's state is dropped its cookie changes, so that a delayed Open cannot re-admit it and execute a
/// write twice. Cookies of other clients stay the same, unless too many clients have been dropped.
#[derive(Debug)]
pub(crate) struct Cookies {
    secret: [u8; 32],
    /// Number of times that each client was dropped. When the table is full, all cookies change.
    forgotten: HashMap<u64, u32>,
}

/// Maximum number of dropped clients that are counted.
const FORGOTTEN: usize = 4096;

impl Cookies {
    pub(crate) fn new(random: &mut ChaCha8Rng) -> Self {
        let mut secret = [0; 32];
        random.fill_bytes(&mut secret);
        Self { secret, forgotten: HashMap::new() }
    }

    /// Changes the cookie of a client whose state was dropped.
    pub(crate) fn forget(&mut self, client: u64, random: &mut ChaCha8Rng) {
        if self.forgotten.len() >= FORGOTTEN {
            *self = Self::new(random);
        }
        *self.forgotten.entry(client).or_default() += 1;
    }

    /// Cookie of this client at this address; never 0.
    pub(crate) fn of(&self, address: SocketAddr, client: u64) -> u64 {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let times = self.forgotten.get(&client).copied().unwrap_or(0);
        let hash = Sha256::new().chain_update(self.secret).chain_update(times.to_be_bytes());
        let hash = hash.chain_update(ip.octets());
        let digest: [u8; 32] = hash.chain_update(address.port().to_be_bytes()).finalize().into();
        digest.first_chunk().map_or(1, |first| u64::from_be_bytes(*first).max(1))
    }
}
