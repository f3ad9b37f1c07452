//! Writes that are carried out whole, or not at all, by a process that may be killed in the middle of one.
//!
//! ```text
//!   1. the bytes, and where they go  ─► slot      killed here: the slot is not armed, nothing has happened
//!   2. their number and checksum     ─► armed     killed here: replayed, as if 3 had been done
//!   3. the bytes                     ─► memory    killed here: replayed
//!   4. 0                             ─► armed
//! ```
//!
//! The checksum is over number, place and bytes. One that is wrong was never written so: the slot's file is damaged, and nothing is
//! replayed.
//!
//! The slot lies in a file that is mapped. A process that is killed has done all stores up to one point of its program, and none behind
//! it; so the order of stores is all that is needed, and no disk is waited for. It does not outlive the machine, and must not: it is synced
//! with the memory ([`Memory::sync`]), so that a slot that was armed long ago is not replayed.

use std::hint;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crate::memory::{Memory, OutOfBounds};

/// Offsets in the slot.
const ARMED: u64 = 0;
const OFFSET: u64 = 8;
const BYTES: u64 = 16;

/// A log whose content is not what was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DamagedLog {
    /// The log is too short.
    #[error("it has {found} bytes that can be written, {} were expected", Redo::BYTES)]
    Short {
        /// Size of the log in bytes.
        found: u64,
    },
    /// The checksum of the write is wrong.
    #[error("the write of {len} bytes at offset {offset:#x} in it does not match its checksum")]
    Sum {
        /// Offset at which the write goes into the memory, as the log says.
        offset: u64,
        /// Length of the write in bytes, as the log says.
        len: u32,
    },
    /// The write belongs to another file.
    #[error("the write in it cannot be carried out: {0}")]
    Outside(#[from] OutOfBounds),
}

/// A slot for one write.
pub(crate) struct Redo {
    slot: Memory,
    /// Lock of the slot. One thread drives a device, so threads rarely wait for it.
    busy: AtomicBool,
}

const INSIDE: &str = "the slot was made large enough";

impl Redo {
    pub(crate) const BYTES: u64 = BYTES + Memory::WHOLE_WRITE as u64;

    pub(crate) fn new(slot: Memory) -> Result<Self, DamagedLog> {
        // A write of what is there: all of it can be written.
        let mut last = [0];
        let is_whole =
            slot.read(Self::BYTES - 1, &mut last).and_then(|()| slot.write(Self::BYTES - 1, &last));
        is_whole.map_err(|out| DamagedLog::Short { found: out.size })?;
        Ok(Self { slot, busy: AtomicBool::new(false) })
    }

    /// Notes a write in the slot, and calls `write`, which writes `bytes` at `offset`. The slot must have room for
    /// `bytes`.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8], write: impl FnOnce()) {
        while self.busy.swap(true, Ordering::Acquire) {
            hint::spin_loop();
        }
        self.slot.write(BYTES, bytes).expect(INSIDE);
        self.slot.write(OFFSET, &offset.to_ne_bytes()).expect(INSIDE);
        fence(Ordering::SeqCst);
        let len = bytes.len() as u32;
        self.arm(u64::from(sum(offset, len, bytes)) << 32 | u64::from(len));
        fence(Ordering::SeqCst);
        write();
        fence(Ordering::SeqCst);
        self.arm(0);
        self.busy.store(false, Ordering::Release);
    }

    /// Writes the slot to the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.slot.sync()
    }

    /// Calls `write` with the write that was noted and perhaps not executed, if there is one.
    pub(crate) fn replay(
        &self,
        write: impl FnOnce(u64, &[u8]) -> Result<(), OutOfBounds>,
    ) -> Result<(), DamagedLog> {
        let word = |at| {
            let mut word = [0; 8];
            self.slot.read(at, &mut word).expect(INSIDE);
            u64::from_ne_bytes(word)
        };
        let (armed, offset) = (word(ARMED), word(OFFSET));
        if armed == 0 {
            return Ok(());
        }
        let (len, expected) = (armed as u32, (armed >> 32) as u32);
        let mut bytes = vec![0; (len as usize).min(Memory::WHOLE_WRITE)];
        self.slot.read(BYTES, &mut bytes).expect(INSIDE);
        if len as usize != bytes.len() || sum(offset, len, &bytes) != expected {
            return Err(DamagedLog::Sum { offset, len });
        }
        write(offset, &bytes)?;
        fence(Ordering::SeqCst);
        self.arm(0);
        Ok(())
    }

    /// Sets the armed word with a single store.
    fn arm(&self, word: u64) {
        self.slot.write(ARMED, &word.to_ne_bytes()).expect(INSIDE);
    }
}

fn sum(offset: u64, len: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&offset.to_ne_bytes());
    hasher.update(&len.to_ne_bytes());
    hasher.update(bytes);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::Path;

    fn memory(file: &File, len: u64) -> Memory {
        let memory = Memory::file(Path::new("a file"), file.try_clone().unwrap(), len).unwrap();
        memory.reserve(len).unwrap();
        memory
    }

    fn with_log(file: &File, len: u64, log: &File) -> Result<Memory, DamagedLog> {
        memory(file, len).with_log(memory(log, Redo::BYTES))
    }

    #[test]
    fn a_write_that_was_broken_off_is_carried_out_later() {
        let (file, log) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let whole = with_log(&file, 4096, &log).unwrap();
        whole.write(8, &[1; 100]).unwrap();
        drop(whole);
        let (plain, redo) = (memory(&file, 4096), Redo::new(memory(&log, Redo::BYTES)).unwrap());
        let half = || {
            redo.write(8, &[2; 100], || {
                plain.write(8, &[2; 50]).unwrap();
                panic!("killed");
            });
        };
        assert!(catch_unwind(AssertUnwindSafe(half)).is_err());
        let mut found = [0; 100];
        plain.read(8, &mut found).unwrap();
        assert_eq!((found[49], found[50]), (2, 1), "half of it");
        drop((plain, redo));
        let whole = with_log(&file, 4096, &log).unwrap();
        whole.read(8, &mut found).unwrap();
        assert_eq!(found, [2; 100]);
        // Once only.
        whole.write(8, &[3; 100]).unwrap();
        drop(whole);
        with_log(&file, 4096, &log).unwrap().read(8, &mut found).unwrap();
        assert_eq!(found, [3; 100]);
    }

    #[test]
    fn what_is_larger_than_a_packet_is_written_in_parts() {
        let (file, log) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let whole = with_log(&file, 10_000, &log).unwrap();
        let bytes: Vec<u8> = (0..9001_u32).map(|n| n as u8).collect();
        whole.write(7, &bytes).unwrap();
        whole.sync().unwrap();
        drop(whole);
        let mut found = vec![0; bytes.len()];
        memory(&file, 10_000).read(7, &mut found).unwrap();
        assert_eq!(found, bytes);
    }

    /// Whichever bit of a write that was noted is wrong, nothing is replayed.
    #[test]
    fn a_damaged_log_and_one_of_another_file_are_refused() {
        let (file, log) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let redo = Redo::new(memory(&log, Redo::BYTES)).unwrap();
        let killed = || redo.write(4000, &[7; 20], || panic!("killed"));
        assert!(catch_unwind(AssertUnwindSafe(killed)).is_err());
        let slot = memory(&log, Redo::BYTES);
        for bit in 0..(BYTES + 20) * 8 {
            let flip = || {
                let mut byte = [0];
                slot.read(bit / 8, &mut byte).unwrap();
                slot.write(bit / 8, &[byte[0] ^ 1 << (bit % 8)]).unwrap();
            };
            flip();
            let damaged = with_log(&file, 4096, &log);
            assert!(matches!(damaged, Err(DamagedLog::Sum { .. })), "bit {bit}: {damaged:?}");
            flip();
        }
        let text = with_log(&file, 4010, &log).unwrap_err().to_string();
        assert!(text.contains("not inside of 4010 bytes"), "{text}");
        let short = memory(&file, 4096).with_log(memory(&log, Redo::BYTES - 1));
        assert_eq!(short.unwrap_err(), DamagedLog::Short { found: Redo::BYTES - 1 });
        let whole = with_log(&file, 4096, &log).unwrap();
        let mut found = [0; 20];
        whole.read(4000, &mut found).unwrap();
        assert_eq!(found, [7; 20]);
    }
}
