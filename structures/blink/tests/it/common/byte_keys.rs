//! Keys of bytes that begin alike at many lengths, and small trees for them; the tests of the structure's host use them as well.

use fatbtree_blink::layers::KeyCode;
use fatbtree_blink::{Integrity, Keys, LeafKind, TreeConfig, ValueLayout};
use proptest::prelude::*;

/// Small trees of keys of bytes, with each kind of leaves and of marks.
pub(crate) fn configs() -> Vec<TreeConfig> {
    let mut all = Vec::new();
    for integrity in [Integrity::LineVersions, Integrity::Checksums] {
        for (values, leaf_bytes, leaves) in [
            (ValueLayout::SHORT, 64 * 3, LeafKind::Plain),
            (ValueLayout::ByLength(19), 64 * 3, LeafKind::Plain),
            (ValueLayout::ByLength(60), 64 * 7, LeafKind::Plain),
            (ValueLayout::SHORT, 64 * 5, LeafKind::Buckets),
        ] {
            let plain = TreeConfig::with_integrity(4, leaf_bytes, values, integrity).unwrap();
            all.push(plain.with_leaves(leaves).unwrap().with_keys(Keys::Bytes).unwrap());
        }
    }
    all
}

/// Codes of keys: none, and two that expect some keys and not others.
pub(crate) fn codes() -> [KeyCode; 3] {
    let descriptions: [&[u8]; 3] =
        [&[], &[0, 1, b'a', 255, b'h', 9, 1, 0, b'h', b't', 255], &[7 << 2, 1, 0, 255, b'1', 1]];
    descriptions.map(|description| KeyCode::new(description).unwrap())
}

/// Pieces of keys, such that keys begin alike at many lengths.
pub(crate) fn pieces() -> Vec<Vec<u8>> {
    let pieces: [&[u8]; 14] = [
        b"",
        b"a",
        b"b",
        b"\0",
        b"\0\0",
        b"\xff",
        b"ab",
        b"1234567",
        b"12345678",
        b"123456789",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\xff\xff\xff\xfe",
        b"https://www.",
        b"\0\0\0\0\0\0\0\0\0",
    ];
    let mut pieces: Vec<_> = pieces.iter().map(|piece| piece.to_vec()).collect();
    pieces.extend([vec![b'x'; 100], vec![b'x'; 191], vec![b'x'; 192], vec![b'x'; 200], vec![0xff; 201]]);
    pieces
}

/// Keys of such pieces.
pub(crate) fn key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(pieces()), 0..5).prop_map(|pieces| pieces.concat())
}
