//! How fast entries are written: what switches do for a controller, they do beside their packets.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Changes that are written in one go.
pub(super) const PIECE: usize = 1_000;

/// Few changes do not wait, such as a client's connection.
const FEW: usize = 64;

/// When some changes may be written. Who has to do something else first keeps it for the next ones.
pub(super) type Turn = Option<Instant>;

/// Changes per second, to all switches together; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    per_second: f64,
    /// When all that was admitted so far is written at this pace.
    until: Arc<Mutex<Instant>>,
}

impl Pace {
    pub(super) fn new(per_second: f64) -> Self {
        Self { per_second, until: Arc::new(Mutex::new(Instant::now())) }
    }

    /// Waits until so many changes may be written. It may be dropped meanwhile: the turn stays.
    pub(super) async fn admit(&self, changes: usize, turn: &mut Turn) {
        if changes > FEW {
            tokio::time::sleep_until(*turn.get_or_insert_with(|| self.begin_of(changes))).await;
            *turn = None;
        }
    }

    fn begin_of(&self, changes: usize) -> Instant {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = (*until).max(Instant::now());
        *until = begin + Duration::from_secs_f64(changes as f64 / self.per_second);
        begin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn so_many_are_written_in_a_second_whoever_writes_them() {
        let began = Instant::now();
        let pace = Pace::new(10_000.0);
        let writers: Vec<_> = (0..4)
            .map(|_| {
                let pace = pace.clone();
                tokio::spawn(async move {
                    for _ in 0..10 {
                        pace.admit(PIECE, &mut None).await;
                    }
                })
            })
            .collect();
        // A connection is not behind them.
        pace.admit(FEW, &mut None).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
        for writer in writers {
            writer.await.unwrap();
        }
        // 40 pieces of 0.1 s each; the last one begins when the others' time is over.
        let took = began.elapsed().as_secs_f64();
        assert!((3.89..3.95).contains(&took), "{took} s");
        // Time in which nothing is written is not saved up.
        tokio::time::sleep(Duration::from_secs(60)).await;
        let began = Instant::now();
        pace.admit(PIECE, &mut None).await;
        pace.admit(PIECE, &mut None).await;
        assert!(began.elapsed() >= Duration::from_millis(99));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_called_away_does_not_lose_the_turn() {
        let began = Instant::now();
        let pace = Pace::new(1_000.0);
        pace.admit(PIECE, &mut None).await;
        let mut turn = None;
        for _ in 0..10 {
            let away = tokio::time::timeout(Duration::from_millis(50), pace.admit(PIECE, &mut turn));
            assert!(away.await.is_err());
        }
        pace.admit(PIECE, &mut turn).await;
        assert_eq!((began.elapsed(), turn), (Duration::from_secs(1), None));
    }
}
