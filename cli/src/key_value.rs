//! A structure of keys and values over all memory servers, for the load generator.

use std::rc::Rc;

use bytes::Bytes;
use fatbtree_blink_client::{Answered, NoAnswer};
use fatbtree_remote_memory::{Answer, KeyRange, KeyValue};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_workload::{Change, Store};

/// A structure as a store of records.
pub(crate) struct Records<S>(pub(crate) Rc<S>);

impl<S: KeyValue> Records<S> {
    fn answered<T>(&self, began: Instant, answer: Answer<T, S::Error>) -> Answered<T> {
        let result = answer.result.map_err(|error| {
            tracing::info!(%error, "no answer");
            match S::is_unknown(&error) {
                true => NoAnswer::Unknown,
                false => NoAnswer::Server("the structure did not answer; the log says why"),
            }
        });
        Answered { result, round_trips: answer.round_trips, latency: self.now() - began }
    }
}

impl<S: KeyValue> Store for Records<S> {
    type Value = S::Value;

    fn now(&self) -> Instant {
        self.0.memory().reactor().now()
    }

    async fn sleep_until(&self, at: Instant) {
        self.0.memory().reactor().sleep(at - self.now()).await;
    }

    async fn read(&self, key: u64) -> Answered<Option<S::Value>> {
        let began = self.now();
        self.answered(began, self.0.get(key).await)
    }

    async fn change(&self, key: u64, change: Change<'_>) -> Answered<bool> {
        let began = self.now();
        self.answered(began, self.0.change(key, change).await)
    }

    async fn scan(&self, from: u64, last: u64, most: usize) -> Answered<Vec<(u64, Bytes)>> {
        let began = self.now();
        let Some(scan) = self.0.scan(KeyRange::of(from..=last), most) else {
            let result = Err(NoAnswer::Server("the structure has no ranges"));
            return Answered { result, round_trips: 0, latency: Duration::ZERO };
        };
        let Answer { result, round_trips } = scan.await;
        let copied = |(key, value): (u64, S::Value)| (key, Bytes::copy_from_slice(&value));
        let result = result.map(|pairs| pairs.into_iter().map(copied).collect());
        self.answered(began, Answer { result, round_trips })
    }
}
