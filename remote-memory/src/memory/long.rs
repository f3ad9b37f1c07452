//! READs and WRITEs of any length: in pieces that are posted together.
//!
//! A card has many short buffers and few long ones, and its queue pairs hold a bounded number of requests. So bytes up to [`PIECE`] are
//! read at once, and longer ones in pieces of so much: as many with one doorbell as a chain may have, and as many doorbells at once as
//! the queue pair holds. Where buffers are short, fewer and then shorter pieces are asked for: a long READ takes more round trips then, and does
//! not fail.
//!
//! The pieces come at different moments, as the packets of one long READ do. What they hold is checked as a whole, by a checksum or
//! by words that do not change.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::Pin;
use std::task::Poll;

use arrayvec::ArrayVec;
use fatbtree_verbs::{Buffer, MAX_BATCH, Operation, Remote, Verbs};

use super::{RemoteMemory, Trouble, bytes_of};
use crate::address::GlobalAddress;
use crate::chain::Part;
use crate::locks::Writer;
use crate::operation::Lane;

/// Bytes of the longest READ that is not cut into pieces, and of a piece: devices have some tens of buffers for so much.
pub const PIECE: u32 = 64 << 10;

/// Bytes of the shortest piece, where no buffers of [`PIECE`] are free.
const SHORTEST: u32 = 4 << 10;

/// Doorbells of one round trip. A value of 1 MiB with its record's head has 17 pieces.
const DOORBELLS: usize = 2;

/// Bytes for which room is made before they have come: the length may be what a damaged word says.
const MOST_AT_ONCE: u64 = 2 << 20;

/// Bytes that READs have brought.
#[derive(Debug)]
pub enum ReadBytes {
    /// In the buffer of one READ.
    Whole(Buffer),
    /// Put together from several READs.
    Pieces(Vec<u8>),
}

impl Deref for ReadBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Whole(buffer) => buffer,
            Self::Pieces(bytes) => bytes,
        }
    }
}

/// Pieces that are asked for at once.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Bytes of a piece.
    piece: u32,
    /// Pieces with one doorbell.
    chain: usize,
    /// Doorbells.
    doorbells: usize,
}

impl Window {
    /// As much as the device takes.
    fn of(capabilities: &fatbtree_verbs::Capabilities) -> Self {
        let piece = capabilities.longest_message.min(PIECE.into()) as u32;
        let chain = MAX_BATCH.min(capabilities.longest_chain).min(capabilities.send_queue).max(1);
        Self { piece: piece.max(1), chain, doorbells: (capabilities.send_queue / chain).clamp(1, DOORBELLS) }
    }

    /// Less than before, when buffers are short. `None`: there is no less.
    fn narrowed(self) -> Option<Self> {
        match self {
            Self { doorbells: 2.., .. } => Some(Self { doorbells: 1, ..self }),
            Self { chain: 2.., .. } => Some(Self { chain: self.chain / 2, ..self }),
            Self { piece, .. } if piece / 2 >= SHORTEST => Some(Self { piece: piece / 2, ..self }),
            _ => None,
        }
    }
}

impl<V: Verbs> RemoteMemory<V> {
    /// Reads as many bytes as are asked for: in one round trip up to 2 MiB where the device has as many buffers.
    ///
    /// # Errors
    /// When they cannot be posted within [`patience`](crate::RemoteConfig::patience), or the connection breaks.
    #[inline]
    pub async fn read_long(&self, lane: &Lane, from: GlobalAddress, len: u64) -> Result<ReadBytes, Trouble> {
        if len <= PIECE.into() {
            match self.read(lane, from, len as u32).await {
                Err(Trouble::Refused(_)) => {}
                read => return read.map(ReadBytes::Whole),
            }
        }
        self.read_pieces(lane, from, len).await.map(ReadBytes::Pieces)
    }

    #[cold]
    async fn read_pieces(&self, lane: &Lane, from: GlobalAddress, len: u64) -> Result<Vec<u8>, Trouble> {
        let began = self.reactor.now();
        let mut window = Window::of(&self.reactor.with(|verbs| verbs.capabilities()));
        let mut bytes = Vec::with_capacity(len.min(MOST_AT_ONCE) as usize);
        let mut attempt = 0;
        while (bytes.len() as u64) < len {
            let (at, left) = (from.behind(bytes.len() as u64), len - bytes.len() as u64);
            match self.read_window(lane, at, left, window, &mut bytes).await {
                Ok(()) => {}
                Err(Trouble::Refused(error)) if error.is_temporary() => match window.narrowed() {
                    Some(narrowed) => window = narrowed,
                    None if self.reactor.now() - began > self.config.patience => {
                        return Err(Trouble::Refused(error));
                    }
                    None => {
                        self.pause(attempt).await;
                        attempt += 1;
                    }
                },
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(bytes)
    }

    /// Reads the next pieces, and appends all that came before the first that was refused.
    async fn read_window(
        &self,
        lane: &Lane,
        from: GlobalAddress,
        len: u64,
        window: Window,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Trouble> {
        let path = lane.to(from.server());
        let (queue_pair, rkey) = self.link_when_up(path.id).await?;
        let piece = u64::from(window.piece);
        let count = len.div_ceil(piece).min((window.chain * window.doorbells) as u64);
        let read = move |number: u64| {
            let offset = number * piece;
            let len = piece.min(len - offset) as u32;
            Operation::Read { from: Remote { address: from.behind(offset).raw(), rkey }, len }
        };
        let mut chains: ArrayVec<_, DOORBELLS> = ArrayVec::new();
        for first in (0..count).step_by(window.chain) {
            let numbers = first..count.min(first + window.chain as u64);
            numbers.clone().for_each(|number| self.count_read(&read(number)));
            chains.push(Some(self.reactor.batch(queue_pair, numbers.map(read))));
        }
        let mut results: ArrayVec<_, DOORBELLS> = chains.iter().map(|_| Ok(Ok(Vec::new()))).collect();
        // What has come is copied at once: its buffers are what the next chain may wait for.
        poll_fn(|context| {
            for (chain, result) in chains.iter_mut().zip(&mut results) {
                let Some(posted) = chain else { continue };
                if let Poll::Ready(done) = Pin::new(posted).poll(context) {
                    *chain = None;
                    *result = done.map(|outputs| {
                        let buffers = outputs.into_iter().map(bytes_of);
                        buffers.map(|buffer| Ok(buffer?.to_vec())).collect::<Result<Vec<_>, Trouble>>()
                    });
                }
            }
            if chains.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        lane.count(&results);
        let before = bytes.len();
        for result in results {
            match result {
                Ok(pieces) => pieces?.iter().for_each(|piece| bytes.extend_from_slice(piece)),
                Err(error) => {
                    let trouble = self.failed(path.id, queue_pair, error);
                    let is_refused = matches!(trouble, Trouble::Refused(_));
                    // Something came: the rest is asked for anew.
                    return if is_refused && bytes.len() > before { Ok(()) } else { Err(trouble) };
                }
            }
        }
        Ok(())
    }

    /// Writes as many bytes as there are, in the session of `writer`. No other client may know the place: the
    /// bytes come in parts.
    ///
    /// # Errors
    /// As [`chain`](Self::chain). A part of the bytes may be written then.
    pub async fn write_long(
        &self,
        lane: &Lane,
        writer: &Writer,
        to: GlobalAddress,
        bytes: &[u8],
    ) -> Result<(), Trouble> {
        let Window { piece, chain, .. } = Window::of(&self.reactor.with(|verbs| verbs.capabilities()));
        let parts = bytes.chunks(piece as usize).enumerate();
        let parts: Vec<Part<'_>> = parts
            .map(|(number, bytes)| Part { at: to.behind(number as u64 * u64::from(piece)), bytes })
            .collect();
        for some in parts.chunks(chain) {
            self.write_chain(lane.to(to.server()), writer, some, &[]).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
    use fatbtree_verbs::time::Duration;
    use fatbtree_verbs::{Access, Device, Memory};

    use super::*;
    use crate::config::RemoteConfig;
    use crate::connection::RemoteSide;

    const BYTES: u64 = 4 << 20;

    /// A client of a server whose memory has another byte everywhere. The server's device must be kept.
    fn lab() -> (RemoteMemory<PlainDevice>, PlainDevice, Vec<u8>) {
        let network = PlainNetwork::new();
        let mut server = network.device();
        let content: Vec<u8> = (0..BYTES).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
        let shared = Memory::shared(BYTES).unwrap();
        shared.write(0, &content).unwrap();
        let region = server.register(&shared, GlobalAddress::new(0, 0).raw(), Access::ALL).unwrap();
        let config = RemoteConfig { patience: Duration::from_millis(5), ..RemoteConfig::default() };
        let memory = RemoteMemory::new(network.device(), [0].into_iter(), config, 1).unwrap();
        let id = memory.connections()[0];
        let local = memory.open(id).unwrap();
        let queue_pair = server.create().unwrap();
        server.connect(queue_pair, &local).unwrap();
        let endpoint = server.endpoint(queue_pair).unwrap();
        memory.connected(id, RemoteSide { endpoint, rkey: region.rkey, registered: false }).unwrap();
        (memory, server, content)
    }

    #[test]
    fn bytes_of_any_length_come_in_their_order() {
        let (memory, _server, content) = lab();
        let piece = u64::from(PIECE);
        for (from, len) in
            [(0, 0), (64, 1), (8, piece), (0, piece + 1), (24, 16 * piece), (40, 16 * piece + 24), (0, BYTES)]
        {
            let lane = memory.take_lane();
            let read = memory.read_long(&lane, GlobalAddress::new(0, from), len);
            let found = memory.reactor().block_on(read).unwrap();
            assert_eq!(*found, content[from as usize..][..len as usize], "{len} bytes from {from}");
            let trips = lane.round_trips();
            assert!(trips >= 1 && (trips == 1 || len > piece), "{len} bytes: {trips} round trips");
        }
    }

    /// Short buffers are left, and few of them: the READ is cut into short pieces. With none left it waits, and then says so.
    #[test]
    fn a_read_waits_for_buffers_and_does_not_fail_for_want_of_long_ones() {
        let (memory, _server, content) = lab();
        let take = |len| {
            memory
                .reactor()
                .with(|verbs| std::iter::from_fn(|| verbs.buffers().take(len)).collect::<Vec<_>>())
        };
        let read = || {
            let lane = memory.take_lane();
            let read = memory.read_long(&lane, GlobalAddress::new(0, 0), 300_000);
            (memory.reactor().block_on(read).map(|found| *found == content[..300_000]), lane.round_trips())
        };
        let long = take(5_000);
        let mut short = take(1);
        short.truncate(60);
        let (found, trips) = read();
        assert!(found.is_ok_and(|is_right| is_right) && trips > 10, "{trips} round trips with four buffers");
        short.extend(take(1));
        assert!(matches!(read().0, Err(Trouble::Refused(error)) if error.is_temporary()));
        drop(short);
        assert!(read().0.is_ok());
        drop(long);
        let (found, trips) = read();
        assert!(found.is_ok_and(|is_right| is_right) && trips <= 2, "{trips} round trips");
    }

    #[test]
    fn a_window_is_what_the_device_takes_and_narrows_to_one_short_piece() {
        let device = PlainNetwork::new().device();
        let capabilities = device.capabilities();
        let window = Window::of(&capabilities);
        assert_eq!((window.piece, window.chain, window.doorbells), (PIECE, MAX_BATCH, 2));
        let few = fatbtree_verbs::Capabilities {
            send_queue: 3,
            longest_chain: 5,
            longest_message: 100,
            ..capabilities
        };
        let of_few = Window::of(&few);
        assert_eq!((of_few.piece, of_few.chain, of_few.doorbells), (100, 3, 1));
        let last = std::iter::successors(Some(window), |window| window.narrowed()).last().unwrap();
        assert_eq!((last.piece, last.chain, last.doorbells), (SHORTEST, 1, 1));
    }

    #[test]
    fn what_is_written_in_parts_is_read_whole() {
        let (memory, _server, _) = lab();
        let owners = Remote { address: 0, rkey: 0 };
        let owner = crate::locks::Owner { session: crate::locks::SessionId(1), number: 1 };
        let writer = Writer { locks: owners, owners, count: 4, owner, masked_atomics: true, syncs: false };
        memory.set_writer(0, writer).unwrap();
        let written: Vec<u8> = (0..3_000_000_u32).map(|at| (at >> 7) as u8).collect();
        let (lane, at) = (memory.take_lane(), GlobalAddress::new(0, 640));
        memory.reactor().block_on(memory.write_long(&lane, &writer, at, &written)).unwrap();
        assert_eq!(lane.round_trips(), 3, "46 parts");
        let read = memory.read_long(&lane, at, written.len() as u64);
        assert_eq!(*memory.reactor().block_on(read).unwrap(), written[..]);
    }
}
