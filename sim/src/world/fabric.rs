//! The network and the cards of all machines: one value, moved on event by event.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{
    Access, BufferPool, Completion, IndexTarget, Memory, QueuePair, QueuePairState, Region, RegisterError,
};
use rand::{Rng as _, RngExt as _};

use super::access::{self, Accesses, Begun, Verdict};
use super::events::{Event, Events, Place};
use super::options::{LinkFaults, MachineOptions, Options, Rkeys};
use super::pair::Pair;
use super::pool::Pool;
use super::processor::Thread;
use super::switches::{NoSwitches, Passage, Switches};
use super::timing::{Kind, Timing, Work};
use super::{Counts, MachineId, Random};

/// All machines as the network sees them, and everything that is under way.
pub(super) struct Fabric {
    /// The place of what happens now.
    pub(super) now: Place,
    pub(super) events: Events,
    pub(super) random: Random,
    pub(super) options: Options,
    pub(super) timing: Box<dyn Timing>,
    pub(super) switches: Box<dyn Switches>,
    pub(super) hosts: Vec<Host>,
    pub(super) pairs: Vec<Pair>,
    pub(super) packets: Pool<Packet>,
    pub(super) accesses: Accesses,
    /// Vectors to be used again.
    pub(super) spare: Vec<Vec<u8>>,
    pub(super) counts: Counts,
    /// Machines with completions or sleepers that were not looked at yet.
    news: Vec<MachineId>,
    fingerprint: u64,
}

/// A machine's network card.
pub(super) struct Host {
    pub(super) options: MachineOptions,
    pub(super) up: bool,
    /// Counts the machine's lives.
    pub(super) generation: u32,
    pub(super) frozen: bool,
    /// WRITEs after which nothing leaves it any more.
    pub(super) writes_left: Option<u64>,
    /// Whether atomics count as WRITEs there.
    pub(super) counts_atomics: bool,
    pub(super) link: Link,
    pub(super) pool: BufferPool,
    pub(super) regions: BTreeMap<u32, Registered>,
    pub(super) device_memory: u64,
    /// Whether the machine has ever registered memory: its tasks may look into it past the network.
    pub(super) owns_memory: bool,
    pub(super) completions: VecDeque<Completion>,
    pub(super) broken: VecDeque<QueuePair>,
    pub(super) thread: Thread,
    /// Events that came while it was frozen.
    held: Vec<Event>,
    has_news: bool,
    /// The earliest `Wake` event under way.
    wake: Option<Instant>,
}

/// The cable of a machine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Link {
    pub(super) down: bool,
    pub(super) faults: LinkFaults,
}

/// A registered region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registered {
    pub(super) memory: usize,
    pub(super) iova: u64,
    pub(super) access: Access,
    pub(super) on_device: bool,
}

/// A request under way.
#[derive(Debug, Default)]
pub(super) struct Packet {
    pub(super) pair: u32,
    pub(super) number: u64,
    /// First byte that a READ wants.
    pub(super) from: u32,
    /// Bytes of a WRITE that get through.
    pub(super) until: u32,
    pub(super) landing: Option<super::Resolved>,
    pub(super) started: Instant,
    pub(super) left: Instant,
    pub(super) arrives: Instant,
    pub(super) lost: bool,
}

/// Fate of a message on its way.
pub(super) enum Journey {
    Arrives(Duration),
    Lost,
}

/// Messages that a frozen machine keeps; more are lost.
const HELD: usize = 4096;

impl Fabric {
    pub(super) fn new(options: Options, random: Random) -> Self {
        let mut accesses = Accesses::default();
        accesses.every_touch_an_event = options.every_touch_an_event;
        Self {
            now: Place { at: Instant::ZERO, order: 0 },
            events: Events::default(),
            random,
            timing: Box::new(options.times),
            options,
            switches: Box::new(NoSwitches),
            hosts: Vec::new(),
            pairs: Vec::new(),
            packets: Pool::default(),
            accesses,
            spare: Vec::new(),
            counts: Counts::default(),
            news: Vec::new(),
            fingerprint: 0xcbf2_9ce4_8422_2325,
        }
    }

    pub(super) fn add_host(&mut self, options: MachineOptions) -> MachineId {
        let pool =
            BufferPool::new(&options.buffers).expect("a machine that simulates has memory for buffers");
        let link = Link { down: false, faults: options.link };
        self.hosts.push(Host {
            options,
            up: true,
            generation: 0,
            frozen: false,
            writes_left: None,
            counts_atomics: false,
            link,
            pool,
            regions: BTreeMap::new(),
            device_memory: 0,
            owns_memory: false,
            completions: VecDeque::new(),
            broken: VecDeque::new(),
            thread: Thread::default(),
            held: Vec::new(),
            has_news: false,
            wake: None,
        });
        MachineId(self.hosts.len() as u32 - 1)
    }

    pub(super) fn host(&self, machine: MachineId) -> &Host {
        &self.hosts[machine.0 as usize]
    }

    pub(super) fn host_mut(&mut self, machine: MachineId) -> &mut Host {
        &mut self.hosts[machine.0 as usize]
    }

    /// Goes on to the next event and lets it happen.
    pub(super) fn step(&mut self) -> bool {
        let Some((place, event)) = self.events.pop() else { return false };
        debug_assert!(place.at >= self.now.at, "{event:?} is to happen in the past");
        self.now = place;
        self.counts.events += 1;
        self.note(event);
        match event {
            Event::Touch { access, unit } => self.accesses.touch(access, unit),
            Event::End { access } => self.ended(access),
            Event::Pass { packet } => self.passes(packet),
            Event::Arrive { packet } => self.arrived(packet),
            Event::Answer { access } => self.answered(access),
            Event::Retry { pair } => self.retry(pair),
            Event::Posted { machine, generation } => self.posted(MachineId(machine), generation),
            Event::Taken { machine, generation } => self.taken(MachineId(machine), generation),
            Event::Wake { machine, generation } => {
                let host = &mut self.hosts[machine as usize];
                // A wake that an earlier one overtook sets none in its place: the machine would then look at its
                // tasks once for every pause that ever ended early.
                if host.generation == generation && host.wake.is_some_and(|due| due <= self.now.at) {
                    host.wake = None;
                    self.news_for(MachineId(machine));
                }
            }
        }
        true
    }

    /// Goes on to a time at which nothing happens.
    pub(super) fn advance_to(&mut self, at: Instant) {
        self.now = Place { at, order: u64::MAX }.max(self.now);
    }

    /// A number that two runs share if the same things happened at the same times.
    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Adds an event to the fingerprint, unless it is a touch: how often memory is touched on its own is a matter of
    /// speed.
    fn note(&mut self, event: Event) {
        let (kind, number) = match event {
            Event::Touch { .. } => return,
            Event::End { access } => (1, access),
            Event::Pass { packet } => (2, packet),
            Event::Arrive { packet } => (3, packet),
            Event::Answer { access } => (4, access),
            Event::Retry { pair } => (5, pair),
            Event::Wake { machine, .. } => (6, machine),
            Event::Posted { machine, .. } => (7, machine),
            Event::Taken { machine, .. } => (8, machine),
        };
        for word in [self.now.at.as_nanos(), kind << 32 | u64::from(number)] {
            self.fingerprint = (self.fingerprint ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        }
    }

    pub(super) fn news_for(&mut self, machine: MachineId) {
        let host = &mut self.hosts[machine.0 as usize];
        if !std::mem::replace(&mut host.has_news, true) {
            self.news.push(machine);
        }
    }

    /// A machine that has something to look at.
    pub(super) fn take_news(&mut self) -> Option<MachineId> {
        let machine = self.news.pop()?;
        self.host_mut(machine).has_news = false;
        Some(machine)
    }

    /// Wakes a machine at `at`.
    pub(super) fn wake_at(&mut self, machine: MachineId, at: Instant) {
        let host = self.host_mut(machine);
        if host.wake.is_none_or(|earlier| at < earlier) {
            host.wake = Some(at);
            let generation = host.generation;
            let at = at.max(self.now.at);
            self.events.push(at, Event::Wake { machine: machine.0, generation });
        }
    }

    /// Fate of a message that leaves one machine for another now.
    pub(super) fn journey(&mut self, from: MachineId, to: MachineId) -> Journey {
        let mut delay = Duration::ZERO;
        for machine in [from, to] {
            let Link { down, faults } = self.hosts[machine.0 as usize].link;
            let mut happens = |rate: u32| rate > 0 && self.random.random_range(0..1_000_000) < rate;
            if down || happens(faults.lost) {
                self.counts.lost += 1;
                return Journey::Lost;
            }
            if happens(faults.late) {
                let latest = faults.latest.as_nanos();
                delay = delay + Duration::from_nanos(self.random.random_range(0..=latest));
            }
        }
        match self.switches.pass(self.now.at, from, to, &mut self.random) {
            Passage::Go => Journey::Arrives(delay),
            Passage::Wait(more) => Journey::Arrives(delay + more),
            Passage::Lost => {
                self.counts.lost += 1;
                Journey::Lost
            }
        }
    }

    /// Keeps a message for a machine that is frozen; says whether it is.
    pub(super) fn hold(&mut self, machine: MachineId, event: Event) -> bool {
        let host = self.host_mut(machine);
        if !host.frozen || !host.up {
            return false;
        }
        if host.held.len() < HELD || matches!(event, Event::Retry { .. }) {
            host.held.push(event);
        } else {
            match event {
                Event::Arrive { packet } => self.packets.give(packet),
                Event::Answer { access } => self.accesses.list.give(access),
                _ => {}
            }
        }
        true
    }

    /// Lets a card stand still, or go on with what came meanwhile.
    pub(super) fn set_frozen(&mut self, machine: MachineId, frozen: bool) {
        let host = self.host_mut(machine);
        host.frozen = frozen;
        if frozen {
            return;
        }
        let held = std::mem::take(&mut host.held);
        let now = self.now.at;
        held.into_iter().for_each(|event| self.events.push(now, event));
        for pair in 0..self.pairs.len() as u32 {
            if self.pairs[pair as usize].owner == machine {
                self.send_on(pair, false);
            }
        }
    }

    /// A machine loses its power: what has left it goes on, what has not is gone.
    pub(super) fn kill(&mut self, machine: MachineId) {
        let now = self.now;
        let host = &mut self.hosts[machine.0 as usize];
        host.up = false;
        host.generation += 1;
        host.regions.clear();
        host.completions.clear();
        host.broken.clear();
        host.thread = Thread::default();
        host.wake = None;
        host.device_memory = 0;
        host.frozen = false;
        host.writes_left = None;
        let held = std::mem::take(&mut host.held);
        held.into_iter().for_each(|event| self.events.push(now.at, event));
        let Self { packets, pairs, .. } = self;
        for packet in packets.iter_mut() {
            let Some(pair) = pairs.get(packet.pair as usize) else { continue };
            if pair.owner == machine && packet.left > now.at {
                cut_short(packet, pair, now.at);
            }
        }
        for number in 0..self.pairs.len() as u32 {
            let pair = &mut self.pairs[number as usize];
            if pair.owner == machine {
                pair.state = None;
                // Their buffers go back to a pool that the machine's next life uses.
                pair.requester.queue.iter_mut().for_each(|posted| drop(posted.buffer.take()));
                self.silence(number, Begun::Break);
            }
        }
        // Some answers were on their way from memory to the wire.
        for access in self.accesses.list.iter_mut() {
            if access.host == machine && access.answers > now.at {
                access.verdict = Verdict::Silent;
            }
        }
    }

    /// A machine that was killed is there again, knowing nothing.
    pub(super) fn boot(&mut self, machine: MachineId) {
        self.host_mut(machine).up = true;
    }

    /// Registers memory.
    pub(super) fn register(
        &mut self,
        machine: MachineId,
        memory: &Arc<Memory>,
        iova: u64,
        access: Access,
        on_device: bool,
    ) -> Result<Region, RegisterError> {
        let len = memory.len();
        if iova.checked_add(len).is_none() {
            return Err(RegisterError::Range { iova, len });
        }
        let memory = self.accesses.memory(memory);
        self.host_mut(machine).owns_memory = true;
        let rkeys = self.host(machine).options.rkeys;
        let regions = &mut self.hosts[machine.0 as usize].regions;
        let is_free = |rkey: &u32| IndexTarget::of_rkey(*rkey).is_none() && !regions.contains_key(rkey);
        let rkey = match rkeys {
            Rkeys::Random => std::iter::repeat_with(|| self.random.next_u32()).find(is_free),
            Rkeys::Lowest => (1..=u32::MAX).find(is_free),
        };
        let rkey = rkey.expect("there are more keys than regions");
        regions.insert(rkey, Registered { memory, iova, access, on_device });
        Ok(Region { rkey, iova, len })
    }

    /// Takes a region back: what is being done to it stops, and is refused.
    pub(super) fn deregister(&mut self, machine: MachineId, rkey: u32) {
        let Some(region) = self.host_mut(machine).regions.remove(&rkey) else { return };
        if region.on_device {
            let len = self.accesses.len_of(region.memory);
            self.host_mut(machine).device_memory -= len;
        }
        let refused = Verdict::Refused(fatbtree_verbs::Failure::RemoteAccess);
        let mut hit = Vec::new();
        for access in self.accesses.list.iter_mut() {
            if access.host == machine && access.rkey == rkey && access.is_open() {
                hit.push(access.responder);
            }
        }
        let is_hit = |access: &access::Access| access.host == machine && access.rkey == rkey;
        self.accesses.cut_off(self.now, refused, Begun::Finish, is_hit);
        hit.into_iter().for_each(|pair| self.break_pair(pair, None));
    }

    /// The request that an access or a packet is for, as far as time is concerned.
    pub(super) fn work(&self, requester: u32, kind: Kind, bytes: u32, device_memory: bool) -> Work {
        let arrived = Instant::ZERO;
        Work {
            from: self.pairs[requester as usize].owner,
            to: self.responder(requester),
            kind,
            bytes,
            address: 0,
            arrived,
            device_memory,
            doorbell: false,
            follows: false,
            signalled: true,
            changed: false,
        }
    }

    /// Machine at the other end of a queue pair.
    pub(super) fn responder(&self, requester: u32) -> MachineId {
        let pair = &self.pairs[requester as usize];
        pair.peer.map_or(pair.owner, |peer| self.pairs[peer as usize].owner)
    }

    /// A queue pair that can still be named by its owner.
    pub(super) fn state(&self, machine: MachineId, queue_pair: QueuePair) -> Option<QueuePairState> {
        let pair = self.pairs.get(usize::try_from(queue_pair.0).ok()?)?;
        if pair.owner == machine { pair.state } else { None }
    }
}

/// Cuts a message to the part that has left a machine that dies.
fn cut_short(packet: &mut Packet, pair: &Pair, now: Instant) {
    let mtu = pair.agreed.map_or(1, |agreed| agreed.mtu.bytes() as u64);
    let packets = u64::from(packet.until).div_ceil(mtu).max(1);
    let (total, gone) = (packet.left - packet.started, now - packet.started);
    let whole = if total == Duration::ZERO { 0 } else { packets * gone.as_nanos() / total.as_nanos() };
    packet.until = packet.until.min((whole * mtu) as u32);
    packet.lost |= whole == 0;
}
