//! What a server gives to those it does not know, and only they can give back: nobody else receives packets at their address.

use std::net::{IpAddr, SocketAddr};

use rand::Rng as _;
use rand_chacha::ChaCha8Rng;
use sha2::{Digest as _, Sha256};

/// Makes cookies, and knows its own.
#[derive(Debug)]
pub(crate) struct Cookies {
    secret: [u8; 32],
}

impl Cookies {
    pub(crate) fn new(random: &mut ChaCha8Rng) -> Self {
        let mut secret = [0; 32];
        random.fill_bytes(&mut secret);
        Self { secret }
    }

    /// The one for this address. It is never 0.
    pub(crate) fn of(&self, address: SocketAddr) -> u64 {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let hash = Sha256::new().chain_update(self.secret).chain_update(ip.octets());
        let digest: [u8; 32] = hash.chain_update(address.port().to_be_bytes()).finalize().into();
        digest.first_chunk().map_or(1, |first| u64::from_be_bytes(*first).max(1))
    }
}
