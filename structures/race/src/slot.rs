//! The eight bytes by which a bucket names a block.

use fatbtree_remote_memory::GlobalAddress;

/// Memory servers that a table can be spread over: numbers below this.
pub const MAX_SERVERS: u16 = 1 << SERVER_BITS;

/// Bytes of a server's region that pointers of 64-byte units reach: 64 GiB.
pub const MAX_REGION: u64 = UNIT << UNIT_BITS;

/// Bytes of a unit: blocks and subtables begin at multiples of it, and lengths are counted in it.
pub const UNIT: u64 = 64;

const UNIT_BITS: u32 = 30;
const SERVER_BITS: u32 = 5;
const VERSION_BITS: u32 = 11;
const VERSION: u32 = UNIT_BITS + SERVER_BITS;
const TENTATIVE: u64 = 1 << (VERSION + VERSION_BITS);
const FROZEN: u64 = TENTATIVE << 1;
const CHECK: u32 = 48;
const CHECK_MASK: u64 = 0b111;
const LENGTH: u32 = 51;
const LENGTH_MASK: u64 = 0b1_1111;
const FINGERPRINT: u32 = 56;
const _: () = assert!(FROZEN << 1 == 1 << CHECK);

/// Bits of a slot that the check bits are the parities of. Bit *i* counts in those that the powers of *x* modulo *x*³ + *x* + 1 have in
/// *x* to the *i*: so any one bit that flips shows, and any two whose distance is no multiple of seven.
const PARITIES: [u64; 3] = parities();

const fn parities() -> [u64; 3] {
    let (mut masks, mut power, mut bit) = ([0; 3], 1_u64, 0);
    while bit < u64::BITS {
        let mut row = 0;
        while row < 3 {
            if power >> row & 1 == 1 && (CHECK_MASK << CHECK) >> bit & 1 == 0 {
                masks[row] |= 1 << bit;
            }
            row += 1;
        }
        power <<= 1;
        if power > CHECK_MASK {
            power ^= 0b1011;
        }
        bit += 1;
    }
    masks
}

/// The check bits of a word, where they belong.
const fn check(word: u64) -> u64 {
    let [one, two, four] = PARITIES;
    let bits = (word & one).count_ones() & 1
        | ((word & two).count_ones() & 1) << 1
        | ((word & four).count_ones() & 1) << 2;
    (bits as u64) << CHECK
}

/// A multiple of [`UNIT`] on one of [`MAX_SERVERS`], in 35 bits. It is never 0: at offset 0 lies the region's header.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place(u64);

impl Place {
    pub(crate) const BITS: u32 = UNIT_BITS + SERVER_BITS;

    /// Packs an address. `None` if it is the null pointer, no multiple of a unit, or out of reach.
    #[must_use]
    pub const fn of(address: GlobalAddress) -> Option<Self> {
        let (server, offset) = (address.server(), address.offset());
        let fits = server < MAX_SERVERS && offset < MAX_REGION && offset.is_multiple_of(UNIT) && offset > 0;
        if fits { Some(Self(((server as u64) << UNIT_BITS) | (offset / UNIT))) } else { None }
    }

    /// Takes the low bits of a word. `None` if they name no unit.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        let place = word & ((1 << Self::BITS) - 1);
        if place & ((1 << UNIT_BITS) - 1) == 0 { None } else { Some(Self(place)) }
    }

    /// The packed address.
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The word by which a subtable names its successors, the begin of which this is: the packed address, and a sum of it.
    #[must_use]
    pub(crate) const fn link(self) -> u64 {
        self.0 | sum(self.0, LINK_SUM)
    }

    /// Reads such a word. `Ok(None)` if there are no successors: the word [counts](no_link) then.
    ///
    /// # Errors
    /// When no client has ever written it: it is damaged.
    pub(crate) const fn of_link(word: u64) -> Result<Option<Self>, DamagedLink> {
        let low = word & (u64::MAX >> LINK_SUM);
        if low | sum(low, LINK_SUM) != word {
            return Err(DamagedLink);
        }
        match Self::from_word(low) {
            Some(place) if place.0 == low => Ok(Some(place)),
            None if low & ((1 << Self::BITS) - 1) == 0 => Ok(None),
            _ => Err(DamagedLink),
        }
    }

    /// The address.
    #[must_use]
    pub const fn address(self) -> GlobalAddress {
        GlobalAddress::new((self.0 >> UNIT_BITS) as u16, (self.0 & ((1 << UNIT_BITS) - 1)) * UNIT)
    }
}

/// The word of a subtable without successors: a number, and a sum of it. Numbers go round at [`LINK_NUMBERS`].
#[must_use]
pub(crate) const fn no_link(number: u64) -> u64 {
    let low = (number % LINK_NUMBERS) << Place::BITS;
    low | sum(low, LINK_SUM)
}

/// The number of such a word.
#[must_use]
pub(crate) const fn number_of(word: u64) -> u64 {
    word >> Place::BITS & (LINK_NUMBERS - 1)
}

/// Numbers that a word without successors can have.
pub(crate) const LINK_NUMBERS: u64 = 1 << (u64::BITS - LINK_SUM - Place::BITS);

/// A word that is neither.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DamagedLink;

/// High bits of a link that are a sum of the others.
const LINK_SUM: u32 = 16;

/// A sum of a word, in its `bits` highest bits, which are 0 there: the highest ones of a product with an odd number. A bit that flips changes
/// the product by that number, shifted, of which the highest bits are neither all 0 nor all 1.
pub(crate) const fn sum(word: u64, bits: u32) -> u64 {
    let low = u64::BITS - bits;
    (word & (u64::MAX >> bits)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> low << low
}

/// Pointer from a bucket to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockPointer {
    /// Eight bits of the key's hash.
    pub fingerprint: u8,
    /// Units of the block: 1 to 8, or a number with three significant bits; 255: as many, or more.
    pub units: u8,
    /// Version of the record, of which the low 11 bits count.
    pub version: u32,
    /// Begin of the block.
    pub place: Place,
}

/// State of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The pointer counts: its key is in the table.
    Committed,
    /// An insertion is under way. Readers take no notice of it, and every client may remove it.
    Tentative,
}

/// A slot as it lies in memory, little-endian.
///
/// ```text
///   63        56 55    51 50   48 47     46         45      35 34    30 29          0
///   fingerprint  length   check   frozen tentative  version    server   64-byte units
///        8         5        3       1       1         11         5           30
/// ```
///
/// RACE's slot has a pointer of 48 bits after fingerprint and length. Blocks begin at multiples of 64, so 30 bits are 64 GiB of each of
/// 32 servers; the other bits hold the version, by which no word comes twice, and two states. The length is that of the block, of which
/// there are 28.
///
/// The *check* bits depend on all others. Without them a bit that flips in a fingerprint, or makes a pointer tentative, would hide the key. They
/// are linear: the states below change them as they change their own bit, so a damaged slot stays one, whatever is done with it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Slot(pub u64);

impl Slot {
    /// No pointer.
    pub const EMPTY: Self = Self(0);

    /// A pointer that is neither frozen nor tentative.
    #[must_use]
    pub const fn new(pointer: BlockPointer) -> Self {
        let version = (pointer.version as u64) & ((1 << VERSION_BITS) - 1);
        let sizes = (pointer.fingerprint as u64) << FINGERPRINT | class_of(pointer.units) << LENGTH;
        let word = sizes | version << VERSION | pointer.place.word();
        Self(word | check(word))
    }

    /// The pointer, whatever the state. `None` if the slot is empty.
    #[must_use]
    pub fn pointer(self) -> Option<BlockPointer> {
        let place = Place::from_word(self.0)?;
        let version = (self.0 >> VERSION & ((1 << VERSION_BITS) - 1)) as u32;
        let (fingerprint, units) =
            ((self.0 >> FINGERPRINT) as u8, units_of((self.0 >> LENGTH & LENGTH_MASK) as u32));
        Some(BlockPointer { fingerprint, units, version, place })
    }

    /// Whether the check bits are right: no client has ever written another word, so it is damaged.
    #[must_use]
    pub const fn is_sound(self) -> bool {
        check(self.0) == self.0 & CHECK_MASK << CHECK
    }

    /// The slot with a bit set or cleared.
    const fn with(self, bit: u64, is_set: bool) -> Self {
        if (self.0 & bit != 0) == is_set { self } else { Self(self.0 ^ bit ^ check(bit)) }
    }

    /// Whether the slot is free to be filled.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the slot belongs to a subtable that is being split, or was. It never changes again.
    #[must_use]
    pub const fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    /// State of the pointer. Without meaning in an empty slot.
    #[must_use]
    pub const fn state(self) -> State {
        if self.0 & TENTATIVE != 0 { State::Tentative } else { State::Committed }
    }

    /// The slot frozen.
    #[must_use]
    pub const fn frozen(self) -> Self {
        self.with(FROZEN, true)
    }

    /// The slot as it was before it was frozen.
    #[must_use]
    pub const fn thawed(self) -> Self {
        self.with(FROZEN, false)
    }

    /// The slot as a tentative one.
    #[must_use]
    pub const fn tentative(self) -> Self {
        self.with(TENTATIVE, true)
    }

    /// The slot as one that counts.
    #[must_use]
    pub const fn committed(self) -> Self {
        self.with(TENTATIVE, false)
    }
}

/// Units of the smallest block that holds so many: see [`block_bytes`](crate::block::block_bytes).
pub(crate) const fn block_units(units: u32) -> u32 {
    let step = if units <= 8 { 1 } else { 1 << ((units - 1).ilog2() - 2) };
    units.next_multiple_of(step)
}

/// Number of the length of a block with so many units: 1 to 8 one by one, then four up to each double.
const fn class_of(units: u8) -> u64 {
    let units = units as u32;
    if units <= 8 {
        return units.saturating_sub(1) as u64;
    }
    let power = (units - 1).ilog2();
    (8 + (power - 3) * 4 + (units - (1 << power)).div_ceil(1 << (power - 2)) - 1) as u64
}

/// Units of the length of a number.
const fn units_of(class: u32) -> u8 {
    if class < 8 {
        return class as u8 + 1;
    }
    let power = (class - 8) / 4 + 3;
    let units = (1 << power) + ((class - 8) % 4 + 1) * (1 << (power - 2));
    if units < u8::MAX as u32 { units as u8 } else { u8::MAX }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_slot_is_read_as_it_was_written(
            fingerprint: u8,
            class in 0..28_u32,
            version in 0..1_u32 << 11,
            server in 0..MAX_SERVERS,
            unit in 1..MAX_REGION / UNIT,
        ) {
            let address = GlobalAddress::new(server, unit * UNIT);
            let place = Place::of(address).unwrap();
            prop_assert_eq!(place.address(), address);
            let pointer = BlockPointer { fingerprint, units: units_of(class), version, place };
            let slot = Slot::new(pointer);
            prop_assert_eq!((slot.pointer(), slot.state()), (Some(pointer), State::Committed));
            prop_assert!(!slot.is_empty() && !slot.is_frozen());
            let changed = slot.tentative().frozen();
            prop_assert_eq!((changed.pointer(), changed.state()), (Some(pointer), State::Tentative));
            prop_assert!(changed.is_frozen());
            prop_assert_eq!(changed.thawed().committed(), slot);
            for state in [slot, slot.tentative(), slot.frozen(), changed, Slot::EMPTY, Slot::EMPTY.frozen()] {
                prop_assert!(state.is_sound());
                for bit in 0..64 {
                    let damaged = Slot(state.0 ^ 1 << bit);
                    // Also when other clients go on with it.
                    let later = [damaged, damaged.frozen(), damaged.tentative(), damaged.thawed(), damaged.committed()];
                    prop_assert!(later.iter().all(|slot| !slot.is_sound()), "bit {}", bit);
                }
            }
        }

        #[test]
        fn any_word_is_a_slot(word: u64) {
            let slot = Slot(word);
            if let Some(pointer) = slot.pointer() {
                if slot.is_sound() && slot.0 >> LENGTH & LENGTH_MASK < 28 {
                    prop_assert_eq!(Slot::new(pointer), slot.thawed().committed());
                }
                prop_assert_eq!(Place::of(pointer.place.address()), Some(pointer.place));
            }
        }
    }

    #[test]
    fn a_link_whose_bits_flip_is_damaged() {
        assert_eq!((no_link(0), no_link(LINK_NUMBERS)), (0, 0));
        for number in 0..LINK_NUMBERS {
            let word = no_link(number);
            assert_eq!((Place::of_link(word), number_of(word)), (Ok(None), number));
            assert!((0..64).all(|bit| Place::of_link(word ^ 1 << bit).is_err()), "{number}");
        }
        for unit in (1..1 << 24).step_by(99_991) {
            let place = Place::of(GlobalAddress::new((unit % 32) as u16, unit * UNIT)).unwrap();
            assert_eq!(Place::of_link(place.link()), Ok(Some(place)));
            assert!((0..64).all(|bit| Place::of_link(place.link() ^ 1 << bit).is_err()), "{place:?}");
        }
    }

    #[test]
    fn a_frozen_slot_that_was_empty_is_neither() {
        let slot = Slot::EMPTY.frozen();
        assert!(!slot.is_empty() && slot.is_frozen() && slot.pointer().is_none());
        assert!(slot.thawed().is_empty());
    }

    #[test]
    fn golden_bytes() {
        let place = Place::of(GlobalAddress::new(3, 0x40)).unwrap();
        let slot = Slot::new(BlockPointer { fingerprint: 0xab, units: 2, version: 5, place });
        assert_eq!(slot.0, 0xab09_0028_c000_0001);
    }

    #[test]
    fn addresses_out_of_reach_are_refused() {
        for (server, offset) in [(0, 0), (0, 32), (MAX_SERVERS, 64), (0, MAX_REGION)] {
            assert_eq!(Place::of(GlobalAddress::new(server, offset)), None, "{server}, {offset}");
        }
    }
}
