//! Clients of a run: connections, and lookups whose answers are checked.

use fatbtree_blink::{Start, value};
use fatbtree_memserver::ClientId;
use fatbtree_remote_memory::session_keeper::{Call, CallId, Notice};
use fatbtree_verbs::time::Duration;
use rand::{Rng, RngExt};

use super::super::asker::Asker;
use super::{DEPTH, Event, Phase, Run, Step, at, said};
use crate::cluster::Clock as _;

impl Run<'_> {
    /// Calls of a client's keeper that are due.
    pub(super) fn next_call(&mut self, client: usize) -> Step<Option<(CallId, Call)>> {
        let Asker { client: own, keeper, .. } = &mut self.askers[client];
        let call = keeper.poll_call(self.clock.now(), own.pool());
        self.take_notices(client)?;
        match call {
            Some((_, call @ (Call::Allocate { .. } | Call::GiveBack { .. } | Call::Sync { .. }))) => {
                Err(format!("a client that only reads asks {call:?}"))
            }
            call => Ok(call),
        }
    }

    /// Brings a call to its server, and the answer back.
    pub(super) fn carry(&mut self, client: usize, id: CallId, call: Call) -> Step {
        let now = self.clock.now();
        let asker = &mut self.askers[client];
        if let Call::Connect { replaces: Some(gone), .. } = &call {
            asker.registered.remove(&(id.server(), gone.0));
        }
        let roce = self.network.tree().host(asker.host).ip;
        let server = &mut self.cluster.servers_mut()[usize::from(id.server())];
        let answer = server.carry_out(now, ClientId { host: roce.into(), roce }, call);
        asker.keeper.handle_answer(now, asker.client.pool(), id, answer);
        self.take_notices(client)
    }

    fn take_notices(&mut self, client: usize) -> Step {
        let Asker { client: own, keeper, registered, .. } = &mut self.askers[client];
        let pool = own.pool();
        while let Some(notice) = keeper.poll_notice() {
            match notice {
                Notice::Opened { .. } => {}
                Notice::Broken { .. } => self.outcome.broken += 1,
                Notice::Connected { id } => {
                    let end = pool.replaces(id).map_or(0, |end| end.0);
                    pool.set_registered(id, registered.contains(&(id.server, end))).map_err(said)?;
                }
                notice => return Err(format!("a client's session: {notice:?}")),
            }
        }
        Ok(())
    }

    /// Begins some lookups at once, and schedules more of them soon.
    pub(super) fn burst(&mut self, client: usize) {
        if self.phase == Phase::Ending {
            return;
        }
        let now = self.clock.now();
        for _ in 0..self.random.random_range(1..=6) {
            let key = self.draw_key();
            let walks = !self.scenario.without.walks && self.random.random_bool(0.2);
            let start = if walks { Start::Root } else { Start::IndexRead };
            if self.askers[client].running() < DEPTH {
                self.askers[client].begin(now, key, start);
            }
        }
        let after = Duration::from_micros(self.random.random_range(200..=12_000));
        self.agenda.add(now + after, Event::Burst { client });
    }

    pub(super) fn drive_clients(&mut self) -> Step {
        for client in 0..self.askers.len() {
            while let Some((id, call)) = self.next_call(client)? {
                let after = Duration::from_micros(self.random.random_range(300..=5_000));
                self.agenda.add(self.clock.now() + after, Event::Call { client, id, call });
            }
            let asker = &mut self.askers[client];
            if asker.running() == 0 {
                continue;
            }
            let ended = self.cluster.with_client(client, &self.clock, |_, now| asker.poll(now));
            for lookup in ended {
                self.outcome.lookups += 1;
                let there = self.keys.contains(&lookup.key);
                match &lookup.result {
                    Ok(Some(bytes)) if there && value::check(lookup.key, self.scenario.seed, bytes) => {}
                    Ok(None) if !there => {}
                    Err(error) => {
                        self.outcome.failed += 1;
                        return Err(format!("a lookup failed at {}: {error}", at(self.clock.now())));
                    }
                    _ => {
                        self.outcome.wrong += 1;
                        return Err(format!("{:#x} was answered wrongly", lookup.key));
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn draw_key(&mut self) -> u64 {
        let near =
            *self.keys.range(self.random.next_u64()..).next().or(self.keys.first()).expect("trees have keys");
        if self.random.random_bool(0.1) { near.wrapping_add(1) } else { near }
    }
}
