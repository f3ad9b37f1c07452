//! The monitor in a network of virtual time, with seeds.

use std::collections::{BTreeMap, BTreeSet};

use fatbtree_topology::SwitchId;
use proptest::prelude::*;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use super::*;

const TOKEN: u64 = 0x1234_5678_9abc_def0;
const OPEN: Channel = Channel::Open { has_packets: true };

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + ms(millis)
}

fn end(switch: u32, port: u16) -> CableEnd {
    CableEnd { switch: SwitchId(switch), port }
}

/// Two cores and four switches below, each with a cable to either core.
fn cables() -> Vec<Cable> {
    (0..8u16)
        .map(|n| Cable { a: end(u32::from(n % 2), n / 2), b: end(u32::from(2 + n / 2), n % 2) })
        .collect()
}

struct Network {
    monitor: LinkMonitor,
    now: Instant,
    random: ChaCha8Rng,
    /// Of probes that are lost by chance.
    loss: f64,
    /// By the sender.
    cut: BTreeSet<CableEnd>,
    dead: BTreeSet<SwitchId>,
    others: BTreeMap<CableEnd, CableEnd>,
    /// Frames on their way: when they are there, where, and what.
    flying: BTreeMap<(Instant, u64), (CableEnd, Vec<u8>)>,
    sent: u64,
    /// What was told, and when.
    told: Vec<(Instant, Outages)>,
}

impl Network {
    fn new(seed: u64, loss: f64) -> Self {
        let mut monitor = LinkMonitor::new(cables(), (0..6).map(SwitchId), TOKEN, Instant::ZERO);
        for switch in 0..6 {
            monitor.set_channel(Instant::ZERO, SwitchId(switch), OPEN);
        }
        Self {
            monitor,
            now: Instant::ZERO,
            random: ChaCha8Rng::seed_from_u64(seed),
            loss,
            cut: BTreeSet::new(),
            dead: BTreeSet::new(),
            others: cables().iter().flat_map(|cable| [(cable.a, cable.b), (cable.b, cable.a)]).collect(),
            flying: BTreeMap::new(),
            sent: 0,
            told: Vec::new(),
        }
    }

    fn run_until(&mut self, end: Instant) {
        loop {
            let arrival = self.flying.first_key_value().map(|((at, _), _)| *at);
            let next = self.monitor.poll_timeout().into_iter().chain(arrival).min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            self.now = self.now.max(next);
            if arrival.is_some_and(|at| at <= self.now) {
                let (_, (to, frame)) = self.flying.pop_first().unwrap();
                if !self.dead.contains(&to.switch) {
                    self.monitor.handle_probe(self.now, to.switch, to.port, &frame);
                }
            } else {
                self.monitor.handle_timeout(self.now);
            }
            while let Some(Probe { switch, port, frame }) = self.monitor.poll_transmit() {
                self.sent += 1;
                let from = CableEnd { switch, port };
                if self.cut.contains(&from)
                    || self.dead.contains(&switch)
                    || self.random.random::<f64>() < self.loss
                {
                    continue;
                }
                let way = Duration::from_micros(self.random.random_range(200..30_000));
                self.flying.insert((self.now + way, self.sent), (self.others[&from], frame));
            }
            if let Some(outages) = self.monitor.poll_outages() {
                self.told.push((self.now, outages.clone()));
            }
        }
        self.now = end;
    }

    fn run(&mut self, span: Duration) {
        self.run_until(self.now + span);
    }

    fn set(&mut self, switch: u32, channel: Channel) {
        self.monitor.set_channel(self.now, SwitchId(switch), channel);
    }

    fn kill(&mut self, switch: u32) {
        self.dead.insert(SwitchId(switch));
        self.set(switch, Channel::Lost);
    }

    fn revive(&mut self, switch: u32) {
        self.dead.remove(&SwitchId(switch));
        self.set(switch, OPEN);
    }

    fn only(&self, cable: Cable) -> Outages {
        Outages { cables: [cable].into(), switches: BTreeSet::new() }
    }
}

#[test]
fn probes_are_spread_and_few() {
    let mut network = Network::new(1, 0.0);
    network.run(ms(15_000));
    assert_eq!(network.sent, 16 * 100);
    assert_eq!(network.monitor.ignored(), 0);
    // Of sixteen directions none at the same time as another.
    let mut times = BTreeSet::new();
    for _ in 0..16 {
        let due = network.monitor.poll_timeout().unwrap();
        network.monitor.handle_timeout(due);
        assert!(network.monitor.poll_transmit().is_some() && network.monitor.poll_transmit().is_none());
        times.insert(due);
    }
    assert_eq!(times.len(), 16);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// What is lost by chance takes nothing down, in a thousand seconds.
    #[test]
    fn random_loss_takes_no_cable_down(seed in any::<u64>(), percent in 0..10u32) {
        let mut network = Network::new(seed, f64::from(percent) / 100.0);
        network.run(Duration::from_secs(1000));
        prop_assert_eq!(&network.told, &[]);
    }

    /// A cable that is cut in one direction or both is down within 600 ms, and no other; it is up again after its hold.
    #[test]
    fn cuts_are_noticed_and_mended(
        seed in any::<u64>(), percent in 0..5u32, which in 0..8usize, both in any::<bool>(), at in 1000..2000u64, span in 600..5000u64,
    ) {
        let mut network = Network::new(seed, f64::from(percent) / 100.0);
        network.run(ms(at));
        let cable = cables()[which];
        network.cut.extend([cable.a].into_iter().chain(both.then_some(cable.b)));
        network.run(ms(600));
        prop_assert_eq!(network.told.len(), 1);
        prop_assert_eq!(&network.told[0].1, &network.only(cable));
        network.run(ms(span));
        network.cut.clear();
        let mended = network.now;
        network.run(ms(10_000));
        prop_assert_eq!(network.told.len(), 2);
        prop_assert_eq!(&network.told[1].1, &Outages::default());
        let took = network.told[1].0 - mended;
        // The first probe within an interval; then three in a row, which take longer where some are lost.
        prop_assert!(took >= ms(1000) && (percent > 0 || took <= ms(1200)), "{took:?}");
    }

    /// A switch that is killed is down within 600 ms, and back after its hold; its cables are not seen to be cut.
    #[test]
    fn switches_are_noticed(seed in any::<u64>(), switch in 0..6u32, at in 1000..2000u64, span in 600..5000u64) {
        let mut network = Network::new(seed, 0.05);
        network.run(ms(at));
        network.kill(switch);
        network.run(ms(600));
        let down = Outages { switches: [SwitchId(switch)].into(), cables: BTreeSet::new() };
        prop_assert_eq!(network.told.len(), 1);
        prop_assert_eq!(&network.told[0].1, &down);
        network.run(ms(span));
        network.revive(switch);
        let back = network.now;
        network.run(ms(5000));
        prop_assert_eq!(network.told.len(), 2);
        prop_assert_eq!(&network.told[1], &(back + ms(1000), Outages::default()));
    }

    /// Forged and replayed frames are ignored: other tokens, other places, and what has arrived before.
    #[test]
    fn forged_probes_change_nothing(seed in any::<u64>(), bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let mut network = Network::new(seed, 0.0);
        network.run(ms(1000));
        let cable = cables()[0];
        network.cut.insert(cable.a);
        let old = network.flying.values().cloned().collect::<Vec<_>>();
        network.run(ms(200));
        let sequence = network.monitor.directions[0].sequence;
        for _ in 0..200 {
            network.run(ms(10));
            let now = network.now;
            let mut all: Vec<Vec<u8>> = vec![bytes.clone()];
            all.extend(old.iter().map(|(_, frame)| frame.clone()));
            for sequence in sequence..sequence + 40 {
                all.push(probe::write(cable.a, sequence, TOKEN ^ 1));
                all.push(probe::write(end(77, 1), sequence, TOKEN));
            }
            for frame in all {
                prop_assert!(!network.monitor.handle_probe(now, cable.b.switch, cable.b.port, &frame));
            }
            // Ours, but at another port than it was sent to.
            let ours = probe::write(cable.a, network.monitor.directions[0].sequence, TOKEN);
            prop_assert!(!network.monitor.handle_probe(now, cable.b.switch, cable.b.port + 1, &ours));
        }
        prop_assert_eq!(network.told.len(), 1);
        prop_assert!(network.told[0].0 <= at(1600));
        prop_assert_eq!(network.monitor.outages(), &network.only(cable));
    }

    /// Whatever happens, in the end what is down is what is dead.
    #[test]
    fn it_settles(seed in any::<u64>(), steps in prop::collection::vec((0..6u8, 0..8usize, 0..1500u64), 1..30)) {
        let mut network = Network::new(seed, 0.02);
        for (what, which, wait) in steps {
            let (cable, switch) = (cables()[which], (which % 6) as u32);
            match what {
                0 => { network.cut.insert(cable.a); }
                1 => { network.cut.insert(cable.b); }
                2 => { network.cut.remove(&cable.a); network.cut.remove(&cable.b); }
                3 => network.kill(switch),
                4 => network.revive(switch),
                // A channel that is cut for a moment.
                _ => if !network.dead.contains(&SwitchId(switch)) {
                    network.set(switch, Channel::Lost);
                    network.run(ms(wait / 5));
                    network.set(switch, OPEN);
                }
            }
            network.run(ms(wait));
        }
        network.loss = 0.0;
        network.run(Duration::from_secs(40));
        let outages = network.monitor.outages();
        prop_assert_eq!(&outages.switches, &network.dead);
        for cable in cables() {
            let judged = ![cable.a, cable.b].iter().any(|end| network.dead.contains(&end.switch));
            let is_cut = network.cut.contains(&cable.a) || network.cut.contains(&cable.b);
            prop_assert!(!judged || outages.cables.contains(&cable) == is_cut, "{:?}", cable);
        }
    }
}

#[test]
fn a_cable_that_flaps_is_held_down_for_longer_each_time() {
    let mut network = Network::new(3, 0.0);
    network.run(ms(1000));
    let cable = cables()[3];
    let mut holds = Vec::new();
    for _ in 0..6 {
        network.cut.insert(cable.b);
        network.run(ms(600));
        network.cut.clear();
        let mended = network.now;
        network.run(Duration::from_secs(20));
        let (up, outages) = network.told.last().unwrap();
        assert_eq!(*outages, Outages::default());
        holds.push((*up - mended).as_secs());
    }
    assert_eq!(holds, [1, 2, 4, 8, 16, 16]);
}

/// The link cut while both switches answer; and the channel of a switch that forwards: the two are told apart.
#[test]
fn a_channel_that_is_gone_for_a_moment_changes_nothing() {
    let mut network = Network::new(4, 0.0);
    network.run(ms(1000));
    network.set(3, Channel::Lost);
    network.run(ms(400));
    network.set(3, OPEN);
    network.run(ms(3000));
    assert_eq!(network.told, []);
    // For longer, it cannot be told of anything: it is down, though it forwards.
    network.set(3, Channel::Lost);
    network.run(ms(600));
    assert_eq!(network.monitor.outages().switches, [SwitchId(3)].into());
}

#[test]
fn a_cable_that_is_cut_while_a_switch_is_away_is_known_before_the_switch_is_up() {
    let mut network = Network::new(5, 0.0);
    network.run(ms(1000));
    network.kill(2);
    network.run(ms(2000));
    let cable = cables()[1];
    assert_eq!(cable.b.switch, SwitchId(2));
    network.cut.insert(cable.a);
    network.revive(2);
    network.run(ms(5000));
    let told: Vec<_> = network.told.iter().map(|(_, outages)| outages.clone()).collect();
    let gone: BTreeSet<_> = [SwitchId(2)].into();
    assert_eq!(
        told,
        [
            Outages { switches: gone.clone(), cables: BTreeSet::new() },
            Outages { switches: gone, cables: [cable].into() },
            network.only(cable),
        ]
    );
}

#[test]
fn a_switch_that_is_frozen_has_all_its_cables_down() {
    let mut network = Network::new(6, 0.0);
    network.run(ms(1000));
    network.dead.insert(SwitchId(0)); // its channel is open
    network.run(ms(600));
    let of_it: BTreeSet<_> = cables().into_iter().filter(|cable| cable.a.switch == SwitchId(0)).collect();
    assert_eq!(*network.monitor.outages(), Outages { switches: BTreeSet::new(), cables: of_it });
}

#[test]
fn without_packets_nothing_is_sent_and_nothing_is_judged() {
    let mut network = Network::new(7, 0.0);
    for switch in 0..6 {
        network.set(switch, Channel::Open { has_packets: false });
    }
    network.run(Duration::from_secs(100));
    assert_eq!((network.sent, network.told.len()), (0, 0));
    assert_eq!(network.monitor.poll_timeout(), None);
    // With packets again, a cable is found down; without them, its state is unknown.
    for switch in 0..6 {
        network.set(switch, OPEN);
    }
    network.run(ms(1000));
    let cable = cables()[0];
    network.cut.insert(cable.a);
    network.run(ms(600));
    assert_eq!(*network.monitor.outages(), network.only(cable));
    network.set(0, Channel::Open { has_packets: false });
    network.run(ms(2000));
    assert_eq!(*network.monitor.outages(), Outages::default());
}

#[test]
fn switches_that_were_never_reached_get_five_seconds() {
    let mut monitor = LinkMonitor::new(cables(), (0..6).map(SwitchId), TOKEN, at(100));
    monitor.handle_timeout(at(5099));
    assert!(monitor.poll_outages().is_none());
    monitor.set_channel(at(5099), SwitchId(4), OPEN);
    assert_eq!(monitor.poll_timeout(), Some(at(5100)));
    monitor.handle_timeout(at(5100));
    let down: BTreeSet<_> = [0, 1, 2, 3, 5].map(SwitchId).into();
    assert_eq!(monitor.poll_outages().map(|outages| outages.switches.clone()), Some(down));
}

/// Five seconds in which the monitor's own machine slept are not the cables' fault.
#[test]
fn a_monitor_that_was_held_up_blames_nobody() {
    let mut network = Network::new(8, 0.0);
    for _ in 0..20 {
        network.run(ms(777));
        // Time passes, and the monitor is not called.
        network.now += Duration::from_secs(5);
        network.run(ms(1));
    }
    assert_eq!(network.told, []);
    network.cut.insert(cables()[0].a);
    network.run(ms(1000));
    assert_eq!(*network.monitor.outages(), network.only(cables()[0]));
}

/// A way that takes longer than a probe is waited for is a way.
#[test]
fn slow_is_not_dead() {
    let cable = cables()[0];
    let mut monitor = LinkMonitor::new([cable], [cable.a.switch, cable.b.switch], TOKEN, Instant::ZERO);
    for end in [cable.a, cable.b] {
        monitor.set_channel(Instant::ZERO, end.switch, OPEN);
    }
    let mut flying = BTreeMap::new();
    let mut now = Instant::ZERO;
    let mut sent = 0;
    while now < at(60_000) {
        let arrival = flying.first_key_value().map(|((at, _), _)| *at);
        now = monitor.poll_timeout().into_iter().chain(arrival).min().unwrap();
        if arrival == Some(now) {
            let (_, Probe { switch, port, frame }) = flying.pop_first().unwrap();
            let to = if (CableEnd { switch, port }) == cable.a { cable.b } else { cable.a };
            assert!(monitor.handle_probe(now, to.switch, to.port, &frame));
        } else {
            monitor.handle_timeout(now);
        }
        while let Some(probe) = monitor.poll_transmit() {
            sent += 1;
            flying.insert((now + ms(250), sent), probe);
        }
        assert!(monitor.poll_outages().is_none());
    }
}
