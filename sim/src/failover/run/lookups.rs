//! Clients of a run: connections, and lookups whose answers are checked.

use fatbtree_blink::{ConnectionId, Event as PoolEvent, RemoteSide, Start, value};
use fatbtree_memserver::ClientId;
use fatbtree_verbs::time::Duration;
use rand::{Rng, RngExt};

use super::{DEPTH, Event, Phase, Run, Step, at, said};
use crate::cluster::Clock as _;

impl Run<'_> {
    pub(super) fn connect(&mut self, client: usize, id: ConnectionId) -> Step {
        let now = self.clock.now();
        let pool = self.askers[client].client.pool();
        let replaces = pool.replaces(id);
        let local = pool.open(id).map_err(said)?;
        let server = &mut self.cluster.servers_mut()[usize::from(id.server)];
        let session = match self.askers[client].sessions.get(&id.server) {
            Some(session) => *session,
            None => {
                let who = ClientId { host: local.ip.into(), roce: local.ip };
                server.open_session(now, who).map_err(said)?.session
            }
        };
        let endpoint = server.connect(now, session, &local, replaces).map_err(said)?;
        let rkey = server.info().region.rkey;
        let asker = &mut self.askers[client];
        asker.sessions.insert(id.server, session);
        if let Some(gone) = replaces {
            asker.registered.remove(&(id.server, gone.0));
        }
        let registered = asker.registered.contains(&(id.server, endpoint.queue_pair.0));
        asker.client.pool().connected(id, RemoteSide { endpoint, rkey, registered }).map_err(said)?;
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
            while let Some(event) = self.askers[client].client.poll_event() {
                let PoolEvent::ConnectionBroken { id, .. } = event else {
                    return Err(format!("a client that only reads wants {event:?}"));
                };
                self.outcome.broken += 1;
                let after = Duration::from_micros(self.random.random_range(300..=5_000));
                self.agenda.add(self.clock.now() + after, Event::Connect { client, id });
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
