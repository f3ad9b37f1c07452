//! Parts of a server, content that it refuses to serve, and its description of itself.
use crate::common;

use std::sync::Arc;

use common::blocks::{self, Blocks, Info, LARGE_BYTES, Shape};
use common::device::WatchedDevice;
use common::lab::{LOADED, Lab, SERVER, options};
use fatbtree_memserver::{Event, Loaded, MemoryServer, PartOptions, ServerError, ServerOptions};
use fatbtree_remote_memory::{GlobalAddress, HEADER_BYTES};
use fatbtree_verbs::plain::PlainNetwork;
use fatbtree_verbs::{Access, Failure, Mtu, Operation, Output, Remote};

#[test]
fn the_region_is_registered_where_its_pointers_lead() {
    let mut lab = Lab::new(options());
    let info = *lab.server.info();
    assert_eq!((info.server, info.generation, info.structure.shape.loaded), (SERVER, 1, LOADED));
    assert_eq!((info.region.iova, info.region.len), (u64::from(SERVER) << 48, lab.server.memory().len()));
    assert_eq!((info.path_mtu, info.masked_atomics, info.line_atomicity), (Mtu::B4096, true, true));
    assert_eq!((info.locks, info.chunk_bytes), (None, 4096));
    let mut client = lab.client();
    let session = lab.open(&client).unwrap();
    let pair = lab.connect(&mut client, session).unwrap();
    let at = |address: GlobalAddress| Remote { address: address.raw(), rkey: info.region.rkey };
    // The device and the server have one memory.
    let from = at(info.structure.root);
    let Ok(Output::Read(bytes)) = client.post(pair, Operation::Read { from, len: HEADER_BYTES as u32 })
    else {
        panic!("the root can be read")
    };
    let mut expected = [0; HEADER_BYTES];
    lab.server.memory().read(info.structure.root.offset(), &mut expected).unwrap();
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
        let part = blocks::part(&PartOptions::new(0, Shape { loaded: 1 }));
        let server = MemoryServer::new(device, part, &options.clone(), 1).unwrap();
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
fn a_structure_that_does_not_go_with_the_device_is_not_served() {
    let network = PlainNetwork::new();
    let make = |whole_lines| {
        let options = PartOptions { spare_bytes: 1 << 20, ..PartOptions::new(0, Shape { loaded: 1 }) };
        let Loaded { shape, .. } = blocks::part(&options);
        Loaded { shape: fatbtree_memserver::Shape { whole_lines, ..shape }, ..blocks::part(&options) }
    };
    let tears = |tears: bool| {
        let device = WatchedDevice::new(network.device());
        device.watch.borrow_mut().line_atomicity = !tears;
        device
    };
    let serve = |tears_lines, needs_whole, options| {
        MemoryServer::new(tears(tears_lines), make(needs_whole), &options, 1).map(drop)
    };
    assert_eq!(serve(true, true, options()), Err(ServerError::Integrity));
    assert_eq!(serve(true, false, options()), Ok(()));
    assert_eq!(serve(false, true, options()), Ok(()));
    assert_eq!(serve(false, false, options()), Ok(()));

    let device = network.device().with_mtu(Mtu::B512);
    let error = MemoryServer::new(device, make(true), &options(), 1).unwrap_err();
    let text = "index reads of 1024 bytes exceed path MTU 512: they must be answered in one packet";
    assert!(error.to_string().starts_with(text), "{error}");

    let mut part = make(true);
    part.spare.end += 1;
    let error = MemoryServer::new(tears(false), part, &options(), 1).unwrap_err();
    assert_eq!(error, ServerError::Padding { expected: 1024 });
    assert!(error.to_string().contains("1024 bytes, which an index read may reach for"), "{error}");
    let part = make(true);
    part.region.write(8, &[0xff]).unwrap();
    let refused = MemoryServer::new(tears(false), part, &options(), 1).map(drop);
    assert_eq!(refused, Err(ServerError::Header));

    for chunk_bytes in [0, 512, 1000, 1025, 1056] {
        let options = ServerOptions { chunk_bytes, ..options() };
        let error = serve(false, true, options).unwrap_err();
        assert!(matches!(error, ServerError::Chunks(_)), "{error}");
    }
    let device = WatchedDevice::new(network.device());
    device.watch.borrow_mut().limit = 0;
    let error = MemoryServer::new(device, make(true), &options(), 1).unwrap_err();
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
    let (device, memory) = lab.server.stop();
    assert_eq!(Arc::strong_count(&memory), 1, "no other owner reads it");
    let again = PartOptions { generation: 2, ..PartOptions::new(SERVER, Shape { loaded: 3 }) };
    let server = MemoryServer::new(device, Blocks::fill(&again, memory), &options(), 1).unwrap();
    assert_eq!((server.info().generation, server.info().structure.shape.loaded), (2, 3));
    assert_ne!(server.info().region.rkey, before.region.rkey, "who still has the old key is refused");
    let from = Remote { address: before.structure.root.raw(), rkey: before.region.rkey };
    assert!(client.post(pair, Operation::Read { from, len: 8 }).is_err());
}

// ---- the root ----

#[test]
fn another_root_is_noticed_and_told() {
    let mut lab = Lab::new(ServerOptions { access: Access::ALL, ..options() });
    let mut client = lab.client();
    let session = lab.open(&client).unwrap();
    let pair = lab.connect(&mut client, session).unwrap();
    assert!(matches!(lab.events()[..], [Event::Opened(hop)] if hop.root == lab.server.info().structure.root));
    let info = *lab.server.info();

    // A client moves the root and writes the header.
    let root = GlobalAddress::new(SERVER, info.structure.root.offset() + LARGE_BYTES);
    let header = info.structure.shape.header(root, info.generation, info.region.len);
    let to = Remote { address: info.region.iova, rkey: info.region.rkey };
    client.post(pair, Operation::Write { to, data: &header.to_bytes() }).unwrap();
    // A client that connects now is told the new one.
    lab.connect(&mut client, session).unwrap();
    let events = lab.events();
    let new_root = Event::NewRoot(Info { root, ..info.structure });
    assert!(matches!(events[..], [first, Event::Opened(hop)] if first == new_root && hop.root == root));
    assert_eq!(lab.server.info().structure.root, root);
    lab.server.work(lab.now, 1);
    assert_eq!(lab.events(), []);
    assert_eq!((lab.counter("roots_seen"), lab.counter("superblocks_refused")), (1, 0));

    // Only the last one is worth telling.
    for root in [info.structure.root, root] {
        let header = info.structure.shape.header(root, info.generation, info.region.len);
        lab.server.memory().write(0, &header.to_bytes()).unwrap();
        lab.server.watch_header();
    }
    assert!(matches!(lab.events()[..], [Event::NewRoot(found)] if found.root == root));
}

/// A client with write access may write anything into the region.
#[test]
fn a_header_that_cannot_be_changes_nothing() {
    let mut lab = Lab::new(options());
    let before = *lab.server.info();
    let Info { shape, root } = before.structure;
    let len = before.region.len;
    let header = |root| shape.header(root, before.generation, len).to_bytes();
    let lines = [
        [0; HEADER_BYTES],
        [0xff; HEADER_BYTES],
        header(GlobalAddress::new(SERVER + 1, root.offset())),
        header(GlobalAddress::new(SERVER, len)),
        shape.header(root, before.generation + 1, len).to_bytes(),
        shape.header(root, before.generation, len + 64).to_bytes(),
        Shape { loaded: LOADED + 1 }.header(root, before.generation, len).to_bytes(),
    ];
    for (count, line) in (1..).zip(lines) {
        lab.server.memory().write(0, &line).unwrap();
        lab.server.work(lab.now, 1);
        assert_eq!(lab.server.info(), &before, "line {count}");
        assert_eq!(lab.counter("superblocks_refused"), count);
    }
    assert_eq!(lab.events(), []);
}
