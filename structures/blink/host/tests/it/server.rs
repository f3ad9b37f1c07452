//! Parts of a server, content that it refuses to serve, and its description of itself.
use crate::common;

use common::device::WatchedDevice;
use common::lab::{Lab, SERVER, options};
use fatbtree_blink::node::LINE;
use fatbtree_blink::{GlobalAddress, Integrity, Superblock, TreeConfig, ValueLayout};
use fatbtree_blink_host::{LoadOptions, TreeEvent, TreeInfo, bulk_load_over, set_root};
use fatbtree_memserver::{MemoryServer, ServerError, ServerOptions};
use fatbtree_verbs::plain::PlainNetwork;
use fatbtree_verbs::{Access, Failure, Mtu, Operation, Output, Remote};

#[test]
fn the_tree_is_registered_where_its_pointers_lead() {
    let mut lab = Lab::new(options());
    let info = *lab.server.info();
    assert_eq!((info.partition.id, info.generation, info.counts.keys), (SERVER, 1, 1000));
    assert_eq!((info.region.iova, info.region.len), (u64::from(SERVER) << 48, lab.server.memory().len()));
    assert_eq!((info.path_mtu, info.masked_atomics, info.line_atomicity), (Mtu::B4096, true, true));
    assert_eq!((info.locks, info.chunk_bytes), (None, 4096));
    let mut client = lab.client();
    let session = lab.open(&client).unwrap();
    let pair = lab.connect(&mut client, session).unwrap();
    let at = |address: GlobalAddress| Remote { address: address.raw(), rkey: info.region.rkey };
    // The device and the server have one memory.
    let from = at(info.partition.root);
    let Ok(Output::Read(bytes)) = client.post(pair, Operation::Read { from, len: LINE as u32 }) else {
        panic!("the root can be read")
    };
    let mut expected = [0; LINE];
    lab.server.memory().read(info.partition.root.offset(), &mut expected).unwrap();
    assert_eq!(*bytes, expected);
    let refused = client.post(pair, Operation::Write { to: from, data: &[0; 8] });
    assert_eq!(refused.unwrap_err(), Failure::RemoteAccess, "clients may read, unless more is asked for");
}

#[test]
fn locks_lie_on_the_device_if_it_has_room_for_them() {
    for (has, on_device) in [(1 << 18, true), ((1 << 18) - 1, false), (0, false)] {
        let network = PlainNetwork::new();
        let device = WatchedDevice::new(network.device());
        device.watch.borrow_mut().device_memory = has;
        let options = ServerOptions { access: Access::ALL, lock_table_bytes: 131_072 * 2, ..options() };
        let tree = common::load(&LoadOptions::new(TreeConfig::default(), 0), &[1]);
        let server = MemoryServer::new(device, tree, &options.clone(), 1).unwrap();
        let locks = server.info().locks.unwrap();
        assert_eq!((locks.on_device, locks.region.iova, locks.region.len), (on_device, 0, 1 << 18));
        assert_ne!(locks.region.rkey, server.info().region.rkey);

        let mut lab = Lab::new(options);
        let mut client = lab.client();
        let session = lab.open(&client).unwrap();
        let pair = lab.connect(&mut client, session).unwrap();
        let at = Remote { address: 8, rkey: lab.server.info().locks.unwrap().region.rkey };
        let lock =
            Operation::MaskedCompareSwap { at, compare: 0, compare_mask: 0xffff, swap: 7, swap_mask: 0xffff };
        assert!(matches!(client.post(pair, lock), Ok(Output::Atomic(0))));
        assert!(matches!(client.post(pair, lock), Ok(Output::Atomic(7))));
        assert!(client.post(pair, Operation::Write { to: at, data: &[0; 8] }).is_ok());
    }
}

#[test]
fn a_tree_that_does_not_go_with_the_device_is_not_served() {
    let network = PlainNetwork::new();
    let load = |integrity| {
        let config = TreeConfig::with_integrity(16, 1024, ValueLayout::OutOfLine, integrity).unwrap();
        common::load(&LoadOptions { spare_bytes: 1 << 20, ..LoadOptions::new(config, 0) }, &[1])
    };
    let tears = |tears: bool| {
        let device = WatchedDevice::new(network.device());
        device.watch.borrow_mut().line_atomicity = !tears;
        device
    };
    let serve = |tears_lines, integrity, options| {
        MemoryServer::new(tears(tears_lines), load(integrity), &options, 1).map(drop)
    };
    let refused = serve(true, Integrity::LineVersions, options());
    assert_eq!(refused, Err(ServerError::Integrity));
    assert_eq!(serve(true, Integrity::for_device(false), options()), Ok(()));
    assert_eq!(serve(false, Integrity::Checksums, options()), Ok(()));
    assert_eq!(serve(false, Integrity::for_device(true), options()), Ok(()));

    let device = network.device().with_mtu(Mtu::B512);
    let error = MemoryServer::new(device, load(Integrity::LineVersions), &options(), 1).unwrap_err();
    let text = "index reads of 1024 bytes exceed path MTU 512: they must be answered in one packet";
    assert!(error.to_string().starts_with(text), "{error}");

    let mut tree = load(Integrity::LineVersions);
    tree.spare.end += 1;
    let error = MemoryServer::new(tears(false), tree, &options(), 1).unwrap_err();
    assert_eq!(error, ServerError::Padding { expected: 1024 });
    assert!(error.to_string().contains("1024 bytes, which an index read may reach for"), "{error}");
    let tree = load(Integrity::LineVersions);
    tree.region.write(8, &[0xff]).unwrap();
    let refused = MemoryServer::new(tears(false), tree, &options(), 1).map(drop);
    assert_eq!(refused, Err(ServerError::Header));

    for chunk_bytes in [0, 512, 1000, 1025, 1056] {
        let options = ServerOptions { chunk_bytes, ..options() };
        let error = serve(false, Integrity::LineVersions, options).unwrap_err();
        assert!(matches!(error, ServerError::Chunks(_)), "{error}");
    }
    let device = WatchedDevice::new(network.device());
    device.watch.borrow_mut().limit = 0;
    let error = MemoryServer::new(device, load(Integrity::LineVersions), &options(), 1).unwrap_err();
    assert!(matches!(error, ServerError::Device(_)), "{error}");
}

#[test]
fn making_a_server_leaves_no_queue_pair() {
    assert_eq!(Lab::new(options()).watch().queue_pairs.len(), 0);
}

#[test]
fn a_region_is_filled_anew_by_its_next_server() {
    let mut lab = Lab::new(options());
    let mut client = lab.client();
    let session = lab.open(&client).unwrap();
    let pair = lab.connect(&mut client, session).unwrap();
    let before = *lab.server.info();
    let (device, mut memory) = lab.server.stop();
    let options_of_load = LoadOptions::new(before.config, SERVER);
    let mut values = common::values(before.config);
    let tree = bulk_load_over(&mut memory, &options_of_load, &[5, 6, 7], &mut values).unwrap();
    drop(memory);
    let server = MemoryServer::new(device, tree, &options(), 1).unwrap();
    assert_eq!((server.info().generation, server.info().counts.keys), (2, 3));
    assert_ne!(server.info().region.rkey, before.region.rkey, "who still has the old key is refused");
    let from = Remote { address: before.partition.root.raw(), rkey: before.region.rkey };
    assert!(client.post(pair, Operation::Read { from, len: 8 }).is_err());
}

// ---- the root ----

#[test]
fn another_root_is_noticed_and_told() {
    let mut lab = Lab::new(ServerOptions { access: Access::ALL, ..options() });
    let mut client = lab.client();
    let session = lab.open(&client).unwrap();
    let pair = lab.connect(&mut client, session).unwrap();
    assert!(
        matches!(lab.events()[..], [TreeEvent::Opened(hop)] if hop.root == lab.server.info().partition.root)
    );
    let info = *lab.server.info();

    // A client splits the root and writes the superblock.
    let mut line = [0; LINE];
    lab.server.memory().read(0, &mut line).unwrap();
    let mut superblock = Superblock::parse(&line).unwrap();
    let root = GlobalAddress::new(SERVER, info.partition.root.offset() - 384);
    superblock.partition.root = root;
    superblock.partition.root_level += 1;
    superblock.version += 1;
    let to = Remote { address: info.region.iova, rkey: info.region.rkey };
    client.post(pair, Operation::Write { to, data: &superblock.to_bytes() }).unwrap();
    // A client that connects now is told the new one.
    lab.connect(&mut client, session).unwrap();
    let events = lab.events();
    let new_root = TreeEvent::NewRoot(TreeInfo { partition: superblock.partition, ..info.structure });
    assert!(matches!(events[..], [first, TreeEvent::Opened(hop)] if first == new_root && hop.root == root));
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
