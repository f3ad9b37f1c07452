//! SmallBank: a savings and a checking account for each customer, and six transactions on them.
//!
//! | transaction | of 100 | items |
//! |---|---|---|
//! | amalgamate: all of one customer's money goes to another's checking account | 15 | 3 changed |
//! | balance: sum of both accounts | 15 | 2 read |
//! | deposit: adds to a checking account | 15 | 1 changed |
//! | payment: from one checking account to another | 25 | 2 changed |
//! | savings: adds to a savings account | 15 | 1 changed |
//! | check: takes from a checking account what both cover, with a penalty otherwise | 15 | 1 read, 1 changed |
//!
//! Source: Alomari et al., ICDE 2008; FORD, FAST 2022, section 6; SMART's artifact (90 % of the customers are drawn from 4 % of them).

use fatbtree_verbs::Verbs;

use super::Writes;
use crate::{BadShape, DtxError, Shape, TableShape, Transaction, Verdict, Want};

/// Table of savings accounts.
pub const SAVINGS: u8 = 0;
/// Table of checking accounts.
pub const CHECKING: u8 = 1;
/// Bytes of an account.
pub const ACCOUNT_BYTES: u16 = 16;

/// Money at the beginning, in each account.
pub const INITIAL: i64 = 1_000;

/// An account: its money, and the number of the transaction that has changed it last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Account {
    /// Money; may be below zero.
    pub money: i64,
    /// The caller's number of the transaction.
    pub stamp: u64,
}

impl Account {
    /// The account as it lies in memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; ACCOUNT_BYTES as usize] {
        let mut bytes = [0; ACCOUNT_BYTES as usize];
        bytes[..8].copy_from_slice(&self.money.to_le_bytes());
        bytes[8..].copy_from_slice(&self.stamp.to_le_bytes());
        bytes
    }

    /// Reads an account. `None` if the bytes are none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (money, stamp) = bytes.split_first_chunk()?;
        Some(Self { money: i64::from_le_bytes(*money), stamp: u64::from_le_bytes(stamp.try_into().ok()?) })
    }
}

/// Tables for so many customers.
///
/// # Errors
/// When the servers do not suffice for the backups.
pub fn shape(customers: u32, servers: u32, backups: u8) -> Result<Shape, BadShape> {
    Shape::new(&[TableShape::for_items(customers, ACCOUNT_BYTES); 2], servers, backups)
}

/// Customers, and how they are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Customers {
    /// All of them.
    pub count: u64,
    /// Those that are drawn more often: the first ones.
    pub hot: u64,
    /// Draws of 100 that are among these.
    pub hot_percent: u64,
}

impl Customers {
    /// As in SMART's evaluation.
    pub const PAPER: Self = Self { count: 100_000, hot: 4_000, hot_percent: 90 };

    fn draw(&self, draw: &mut impl FnMut(u64) -> u64) -> u64 {
        if draw(100) < self.hot_percent { draw(self.hot) } else { draw(self.count) }
    }

    /// Draws a transaction of the mix.
    pub fn operation(&self, draw: &mut impl FnMut(u64) -> u64) -> Operation {
        let kind = match draw(100) {
            0..15 => Kind::Amalgamate,
            15..30 => Kind::Balance,
            30..45 => Kind::Deposit,
            45..70 => Kind::Payment,
            70..85 => Kind::Savings,
            _ => Kind::Check,
        };
        let one = self.draw(draw);
        let mut other = self.draw(draw);
        while other == one && self.count > 1 {
            other = self.draw(draw);
        }
        Operation { kind, one, other, sum: 1 + draw(20) as i64 }
    }
}

/// A kind of transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// All of one customer's money goes to another's checking account.
    Amalgamate,
    /// Reads both accounts of a customer.
    Balance,
    /// Adds to a checking account.
    Deposit,
    /// From one checking account to another, if it has enough.
    Payment,
    /// Adds to a savings account.
    Savings,
    /// Takes from a checking account, and one more as a penalty if both accounts do not cover it.
    Check,
}

/// A transaction to be run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Its kind.
    pub kind: Kind,
    /// The customer.
    pub one: u64,
    /// Another customer, of [`Kind::Amalgamate`] and [`Kind::Payment`].
    pub other: u64,
    /// Money of it.
    pub sum: i64,
}

impl Operation {
    /// Accounts that it reads, and whether it may change each.
    #[must_use]
    pub fn wants(&self) -> [Option<Want>; 3] {
        let (savings, checking) = (Want::write(SAVINGS, self.one), Want::write(CHECKING, self.one));
        let read = |want: Want| Some(Want { writes: false, ..want });
        match self.kind {
            Kind::Amalgamate => [Some(savings), Some(checking), Some(Want::write(CHECKING, self.other))],
            Kind::Balance => [read(savings), read(checking), None],
            Kind::Deposit => [Some(checking), None, None],
            Kind::Payment => [Some(checking), Some(Want::write(CHECKING, self.other)), None],
            Kind::Savings => [Some(savings), None, None],
            Kind::Check => [read(savings), Some(checking), None],
        }
    }

    /// Money of the accounts afterwards, by that before. `None`: it changes nothing, because there is not enough. Sums wrap: memory may hold
    /// any number.
    #[must_use]
    pub fn apply(&self, before: [i64; 3]) -> Option<[i64; 3]> {
        let [one, two, three] = before;
        match self.kind {
            Kind::Amalgamate => Some([0, 0, three.wrapping_add(one).wrapping_add(two)]),
            Kind::Balance => Some(before),
            Kind::Deposit | Kind::Savings => Some([one.wrapping_add(self.sum), two, three]),
            Kind::Payment => {
                (one >= self.sum).then(|| [one.wrapping_sub(self.sum), two.wrapping_add(self.sum), three])
            }
            Kind::Check => {
                let penalty = i64::from(one.saturating_add(two) < self.sum);
                Some([one, two.wrapping_sub(self.sum).wrapping_sub(penalty), three])
            }
        }
    }

    /// What it does with the accounts that it has read, in the order of its wants, and the changed ones as they were and are. `None` if one of
    /// them is missing.
    #[must_use]
    pub fn decide(&self, found: &[Option<&[u8]>], stamp: u64) -> Option<Decision> {
        let mut before = [Account { money: 0, stamp: 0 }; 3];
        for (bytes, account) in found.iter().zip(&mut before) {
            *account = Account::from_bytes((*bytes)?)?;
        }
        let after = self.apply(before.map(|account| account.money));
        let after = after.map(|after| after.map(|money| Account { money, stamp }));
        Some(Decision { before, after })
    }

    /// Runs it in a transaction; `see` is shown each account that it reads, and what becomes of it. Missing accounts abort it.
    ///
    /// # Errors
    /// As of [`Transaction::fetch`].
    pub async fn carry_out<V: Verbs>(
        &self,
        tx: &mut Transaction<'_, V>,
        stamp: u64,
        mut see: impl FnMut(Want, Account, Option<Account>),
    ) -> Result<Verdict<bool>, DtxError> {
        let wants: Vec<_> = self.wants().into_iter().flatten().collect();
        let items = tx.fetch_all(&wants).await?;
        let found: Vec<_> = items.iter().map(|item| tx.value(*item)).collect();
        let Some(decision) = self.decide(&found, stamp) else { return Ok(Verdict::Abort(false)) };
        for (number, (want, item)) in wants.into_iter().zip(items).enumerate() {
            let after = decision.after.filter(|_| want.writes).map(|after| after[number]);
            if let Some(after) = after {
                tx.put(item, &after.to_bytes())?;
            }
            see(want, decision.before[number], after);
        }
        Ok(Verdict::Commit(decision.after.is_some()))
    }
}

/// What a transaction does with the accounts that it has read, in the order of its wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    /// The accounts as they were.
    pub before: [Account; 3],
    /// The accounts as they become, those that are only read among them. `None`: there is not enough money.
    pub after: Option<[Account; 3]>,
}

impl Decision {
    /// What it writes.
    #[must_use]
    pub fn writes(&self, wants: &[Want]) -> Writes {
        let Some(after) = self.after else { return Writes::new() };
        let changed = wants.iter().zip(after).enumerate().filter(|(_, (want, _))| want.writes);
        changed.map(|(number, (_, account))| (number, Some(account.to_bytes().to_vec()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(mut state: u64) -> impl FnMut(u64) -> u64 {
        move |below| {
            state = fatbtree_remote_memory::mix(state.wrapping_add(0x9e37_79b9));
            state % below
        }
    }

    #[test]
    fn the_mix_is_the_papers() {
        let draw = &mut numbers(1);
        let mut counts = std::collections::BTreeMap::new();
        let mut hot = 0;
        for _ in 0..20_000 {
            let operation = Customers::PAPER.operation(draw);
            *counts.entry(operation.kind).or_insert(0) += 1;
            hot += u32::from(operation.one < 4_000);
            assert_ne!(operation.one, operation.other);
        }
        let percent: Vec<i32> = counts.values().map(|count| (count + 100) / 200).collect();
        for (found, expected) in percent.into_iter().zip([15, 15, 15, 25, 15, 15]) {
            assert!((found - expected).abs() <= 1, "{counts:?}");
        }
        assert!((17_800..18_400).contains(&hot), "{hot}");
    }

    #[test]
    fn any_bytes_of_an_account_can_be_read_and_changed() {
        let accounts = [i64::MIN, -1, i64::MAX].map(|money| Account { money, stamp: 7 }.to_bytes());
        for kind in
            [Kind::Amalgamate, Kind::Balance, Kind::Deposit, Kind::Payment, Kind::Savings, Kind::Check]
        {
            let operation = Operation { kind, one: 1, other: 2, sum: 20 };
            for [one, two] in [[0, 0], [0, 1], [2, 0], [2, 1], [2, 2]] {
                let found = [one, two, two].map(|account: usize| Some(&accounts[account][..]));
                assert!(operation.decide(&found, 1).is_some());
            }
        }
        for length in [0, 8, 15, 17, 40] {
            assert_eq!(Account::from_bytes(&vec![0; length]), None, "{length} bytes");
        }
    }

    #[test]
    fn money_moves_and_is_made_by_deposits_only() {
        let of = |kind| Operation { kind, one: 1, other: 2, sum: 10 };
        let sum = |[a, b, c]: [i64; 3]| a + b + c;
        let before = [5, 3, 7];
        assert_eq!(of(Kind::Amalgamate).apply(before), Some([0, 0, 15]));
        assert_eq!(of(Kind::Payment).apply(before), None);
        assert_eq!(of(Kind::Payment).apply([12, 3, 7]), Some([2, 13, 7]));
        assert_eq!(of(Kind::Deposit).apply(before).map(sum), Some(25));
        assert_eq!(of(Kind::Check).apply([5, 6, 0]), Some([5, -4, 0]));
        assert_eq!(of(Kind::Check).apply([5, 3, 0]), Some([5, -8, 0]), "with a penalty");
    }
}
