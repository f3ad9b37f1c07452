//! Gives out the bytes of a region, from its start to its end, and takes none back.

/// Chunks begin at multiples of this many bytes: whole lines.
pub const CHUNK_ALIGN: u64 = 64;

/// A bump allocator over the offsets of one region. It knows no memory, so that the region itself can belong to the
/// NIC. Offset 0 to 63 are never given out: address 0 is null.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkAllocator {
    next: u64,
    end: u64,
}

impl ChunkAllocator {
    /// Gives out the offsets from `from` to `end`.
    #[must_use]
    pub fn new(from: u64, end: u64) -> Self {
        Self { next: from.max(CHUNK_ALIGN), end }
    }

    /// Bytes not given out yet.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.end.saturating_sub(self.next)
    }

    /// Offset of `bytes` bytes that nobody else has, at a multiple of [`CHUNK_ALIGN`].
    ///
    /// # Errors
    /// When the region has fewer bytes left.
    pub fn allocate(&mut self, bytes: u64) -> Result<u64, RegionFull> {
        let full = RegionFull { wanted: bytes, free: self.free_bytes() };
        let from = self.next.checked_next_multiple_of(CHUNK_ALIGN).ok_or(full)?;
        let next = from.checked_add(bytes).filter(|&next| next <= self.end).ok_or(full)?;
        self.next = next;
        Ok(from)
    }
}

/// The region has too few bytes left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{wanted} bytes wanted, {free} are left in the region: load the server with more spare bytes")]
pub struct RegionFull {
    /// Bytes wanted.
    pub wanted: u64,
    /// Bytes left, alignment not counted.
    pub free: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_out_lines_until_the_region_is_full() {
        let mut chunks = ChunkAllocator::new(0, 300);
        assert_eq!(chunks.allocate(65), Ok(64), "offset 0 is null");
        assert_eq!(chunks.allocate(64), Ok(192));
        assert_eq!(chunks.allocate(64), Err(RegionFull { wanted: 64, free: 44 }));
        assert_eq!(chunks.allocate(u64::MAX), Err(RegionFull { wanted: u64::MAX, free: 44 }));
        assert_eq!(chunks.allocate(44), Ok(256));
    }
}
