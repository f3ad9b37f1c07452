//! Translation of atomics between verbs and wire.

use fatbtree_verbs::{Operation, Remote};
use fatbtree_wire::{AtomicEth, AtomicMaskEth, Extension, Opcode};

/// Opcode and extension header of an atomic; `None` for other operations.
pub(crate) fn to_wire(operation: &Operation<'_>) -> Option<(Opcode, Extension)> {
    let header =
        |at: Remote, swap_or_add, compare| AtomicEth { va: at.address, rkey: at.rkey, swap_or_add, compare };
    Some(match *operation {
        Operation::CompareSwap { at, compare, swap } => {
            (Opcode::RC_COMPARE_SWAP, Extension::Atomic(header(at, swap, compare)))
        }
        Operation::FetchAdd { at, add } => (Opcode::RC_FETCH_ADD, Extension::Atomic(header(at, add, 0))),
        Operation::MaskedCompareSwap { at, compare, compare_mask, swap, swap_mask } => (
            Opcode::RC_MASKED_COMPARE_SWAP,
            Extension::MaskedAtomic(
                header(at, swap, compare),
                AtomicMaskEth { swap_mask_or_boundary: swap_mask, compare_mask },
            ),
        ),
        Operation::MaskedFetchAdd { at, add, boundary } => (
            Opcode::RC_MASKED_FETCH_ADD,
            Extension::MaskedAtomic(
                header(at, add, 0),
                AtomicMaskEth { swap_mask_or_boundary: boundary, compare_mask: 0 },
            ),
        ),
        Operation::Read { .. } | Operation::IndexRead { .. } | Operation::Write { .. } => return None,
    })
}

/// Place and operation that a request names; `None` if it is not an atomic.
pub(crate) fn from_wire(opcode: Opcode, extension: &Extension) -> Option<(Remote, Operation<'static>)> {
    let remote = |atomic: &AtomicEth| Remote { address: atomic.va, rkey: atomic.rkey };
    Some(match (opcode, extension) {
        (Opcode::RC_COMPARE_SWAP, Extension::Atomic(atomic)) => {
            let (at, compare, swap) = (remote(atomic), atomic.compare, atomic.swap_or_add);
            (at, Operation::CompareSwap { at, compare, swap })
        }
        (Opcode::RC_FETCH_ADD, Extension::Atomic(atomic)) => {
            let at = remote(atomic);
            (at, Operation::FetchAdd { at, add: atomic.swap_or_add })
        }
        (Opcode::RC_MASKED_COMPARE_SWAP, Extension::MaskedAtomic(atomic, masks)) => {
            let at = remote(atomic);
            let operation = Operation::MaskedCompareSwap {
                at,
                compare: atomic.compare,
                compare_mask: masks.compare_mask,
                swap: atomic.swap_or_add,
                swap_mask: masks.swap_mask_or_boundary,
            };
            (at, operation)
        }
        (Opcode::RC_MASKED_FETCH_ADD, Extension::MaskedAtomic(atomic, masks)) => {
            let at = remote(atomic);
            let boundary = masks.swap_mask_or_boundary;
            (at, Operation::MaskedFetchAdd { at, add: atomic.swap_or_add, boundary })
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_atomic_arrives_as_it_was_sent(address: u64, rkey: u32, a: u64, b: u64, c: u64, d: u64) {
            let at = Remote { address, rkey };
            let operations = [
                Operation::CompareSwap { at, compare: a, swap: b },
                Operation::FetchAdd { at, add: a },
                Operation::MaskedCompareSwap { at, compare: a, compare_mask: b, swap: c, swap_mask: d },
                Operation::MaskedFetchAdd { at, add: a, boundary: b },
            ];
            for operation in operations {
                let (opcode, extension) = to_wire(&operation).unwrap();
                prop_assert_eq!(extension.layout(), opcode.layout());
                prop_assert_eq!(from_wire(opcode, &extension), Some((at, operation)));
            }
            prop_assert_eq!(to_wire(&Operation::Read { from: at, len: 8 }), None);
        }
    }
}
