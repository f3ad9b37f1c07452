//! What a memory server checks of a tree: its integrity, the size of its nodes, and its superblock.
use crate::common;

use common::lab::{Lab, SERVER, options};
use fatbtree_blink::node::LINE;
use fatbtree_blink::{GlobalAddress, Integrity, Superblock, TreeConfig, ValueLayout};
use fatbtree_blink_host::{LoadOptions, TreeEvent, TreeInfo, set_root};
use fatbtree_memserver::{MemoryServer, ServerError, ServerOptions};
use fatbtree_verbs::Mtu;
use fatbtree_verbs::plain::PlainNetwork;

#[test]
fn a_tree_that_does_not_go_with_the_device_is_not_served() {
    let network = PlainNetwork::new();
    let load = |integrity| {
        let config = TreeConfig::with_integrity(16, 1024, ValueLayout::OutOfLine, integrity).unwrap();
        common::load(&LoadOptions { spare_bytes: 1 << 20, ..LoadOptions::new(config, 0) }, &[1])
    };
    // Threads of the process and the device tear lines between them.
    let serve = |local_clients, integrity| {
        let options = ServerOptions { local_clients, ..options() };
        MemoryServer::new(network.device(), load(integrity), &options, 1).map(drop)
    };
    assert_eq!(serve(true, Integrity::LineVersions), Err(ServerError::Integrity));
    assert_eq!(serve(true, Integrity::for_device(false)), Ok(()));
    assert_eq!(serve(false, Integrity::Checksums), Ok(()));
    assert_eq!(serve(false, Integrity::for_device(true)), Ok(()));

    let device = network.device().with_mtu(Mtu::B512);
    let error = MemoryServer::new(device, load(Integrity::LineVersions), &options(), 1).unwrap_err();
    let text = "index reads of 1024 bytes exceed path MTU 512: they must be answered in one packet";
    assert!(error.to_string().starts_with(text), "{error}");
}

#[test]
fn another_root_is_noticed_and_told() {
    let mut lab = Lab::new(options());
    let info = *lab.server.info();

    // A client splits the root and writes the superblock.
    let mut line = [0; LINE];
    lab.server.memory().read(0, &mut line).unwrap();
    let mut superblock = Superblock::parse(&line).unwrap();
    let root = GlobalAddress::new(SERVER, info.partition.root.offset() - 384);
    superblock.partition.root = root;
    superblock.partition.root_level += 1;
    superblock.version += 1;
    lab.server.memory().write(0, &superblock.to_bytes()).unwrap();
    lab.server.work(lab.now, 1);
    let new_root = TreeEvent::NewRoot(TreeInfo { partition: superblock.partition, ..info.structure });
    assert_eq!(lab.events(), [new_root]);
    assert_eq!(lab.server.info().partition, superblock.partition);
    lab.server.work(lab.now, 1);
    assert_eq!(lab.events(), []);
    assert_eq!((lab.counter("roots_seen"), lab.counter("superblocks_refused")), (1, 0));

    // The server can do it as well; only the last one is worth telling.
    set_root(&mut lab.server, info.partition.root, info.partition.root_level).unwrap();
    set_root(&mut lab.server, root, 2).unwrap();
    assert!(matches!(lab.events()[..], [TreeEvent::NewRoot(tree)] if tree.partition.root == root));
    lab.server.memory().read(0, &mut line).unwrap();
    assert_eq!(Superblock::parse(&line).unwrap().version, superblock.version + 2);
}

/// A client with write access may write anything to tree memory.
#[test]
fn a_superblock_that_cannot_be_changes_nothing() {
    let mut lab = Lab::new(options());
    let before = *lab.server.info();
    let mut line = [0; LINE];
    lab.server.memory().read(0, &mut line).unwrap();
    let good = Superblock::parse(&line).unwrap();
    let at = |offset| GlobalAddress::new(SERVER, offset);
    let len = lab.server.memory().len();
    let with = |root, level| {
        let mut bad = good;
        (bad.partition.root, bad.partition.root_level) = (root, level);
        bad.to_bytes()
    };
    let another_server = GlobalAddress::new(SERVER + 1, before.partition.root.offset());
    let mut other_generation = good;
    other_generation.generation += 1;
    let mut other_region = good;
    other_region.region_bytes += 64;
    let mut other_keys = good;
    other_keys.partition.range.low += 1;
    let lines = [
        [0; LINE],
        [0xff; LINE],
        with(another_server, 1),
        with(at(0), 1),
        with(at(65), 1),
        with(at(len - 1024 - 320), 1),
        with(at(len - 1024 - 960), 0),
        with(at(len - 1024), 1),
        with(at(1 << 47), 1),
        other_generation.to_bytes(),
        other_region.to_bytes(),
        other_keys.to_bytes(),
    ];
    for (count, line) in (1..).zip(lines) {
        lab.server.memory().write(0, &line).unwrap();
        lab.server.work(lab.now, 1);
        assert_eq!(lab.server.info(), &before, "line {count}");
        assert_eq!(lab.counter("superblocks_refused"), count);
    }
    assert_eq!(lab.events(), []);
    assert!(
        set_root(&mut lab.server, before.partition.root, 2).is_err(),
        "over a damaged one nothing is written"
    );
    lab.server.memory().write(0, &good.to_bytes()).unwrap();
    for (root, level) in [(at(len), 1), (at(0), 0), (another_server, 1)] {
        let text = set_root(&mut lab.server, root, level).unwrap_err().to_string();
        assert!(text.contains("no root"), "{text}");
    }
    assert!(set_root(&mut lab.server, at(len - 1024 - 384), 1).is_ok());
}
