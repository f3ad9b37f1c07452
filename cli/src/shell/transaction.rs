//! A transaction that is typed: it waits between two lines.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use fatbtree_remote_memory::{Item, Step, Stepped, Structure, Wanted};

use super::command::{Command, Key, show};

/// Number of an attempt that asks after each lock in its way: a transaction that is typed is begun anew seldom.
const ALONE: u32 = u32::MAX;

/// Next step of a transaction, and result of the last one.
struct Desk<E> {
    step: Option<Step>,
    result: Option<Result<Stepped, E>>,
}

/// A transaction that has begun.
pub(super) struct Open<E> {
    desk: Rc<RefCell<Desk<E>>>,
    /// The whole transaction. It waits while no step lies on the desk.
    work: Pin<Box<dyn Future<Output = u32>>>,
}

impl<E: 'static> Open<E> {
    /// Begins a transaction.
    ///
    /// # Errors
    /// When it cannot begin.
    pub(super) async fn begin<S: Structure<Error = E> + 'static>(structure: Rc<S>) -> Result<Self, E> {
        let desk = Rc::new(RefCell::new(Desk { step: None, result: None }));
        let of_work = Rc::clone(&desk);
        let work = Box::pin(async move {
            let next = async |result| {
                of_work.borrow_mut().result = Some(result);
                poll_fn(|_| match of_work.borrow_mut().step.take() {
                    Some(step) => Poll::Ready(Some(step)),
                    None => Poll::Pending,
                })
                .await
            };
            structure.transact(ALONE, next).await
        });
        let mut open = Self { desk, work };
        open.result().await.map(|_| open)
    }

    /// Works until the last step has its result.
    async fn result(&mut self) -> Result<Stepped, E> {
        poll_fn(|context| {
            // It never ends by itself: after its end it waits for a step that does not come.
            let _waits = self.work.as_mut().poll(context);
            self.desk.borrow_mut().result.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    async fn step(&mut self, step: Step) -> Result<Stepped, E> {
        self.desk.borrow_mut().step = Some(step);
        self.result().await
    }

    async fn value(&mut self, item: Item, for_update: bool) -> Result<Option<Bytes>, E> {
        let wanted = vec![Wanted { item, for_update }];
        Ok(match self.step(Step::Get(wanted)).await? {
            Stepped::Values(mut values) => values.pop().flatten(),
            Stepped::Done | Stepped::Applied(_) => None,
        })
    }

    /// Carries out a command on a key, or ends the transaction. Returns its answer in words.
    ///
    /// # Errors
    /// Those of the step. Then the transaction can only be aborted.
    pub(super) async fn carry_out(&mut self, command: Command) -> Result<String, E> {
        let put = |item: Item, value: Vec<u8>| Step::Put(item, Bytes::from(value));
        let (answers, applied) = match command {
            Command::Get(key) => {
                let value = self.value(item(key), false).await?;
                return Ok(value.map_or_else(|| "not there".to_owned(), |value| show(&value)));
            }
            Command::Put(key, value) => (["ok", "ok"], self.step(put(item(key), value)).await?),
            Command::Insert(key, value) => {
                let step = Step::Insert(item(key), Bytes::from(value));
                (["inserted", "there already"], self.step(step).await?)
            }
            Command::Update(key, value) => {
                let item = item(key);
                let is_there = self.value(item, true).await?.is_some();
                if is_there {
                    self.step(put(item, value)).await?;
                }
                (["updated", "not there"], Stepped::Applied(is_there))
            }
            Command::CompareAndSet(key, expected, value) => {
                let item = item(key);
                let is_expected = self.value(item, true).await?.as_deref() == Some(&expected);
                if is_expected {
                    self.step(put(item, value)).await?;
                }
                (["set", "not set"], Stepped::Applied(is_expected))
            }
            Command::Delete(key) => (["deleted", "not there"], self.step(Step::Delete(item(key))).await?),
            Command::Commit => (["committed"; 2], self.step(Step::Commit).await?),
            _ => (["aborted"; 2], self.step(Step::Abort).await?),
        };
        Ok(answers[usize::from(applied == Stepped::Applied(false))].to_owned())
    }
}

fn item(key: Key) -> Item {
    match key {
        Key::Number(number) => number.into(),
        Key::Bytes(_) => unreachable!("tables of transactions have numbers for keys, and lines are read so"),
    }
}
