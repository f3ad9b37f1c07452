//! The kind of each chunk that was given out, where that outlives the server, or where other threads look.
//!
//! ```text
//!   a word for each chunk: 0 not given out yet; else  bits 0..8 kind + 1, bits 32..64 CRC-32 of generation, chunk and kind
//! ```
//!
//! A word is written at once, before the chunk is given out.

use std::io;
use std::sync::Arc;

use fatbtree_remote::ChunkKind;
use fatbtree_verbs::Memory;

/// Bytes of a word.
const WORD: u64 = 8;

/// The table of chunk kinds is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "what is said of chunk {chunk} of {chunks}, {found:#x}, was never written: expected a kind and its checksum for chunks that were given \
     out, and 0 behind them"
)]
pub struct DamagedKinds {
    /// The chunk.
    pub chunk: u32,
    /// Its word in the table.
    pub found: u64,
    /// Chunks of the region.
    pub chunks: u32,
}

/// The kinds of all chunks of a region.
#[derive(Clone, Debug)]
pub(crate) struct ChunkKinds {
    words: Arc<Memory>,
    generation: u64,
}

impl ChunkKinds {
    /// Bytes of the table for this many chunks.
    pub(crate) const fn bytes(chunks: u64) -> u64 {
        chunks.saturating_mul(WORD)
    }

    /// Table in `words`, for the region of a generation.
    pub(crate) fn new(words: Arc<Memory>, generation: u64) -> Self {
        Self { words, generation }
    }

    /// The kinds of the chunks that were given out, of `chunks`: they are given out in order.
    pub(crate) fn given_out(&self, chunks: u32) -> Result<Vec<ChunkKind>, DamagedKinds> {
        let mut given_out = Vec::new();
        let mut is_over = false;
        for chunk in 0..chunks {
            let found = self.word(chunk.into()).ok_or(DamagedKinds { chunk, found: 0, chunks })?;
            let kind = kind_of(found).filter(|&kind| self.sealed(chunk, kind) == found);
            match kind {
                Some(kind) if !is_over => given_out.push(kind),
                None if found == 0 => is_over = true,
                _ => return Err(DamagedKinds { chunk, found, chunks }),
            }
        }
        Ok(given_out)
    }

    /// The kind of a chunk, if it was given out.
    pub(crate) fn get(&self, chunk: u64) -> Option<ChunkKind> {
        kind_of(self.word(chunk)?)
    }

    /// Writes down the kind of a chunk that is given out.
    ///
    /// # Panics
    /// When there are fewer chunks.
    pub(crate) fn note(&self, chunk: u32, kind: ChunkKind) {
        let word = self.sealed(chunk, kind).to_le_bytes();
        let written = self.words.write(u64::from(chunk) * WORD, &word);
        written.expect("there is a word for each chunk: it was checked when the table was made");
    }

    /// Brings all words to the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.words.sync()
    }

    fn word(&self, chunk: u64) -> Option<u64> {
        let mut word = [0; WORD as usize];
        self.words.read(chunk.checked_mul(WORD)?, &mut word).ok()?;
        Some(u64::from_le_bytes(word))
    }

    fn sealed(&self, chunk: u32, kind: ChunkKind) -> u64 {
        let code = kind as u8 + 1;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.generation.to_le_bytes());
        hasher.update(&chunk.to_le_bytes());
        hasher.update(&[code]);
        u64::from(hasher.finalize()) << 32 | u64::from(code)
    }
}

fn kind_of(word: u64) -> Option<ChunkKind> {
    ChunkKind::ALL.into_iter().find(|&kind| kind as u8 + 1 == word as u8)
}
