//! A scan in parts that are asked for at the same time (Fat-B+Tree section IV-C).

use fatbtree_remote_memory::{Answer, KeyRange, Order, Pairs, Structure};
use futures_buffered::join_all;

/// Division of a scan into parts, each of which is looked up on its own. A part is found from the root like any other
/// key, so parts cost node reads. Where switches lead to the leaves they cost little, and the answer comes sooner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanParts {
    /// Number of parts, at least 1.
    pub count: u16,
    /// Approximate distance of records: 2⁶⁴ divided by their number, where keys are hashed.
    pub spacing: u64,
}

impl ScanParts {
    /// A single part, which reads leaves one after the other, as they are linked.
    pub const ONE: Self = Self { count: 1, spacing: 1 };

    /// Reads the first `most` records from a key on. If the parts have too few, the rest is requested after them.
    pub(crate) async fn scan<S: Structure>(
        self,
        store: &S,
        from: u64,
        most: usize,
    ) -> Answer<Pairs, S::Error> {
        if self.count <= 1 {
            return store.scan(KeyRange::of(from..), Order::Forward, most).await;
        }
        let mut round_trips = 0;
        let parts = self.of(from, most);
        let end = parts.last().map_or(u64::MAX, |(_, last)| *last);
        let answers = join_all(
            parts
                .into_iter()
                .map(|(first, last)| store.scan(KeyRange::of(first..=last), Order::Forward, most)),
        )
        .await;
        let mut found = Vec::with_capacity(most);
        let mut result = Ok(());
        for answer in answers {
            round_trips = answer.round_trips.max(round_trips);
            match answer.result {
                // A part is cut off only when it alone has as many as are wanted.
                Ok(part) => found.extend(part.into_iter().take(most - found.len())),
                Err(error) => result = Err(error),
            }
        }
        if result.is_ok()
            && found.len() < most
            && let Some(next) = end.checked_add(1)
        {
            let answer = store.scan(KeyRange::of(next..), Order::Forward, most - found.len()).await;
            round_trips += answer.round_trips;
            result = answer.result.map(|rest| found.extend(rest));
        }
        Answer { result: result.map(|()| found), round_trips }
    }

    /// First and last key of each part, one after the other.
    fn of(self, from: u64, most: usize) -> Vec<(u64, u64)> {
        let records = (most as u64).div_ceil(self.count.into()).max(1);
        let width = self.spacing.max(1).saturating_mul(records);
        let mut parts = Vec::with_capacity(self.count.into());
        let mut next = Some(from);
        for _ in 0..self.count {
            let Some(first) = next else { break };
            let last = first.saturating_add(width - 1);
            parts.push((first, last));
            next = last.checked_add(1);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;
    use std::future::{Future, ready};
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use bytes::Bytes;
    use fatbtree_remote_memory::{Change, Portion};
    use fatbtree_verbs::time::Instant;
    use proptest::prelude::*;

    use super::*;

    /// Answers at once.
    struct Records(BTreeMap<u64, Bytes>);

    impl Structure for Records {
        type Value = Bytes;
        type Error = Infallible;
        type Cursor = u64;

        const NAME: &'static str = "map";

        fn now(&self) -> Instant {
            Instant::ZERO
        }

        fn sleep_until(&self, _: Instant) -> impl Future<Output = ()> {
            ready(())
        }

        async fn get(&self, _: u64) -> Answer<Option<Bytes>, Infallible> {
            unreachable!("it is scanned")
        }

        async fn change(&self, _: u64, _: Change<'_>) -> Answer<bool, Infallible> {
            unreachable!("it is scanned")
        }

        async fn scan(&self, range: KeyRange, _: Order, most: usize) -> Answer<Pairs, Infallible> {
            let last = range.high.map_or(u64::MAX, |high| high - 1);
            let found = self.0.range(range.low..=last).take(most).map(|(key, value)| (*key, value.clone()));
            Answer { result: Ok(found.collect()), round_trips: 1 }
        }

        async fn export(&self, _: u64, _: usize) -> Answer<Portion<Bytes, u64>, Infallible> {
            unreachable!("it is scanned")
        }

        fn is_unknown(error: &Infallible) -> bool {
            match *error {}
        }
    }

    proptest! {
        #[test]
        fn parts_find_what_one_scan_finds(
            keys in prop::collection::btree_set(prop_oneof![0..200u64, u64::MAX - 200..=u64::MAX], 0..80),
            from in prop_oneof![0..200u64, u64::MAX - 200..=u64::MAX],
            most in 0..60usize,
            count in 1..20u16,
            spacing in 0..20u64,
        ) {
            let store = Records(keys.iter().map(|key| (*key, Bytes::new())).collect());
            let wanted: Vec<u64> = keys.range(from..).take(most).copied().collect();
            let mut scan = pin!(ScanParts { count, spacing }.scan(&store, from, most));
            let Poll::Ready(answer) = scan.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("nothing is waited for");
            };
            let found: Vec<u64> = answer.result.unwrap_or_else(|error| match error {}).into_iter().map(|(key, _)| key).collect();
            prop_assert_eq!(found, wanted);
        }
    }

    #[test]
    fn parts_lie_one_behind_the_other_and_end_with_the_keys() {
        let parts = ScanParts { count: 4, spacing: 10 };
        assert_eq!(parts.of(100, 20), [(100, 149), (150, 199), (200, 249), (250, 299)]);
        assert_eq!(parts.of(u64::MAX - 60, 20), [(u64::MAX - 60, u64::MAX - 11), (u64::MAX - 10, u64::MAX)]);
        let wide = ScanParts { count: 3, spacing: u64::MAX };
        assert_eq!(wide.of(7, 1), [(7, u64::MAX)]);
    }
}
