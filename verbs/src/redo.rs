//! Writes that are carried out whole, or not at all, by a process that may be killed in the middle of one.
//!
//! ```text
//!   1. the bytes, and where they go  ─► slot      killed here: the slot is not armed, nothing has happened
//!   2. their number                  ─► armed     killed here: replayed, as if 3 had been done
//!   3. the bytes                     ─► memory    killed here: replayed
//!   4. 0                             ─► armed
//! ```
//!
//! The slot lies in a file that is mapped. A process that is killed has done all stores up to one point of its program, and none behind
//! it; so the order of stores is all that is needed, and no disk is waited for. It does not outlive the machine.

use std::hint;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crate::memory::{Memory, OutOfBounds};

/// Offsets in the slot.
const ARMED: u64 = 0;
const OFFSET: u64 = 8;
const BYTES: u64 = 16;

/// A slot for one write.
pub(crate) struct Redo {
    slot: Memory,
    /// Devices are driven by one thread: mostly nobody waits.
    busy: AtomicBool,
}

const INSIDE: &str = "the slot was made large enough";

impl Redo {
    pub(crate) const BYTES: u64 = BYTES + Memory::WHOLE_WRITE as u64;

    pub(crate) fn new(slot: Memory) -> Self {
        Self { slot, busy: AtomicBool::new(false) }
    }

    /// Does `write`, which writes `bytes` at `offset`: up to as many as the slot holds.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8], write: impl FnOnce()) {
        while self.busy.swap(true, Ordering::Acquire) {
            hint::spin_loop();
        }
        self.slot.write(BYTES, bytes).expect(INSIDE);
        self.slot.write(OFFSET, &offset.to_ne_bytes()).expect(INSIDE);
        fence(Ordering::SeqCst);
        self.arm(bytes.len() as u64);
        fence(Ordering::SeqCst);
        write();
        fence(Ordering::SeqCst);
        self.arm(0);
        self.busy.store(false, Ordering::Release);
    }

    /// Hands over the write that was noted and perhaps not carried out, if there is one.
    pub(crate) fn replay(
        &self,
        write: impl FnOnce(u64, &[u8]) -> Result<(), OutOfBounds>,
    ) -> Result<(), OutOfBounds> {
        let word = |at| {
            let mut word = [0; 8];
            self.slot.read(at, &mut word).expect(INSIDE);
            u64::from_ne_bytes(word)
        };
        let (len, offset) = (word(ARMED), word(OFFSET));
        if len == 0 {
            return Ok(());
        }
        if len > Memory::WHOLE_WRITE as u64 {
            return Err(OutOfBounds { offset, len, size: Memory::WHOLE_WRITE as u64 });
        }
        let mut bytes = vec![0; len as usize];
        self.slot.read(BYTES, &mut bytes).expect(INSIDE);
        write(offset, &bytes)?;
        fence(Ordering::SeqCst);
        self.arm(0);
        Ok(())
    }

    /// One store of a whole word.
    fn arm(&self, len: u64) {
        self.slot.write(ARMED, &len.to_ne_bytes()).expect(INSIDE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_write_that_was_broken_off_is_carried_out_later() {
        let (file, log) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let memory = Memory::file_with_log(&file, 4096, &log).unwrap();
        memory.write(8, &[1; 100]).unwrap();
        drop(memory);
        let (plain, redo) =
            (Memory::file(&file, 4096).unwrap(), Redo::new(Memory::file(&log, Redo::BYTES).unwrap()));
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
        let memory = Memory::file_with_log(&file, 4096, &log).unwrap();
        memory.read(8, &mut found).unwrap();
        assert_eq!(found, [2; 100]);
        // Once only.
        memory.write(8, &[3; 100]).unwrap();
        drop(memory);
        Memory::file_with_log(&file, 4096, &log).unwrap().read(8, &mut found).unwrap();
        assert_eq!(found, [3; 100]);
    }

    #[test]
    fn what_is_larger_than_a_packet_is_written_in_parts() {
        let (file, log) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let memory = Memory::file_with_log(&file, 10_000, &log).unwrap();
        let bytes: Vec<u8> = (0..9001_u32).map(|n| n as u8).collect();
        memory.write(7, &bytes).unwrap();
        memory.sync().unwrap();
        drop(memory);
        let mut found = vec![0; bytes.len()];
        Memory::file(&file, 10_000).unwrap().read(7, &mut found).unwrap();
        assert_eq!(found, bytes);
    }

    #[test]
    fn a_log_of_another_file_is_refused() {
        let (file, log) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let slot = Memory::file(&log, Redo::BYTES).unwrap();
        slot.write(ARMED, &8_u64.to_ne_bytes()).unwrap();
        slot.write(OFFSET, &4090_u64.to_ne_bytes()).unwrap();
        let text = Memory::file_with_log(&file, 4096, &log).unwrap_err().to_string();
        assert!(text.contains("not inside of 4096 bytes"), "{text}");
        slot.write(ARMED, &u64::MAX.to_ne_bytes()).unwrap();
        assert!(Memory::file_with_log(&file, 4096, &log).is_err());
    }
}
