//! The class of each chunk that was given out, where that outlives the server, or where other threads look.
//!
//! ```text
//!   a word for each chunk: 0 not given out yet; else  bits 0..8 class + 1, bits 32..64 CRC-32 of generation, chunk and class
//! ```
//!
//! A word is written at once, before the chunk is given out.

use std::io;
use std::sync::Arc;

use fatbtree_remote_memory::SizeClass;
use fatbtree_verbs::Memory;

/// Bytes of a word.
const WORD: u64 = 8;

/// Size classes of a structure, at most: a word has eight bits for the number, and 0 means that there is none.
pub(crate) const MAX_CLASSES: usize = 255;

/// The table of chunk classes is damaged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "what is said of chunk {chunk} of {chunks}, {found:#x}, was never written: expected a class and its checksum for chunks that were given \
     out, and 0 after them"
)]
pub struct DamagedClasses {
    /// The chunk.
    pub chunk: u32,
    /// Its word in the table.
    pub found: u64,
    /// Chunks of the region.
    pub chunks: u32,
}

/// The classes of all chunks of a region.
#[derive(Clone, Debug)]
pub(crate) struct ChunkClasses {
    words: Arc<Memory>,
    generation: u64,
}

impl ChunkClasses {
    /// Bytes of the table for this many chunks.
    pub(crate) const fn bytes(chunks: u64) -> u64 {
        chunks.saturating_mul(WORD)
    }

    /// Table in `words`, for the region of a generation.
    pub(crate) fn new(words: Arc<Memory>, generation: u64) -> Self {
        Self { words, generation }
    }

    /// The classes of the chunks that were given out, of `chunks`: they are given out in order. There are `classes` of them.
    pub(crate) fn given_out(&self, chunks: u32, classes: usize) -> Result<Vec<SizeClass>, DamagedClasses> {
        let mut given_out = Vec::new();
        let mut is_over = false;
        for chunk in 0..chunks {
            let found = self.word(chunk.into()).ok_or(DamagedClasses { chunk, found: 0, chunks })?;
            let class = class_of(found)
                .filter(|&class| usize::from(class.0) < classes && self.sealed(chunk, class) == found);
            match class {
                Some(class) if !is_over => given_out.push(class),
                None if found == 0 => is_over = true,
                _ => return Err(DamagedClasses { chunk, found, chunks }),
            }
        }
        Ok(given_out)
    }

    /// The class of a chunk, if it was given out.
    pub(crate) fn get(&self, chunk: u64) -> Option<SizeClass> {
        class_of(self.word(chunk)?)
    }

    /// Writes down the class of a chunk that is given out.
    ///
    /// # Panics
    /// When there are fewer chunks.
    pub(crate) fn note(&self, chunk: u32, class: SizeClass) {
        let word = self.sealed(chunk, class).to_le_bytes();
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

    fn sealed(&self, chunk: u32, class: SizeClass) -> u64 {
        let code = class.0 + 1;
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.generation.to_le_bytes());
        hasher.update(&chunk.to_le_bytes());
        hasher.update(&[code]);
        u64::from(hasher.finalize()) << 32 | u64::from(code)
    }
}

/// Notes the class of a chunk that a bulk load has filled, in the table of its region
/// ([`Loaded::chunk_classes`](crate::Loaded::chunk_classes)). Chunks are noted in order, from number 0 on.
///
/// # Panics
/// When the table has no word for the chunk.
pub fn note_chunk_class(table: &Arc<Memory>, generation: u64, chunk: u32, class: SizeClass) {
    ChunkClasses::new(Arc::clone(table), generation).note(chunk, class);
}

fn class_of(word: u64) -> Option<SizeClass> {
    (word as u8).checked_sub(1).map(SizeClass)
}
