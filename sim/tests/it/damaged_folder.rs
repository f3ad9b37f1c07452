//! A memory server's folder whose tree a hostile writer has damaged: the check at the start ends, and says what is wrong.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use fatbtree_blink::{Integrity, Superblock, TreeConfig, ValueLayout};
use fatbtree_blink_host::{Load, LoadOptions, TreeFolder, TreeStorage, build_in, seeded, tree_in};
use fatbtree_memserver::{FolderError, FolderOwner};
use fatbtree_sim::damage::{Damage, Target};
use fatbtree_sim::world::Random;
use rand::{RngExt as _, SeedableRng as _};

const CHUNK: u64 = 4096;
/// Seeds of each kind of damage.
const SEEDS: u64 = 12;
/// Time limit, longer than any step that ends.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(path: &Path) -> Result<TreeFolder, FolderError> {
    let owner = FolderOwner { server: "left".to_owned(), partition: 0, address: Ipv4Addr::new(10, 0, 0, 2) };
    TreeFolder::open(path, owner, CHUNK)
}

fn load(path: &Path, integrity: Integrity, values: ValueLayout) {
    let config = TreeConfig::with_integrity(4, 192, values, integrity).unwrap();
    let options = LoadOptions { spare_bytes: 4 * CHUNK, generation: 1, ..LoadOptions::new(config, 0) };
    let keys: Vec<u64> = (0..120).map(|key| key * 0x0010_0000_0000_0001).collect();
    let mut storage = TreeStorage::Folder(open(path).unwrap().into());
    let tree = build_in(&mut storage, &options, u64::MAX, Load::Numbers(&keys, &mut seeded(1, 8))).unwrap();
    storage.keep(tree.kept()).unwrap();
}

/// Writes some pieces of damage to the folder's tree.
fn damage(path: &Path, first: Damage, random: &mut Random) {
    let tree = tree_in(&open(path).unwrap()).unwrap().unwrap();
    let mut line = [0; 64];
    for number in 0..random.random_range(1..=4) {
        tree.region.read(0, &mut line).unwrap();
        let root = Superblock::parse(&line).map_or(tree.partition.root, |found| found.partition.root);
        let target = Target::new(&tree.region, &tree.config, 0, root);
        let other = Damage::ALL[random.random_range(0..Damage::ALL.len())];
        for (at, bytes) in target.strike(if number == 0 { first } else { other }, random) {
            // Addresses outside of the region are refused.
            let _ = tree.region.write(at, &bytes);
        }
    }
}

#[test]
fn the_start_check_of_a_damaged_folder_ends() {
    let (told, tells) = mpsc::channel();
    // In a thread of its own: a walk without an end is a failure, not a test that hangs.
    std::thread::spawn(move || {
        for &kind in Damage::ALL {
            for seed in 0..SEEDS {
                let mut random = Random::seed_from_u64(seed);
                let integrity = [Integrity::LineVersions, Integrity::Checksums][random.random_range(0..2)];
                let values = [ValueLayout::Inline(8), ValueLayout::OutOfLine][random.random_range(0..2)];
                let folder = tempfile::tempdir().unwrap();
                load(folder.path(), integrity, values);
                damage(folder.path(), kind, &mut random);
                told.send((kind, seed, None)).unwrap();
                let found =
                    open(folder.path()).and_then(|folder| tree_in(&folder).map(|tree| tree.is_some()));
                told.send((kind, seed, Some(found.map_err(|error| error.to_string())))).unwrap();
            }
        }
    });
    let (mut served, mut refused) = (0, 0);
    let mut last = None;
    loop {
        match tells.recv_timeout(PATIENCE) {
            Ok((_, _, Some(Ok(is_there)))) => served += u64::from(is_there),
            Ok((kind, seed, Some(Err(text)))) => {
                assert!(text.contains("tree-1") && text.contains("damaged"), "{kind:?}, seed {seed}: {text}");
                refused += 1;
            }
            Ok((kind, seed, None)) => last = Some((kind, seed)),
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the check does not end: {last:?}"),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    assert_eq!(served + refused, SEEDS * Damage::ALL.len() as u64, "the thread panicked after {last:?}");
    assert!(served > 5 && refused > 40, "{served} served, {refused} refused");
}
