//! The fuzzer's bytes, read as choices and numbers.

/// Reads the input from its beginning; beyond its end are zeros.
///
/// Choices come first, each in a byte of its own, so that a byte that changes changes one thing.
#[derive(Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// From the beginning.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// So many bytes, or what is left.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(most.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let found = self.bytes(N);
        taken[..found.len()].copy_from_slice(found);
        taken
    }

    /// A number.
    pub fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }

    /// A number.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    /// A number below another, which is at most 256.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end.max(1)
    }

    /// A number of 64 bits: mostly a small one.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::from_le_bytes(self.take()),
            254 => u64::MAX - u64::from(self.byte()),
            small => u64::from(small),
        }
    }

    /// Up to seven bytes are overwritten.
    pub fn overwrite(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.below(8) {
            let (at, byte) = (usize::from(self.byte()), self.byte());
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
    }
}
