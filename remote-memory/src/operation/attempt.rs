//! Attempts: an operation is tried again until it has an answer, fails, or has no patience left.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{PostError, Verbs};

use super::{Backoff, CommonError, Lane, Suspicion};
use crate::address::GlobalAddress;
use crate::locks::LockError;
use crate::memory::{RemoteMemory, Trouble};

/// Reasons for which an attempt does not end with an answer.
#[derive(Debug)]
pub enum Stop<E> {
    /// To be begun anew at once: more is known of where to look.
    Anew,
    /// To be begun anew after a pause: another client was quicker, a connection broke, or a session ended.
    Later,
    /// To be begun anew after a pause: the device refuses a request for now, because other operations hold its buffers, or have filled
    /// the queue.
    Refused(PostError),
    /// To be begun anew when the client is connected with a server: under a lock nothing waits for that.
    Absent(u16),
    /// The operation has failed.
    Failed(E),
}

impl<E: From<CommonError>> From<Trouble> for Stop<E> {
    fn from(trouble: Trouble) -> Self {
        CommonError::of(trouble).map_or(Self::Later, Self::from)
    }
}

impl<E: From<CommonError>> From<LockError> for Stop<E> {
    /// What is done under a lock can be completed whatever part of it was done, so the unknown is to be tried again, too.
    fn from(error: LockError) -> Self {
        match error {
            LockError::Trouble(trouble) => trouble.into(),
            LockError::Locked | LockError::Unknown(_) => Self::Later,
        }
    }
}

impl<E: From<CommonError>> From<CommonError> for Stop<E> {
    fn from(error: CommonError) -> Self {
        match error {
            CommonError::Refused(error) if error.is_temporary() => Self::Refused(error),
            error => Self::Failed(error.into()),
        }
    }
}

/// An operation on its way to an answer. `S` is what its structure knows of it besides.
#[derive(Debug)]
pub struct Op<S = ()> {
    /// The key that it is about; 0 if none.
    pub key: u64,
    /// The queue pairs that it posts on, and its round trips.
    pub lane: Lane,
    /// Attempts that have ended.
    pub attempts: u32,
    /// What its structure knows of it.
    pub state: S,
    began: Instant,
    /// Pauses between attempts.
    backoff: Backoff,
    /// What was found to be wrong.
    suspicion: Suspicion,
}

impl<S> Op<S> {
    /// Notes that `bytes` to which the word `link` leads are wrong. Others may have changed them meanwhile; what stays so is damaged.
    pub fn doubt<E: From<CommonError>>(
        &mut self,
        at: GlobalAddress,
        link: u64,
        bytes: &[u8],
        expected: &'static str,
    ) -> Stop<E> {
        match self.suspicion.is_sure(at, link, bytes) {
            true => CommonError::DamagedKey { key: self.key, at, expected }.into(),
            false => Stop::Later,
        }
    }
}

impl<V: Verbs> RemoteMemory<V> {
    /// An operation that competes with others: it pauses as [`Contention::backoff`](crate::Contention::backoff) says.
    pub fn op<S>(&self, lane: Lane, key: u64, state: S) -> Op<S> {
        let began = self.reactor().now();
        let (backoff, suspicion) = (self.config().contention.backoff, Suspicion::default());
        Op { key, lane, attempts: 0, state, began, backoff, suspicion }
    }

    /// An operation that waits for others, or for servers: it pauses as [`RemoteConfig::reads`](crate::RemoteConfig::reads) says.
    pub fn waiting_op(&self, lane: Lane) -> Op {
        Op { backoff: self.config().reads, ..self.op(lane, 0, ()) }
    }

    /// Gives an operation that has come further its whole patience again.
    pub fn restart<S>(&self, op: &mut Op<S>) {
        (op.began, op.attempts) = (self.reactor().now(), 0);
    }

    /// Time since an operation began.
    pub fn time_of<S>(&self, op: &Op<S>) -> Duration {
        self.reactor().now() - op.began
    }

    /// Time for which an operation still tries.
    pub fn patience_of<S>(&self, op: &Op<S>) -> Duration {
        self.config().patience.saturating_sub(self.time_of(op))
    }

    /// Waits for something as long as an operation has patience. `None` if that ended first.
    pub async fn patiently<S, T>(&self, op: &Op<S>, something: impl Future<Output = T>) -> Option<T> {
        let mut something = pin!(something);
        let mut patience = pin!(self.reactor().sleep(self.patience_of(op)));
        poll_fn(|context| match something.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => patience.as_mut().poll(context).map(|()| None),
        })
        .await
    }

    /// Attempts an operation until it has an answer.
    ///
    /// # Errors
    /// When an attempt fails; when patience has ended, [`CommonError::GaveUp`], or [`CommonError::Refused`] if the device refuses
    /// requests for now.
    pub async fn attempt<S, T, E: From<CommonError>>(
        &self,
        op: &mut Op<S>,
        mut attempt: impl AsyncFnMut(&mut Op<S>) -> Result<T, Stop<E>>,
    ) -> Result<T, E> {
        loop {
            let stop = match attempt(op).await {
                Ok(answer) => return Ok(answer),
                Err(stop) => stop,
            };
            let left = self.patience_of(op);
            match stop {
                Stop::Failed(error) => return Err(error),
                Stop::Refused(error) if left == Duration::ZERO => {
                    return Err(CommonError::Refused(error).into());
                }
                _ if left == Duration::ZERO => {
                    return Err(CommonError::GaveUp { attempts: op.attempts + 1 }.into());
                }
                Stop::Anew => {}
                Stop::Absent(server) => {
                    let up = self.patiently(op, self.until_up(op.lane.to(server).id)).await;
                    if let Some(Err(trouble)) = up
                        && let Stop::Failed(error) = trouble.into()
                    {
                        return Err(error);
                    }
                }
                Stop::Later | Stop::Refused(_) => {
                    self.count_loss(op.attempts);
                    self.back_off(&op.backoff, op.attempts, Some(left)).await;
                }
            }
            op.attempts += 1;
        }
    }
}
