//! A server that comes back empty is not taken for one whose keys were deleted.
use std::net::{IpAddr, Ipv4Addr};

use fatbtree_blink::{TreeConfig, ValueLayout};
use fatbtree_blink_host::{
    Load, LoadOptions, LoadedTree, TreeEvent, TreeFolder, TreeServer, TreeStorage, build_in, seeded, tree_in,
};
use fatbtree_memserver::{ClientId, FolderOwner, KeptRegion, MemoryServer, Origin, Refusal, ServerOptions};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};

const NOW: Instant = Instant::ZERO;
const FORMER: u64 = 7;
const PRESENT: u64 = 8;
const LOST: Refusal = Refusal::Lost { partition: 2 };
const UNDECIDED: Refusal = Refusal::Undecided { partition: 2 };
const PATIENCE: Duration = Duration::from_secs(5);

fn load(generation: u64) -> LoadOptions {
    let config = TreeConfig::new(16, 1024, ValueLayout::OutOfLine).unwrap();
    LoadOptions { generation, spare_bytes: 1 << 20, ..LoadOptions::new(config, 2) }
}

fn tree(generation: u64, keys: u64) -> LoadedTree {
    let keys: Vec<u64> = (0..keys).collect();
    build_in(&mut TreeStorage::Memory, &load(generation), u64::MAX, Load::Numbers(&keys, &mut seeded(1, 100)))
        .unwrap()
}

fn serve(tree: LoadedTree) -> TreeServer<PlainDevice> {
    MemoryServer::new(PlainNetwork::new().device(), tree, &ServerOptions::writable(), 1).unwrap()
}

/// A server that waits for a controller's word.
fn waiting(tree: LoadedTree) -> TreeServer<PlainDevice> {
    let options = ServerOptions { undecided_for: PATIENCE, ..ServerOptions::writable() };
    MemoryServer::new(PlainNetwork::new().device(), tree, &options, 1).unwrap()
}

fn client(number: u8) -> ClientId {
    ClientId { host: IpAddr::V4(Ipv4Addr::LOCALHOST), roce: Ipv4Addr::new(10, 0, 0, number) }
}

#[test]
fn an_empty_successor_serves_nobody_until_it_is_loaded() {
    let mut server = serve(tree(PRESENT, 0));
    // The first of its kind: clients fill it.
    let new = server.open_session(NOW, client(1)).unwrap();
    assert_eq!(server.open_session_after(NOW, client(2), Some(PRESENT)).map(|_| ()), Ok(()));
    assert_eq!(server.info().origin, Origin::Begun);

    assert_eq!(server.open_session_after(NOW, client(3), Some(FORMER)), Err(LOST));
    assert_eq!(server.info().origin, Origin::Lost);
    assert_eq!(std::iter::from_fn(|| server.poll_event()).last(), Some(TreeEvent::Lost { partition: 2 }));
    // Others are not served either, whether they know of it or not.
    assert_eq!(server.renew_session(NOW, new.session), Err(Refusal::UnknownSession(new.session)));
    for known in [None, Some(PRESENT), Some(FORMER)] {
        assert_eq!(server.open_session_after(NOW, client(4), known), Err(LOST));
    }
    assert!(LOST.to_string().contains("has lost what it held") && LOST.to_string().contains("--empty"));
    // Told once.
    assert!(server.known_before(FORMER) && server.poll_event().is_none());

    for keys in [0, 100] {
        server.install(NOW, tree(PRESENT + 1 + keys, keys)).unwrap();
        assert_eq!(server.info().origin, Origin::Meant);
        for known in [None, Some(PRESENT), Some(FORMER)] {
            server.open_session_after(NOW, client(5), known).unwrap();
        }
    }
}

#[test]
fn a_controller_that_has_known_another_tree_has_the_same_say() {
    let mut server = serve(tree(PRESENT, 0));
    assert!(!server.heard(None) && !server.heard(Some(PRESENT)));
    server.open_session(NOW, client(1)).unwrap();
    assert!(server.heard(Some(FORMER)));
    assert_eq!(server.open_session(NOW, client(1)), Err(LOST));
}

/// Otherwise clients would be told that keys are not there, and the first write would make the empty tree the right one.
#[test]
fn an_empty_tree_is_not_served_before_a_controller_has_spoken_or_time_has_passed() {
    let just_before = Instant::from_nanos(PATIENCE.as_nanos() - 1);
    for said in [Some(FORMER), Some(PRESENT), None] {
        let mut server = waiting(tree(PRESENT, 0));
        assert_eq!(server.open_session(just_before, client(1)), Err(UNDECIDED));
        assert_eq!(server.heard(said), said == Some(FORMER));
        let opened = server.open_session(just_before, client(1)).map(drop);
        assert_eq!(opened, if said == Some(FORMER) { Err(LOST) } else { Ok(()) });
    }
    let mut server = waiting(tree(PRESENT, 0));
    assert_eq!(server.open_session(just_before, client(1)), Err(UNDECIDED));
    assert!(server.is_undecided());
    server.open_session(NOW + PATIENCE, client(1)).unwrap();
    assert!(!server.is_undecided());
}

#[test]
fn a_client_that_has_known_another_tree_decides_as_well() {
    let mut server = waiting(tree(PRESENT, 0));
    assert_eq!(server.open_session_after(NOW, client(1), Some(PRESENT)), Err(UNDECIDED));
    assert_eq!(server.open_session_after(NOW, client(1), Some(FORMER)), Err(LOST));
    // Whatever a controller says, that is what it is until it is loaded.
    server.heard(None);
    assert_eq!(server.open_session(NOW + PATIENCE, client(2)), Err(LOST));
}

#[test]
fn a_tree_with_keys_and_one_that_is_loaded_wait_for_nobody() {
    waiting(tree(PRESENT, 1)).open_session(NOW, client(1)).unwrap();
    let meant = LoadedTree { origin: Origin::Meant, ..tree(PRESENT, 0) };
    waiting(meant).open_session(NOW, client(1)).unwrap();
    // As from a folder that clients have filled.
    let filled = LoadedTree { origin: Origin::Begun, ..tree(PRESENT, 5) };
    waiting(filled).open_session(NOW, client(1)).unwrap();
    let mut server = waiting(tree(PRESENT, 0));
    server.install(NOW, tree(PRESENT + 1, 0)).unwrap();
    server.open_session(NOW, client(1)).unwrap();
}

/// A client that has known another tree is refused; clients that have written to this one are not.
#[test]
fn an_empty_tree_that_was_written_to_is_served_to_those_who_know_no_other() {
    let mut server = serve(tree(PRESENT, 0));
    let filled = serve(tree(PRESENT, 5));
    let mut leaf = vec![0; 1024];
    filled.memory().read(64, &mut leaf).unwrap();
    server.memory().write(64, &leaf).unwrap();
    assert_eq!(server.open_session_after(NOW, client(1), Some(FORMER)), Err(LOST));
    assert_eq!(server.info().origin, Origin::Begun);
    server.open_session_after(NOW, client(1), Some(PRESENT)).unwrap();
    server.open_session(NOW, client(2)).unwrap();
}

#[test]
fn a_server_that_begins_with_keys_is_believed() {
    let mut server = serve(tree(PRESENT, 1));
    assert!(!server.known_before(FORMER));
    server.open_session_after(NOW, client(1), Some(FORMER)).unwrap();
}

/// The origin of a tree in a folder survives a restart of the server.
#[test]
fn a_folder_knows_whether_its_empty_tree_is_meant() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let owner =
            FolderOwner { server: "left".to_owned(), partition: 2, address: Ipv4Addr::new(10, 0, 0, 2) };
        TreeFolder::open(folder.path(), owner, 4096).unwrap()
    };
    let mut storage = TreeStorage::Folder(open().into());
    let begun =
        build_in(&mut storage, &load(PRESENT), u64::MAX, Load::Numbers(&[], &mut seeded(1, 100))).unwrap();
    assert_eq!(begun.origin, Origin::Begun);
    for origin in [Origin::Begun, Origin::Meant] {
        storage.keep(KeptRegion { origin, ..begun.kept() }).unwrap();
        drop(storage);
        assert_eq!(tree_in(&open()).unwrap().unwrap().origin, origin);
        storage = TreeStorage::Folder(open().into());
    }
}
