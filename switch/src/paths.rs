//! Counters of a program's operations that packets have run, for a fuzzer: programs are data, which instrumentation does not see.
#![expect(unsafe_code, reason = "a section of its own is where libFuzzer looks for counters")]

use std::sync::atomic::{AtomicU8, Ordering};

/// Number of counters: more than a program has operations. Operations of a longer program share counters.
const COUNTERS: usize = 1 << 13;

// SAFETY: the section holds counters of one byte and nothing else, as libFuzzer expects.
#[unsafe(link_section = "__libfuzzer_extra_counters")]
static RAN: [AtomicU8; COUNTERS] = [const { AtomicU8::new(0) }; COUNTERS];

/// Counts an operation that is run.
pub(crate) fn ran(pc: usize) {
    let counter = &RAN[pc % COUNTERS];
    counter.store(counter.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
}
