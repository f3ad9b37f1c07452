//! The responder: bounds, rights and order; carrying out; answering.

use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Access, Failure, Operation, QueuePair};
use rand::{Rng as _, RngExt as _};

use super::MachineId;
use super::access::{Begun, Deed, Plan, Verdict};
use super::events::Event;
use super::fabric::{Fabric, Journey, Registered};
use super::pair::{Responder, noted};
use super::send::kind_of;
use super::switches::{IndexRead, Resolved};
use super::timing::Kind;

/// A request as the responder takes it up.
struct Request {
    requester: u32,
    responder: u32,
    host: MachineId,
    number: u64,
    operation: Operation<'static>,
    /// First byte that a READ wants, or first byte of a WRITE that is not written yet.
    from: u32,
    /// After the last byte that is there.
    until: u32,
    len: u32,
    landing: Option<Resolved>,
}

impl Fabric {
    /// An index read passes the switches.
    pub(super) fn passes(&mut self, packet: u32) {
        let (pair, number, arrives) =
            (self.packets[packet].pair, self.packets[packet].number, self.packets[packet].arrives);
        let requester = &self.pairs[pair as usize];
        if let Some(posted) = requester.requester.get(number)
            && let Some((key, target)) = posted.operation.as_index_read()
            && let Some(peer) = requester.peer
        {
            let read = IndexRead {
                client: requester.owner,
                server: self.pairs[peer as usize].owner,
                queue_pair: QueuePair(u64::from(pair)),
                key,
                target,
                len: posted.len,
            };
            let landing = self.switches.resolve(self.now.at, &read, &mut self.random);
            self.packets[packet].landing = Some(landing);
        }
        self.events.push(arrives, Event::Arrive { packet });
    }

    /// A request is at the responder's card.
    pub(super) fn arrived(&mut self, packet: u32) {
        let number = self.packets[packet].pair;
        let pair = &self.pairs[number as usize];
        let Some(responder) = pair.peer else { return self.packets.give(packet) };
        let host = self.pairs[responder as usize].owner;
        if self.hold(host, Event::Arrive { packet }) {
            return;
        }
        let slot = &self.packets[packet];
        let (request, from, until, landing, lost) =
            (slot.number, slot.from, slot.until, slot.landing, slot.lost);
        self.packets.give(packet);
        let answers = self.pairs[responder as usize].is_ready()
            && self.pairs[responder as usize].peer == Some(number)
            && !self.host(host).link.down;
        let posted = self.pairs[number as usize].requester.get(request);
        // A request that is complete comes again: its answer is not needed, and nothing is carried out twice.
        let (Some(posted), true, false) = (posted, answers, lost) else { return };
        let (operation, len) = (posted.operation, posted.len);
        let request = Request {
            requester: number,
            responder,
            host,
            number: request,
            operation,
            from,
            until,
            len,
            landing,
        };
        let expected = self.pairs[responder as usize].responder.expected;
        match request.number.cmp(&expected) {
            std::cmp::Ordering::Less => self.serve_again(request),
            std::cmp::Ordering::Equal => self.serve(request),
            // Something before it was lost: all is sent again.
            std::cmp::Ordering::Greater => self.counts.out_of_order += 1,
        }
    }

    /// A request for the first time.
    fn serve(&mut self, mut request: Request) {
        let responder = &mut self.pairs[request.responder as usize].responder;
        let mut complete = true;
        if kind_of(&request.operation) == Kind::Write {
            request.from = responder.partial;
            if request.len > 0 && request.until <= request.from {
                return;
            }
            complete = request.until == request.len;
            responder.partial = if complete { 0 } else { request.until };
        }
        responder.expected += u64::from(complete);
        if let Some(Resolved::At(remote)) = request.landing {
            let depth = self.host(request.host).options.responder_reads;
            let landings = &mut self.pairs[request.responder as usize].responder.landings;
            Responder::note(landings, request.number, remote, usize::from(depth));
        }
        self.carry_out(request, complete);
    }

    /// A request that was carried out before.
    fn serve_again(&mut self, mut request: Request) {
        self.counts.duplicates += 1;
        let responder = &self.pairs[request.responder as usize].responder;
        match kind_of(&request.operation) {
            Kind::Read => {
                let first = noted(&responder.landings, request.number);
                if self.options.duplicates.strict_reads
                    && let (Some(first), Some(Resolved::At(now))) = (first, request.landing)
                    && first != now
                {
                    self.counts.strict_drops += 1;
                    return;
                }
                self.carry_out(request, true);
            }
            Kind::Write if self.options.duplicates.rewrite && request.until == request.len => {
                request.from = 0;
                self.carry_out(request, true);
            }
            Kind::Write => self.answer_only(&request, Verdict::Good, 0),
            Kind::Atomic => {
                if let Some(found) = noted(&responder.atomics, request.number) {
                    self.answer_only(&request, Verdict::Good, found);
                }
            }
        }
    }

    /// The region that a request is for, and the offset in it, if it is allowed.
    fn allowed(&self, request: &Request) -> Result<Option<(Registered, u32, u64)>, Failure> {
        let (remote, right) = match request.operation {
            operation if operation.as_index_read().is_some() => match request.landing {
                Some(Resolved::At(remote)) => (remote, Access::READ),
                Some(Resolved::Unregistered) | None if request.len > 0 => {
                    return Err(Failure::RemoteAccess);
                }
                Some(Resolved::Unregistered) | None => return Ok(None),
            },
            Operation::Read { from, .. } => (from, Access::READ),
            Operation::IndexRead { .. } => unreachable!("an index read is one"),
            Operation::Write { to, .. } => (to, Access::WRITE),
            Operation::CompareSwap { at, .. } | Operation::FetchAdd { at, .. } => (at, Access::ATOMIC),
            Operation::MaskedCompareSwap { at, .. } | Operation::MaskedFetchAdd { at, .. } => {
                if !self.host(request.host).options.masked_atomics {
                    return Err(Failure::RemoteInvalidRequest);
                }
                (at, Access::ATOMIC)
            }
        };
        if request.len == 0 {
            // A request of no bytes needs no right and no memory.
            return Ok(None);
        }
        let region = self.host(request.host).regions.get(&remote.rkey);
        let region = region.filter(|region| region.access.contains(right)).ok_or(Failure::RemoteAccess)?;
        let offset = remote.address.checked_sub(region.iova).ok_or(Failure::RemoteAccess)?;
        let end = offset.checked_add(u64::from(request.len));
        if end.is_none_or(|end| end > self.accesses.len_of(region.memory)) {
            return Err(Failure::RemoteAccess);
        }
        if right == Access::ATOMIC && !offset.is_multiple_of(8) {
            return Err(Failure::RemoteInvalidRequest);
        }
        Ok(Some((*region, remote.rkey, offset)))
    }

    fn carry_out(&mut self, request: Request, complete: bool) {
        let (region, rkey, offset) = match self.allowed(&request) {
            Ok(Some(found)) => found,
            Ok(None) => return self.answer_only(&request, Verdict::Good, 0),
            Err(failure) => {
                self.answer_only(&request, Verdict::Refused(failure), 0);
                self.counts.refused += 1;
                return self.break_pair(request.responder, None);
            }
        };
        let kind = kind_of(&request.operation);
        let bytes = request.until.max(request.from) - request.from;
        let mut work = self.work(request.requester, kind, bytes, region.on_device);
        work.doorbell = false;
        (work.address, work.arrived) = (region.iova + offset, self.now.at);
        let earliest = self.pairs[request.responder as usize].responder.order.max(self.now.at);
        let mut serving = self.timing.serve(earliest, &work, &mut self.random);
        serving.begins = serving.begins.max(earliest);
        serving.ends = serving.ends.max(serving.begins);
        let Tear { stretched, draw } = self.tear();
        if stretched && kind != Kind::Atomic {
            let span = serving.ends - serving.begins + Duration::from_nanos(1);
            serving.ends = serving.begins + span * u64::from(self.options.tearing.stretch);
        }
        serving.answers = serving.answers.max(serving.ends);
        let begins = if kind == Kind::Atomic { serving.ends } else { serving.begins };

        let responder = &mut self.pairs[request.responder as usize].responder;
        if kind != Kind::Read {
            responder.order = serving.ends;
        }
        responder.answers = responder.answers.max(serving.answers);
        let answers = responder.answers;
        let verdict = if complete { Verdict::Good } else { Verdict::Silent };
        let number = self.new_access(&request, verdict, 0, answers);
        let access = &mut self.accesses.list[number];
        (access.rkey, access.from) = (rkey, request.from);
        access.on_device = region.on_device;
        match kind {
            Kind::Read => {
                access.deed = Deed::Read;
                access.data.resize(bytes as usize, 0);
            }
            Kind::Write => {
                access.deed = Deed::Write;
                if let Some(posted) = self.pairs[request.requester as usize].requester.get(request.number) {
                    access
                        .data
                        .extend_from_slice(&posted.data[request.from as usize..request.until as usize]);
                }
            }
            Kind::Atomic => access.deed = Deed::Atomic(request.operation),
        }
        let unit = if self.host(request.host).options.line_atomicity { 64 } else { 8 };
        let offset = offset + u64::from(request.from);
        let plan = Plan { memory: region.memory, offset, unit, begins, ends: serving.ends, draw };
        let Self { accesses, options, events, now, .. } = self;
        accesses.begin(number, &plan, &options.tearing, *now, events);
    }

    /// Draws the tearing of the next access.
    fn tear(&mut self) -> Tear {
        let rate = self.options.tearing.stretched;
        let stretched = rate > 0 && self.random.random_range(0..10_000) < rate;
        Tear { stretched, draw: self.random.next_u64() }
    }

    fn new_access(&mut self, request: &Request, verdict: Verdict, found: u64, answers: Instant) -> u32 {
        let number = self.accesses.list.take();
        let access = &mut self.accesses.list[number];
        access.data.clear();
        (access.requester, access.responder) = (request.requester, request.responder);
        (access.number, access.host) = (request.number, request.host);
        (access.verdict, access.found, access.answers) = (verdict, found, answers);
        (access.deed, access.rkey, access.from, access.on_device) = (Deed::None, 0, request.from, false);
        access.ended = false;
        if verdict != Verdict::Silent {
            self.pairs[request.responder as usize].responder.replies.push_back(number);
        }
        number
    }

    /// Answers without touching memory, after the answers of earlier requests.
    fn answer_only(&mut self, request: &Request, verdict: Verdict, found: u64) {
        let responder = &mut self.pairs[request.responder as usize].responder;
        responder.answers = responder.answers.max(self.now.at);
        let answers = responder.answers;
        let number = self.new_access(request, verdict, found, answers);
        self.reply(number);
    }

    /// An access has touched all it had to.
    pub(super) fn ended(&mut self, number: u32) {
        self.accesses.end(number);
        let access = &self.accesses.list[number];
        if access.verdict == Verdict::Silent {
            return self.accesses.list.give(number);
        }
        if matches!(access.deed, Deed::Atomic(_)) && access.verdict == Verdict::Good {
            let depth = usize::from(self.host(access.host).options.responder_reads);
            let atomics = &mut self.pairs[access.responder as usize].responder.atomics;
            Responder::note(atomics, access.number, access.found, depth);
        }
        self.reply(number);
    }

    /// Answers as far as earlier requests are done: a READ may take longer than the WRITE after it.
    fn reply(&mut self, number: u32) {
        let access = &mut self.accesses.list[number];
        access.ended = true;
        let responder = access.responder as usize;
        while let Some(&first) = self.pairs[responder].responder.replies.front()
            && self.accesses.list[first].ended
        {
            self.pairs[responder].responder.replies.pop_front();
            self.answer(first);
        }
    }

    /// Discards the answers that a queue pair has not sent.
    pub(super) fn silence(&mut self, responder: u32, begun: Begun) {
        for number in std::mem::take(&mut self.pairs[responder as usize].responder.replies) {
            let access = &mut self.accesses.list[number];
            access.verdict = Verdict::Silent;
            if access.ended {
                self.accesses.list.give(number);
            }
        }
        self.accesses.cut_off(self.now, Verdict::Silent, begun, |access| access.responder == responder);
    }

    /// Sends an answer on its way.
    fn answer(&mut self, number: u32) {
        let access = &self.accesses.list[number];
        let (requester, responder, bytes) = (access.requester, access.responder, access.data.len() as u32);
        let kind = match access.deed {
            Deed::None | Deed::Write => Kind::Write,
            Deed::Read => Kind::Read,
            Deed::Atomic(_) => Kind::Atomic,
        };
        let (answers, on_device) = (access.answers, access.on_device);
        let changed = match access.deed {
            Deed::Atomic(operation) => operation.apply(access.found).is_some_and(|word| word != access.found),
            _ => false,
        };
        let mut work = self.work(requester, kind, bytes, on_device);
        work.changed = changed;
        let mut arrives = self.timing.answer(answers.max(self.now.at), &work, &mut self.random);
        match self.journey(work.to, work.from) {
            Journey::Arrives(delay) => arrives += delay,
            Journey::Lost => {
                // Of a long READ a part may get through.
                let mtu = self.pairs[requester as usize].agreed.map_or(1, |agreed| agreed.mtu.bytes() as u32);
                if kind != Kind::Read || bytes <= mtu {
                    return self.accesses.list.give(number);
                }
                let whole = self.random.random_range(0..bytes.div_ceil(mtu));
                self.accesses.list[number].data.truncate((whole * mtu) as usize);
            }
        }
        let responder = &mut self.pairs[responder as usize].responder;
        responder.arrives = (responder.arrives + Duration::from_nanos(1)).max(arrives);
        self.events.push(responder.arrives, Event::Answer { access: number });
    }
}

/// Tearing of an access.
struct Tear {
    stretched: bool,
    draw: u64,
}
