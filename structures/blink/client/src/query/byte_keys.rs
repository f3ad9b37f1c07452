//! Queries for keys of bytes.
//!
//! A request carries the key's word, by which switches lead it. The word depends on the tree's code of keys, which a client
//! learns from the memory servers: one that would have sent another word says so, and changes nothing.

use bytes::Bytes;
use fatbtree_blink::layers::{KeyCode, MAX_KEY_BYTES};
use fatbtree_query::{Answer, Ask};
use fatbtree_remote_memory::{BytesPairs, BytesRange, Change, Order, Structure as _};
use fatbtree_verbs::time::Duration;
use fatbtree_wire::query::Op;
use fatbtree_wire::query::bytes::{BytesError, LONGEST, Reader};

use super::{Cost, FORWARDS, QueryClient, STRANGE, asked, found, no_answer, written};
use crate::answer::NoAnswer;

const LONG: NoAnswer = NoAnswer::Server("keys have at most 4,096 bytes, and this one has more");
const DISAGREE: NoAnswer = NoAnswer::Server(
    "the memory servers do not agree on the code of keys: a load has reached some of them only; load the tree again",
);

/// Requests that are sent again for other words, at most: while a load replaces the trees of one server after the other.
const TRIES: u32 = 8;

/// Half of the first pause before such a request, from the third on; it doubles.
const PAUSE: Duration = Duration::from_millis(1);

impl QueryClient {
    pub(super) async fn get_by_bytes(&self, key: &[u8]) -> Cost<Option<Vec<u8>>> {
        let (began, mut trips) = (self.now(), 0);
        let result = self.ask_of(key, Op::Get, &[], &mut trips).await.and_then(found);
        self.answered(|latencies| &mut latencies.reads, began, trips, result)
    }

    pub(super) async fn change_by_bytes(&self, key: &[u8], change: Change<'_>) -> Cost<bool> {
        let (op, value) = match asked(change) {
            Ok(asked) => asked,
            Err(error) => return Cost { result: Err(error), round_trips: 0 },
        };
        let (began, mut trips) = (self.now(), 0);
        let result = self.ask_of(key, op, value, &mut trips).await.and_then(written);
        self.answered(|latencies| &mut latencies.writes, began, trips, result)
    }

    pub(super) async fn scan_by_bytes(
        &self,
        range: BytesRange,
        order: Order,
        most: usize,
    ) -> Cost<BytesPairs> {
        if order == Order::Backward {
            return Cost { result: Err(FORWARDS), round_trips: 0 };
        }
        let began = self.now();
        let BytesRange { low, mut high } = range;
        // No key is longer than that, so none lies between a longer end and its beginning.
        if let Some(high) = &mut high {
            high.truncate(LONGEST);
        }
        let (mut found, mut trips) = (Vec::with_capacity(most), 0);
        let (mut from, mut result) = (Some(low), Ok(()));
        while let Some(low) = from.take_if(|low| {
            result.is_ok() && found.len() < most && high.as_ref().is_none_or(|high| *low < *high)
        }) {
            let limit = u32::try_from(most - found.len()).unwrap_or(u32::MAX);
            if low.len() > LONGEST {
                result = Err(LONG);
                break;
            }
            let ask = |word| Ask::scan_bytes(word, &low, high.as_deref(), limit);
            match self.ask_bytes(&low, ask, &mut trips).await {
                Ok(Answer::Records { payload, .. }) => match read_records(&payload.into(), &mut found) {
                    // The next part lies after this one; a server that says otherwise would be asked for ever.
                    Ok(next) => from = next.filter(|next| *next > low),
                    Err(_) => result = Err(STRANGE),
                },
                Ok(other) => result = Err(no_answer(&other)),
                Err(error) => result = Err(error),
            }
        }
        self.answered(|latencies| &mut latencies.scans, began, trips, result.map(|()| found))
    }

    /// Asks for an operation on one key.
    async fn ask_of(&self, key: &[u8], op: Op, value: &[u8], trips: &mut u32) -> Result<Answer, NoAnswer> {
        if key.len() > MAX_KEY_BYTES {
            return Err(LONG);
        }
        self.ask_bytes(key, |word| Ask::of_bytes(op, word, key, value), trips).await
    }

    /// Sends a request for a key, of which it is given the word; again with another one if a memory server wants that.
    async fn ask_bytes(
        &self,
        key: &[u8],
        ask: impl Fn(u64) -> Ask,
        trips: &mut u32,
    ) -> Result<Answer, NoAnswer> {
        for again in 0..TRIES {
            if again > 1 {
                self.sleep_until(self.now() + PAUSE * (1 << again)).await;
            }
            let word = self.state.borrow().code.word(key);
            *trips += 1;
            let mut answer = self.ask(ask(word)).await;
            if answer == Answer::OtherCode(None) {
                // A read is told more than a write.
                *trips += 1;
                answer = self.ask(Ask::of_bytes(Op::Get, word, key, &[])).await;
                if !matches!(answer, Answer::OtherCode(_)) {
                    continue;
                }
            }
            let Answer::OtherCode(description) = answer else { return Ok(answer) };
            let code = description.and_then(|description| KeyCode::new(&description).ok()).ok_or(STRANGE)?;
            self.state.borrow_mut().code = code;
        }
        Err(DISAGREE)
    }
}

/// Reads the answer of a scan. Returns the key to go on from, if there is one.
fn read_records(payload: &Bytes, found: &mut BytesPairs) -> Result<Option<Vec<u8>>, BytesError> {
    let mut reader = Reader::new(payload);
    let next = reader.option()?.map(<[u8]>::to_vec);
    while let Some((key, value)) = reader.record()? {
        found.push((payload.slice_ref(key), payload.slice_ref(value)));
    }
    Ok(next)
}
