//! Mishaps: workers that die or sleep, and a hostile writer.

use fatbtree_soft_nic::faults::FaultRates;
use fatbtree_verbs::time::{Duration, Instant};
use rand::RngExt as _;

use super::{FAULTS, Lab, WORKERS};
use crate::damage::{Damage, Target};

impl Lab {
    /// Carries out a hostile writer's WRITEs, if they are due: the server's card writes any bytes that they bring.
    pub(super) fn strike(&mut self, now: Instant) {
        let Some(pause) = self.shared.scenario.hostile else { return };
        if now < self.next_strike || now >= Instant::ZERO + FAULTS {
            return;
        }
        let random = &mut self.random;
        self.next_strike = now + Duration::from_nanos(random.random_range(1..=2 * pause.as_nanos()));
        let damage = Damage::ALL[random.random_range(0..Damage::ALL.len())];
        let (info, memory) = (self.server.info(), self.server.memory());
        let target = Target::new(memory, &info.config, info.partition.id, info.partition.root);
        for (offset, bytes) in target.strike(damage, random) {
            // Outside of the region the card refuses it.
            let written = memory.write(offset, &bytes).is_ok();
            self.shared.count(|outcome| outcome.strikes += u64::from(written));
        }
    }

    /// Lets a worker die and another take its place, or lets it sleep, as a thread does where processors are short.
    pub(super) fn befall(&mut self, now: Instant) -> Result<(), String> {
        let faults_end = Instant::ZERO + FAULTS;
        if now >= faults_end {
            self.datagrams.set_rates(FaultRates::NONE);
            self.frames.set_rates(FaultRates::NONE);
            self.workers.iter_mut().for_each(|worker| worker.wakes = worker.wakes.min(now));
            return Ok(());
        }
        if now < self.next_mishap {
            return Ok(());
        }
        let number = self.random.random_range(0..WORKERS);
        // Mostly in the middle of something.
        if self.workers[number].worker.under_way() == 0 && self.random.random_bool(0.95) {
            return Ok(());
        }
        let calm = self.shared.scenario.calm.as_nanos();
        self.next_mishap = now + Duration::from_nanos(self.random.random_range(calm / 2..=calm * 2));
        if self.random.random_bool(0.4) {
            let new = self.worker(number)?;
            let old = std::mem::replace(&mut self.workers[number], new);
            self.shared.count(|outcome| {
                outcome.restarts += 1;
                old.count(outcome);
            });
        } else {
            let lease = self.shared.scenario.lease.as_nanos();
            let sleep = Duration::from_nanos(self.random.random_range(1_000..=lease * 2));
            self.workers[number].wakes = now + sleep;
            self.shared.count(|outcome| outcome.sleeps += 1);
        }
        Ok(())
    }
}
