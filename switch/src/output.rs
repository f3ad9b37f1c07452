//! Output of a pipeline: the frames it sends, in one reusable buffer, without allocation per packet.

use std::sync::Arc;

use crate::machine::Machine;
use crate::program::Program;

/// Reasons for which a frame was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DropReason {
    /// The ingress control chose the drop port (`mark_to_drop`).
    Ingress,
    /// The egress control chose the drop port.
    Egress,
    /// Longer than [`MAX_FRAME`](crate::MAX_FRAME) bytes.
    TooLong,
    /// A loop in the program did not end within its budget of rounds.
    Loop,
    /// An `assert` or `assume` of the program does not hold.
    Assert,
    /// The program chose a multicast group that has no ports.
    NoGroup,
}

impl DropReason {
    /// Every reason, in the order of [`Drops::count`].
    pub const ALL: [DropReason; 6] = [
        DropReason::Ingress,
        DropReason::Egress,
        DropReason::TooLong,
        DropReason::Loop,
        DropReason::Assert,
        DropReason::NoGroup,
    ];

    /// A short name for reports.
    pub fn name(self) -> &'static str {
        match self {
            DropReason::Ingress => "dropped in ingress",
            DropReason::Egress => "dropped in egress",
            DropReason::TooLong => "frame too long",
            DropReason::Loop => "loop budget spent",
            DropReason::Assert => "assertion failed",
            DropReason::NoGroup => "no such multicast group",
        }
    }
}

/// Frames dropped, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Drops {
    counts: [u64; DropReason::ALL.len()],
}

impl Drops {
    pub(crate) fn add_all(&mut self, others: &Drops) {
        self.counts.iter_mut().zip(others.counts).for_each(|(count, other)| *count += other);
    }

    /// Frames dropped for this reason.
    pub fn count(&self, reason: DropReason) -> u64 {
        self.counts[reason as usize]
    }

    /// Frames dropped for any reason.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn add(&mut self, reason: DropReason) {
        self.counts[reason as usize] += 1;
    }
}

/// Frames to send, each with its egress port.
///
/// [`Pipeline::process`](crate::Pipeline::process) appends, so that one output can gather several
/// frames' results; [`clear`](Output::clear) keeps the buffers.
///
/// It also holds the memory in which a packet is worked on. The pipelines that one thread drives, one after the other, share
/// it: give them the same output.
#[derive(Debug, Default)]
pub struct Output {
    pub(crate) bytes: Vec<u8>,
    /// Port and end of each frame in `bytes`; it starts where the one before ends.
    pub(crate) frames: Vec<(u16, usize)>,
    pub(crate) drops: Drops,
    /// `None` while a pipeline has it, and before the first had.
    pub(crate) workbench: Option<Box<Workbench>>,
}

/// A machine for the packets of one program.
#[derive(Debug)]
pub(crate) struct Workbench {
    program: Arc<Program>,
    pub(crate) machine: Machine,
}

impl Output {
    /// An empty output.
    pub fn new() -> Self {
        Output::default()
    }

    /// Forgets all frames and drop counts, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.frames.clear();
        self.drops = Drops::default();
    }

    /// Takes the frames out that leave by a port, from the frame with number `from` on.
    #[inline]
    pub(crate) fn take_port_from(&mut self, from: usize, port: u16, take: impl FnMut(&[u8])) {
        if self.frames[from..].iter().any(|(to, _)| *to == port) {
            self.take_out(from, port, take);
        }
    }

    /// Takes the frames out that leave by a port: `take` is given each, and the others stay in their order.
    pub fn take_port(&mut self, port: u16, take: impl FnMut(&[u8])) {
        self.take_port_from(0, port, take);
    }

    #[cold]
    fn take_out(&mut self, from: usize, port: u16, mut take: impl FnMut(&[u8])) {
        let mut start = from.checked_sub(1).map_or(0, |before| self.frames[before].1);
        let (mut kept, mut end_of_kept) = (from, start);
        for at in from..self.frames.len() {
            let (to, end) = self.frames[at];
            if to == port {
                take(&self.bytes[start..end]);
            } else {
                self.bytes.copy_within(start..end, end_of_kept);
                end_of_kept += end - start;
                self.frames[kept] = (to, end_of_kept);
                kept += 1;
            }
            start = end;
        }
        self.frames.truncate(kept);
        self.bytes.truncate(end_of_kept);
    }

    /// Number of frames to send.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Hands over the only frame: its bytes come in `buffer`, whose own go to the output, and nothing is copied.
    /// Returns its egress port; `None`, without any change, if there is no frame or more than one.
    pub fn take_only(&mut self, buffer: &mut Vec<u8>) -> Option<u16> {
        let [(port, _)] = self.frames[..] else { return None };
        self.frames.clear();
        std::mem::swap(&mut self.bytes, buffer);
        Some(port)
    }

    /// The workbench if it is for this program, otherwise a new one.
    #[inline]
    pub(crate) fn take_workbench(&mut self, program: &Arc<Program>) -> Box<Workbench> {
        match self.workbench.take() {
            Some(bench) if Arc::ptr_eq(&bench.program, program) => bench,
            _ => Box::new(Workbench { program: program.clone(), machine: Machine::new(&program.code) }),
        }
    }

    /// Frames dropped since the last [`clear`](Output::clear).
    pub fn drops(&self) -> &Drops {
        &self.drops
    }

    /// The frames in the order they were sent: egress port and bytes.
    pub fn iter(&self) -> Frames<'_> {
        Frames { output: self, next: 0, start: 0 }
    }
}

impl<'a> IntoIterator for &'a Output {
    type Item = (u16, &'a [u8]);
    type IntoIter = Frames<'a>;

    fn into_iter(self) -> Frames<'a> {
        self.iter()
    }
}

/// Iterator over an [`Output`]'s frames.
#[derive(Debug)]
pub struct Frames<'a> {
    output: &'a Output,
    next: usize,
    start: usize,
}

impl<'a> Iterator for Frames<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let &(port, end) = self.output.frames.get(self.next)?;
        let frame = &self.output.bytes[self.start..end];
        self.next += 1;
        self.start = end;
        Some((port, frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_for_a_port_are_taken_out_and_the_others_stay_as_they_are() {
        let all: [(u16, &[u8]); 6] =
            [(510, b"zero"), (1, b"one"), (510, b"two"), (2, b"three!"), (510, b""), (1, b"five")];
        for from in 0..=all.len() {
            let mut output = Output::new();
            for (port, bytes) in all {
                output.bytes.extend_from_slice(bytes);
                output.frames.push((port, output.bytes.len()));
            }
            let mut taken = Vec::new();
            output.take_port_from(from, 510, |frame| taken.push(frame.to_vec()));
            let is_taken = |(at, frame): &(usize, &(u16, &[u8]))| *at >= from && frame.0 == 510;
            let (gone, stay): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(is_taken);
            assert_eq!(taken, gone.iter().map(|(_, frame)| frame.1).collect::<Vec<_>>());
            assert_eq!(
                output.iter().collect::<Vec<_>>(),
                stay.iter().map(|(_, frame)| **frame).collect::<Vec<_>>()
            );
        }
    }
}
