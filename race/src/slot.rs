//! The eight bytes by which a bucket names a block.

use fatbtree_remote::GlobalAddress;

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
const LENGTH: u32 = 48;
const FINGERPRINT: u32 = 56;
const _: () = assert!(FROZEN << 1 == 1 << LENGTH);

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

    /// The address.
    #[must_use]
    pub const fn address(self) -> GlobalAddress {
        GlobalAddress::new((self.0 >> UNIT_BITS) as u16, (self.0 & ((1 << UNIT_BITS) - 1)) * UNIT)
    }
}

/// Pointer from a bucket to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockPointer {
    /// Eight bits of the key's hash.
    pub fingerprint: u8,
    /// Units of the block that hold the record; 255: as many, or more.
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
///   63        56 55    48 47     46         45      35 34    30 29          0
///   fingerprint  length   frozen tentative  version    server   64-byte units
///        8         8        1       1         11         5           30
/// ```
///
/// RACE's slot has a pointer of 48 bits behind fingerprint and length. Blocks begin at multiples of 64, so 30 bits are 64 GiB of each of
/// 32 servers; the other bits hold the version, by which no word comes twice, and two states.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Slot(pub u64);

impl Slot {
    /// No pointer.
    pub const EMPTY: Self = Self(0);

    /// A pointer that is neither frozen nor tentative.
    #[must_use]
    pub const fn new(pointer: BlockPointer) -> Self {
        let version = (pointer.version as u64) & ((1 << VERSION_BITS) - 1);
        let sizes = (pointer.fingerprint as u64) << FINGERPRINT | (pointer.units as u64) << LENGTH;
        Self(sizes | version << VERSION | pointer.place.word())
    }

    /// The pointer, whatever the state. `None` if the slot is empty.
    #[must_use]
    pub fn pointer(self) -> Option<BlockPointer> {
        let place = Place::from_word(self.0)?;
        let version = (self.0 >> VERSION & ((1 << VERSION_BITS) - 1)) as u32;
        let (fingerprint, units) = ((self.0 >> FINGERPRINT) as u8, (self.0 >> LENGTH) as u8);
        Some(BlockPointer { fingerprint, units, version, place })
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
        Self(self.0 | FROZEN)
    }

    /// The slot as it was before it was frozen.
    #[must_use]
    pub const fn thawed(self) -> Self {
        Self(self.0 & !FROZEN)
    }

    /// The slot as a tentative one.
    #[must_use]
    pub const fn tentative(self) -> Self {
        Self(self.0 | TENTATIVE)
    }

    /// The slot as one that counts.
    #[must_use]
    pub const fn committed(self) -> Self {
        Self(self.0 & !TENTATIVE)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_slot_is_read_as_it_was_written(
            fingerprint: u8,
            units: u8,
            version in 0..1_u32 << 11,
            server in 0..MAX_SERVERS,
            unit in 1..MAX_REGION / UNIT,
        ) {
            let address = GlobalAddress::new(server, unit * UNIT);
            let place = Place::of(address).unwrap();
            prop_assert_eq!(place.address(), address);
            let pointer = BlockPointer { fingerprint, units, version, place };
            let slot = Slot::new(pointer);
            prop_assert_eq!((slot.pointer(), slot.state()), (Some(pointer), State::Committed));
            prop_assert!(!slot.is_empty() && !slot.is_frozen());
            let changed = slot.tentative().frozen();
            prop_assert_eq!((changed.pointer(), changed.state()), (Some(pointer), State::Tentative));
            prop_assert!(changed.is_frozen());
            prop_assert_eq!(changed.thawed().committed(), slot);
        }

        #[test]
        fn any_word_is_a_slot(word: u64) {
            let slot = Slot(word);
            if let Some(pointer) = slot.pointer() {
                prop_assert_eq!(Slot::new(pointer), slot.thawed().committed());
                prop_assert_eq!(Place::of(pointer.place.address()), Some(pointer.place));
            }
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
        assert_eq!(slot.0, 0xab02_0028_c000_0001);
    }

    #[test]
    fn addresses_out_of_reach_are_refused() {
        for (server, offset) in [(0, 0), (0, 32), (MAX_SERVERS, 64), (0, MAX_REGION)] {
            assert_eq!(Place::of(GlobalAddress::new(server, offset)), None, "{server}, {offset}");
        }
    }
}
