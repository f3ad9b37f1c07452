//! A client's sessions, kept by tasks of its machine.

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_memserver::session_keeper::{Call, Denied, Granted, Notice, SessionKeeper};
use fatbtree_remote::Kept;
use fatbtree_verbs::time::Duration;

use super::device::SimDevice;
use super::machine::Machine;

/// Interval in which a client looks for calls to be made.
const LOOK: Duration = Duration::from_micros(10);

impl Machine {
    /// Keeps the sessions of a client on this machine as long as the machine lives. `carry` takes each call to its
    /// server, in a task of its own. Locks that were left are given back; `told`
    /// receives every notice of the keeper.
    pub async fn keep_sessions<K, S, C>(
        self,
        memory: Rc<K>,
        keeper: Rc<RefCell<SessionKeeper<S>>>,
        carry: C,
        mut told: impl FnMut(Notice),
    ) where
        K: Kept<Verbs = SimDevice> + 'static,
        S: 'static,
        C: AsyncFn(u16, Call) -> Result<Granted<S>, Denied> + 'static,
    {
        let carry = Rc::new(carry);
        loop {
            while let Some((id, call)) = {
                let mut keeper = keeper.borrow_mut();
                keeper.poll_call(self.now(), &*memory)
            } {
                let (machine, memory, keeper) = (self.clone(), Rc::clone(&memory), Rc::clone(&keeper));
                let carry = Rc::clone(&carry);
                drop(self.spawn(async move {
                    let answer = carry(id.server(), call).await;
                    keeper.borrow_mut().handle_answer(machine.now(), &*memory, id, answer);
                }));
            }
            while let Some(notice) = {
                let mut keeper = keeper.borrow_mut();
                keeper.poll_notice()
            } {
                if let Notice::Unfinished { .. } = notice {
                    let memory = Rc::clone(&memory);
                    drop(self.spawn(async move { memory.remote().finish().await }));
                }
                told(notice);
            }
            self.sleep(LOOK).await;
        }
    }
}
