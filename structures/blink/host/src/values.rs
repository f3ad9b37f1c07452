//! Sources of the values of a bulk load.

/// Values by key. The load asks for every length twice: first to size the region, then to fill it.
pub trait ValueSource {
    /// Bytes of the value of `key`; the same whenever it is asked for.
    fn length(&mut self, key: u64) -> u32;

    /// Writes the value of `key` over all of `out`, which has as many bytes as [`length`](Self::length) says.
    fn fill(&mut self, key: u64, out: &mut [u8]);
}

/// Values from two closures; see [`fixed`], [`varying`] and [`seeded`].
#[derive(Clone, Copy, Debug)]
pub struct FromClosures<L, F> {
    length: L,
    fill: F,
}

impl<L: FnMut(u64) -> u32, F: FnMut(u64, &mut [u8])> ValueSource for FromClosures<L, F> {
    #[inline]
    fn length(&mut self, key: u64) -> u32 {
        (self.length)(key)
    }

    #[inline]
    fn fill(&mut self, key: u64, out: &mut [u8]) {
        (self.fill)(key, out);
    }
}

/// Values of `length` bytes each, written by `fill`.
pub fn fixed<F: FnMut(u64, &mut [u8])>(length: u32, fill: F) -> impl ValueSource {
    FromClosures { length: move |_| length, fill }
}

/// Values of `length(key)` bytes, written by `fill`.
pub fn varying<L: FnMut(u64) -> u32, F: FnMut(u64, &mut [u8])>(length: L, fill: F) -> impl ValueSource {
    FromClosures { length, fill }
}

/// Values of `length` bytes each that can be checked by [`fatbtree_blink::value::check`] with the same seed.
pub fn seeded(seed: u64, length: u32) -> impl ValueSource {
    fixed(length, move |key, out: &mut [u8]| fatbtree_blink::value::fill(key, seed, out))
}
