//! Search for an order of one key's operations that explains all answers.
//!
//! The search is that of Wing and Gong (1993) with the memory of Lowe (*Testing for linearizability*, 2017). It puts
//! operations in order one by one, each among those that were asked before the first answer that is still open. A set
//! of ordered operations with the state after it is never tried twice. Keys are independent of each other (Herlihy
//! and Wing 1990, section 3.3), so each has a search of its own.
//!
//! Operations without an answer may be ordered anywhere after they were asked, or nowhere. Trying that literally
//! doubles the work with each of them, and concurrent operations have many orders as well. Four rules keep the search
//! small:
//!
//! * A read or a refusal that is explained now comes first: it constrains no other operation.
//! * An operation without an answer is ordered only directly before an operation that needs it, which may itself have
//!   no answer. Anywhere else it may as well come later, or it is overwritten unseen.
//! * Of several that do the same (two deletes; two inserts whose values no client has seen) the one asked
//!   first goes first.
//! * A chain of them never comes back to a state that it had: the shorter chain leaves more for later.

use rustc_hash::FxHashSet;

use super::operation::{Answer, Call, Value};

/// An operation on the key that is checked. Times are places in one order of all calls and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timed {
    pub(super) asked: u64,
    pub(super) call: Call,
    /// `None`: unknown whether it was carried out, or will be.
    pub(super) answered: Option<(u64, Answer)>,
}

/// Result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Explained,
    Unexplained,
    /// The search was given up at the step limit.
    TooHard,
}

/// Steps after which a search is given up. A right history takes about one a operation.
const LIMIT: usize = 20_000_000;

/// Searches for an order that explains all answers, beginning with `initial`.
pub(super) fn check(initial: Option<Value>, operations: &[Timed]) -> Verdict {
    Search::new(initial, operations).run()
}

/// The first answer (as an index into `operations`) that no order explains, given all that was asked and answered before it.
pub(super) fn first_unexplained(initial: Option<Value>, operations: &[Timed]) -> Option<usize> {
    let mut answered: Vec<usize> =
        (0..operations.len()).filter(|&number| operations[number].answered.is_some()).collect();
    answered.sort_by_key(|&number| operations[number].answered);
    let until = |last: usize| -> Vec<Timed> {
        let limit = operations[last].answered.map_or(0, |(at, _)| at);
        let known = operations.iter().filter(|operation| operation.asked <= limit);
        let cut = |operation: &Timed| Timed {
            answered: operation.answered.filter(|(at, _)| *at <= limit),
            ..*operation
        };
        known.map(cut).collect()
    };
    // An order that explains a history explains its beginnings: the answers fall into explained ones and
    // others after them.
    let first = answered.partition_point(|&last| check(initial, &until(last)) == Verdict::Explained);
    answered.get(first).copied()
}

/// A value is seen if an answer or a comparison depends on which one it is; all others are one.
const UNSEEN: Value = Value::MAX;

struct Open {
    asked: u64,
    call: Call,
    /// The last earlier operation of `open` with the same call.
    twin: Option<usize>,
}

struct Search {
    /// Operations with answers, in the order in which they were asked.
    done: Vec<(u64, u64, Call, Answer)>,
    /// Operations without answers.
    open: Vec<Open>,
    /// Ordered operations of `done`, and used ones of `open`.
    ordered: Bits,
    used: Bits,
    /// The first of `done` that is not ordered.
    base: usize,
    state: Option<Value>,
    tried: FxHashSet<Box<[u64]>>,
    key: Vec<u64>,
}

/// The next operation of `done`, with those of `open` directly before it.
struct Move {
    number: usize,
    before: Vec<usize>,
    state: Option<Value>,
}

/// A place in the search: what can come next, and how to get back.
struct Frame {
    moves: Vec<Move>,
    next: usize,
    base: usize,
}

impl Search {
    fn new(initial: Option<Value>, operations: &[Timed]) -> Self {
        let mut seen: Vec<Value> = initial.into_iter().collect();
        for operation in operations {
            seen.extend(operation.answered.and_then(|(_, answer)| answer.saw()));
            if let Call::CompareAndSet { expected, .. } = operation.call {
                seen.push(expected);
            }
        }
        seen.sort_unstable();
        let name = |value: Value| if seen.binary_search(&value).is_ok() { value } else { UNSEEN };
        let named = |call| match call {
            Call::Insert(value) => Call::Insert(name(value)),
            Call::Update(value) => Call::Update(name(value)),
            Call::Upsert(value) => Call::Upsert(name(value)),
            Call::CompareAndSet { expected, new } => Call::CompareAndSet { expected, new: name(new) },
            Call::Get | Call::Delete => call,
        };
        let mut sorted = operations.to_vec();
        sorted.sort_by_key(|operation| operation.asked);
        let mut done = Vec::new();
        let mut open: Vec<Open> = Vec::new();
        for Timed { asked, call, answered } in sorted {
            let call = named(call);
            match answered {
                Some((at, answer)) => done.push((asked, at, call, answer)),
                None if call == Call::Get => {}
                None => {
                    let twin = open.iter().rposition(|other| other.call == call);
                    open.push(Open { asked, call, twin });
                }
            }
        }
        Self {
            ordered: Bits::new(done.len()),
            used: Bits::new(open.len()),
            done,
            open,
            base: 0,
            state: initial,
            tried: FxHashSet::default(),
            key: Vec::new(),
        }
    }

    fn run(mut self) -> Verdict {
        if self.done.is_empty() {
            return Verdict::Explained;
        }
        let mut stack = vec![self.frame()];
        loop {
            let Some(frame) = stack.last_mut() else { return Verdict::Unexplained };
            let Some(taken) = frame.moves.get(frame.next) else {
                stack.pop();
                if let Some(frame) = stack.last_mut() {
                    self.undo(frame);
                    frame.next += 1;
                }
                continue;
            };
            self.ordered.set(taken.number, true);
            taken.before.iter().for_each(|&number| self.used.set(number, true));
            self.state = taken.state;
            while self.base < self.done.len() && self.ordered.get(self.base) {
                self.base += 1;
            }
            if self.base == self.done.len() {
                return Verdict::Explained;
            }
            if self.is_new() {
                if self.tried.len() > LIMIT {
                    return Verdict::TooHard;
                }
                let frame = self.frame();
                stack.push(frame);
            } else {
                self.undo(frame);
                frame.next += 1;
            }
        }
    }

    fn undo(&mut self, frame: &Frame) {
        let taken = &frame.moves[frame.next];
        self.ordered.set(taken.number, false);
        taken.before.iter().for_each(|&number| self.used.set(number, false));
        // The state follows from the next move.
        self.base = frame.base;
    }

    /// Whether this set of ordered operations with this state was not tried before.
    fn is_new(&mut self) -> bool {
        self.key.clear();
        self.key.extend([self.base as u64, u64::from(self.state.is_some()), self.state.unwrap_or(0)]);
        self.key.extend_from_slice(&self.used.0);
        self.ordered.append_from(self.base, &mut self.key);
        if self.tried.contains(&self.key[..]) {
            return false;
        }
        self.tried.insert(self.key.clone().into_boxed_slice())
    }

    fn frame(&self) -> Frame {
        Frame { moves: self.moves(), next: 0, base: self.base }
    }

    /// Operations that can come next: all that were asked before the first answer that is still to be
    /// ordered.
    fn moves(&self) -> Vec<Move> {
        let mut first_answer = u64::MAX;
        let mut candidates = Vec::new();
        for number in self.base..self.done.len() {
            let (asked, answered, ..) = self.done[number];
            if asked > first_answer {
                break;
            }
            if !self.ordered.get(number) {
                first_answer = first_answer.min(answered);
                candidates.push(number);
            }
        }
        // The operation that was answered first most likely came first.
        candidates.sort_by_key(|&number| self.done[number].1);
        let mut moves = Vec::new();
        let mut unexplained = Vec::new();
        for number in candidates {
            let (.., call, answer) = self.done[number];
            match call.explain(answer, self.state) {
                // It never changes anything: it may as well come first, and there is no choice.
                Some(state) if answer.is_only_read() => {
                    return vec![Move { number, before: Vec::new(), state }];
                }
                Some(state) => moves.push(Move { number, before: Vec::new(), state }),
                None => unexplained.push(number),
            }
        }
        if !self.open.is_empty() {
            for number in unexplained {
                let chain = &mut Chain { number, first_answer, states: vec![self.state], before: Vec::new() };
                self.chains(chain, &mut moves);
            }
        }
        moves
    }

    /// Finds the chains of open operations that make a state which explains an answer.
    fn chains(&self, chain: &mut Chain, moves: &mut Vec<Move>) {
        let state = chain.states.last().copied().flatten();
        let before = chain.states.iter().rev().nth(1).copied();
        for (number, open) in self.open.iter().enumerate() {
            let is_used = |number: usize| self.used.get(number) || chain.before.contains(&number);
            if open.asked > chain.first_answer
                || is_used(number)
                || open.twin.is_some_and(|twin| !is_used(twin))
            {
                continue;
            }
            let (next, _) = open.call.apply(state);
            // The one before it must matter to it, else it could come later, or not at all.
            let needed = before.is_none_or(|before| open.call.apply(before).0 != next);
            if !needed || chain.states.contains(&next) {
                continue;
            }
            chain.before.push(number);
            chain.states.push(next);
            let (.., call, answer) = self.done[chain.number];
            if let (Some(state), None) = (call.explain(answer, next), call.explain(answer, state)) {
                moves.push(Move { number: chain.number, before: chain.before.clone(), state });
            }
            self.chains(chain, moves);
            chain.before.pop();
            chain.states.pop();
        }
    }
}

/// Open operations that come directly before an operation, and the states between them.
struct Chain {
    number: usize,
    first_answer: u64,
    states: Vec<Option<Value>>,
    before: Vec<usize>,
}

/// A set of small numbers.
struct Bits(Vec<u64>);

impl Bits {
    fn new(len: usize) -> Self {
        Self(vec![0; len.div_ceil(64)])
    }

    fn get(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn set(&mut self, at: usize, to: bool) {
        let bit = 1 << (at % 64);
        if to {
            self.0[at / 64] |= bit;
        } else {
            self.0[at / 64] &= !bit;
        }
    }

    /// The words from the one that has `from` to the last that is not 0. Below `from` all are set.
    fn append_from(&self, from: usize, to: &mut Vec<u64>) {
        let words = &self.0[from / 64..];
        let len = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        to.extend_from_slice(&words[..len]);
    }
}
