//! An RDMA client on a software NIC, and its session.

use std::task::{Context, Waker};

use fatbtree_blink::{PoolConfig, SuperRoot};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::{TreeInfo, TreeServer};
use fatbtree_memserver::ClientId;
use fatbtree_remote_memory::session_keeper::{Notice, SessionKeeper};
use fatbtree_soft_nic::Nic;
use fatbtree_verbs::time::Instant;

use super::{Task, check, nic, pauses};
use crate::queries::Outcome;

pub(super) struct Rdma {
    pub(super) client: Client<Nic>,
    id: ClientId,
    keeper: SessionKeeper<TreeInfo>,
    finishing: Vec<Task<()>>,
}

impl Rdma {
    pub(super) fn new(number: u8, config: PoolConfig, roots: SuperRoot, seed: u64) -> Result<Self, String> {
        let client = Client::new(nic(number, seed)?, config, roots, seed);
        let client = client.map_err(|error| error.to_string())?;
        let id = ClientId { host: [127, 0, 0, 1].into(), roce: [10, 0, 0, number].into() };
        let keeper = SessionKeeper::new(client.pool().connections(), pauses());
        Ok(Self { client, id, keeper, finishing: Vec::new() })
    }

    pub(super) fn turn(&mut self, now: Instant, server: &mut TreeServer<Nic>) -> Result<(), String> {
        let Self { client, id, keeper, finishing } = self;
        let pool = client.pool();
        pool.reactor().with(|nic| {
            if nic.poll_timeout().is_some_and(|at| at <= now) {
                nic.handle_timeout(now);
            }
        });
        client.turn(now);
        keeper.pump(now, pool, |_, call| server.carry_out(now, *id, call));
        while let Some(notice) = keeper.poll_notice() {
            match notice {
                Notice::Unfinished { .. } => {
                    let client = client.clone();
                    finishing.push(Box::pin(async move { client.pool().finish().await }));
                }
                Notice::Denied { denied, .. } => check(&denied)?,
                _ => {}
            }
        }
        let mut context = Context::from_waker(Waker::noop());
        finishing.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
        Ok(())
    }

    /// Times at which something is due.
    pub(super) fn dues(&self) -> [Option<Instant>; 3] {
        let nic = self.client.pool().reactor().with(|nic| nic.poll_timeout());
        [nic, self.client.poll_timeout(), Some(self.keeper.poll_timeout())]
    }

    pub(super) fn count(&self, outcome: &mut Outcome) {
        let stats = self.client.pool().stats();
        outcome.splits += stats.splits;
        outcome.merges += stats.merges;
        outcome.lock_retries += stats.remote.lock_retries;
        outcome.inherited_locks += stats.remote.inherited_locks;
    }
}
