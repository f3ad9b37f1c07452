//! A server takes a block for lost if no client can have it, and only then. Each check that is left out is found.

use fatbtree_memserver::{Check, ClientId, Grant, MemoryServer, ServerOptions, SessionKey};
use fatbtree_race::host::HashTable;
use fatbtree_race::{BLOCKS, BlockPointer, Place, Shape, Slot};
use fatbtree_remote_memory::record::{RECORD_HEAD, UNPUBLISHED, write_record};
use fatbtree_remote_memory::{GlobalAddress, Keys};
use fatbtree_verbs::Access;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};

const SHAPE: Shape =
    Shape { groups: 1, directory_bits: 4, servers: 1, max_value: 1_000, keys: Keys::Numbers };

/// A server, to which clients are played: they write its memory.
struct Lab {
    server: MemoryServer<PlainDevice, HashTable>,
    now: Instant,
}

impl Lab {
    fn new() -> Self {
        let content = HashTable::make(0, SHAPE, 16 << 20).expect("nothing is in the way");
        let options = ServerOptions {
            access: Access::ALL,
            reclaim_every: Duration::from_nanos(1),
            ..ServerOptions::writable()
        };
        let server = MemoryServer::new(PlainNetwork::new().device(), content, &options, 1)
            .expect("nothing is in the way");
        let mut lab = Self { server, now: Instant::ZERO };
        lab.work();
        lab
    }

    fn work(&mut self) {
        for _ in 0..4_000 {
            self.now += Duration::from_micros(1);
            self.server.work(self.now, 64);
        }
    }

    fn open(&mut self) -> SessionKey {
        let client = ClientId { host: [127, 0, 0, 1].into(), roce: [10, 0, 0, 1].into() };
        self.server.open_session(self.now, client).expect("nothing is in the way").session
    }

    fn close(&mut self, session: SessionKey) {
        self.server.close_session(self.now, session).expect("nothing is in the way");
        self.work();
    }

    /// Renews a session whose client has settled. Returns the wait that it is told of.
    fn renew(&mut self, session: SessionKey, settled: u64) -> u64 {
        let lease = self.server.renew_settled(self.now, session, settled).expect("nothing is in the way");
        self.work();
        lease.wait
    }

    /// Ends a session that has nothing: a reason for a sweep.
    fn begin_sweep(&mut self) {
        let session = self.open();
        self.close(session);
    }

    fn take(&mut self, session: SessionKey) -> GlobalAddress {
        match self.server.allocate(self.now, session, BLOCKS, 64).expect("nothing is in the way") {
            Grant::Chunk(chunk) => chunk.address,
            Grant::Blocks(blocks) => blocks.addresses[0],
        }
    }

    fn write(&self, at: GlobalAddress, version: u32) {
        let mut record = vec![0; RECORD_HEAD + 8];
        write_record(&mut record, 7, version, UNPUBLISHED, |value| value.copy_from_slice(&[1; 8]));
        self.server.memory().write(at.offset(), &record).expect("nothing is in the way");
    }

    /// Lets the first slot of the first subtable lead to a block.
    fn link(&self, at: GlobalAddress, version: u32) {
        let place = Place::of(at).expect("nothing is in the way");
        let slot = Slot::new(BlockPointer { fingerprint: 1, units: 1, version, place });
        self.set_first_slot(slot);
    }

    fn unlink(&self) {
        self.set_first_slot(Slot::EMPTY);
    }

    fn set_first_slot(&self, slot: Slot) {
        let first = 64 + SHAPE.directory_bytes() + 64 + 8;
        self.server.memory().write(first, &slot.0.to_le_bytes()).expect("nothing is in the way");
    }

    fn count(&self, name: &str) -> u64 {
        let all = self.server.statistics();
        all.into_iter().find(|(found, _)| found == name).map_or(0, |(_, count)| count)
    }
}

/// A block that a client has written and not linked, and the client's session.
fn written() -> (Lab, SessionKey, GlobalAddress) {
    let mut lab = Lab::new();
    let session = lab.open();
    let at = lab.take(session);
    lab.write(at, 1);
    lab.begin_sweep();
    (lab, session, at)
}

#[test]
fn a_block_of_a_client_that_died_is_found_when_those_that_may_have_it_are_gone() {
    let (mut lab, session, at) = written();
    assert_eq!(lab.count("blocks_reclaimed"), 0, "its client lives");
    // Another client that is here meanwhile may have unlinked it.
    let other = lab.open();
    lab.close(session);
    assert_eq!(lab.count("blocks_reclaimed"), 0, "the other client lives");
    let late = lab.open();
    lab.close(other);
    assert_eq!((lab.count("blocks_reclaimed"), lab.count("free_blocks")), (1, 1));
    assert_eq!(lab.take(late), at);
}

/// Two waits of a sweep, for which a client that lives settles.
#[test]
fn a_sweep_goes_on_beside_a_client_that_settles() {
    let (mut lab, session, at) = written();
    for _ in 0..2 {
        let wait = lab.renew(session, 0);
        assert!(wait > 0 && lab.renew(session, 0) == wait, "it is told again");
        assert_eq!(lab.renew(session, wait + 1), wait, "a wait that has not begun counts for nothing");
        assert_eq!(lab.count("blocks_reclaimed"), 0);
        assert_eq!(lab.renew(session, wait), 0);
    }
    assert_eq!((lab.count("blocks_reclaimed"), lab.renew(session, 0)), (1, 0));
    assert_eq!(lab.take(session), at);
}

#[test]
fn a_block_in_use_is_never_found() {
    let (mut lab, session, at) = written();
    lab.link(at, 1);
    for session in [session, lab.open()] {
        lab.close(session);
    }
    lab.begin_sweep();
    assert_eq!((lab.count("blocks_reclaimed"), lab.count("sweeps") > 2), (0, true));
}

/// Blocks found in a story, with a check and without it.
fn with_and_without(check: Check, story: impl Fn() -> u64) -> (u64, u64) {
    (story(), check.without(&story))
}

#[test]
fn each_check_that_is_not_made_is_found() {
    // The session goes on.
    let waits = || written().0.count("blocks_reclaimed");
    // The client links it, and dies then.
    let marks = || {
        let (mut lab, session, at) = written();
        lab.link(at, 1);
        lab.close(session);
        lab.count("blocks_reclaimed")
    };
    // The client gives it back. One that comes later gets it, and has not written it yet.
    let strikes = || {
        let (mut lab, session, at) = written();
        let other = lab.open();
        lab.server.give_back(lab.now, session, BLOCKS, 64, &[at]).expect("nothing is in the way");
        lab.close(session);
        let late = lab.open();
        assert_eq!(lab.take(late), at);
        lab.close(other);
        lab.count("blocks_reclaimed")
    };
    // The client links it. Another one unlinks it, and writes and links it after the second walk. One that comes later unlinks it, and has it.
    let stamps = || {
        let (mut lab, session, at) = written();
        lab.link(at, 1);
        let other = lab.open();
        lab.unlink();
        lab.close(session);
        lab.write(at, 2);
        lab.link(at, 2);
        let _late = lab.open();
        lab.unlink();
        lab.close(other);
        lab.count("blocks_reclaimed")
    };
    // The client gives a block back, and settles. The server finds the block and gives it to another client, before the call comes.
    let late = || {
        let (mut lab, session, at) = written();
        for _ in 0..2 {
            let wait = lab.renew(session, 0);
            assert_eq!(lab.renew(session, wait), 0);
        }
        let other = lab.open();
        assert_eq!(lab.take(other), at);
        let given = lab.server.give_back_settled(lab.now, session, 0, BLOCKS, 64, &[at]);
        assert!(given.is_ok());
        lab.count("free_blocks")
    };
    assert_eq!(with_and_without(Check::SettleLate, late), (0, 1));
    assert_eq!(with_and_without(Check::SweepStrikes, strikes), (0, 1));
    assert_eq!(with_and_without(Check::SweepWaits, waits), (0, 1));
    assert_eq!(with_and_without(Check::SweepMarksTwice, marks), (0, 1));
    assert_eq!(with_and_without(Check::SweepStamp, stamps), (0, 1));
    assert_eq!(Check::ALL.len(), 11, "each has its story, here or in quiet.rs");
}
