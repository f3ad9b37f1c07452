//! Transactions as operations of a load: [SmallBank](smallbank) and [TATP](tatp), on any [`Structure`] that has transactions.
//!
//! ```text
//!   mix ─► Program ──► Get: all items that it wants ──► decide ──► Put, Delete … ──► Commit
//!                        └────────────── again after a conflict and a pause
//! ```

use std::collections::VecDeque;

use fatbtree_dtx::Want;
use fatbtree_dtx::workloads::smallbank::{Account, CHECKING, Customers, INITIAL, SAVINGS};
use fatbtree_dtx::workloads::{Writes, smallbank, tatp};
use fatbtree_remote_memory::{Backoff, Item, Pauses, Step, Stepped, Structure, Wanted};
use fatbtree_verbs::time::Duration;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::measure::Outcome;
use crate::operation::{Operation, OperationKind, Operations};
use crate::ycsb::WorkloadError;

/// Kind of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransactionKind {
    /// Of SmallBank.
    SmallBank(smallbank::Kind),
    /// Of TATP.
    Tatp(tatp::Kind),
    /// Inserts missing records of a customer or subscriber.
    Fill,
}

impl TransactionKind {
    /// Name in reports, as in the benchmark's description.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SmallBank(kind) => match kind {
                smallbank::Kind::Amalgamate => "AMALGAMATE",
                smallbank::Kind::Balance => "BALANCE",
                smallbank::Kind::Deposit => "DEPOSIT-CHECKING",
                smallbank::Kind::Payment => "SEND-PAYMENT",
                smallbank::Kind::Savings => "TRANSACT-SAVINGS",
                smallbank::Kind::Check => "WRITE-CHECK",
            },
            Self::Tatp(kind) => match kind {
                tatp::Kind::SubscriberData => "GET-SUBSCRIBER-DATA",
                tatp::Kind::AccessData => "GET-ACCESS-DATA",
                tatp::Kind::NewDestination => "GET-NEW-DESTINATION",
                tatp::Kind::UpdateSubscriber => "UPDATE-SUBSCRIBER-DATA",
                tatp::Kind::UpdateLocation => "UPDATE-LOCATION",
                tatp::Kind::InsertForwarding => "INSERT-CALL-FORWARDING",
                tatp::Kind::DeleteForwarding => "DELETE-CALL-FORWARDING",
            },
            Self::Fill => "FILL",
        }
    }
}

/// Most customers or subscribers: keys of TATP have the number of a subscriber and four further bits.
const MOST_SUBJECTS: u64 = u32::MAX as u64;

/// A mix of transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// SmallBank. Nine of ten transactions are of the first twenty-fifth of the customers.
    SmallBank,
    /// TATP. Subscribers are drawn with equal chances.
    Tatp,
}

impl Mix {
    /// The mix of a name: `smallbank`, `tatp`.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "smallbank" => Some(Self::SmallBank),
            "tatp" => Some(Self::Tatp),
            _ => None,
        }
    }

    /// Says whether there may be so many customers or subscribers.
    ///
    /// # Errors
    /// What to choose instead.
    pub fn check(self, subjects: u64) -> Result<(), &'static str> {
        match self {
            Self::SmallBank if subjects < 2 => Err("money moves between two customers: choose 2 or more"),
            _ if subjects > MOST_SUBJECTS => Err("choose 4294967295 or fewer"),
            _ => Ok(()),
        }
    }

    /// Number of transactions that insert the records of a customer or subscriber.
    const fn parts(self) -> u64 {
        match self {
            Self::SmallBank => 1,
            Self::Tatp => 4,
        }
    }

    /// Records of a customer or subscriber, with their first values.
    fn records(self, subject: u64) -> Vec<(Item, Vec<u8>)> {
        match self {
            Self::SmallBank => {
                let account = Account { money: INITIAL, stamp: 0 }.to_bytes().to_vec();
                [SAVINGS, CHECKING].map(|table| (place(table, subject), account.clone())).to_vec()
            }
            Self::Tatp => {
                tatp::records(subject).map(|(table, key, value)| (place(table, key), value)).collect()
            }
        }
    }
}

/// Place of a benchmark's item. TATP has five tables, and [`fatbtree_dtx::Shape::of_servers`] four: the fifth one's keys have their highest
/// bit set in the second.
fn place(table: u8, key: u64) -> Item {
    match table {
        tatp::FORWARDING => Item { table: tatp::SECONDARY, key: key | 1 << 63 },
        table => Item { table, key },
    }
}

/// Draws transactions of a mix. Each writes its own number into its values.
#[derive(Debug)]
pub struct Transactions {
    mix: Mix,
    subjects: u64,
    random: ChaCha8Rng,
    number: u64,
}

impl Transactions {
    /// Transactions of so many customers or subscribers.
    #[must_use]
    pub fn new(mix: Mix, subjects: u64, seed: u64) -> Self {
        Self { mix, subjects, random: ChaCha8Rng::seed_from_u64(seed), number: 0 }
    }
}

impl Operations for Transactions {
    fn next_operation(&mut self) -> Result<Operation, WorkloadError> {
        self.number += 1;
        let draw = &mut |below: u64| self.random.random_range(0..below.max(1));
        let program = match self.mix {
            Mix::SmallBank => {
                let hot = self.subjects.div_ceil(25);
                Program::SmallBank(Customers { count: self.subjects, hot, hot_percent: 90 }.operation(draw))
            }
            Mix::Tatp => Program::Tatp(tatp::Operation::draw(self.subjects, draw)),
        };
        Ok(program.numbered(self.number))
    }

    fn acknowledge_insert(&mut self, _: u64) {}
}

/// Most records that one transaction inserts. It may change 15 items, and an insertion changes two: the record and its node.
const MADE_AT_ONCE: usize = 6;

/// Inserts the missing records of all customers or subscribers. A record in table 0 is among the last ones of each.
#[derive(Debug)]
pub struct Filling {
    mix: Mix,
    /// Number of the next transaction.
    next: u64,
}

impl Filling {
    /// Begins with a customer or subscriber.
    #[must_use]
    pub fn from(mix: Mix, subject: u64) -> Self {
        Self { mix, next: subject * mix.parts() }
    }

    /// Number of transactions that insert the records of so many customers or subscribers.
    #[must_use]
    pub fn transactions(&self, subjects: u64) -> u64 {
        subjects * self.mix.parts()
    }
}

impl Operations for Filling {
    fn next_operation(&mut self) -> Result<Operation, WorkloadError> {
        let (number, parts) = (self.next, self.mix.parts());
        self.next += 1;
        let part = (parts - 1 - number % parts) as usize;
        Ok(Program::Fill { mix: self.mix, subject: number / parts, part }.numbered(number))
    }

    fn acknowledge_insert(&mut self, _: u64) {}
}

/// A transaction to be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Of SmallBank.
    SmallBank(smallbank::Operation),
    /// Of TATP.
    Tatp(tatp::Operation),
    /// Inserts the missing ones among some records of a customer or subscriber.
    Fill {
        /// The mix that reads them.
        mix: Mix,
        /// The customer or subscriber.
        subject: u64,
        /// Number of the part: each has as many records as one transaction inserts.
        part: usize,
    },
}

/// Time after which a conflict is no longer followed by another attempt.
const PATIENCE: Duration = Duration::from_secs(10);

impl Program {
    fn numbered(self, number: u64) -> Operation {
        let (kind, key) = match self {
            Self::SmallBank(operation) => (TransactionKind::SmallBank(operation.kind), operation.one),
            Self::Tatp(operation) => (TransactionKind::Tatp(operation.kind), operation.subscriber),
            Self::Fill { subject, .. } => (TransactionKind::Fill, subject),
        };
        Operation {
            kind: OperationKind::Transaction(kind),
            record: number,
            key,
            scan_length: 0,
            value_bytes: None,
            program: Some(self),
        }
    }

    fn wants(&self) -> Vec<Want> {
        match self {
            Self::SmallBank(operation) => operation.wants().into_iter().flatten().collect(),
            Self::Tatp(operation) => operation.wants(),
            Self::Fill { .. } => Vec::new(),
        }
    }

    /// Steps that follow the READs of its items.
    ///
    /// # Errors
    /// [`Outcome::NotFound`] and [`Outcome::WrongAnswer`].
    fn decide(
        &self,
        wants: &[Want],
        found: &[Option<bytes::Bytes>],
        number: u64,
    ) -> Result<VecDeque<Step>, Outcome> {
        let writes: Writes = match self {
            Self::SmallBank(operation) => {
                if found.iter().any(Option::is_none) {
                    return Err(Outcome::NotFound);
                }
                let found: Vec<_> = found.iter().map(Option::as_deref).collect();
                let decision = operation.decide(&found, number).ok_or(Outcome::WrongAnswer)?;
                decision.writes(wants)
            }
            Self::Tatp(operation) => {
                let is_whole = |(want, found): (&Want, &Option<bytes::Bytes>)| {
                    found.as_ref().is_none_or(|value| tatp::is_value(want.table, value))
                };
                if !wants.iter().zip(found).all(is_whole) {
                    return Err(Outcome::WrongAnswer);
                }
                let is_there: Vec<_> = found.iter().map(Option::is_some).collect();
                operation.decide(&is_there, number).1
            }
            Self::Fill { .. } => Writes::new(),
        };
        let step = |(want, value): (usize, Option<Vec<u8>>)| {
            let item = place(wants[want].table, wants[want].key);
            match value {
                Some(value) => Step::Put(item, value.into()),
                None => Step::Delete(item),
            }
        };
        Ok(writes.into_iter().map(step).chain([Step::Commit]).collect())
    }

    /// Runs one attempt. Adds its round trips.
    async fn attempt<S: Structure>(
        &self,
        structure: &S,
        number: u64,
        attempt: u32,
        trips: &mut u32,
    ) -> Result<Outcome, S::Error> {
        let wants = self.wants();
        let mut steps: VecDeque<Step> = match self {
            Self::Fill { mix, subject, part } => {
                let records = mix.records(*subject).into_iter().skip(part * MADE_AT_ONCE).take(MADE_AT_ONCE);
                records.map(|(item, value)| Step::Insert(item, value.into())).chain([Step::Commit]).collect()
            }
            _ => {
                let wanted =
                    |want: &Want| Wanted { item: place(want.table, want.key), for_update: want.writes };
                [Step::Get(wants.iter().map(wanted).collect())].into()
            }
        };
        let mut outcome = Ok(Outcome::Found);
        let next = async |result| match result {
            Err(error) => {
                outcome = Err(error);
                None
            }
            Ok(Stepped::Values(found)) => match self.decide(&wants, &found, number) {
                Ok(decided) => {
                    steps = decided;
                    steps.pop_front()
                }
                Err(wrong) => {
                    outcome = Ok(wrong);
                    None
                }
            },
            Ok(Stepped::Done | Stepped::Applied(_)) => steps.pop_front(),
        };
        *trips += structure.transact(attempt, next).await;
        outcome
    }

    /// Runs attempts until one commits, fails, or reads a wrong value. Adds their round trips.
    pub(crate) async fn run<S: Structure>(
        &self,
        structure: &S,
        number: u64,
        trips: &mut u32,
    ) -> Result<Outcome, S::Error> {
        let (began, mut pauses) = (structure.now(), Pauses::new(number));
        for attempt in 0.. {
            match self.attempt(structure, number, attempt, trips).await {
                Err(error) if S::is_conflict(&error) && structure.now() - began < PATIENCE => {}
                result => return result,
            }
            let pause = pauses.draw(&Backoff::TRANSACTIONS, attempt, 0);
            structure.sleep_until(structure.now() + pause).await;
        }
        unreachable!("it ends when patience does")
    }
}
