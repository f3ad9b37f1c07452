//! A client's sessions, kept by tasks of its machine.

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_remote_memory::Kept;
use fatbtree_remote_memory::session_keeper::{Call, Denied, Granted, Notice, SessionKeeper};
use fatbtree_verbs::time::Duration;

use super::device::SimDevice;
use super::machine::Machine;

/// Interval in which a client looks for calls to be made.
const LOOK: Duration = Duration::from_micros(10);

/// Time that a server's disk takes for a sync.
const SYNC: Duration = Duration::from_micros(20);

impl Machine {
    /// Lets time pass for a call, if it is one that asks for a sync.
    pub(crate) async fn sync(&self, call: &Call) {
        if let Call::Sync { .. } = call {
            self.sleep(SYNC).await;
        }
    }

    /// Keeps the sessions of a client on this machine as long as the machine lives. `carry` takes each call to its
    /// server, in a task of its own. Locks that were left are given back; `told`
    /// receives every notice of the keeper.
    pub fn keep_sessions<K, S, C>(
        &self,
        memory: Rc<K>,
        keeper: Rc<RefCell<SessionKeeper<S>>>,
        carry: C,
        mut told: impl FnMut(Notice) + 'static,
    ) where
        K: Kept<Verbs = SimDevice> + 'static,
        S: 'static,
        C: AsyncFn(u16, Call) -> Result<Granted<S>, Denied> + 'static,
    {
        let (machine, carry) = (self.clone(), Rc::new(carry));
        drop(self.spawn(async move {
            loop {
                while let Some((id, call)) = {
                    let mut keeper = keeper.borrow_mut();
                    keeper.poll_call(machine.now(), &*memory)
                } {
                    let (of, memory, keeper) = (machine.clone(), Rc::clone(&memory), Rc::clone(&keeper));
                    let carry = Rc::clone(&carry);
                    drop(machine.spawn(async move {
                        let answer = carry(id.server(), call).await;
                        keeper.borrow_mut().handle_answer(of.now(), &*memory, id, answer);
                    }));
                }
                while let Some(notice) = {
                    let mut keeper = keeper.borrow_mut();
                    keeper.poll_notice()
                } {
                    if let Notice::Unfinished { .. } = notice {
                        let memory = Rc::clone(&memory);
                        drop(machine.spawn(async move { memory.remote().finish().await }));
                    }
                    told(notice);
                }
                machine.sleep(LOOK).await;
            }
        }));
    }
}
