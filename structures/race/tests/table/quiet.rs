//! Servers of one table find the blocks that clients have lost, together: none is free to which a slot on any server leads. Each check that is
//! left out is found.

use fatbtree_memserver::{
    Answer, Ask, Check, ClientId, Event, Folder, FolderOwner, Grant, Keeping, Loaded, MemoryServer,
    PartOptions, Question, Request, ServerOptions, SessionKey, Storage, Unanswered, make_in,
};
use fatbtree_race::host::HashTable;
use fatbtree_race::{BLOCKS, BlockPointer, PAIRS, Place, Shape, Slot};
use fatbtree_remote_memory::record::{RECORD_HEAD, UNPUBLISHED, write_record};
use fatbtree_remote_memory::{GlobalAddress, Keys, SizeClass, name_of};
use fatbtree_verbs::Access;
use fatbtree_verbs::journal::Pace;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};
use tokio::sync::oneshot;

const SHAPE: Shape =
    Shape { groups: 1, directory_bits: 4, servers: 0b111, max_value: 1_000, keys: Keys::Numbers };

/// Offset of the word of members, on each server.
pub(crate) const MEMBERS: u64 = 64 + 8;

/// Offset of the first slot of a subtable.
pub(crate) const FIRST_SLOT: u64 = 64 + 8;

/// Server whose blocks are looked for; those whose slots lead there.
const OWN: u16 = 0;
const LEFT: u16 = 1;
const RIGHT: u16 = 2;

type Way = oneshot::Receiver<Result<Answer, Unanswered>>;

/// Three servers, to which clients are played, and what is on its way between them.
struct Lab {
    servers: Vec<MemoryServer<PlainDevice, HashTable>>,
    asks: Vec<Ask>,
    answers: Vec<(Ask, Way)>,
    now: Instant,
}

fn server(number: u16) -> MemoryServer<PlainDevice, HashTable> {
    served(HashTable::make(number, SHAPE, 16 << 20).expect("nothing is in the way"))
}

fn served(content: Loaded<HashTable>) -> MemoryServer<PlainDevice, HashTable> {
    let options = ServerOptions {
        access: Access::ALL,
        reclaim_every: Duration::from_millis(1),
        ..ServerOptions::writable()
    };
    let device = PlainNetwork::new().device();
    let seed = content.server.into();
    MemoryServer::new(device, content, &options, seed).expect("nothing is in the way")
}

impl Lab {
    fn new() -> Self {
        let servers: Vec<_> = [OWN, LEFT, RIGHT].map(server).into();
        let lab = Self { servers, asks: Vec::new(), answers: Vec::new(), now: Instant::ZERO };
        let members = name_of([OWN, LEFT, RIGHT].map(|number| (number, 1)));
        [OWN, LEFT, RIGHT].into_iter().for_each(|number| lab.put(number, MEMBERS, &members.to_le_bytes()));
        lab
    }

    fn of(&mut self, number: u16) -> &mut MemoryServer<PlainDevice, HashTable> {
        &mut self.servers[usize::from(number)]
    }

    fn put(&self, number: u16, offset: u64, bytes: &[u8]) {
        let memory = self.servers[usize::from(number)].memory();
        memory.write(offset, bytes).expect("it lies in the region");
    }

    /// Lets the servers work for a while. What they ask waits.
    fn work(&mut self) {
        for _ in 0..100 {
            self.now += Duration::from_micros(100);
            for server in &mut self.servers {
                server.work(self.now, 64);
                let events = std::iter::from_fn(|| server.poll_event());
                self.asks.extend(events.filter_map(|event| match event {
                    Event::Ask(ask) => Some(ask),
                    _ => None,
                }));
            }
        }
    }

    /// Carries questions of the first server to another one, whose answer it keeps on its way.
    fn carry_to(&mut self, number: u16) {
        for ask in self.asks.extract_if(.., |ask| ask.by == OWN && ask.of == number).collect::<Vec<_>>() {
            let (reply, way) = oneshot::channel();
            let now = self.now;
            self.of(number).handle(now, Request::Ask { ask, reply });
            self.answers.push((ask, way));
        }
        self.work();
    }

    /// Carries the present questions of the first server to both others, and their answers to it.
    fn carry_to_both(&mut self) {
        [LEFT, RIGHT].into_iter().for_each(|number| self.carry_to(number));
        self.bring_answers();
    }

    /// Carries all questions of the first server, and all answers to it: of one sweep, or of several that end without effect.
    fn carry_all(&mut self) {
        self.work();
        for _ in 0..6 {
            self.carry_to_both();
        }
    }

    fn bring_answers(&mut self) {
        for (ask, mut way) in std::mem::take(&mut self.answers) {
            let answer = way.try_recv().expect("it was answered").ok();
            let now = self.now;
            self.of(ask.by).handle(now, Request::Answered { ask, answer });
        }
        self.work();
    }

    fn open(&mut self, number: u16) -> SessionKey {
        let client = ClientId { host: [127, 0, 0, 1].into(), roce: [10, 0, 0, 1].into() };
        let now = self.now;
        self.of(number).open_session(now, client).expect("nothing is in the way").session
    }

    fn close(&mut self, number: u16, session: SessionKey) {
        let now = self.now;
        self.of(number).close_session(now, session).expect("nothing is in the way");
    }

    /// Memory of a class on a server, taken and left behind by a client that dies.
    fn take(&mut self, number: u16, session: SessionKey, class: SizeClass) -> GlobalAddress {
        let now = self.now;
        match self.of(number).allocate(now, session, class, 0).expect("nothing is in the way") {
            Grant::Chunk(chunk) => chunk.address,
            Grant::Blocks(blocks) => blocks.addresses[0],
        }
    }

    fn write_block(&self, at: GlobalAddress) {
        let mut record = vec![0; RECORD_HEAD + 8];
        write_record(&mut record, 7, 1, UNPUBLISHED, |value| value.copy_from_slice(&[1; 8]));
        self.put(at.server(), at.offset(), &record);
    }

    /// A subtable on a server, empty.
    fn subtable(&mut self, number: u16) -> GlobalAddress {
        let session = self.open(number);
        let at = self.take(number, session, PAIRS);
        // A pair that was never written would be free again.
        self.put(number, at.offset() + 16, &[1; 8]);
        self.close(number, session);
        at
    }

    /// Lets the first slot of a subtable lead to a block, or nowhere.
    fn link(&self, subtable: GlobalAddress, to: Option<GlobalAddress>) {
        let pointer = |at| {
            let place = Place::of(at).expect("pointers reach it");
            Slot::new(BlockPointer { fingerprint: 1, units: 1, version: 1, place })
        };
        let slot = to.map_or(Slot::EMPTY, pointer);
        self.put(subtable.server(), subtable.offset() + FIRST_SLOT, &slot.0.to_le_bytes());
    }

    fn count(&self, name: &str) -> u64 {
        let all = self.servers[usize::from(OWN)].statistics();
        all.into_iter().find(|(found, _)| found == name).map_or(0, |(_, count)| count)
    }

    fn reclaimed(&self) -> u64 {
        self.count("blocks_reclaimed")
    }
}

/// Two subtables on other servers, and a block on the first one, whose session has ended.
fn written() -> (Lab, [GlobalAddress; 2], GlobalAddress) {
    let mut lab = Lab::new();
    let subtables = [LEFT, RIGHT].map(|number| lab.subtable(number));
    let session = lab.open(OWN);
    let at = lab.take(OWN, session, BLOCKS);
    lab.write_block(at);
    lab.close(OWN, session);
    (lab, subtables, at)
}

#[test]
fn a_block_to_which_no_server_leads_comes_back() {
    let (mut lab, _, at) = written();
    lab.carry_all();
    assert_eq!((lab.reclaimed(), lab.count("free_blocks"), lab.count("sweeps_void")), (1, 1, 0));
    let session = lab.open(OWN);
    let now = lab.now;
    let grant = lab.of(OWN).allocate(now, session, BLOCKS, 64).expect("it is free");
    assert!(matches!(grant, Grant::Blocks(blocks) if blocks.addresses == [at]));
}

#[test]
fn a_block_in_use_stays_wherever_its_slot_is() {
    for number in [0, 1] {
        let (mut lab, subtables, at) = written();
        lab.link(subtables[number], Some(at));
        lab.carry_all();
        assert_eq!((lab.reclaimed(), lab.count("sweeps")), (0, 1));
    }
    // In the first subtable, on the block's own server.
    let (mut lab, _, at) = written();
    lab.link(GlobalAddress::new(OWN, 64 + SHAPE.directory_bytes()), Some(at));
    lab.carry_all();
    assert_eq!((lab.reclaimed(), lab.count("sweeps")), (0, 1));
}

/// Refusals, servers that begin anew, and silence: a later sweep finds the block.
#[test]
fn a_sweep_without_all_answers_has_no_effect_and_another_one_follows() {
    let (mut lab, ..) = written();
    let session = lab.open(RIGHT);
    lab.carry_all();
    assert_eq!(lab.reclaimed(), 0, "a client works");
    assert!(lab.count("sweeps_void") > 0);
    lab.close(RIGHT, session);
    lab.carry_all();
    assert_eq!(lab.reclaimed(), 1);

    // The server's process is started anew after its answer, with the same memory.
    let (mut lab, ..) = written();
    lab.work();
    [LEFT, RIGHT].into_iter().for_each(|number| lab.carry_to(number));
    let memory = lab.of(LEFT).memory().clone();
    lab.servers[usize::from(LEFT)] = server(LEFT);
    let mut all = vec![0; memory.len() as usize];
    memory.read(0, &mut all).expect("it is there");
    lab.put(LEFT, 0, &all);
    let void = lab.count("sweeps_void");
    lab.bring_answers();
    [LEFT, RIGHT].into_iter().for_each(|number| lab.carry_to(number));
    lab.bring_answers();
    assert_eq!((lab.reclaimed(), lab.count("sweeps_void")), (0, void + 1));

    // No answer comes.
    let (mut lab, ..) = written();
    lab.work();
    lab.carry_to(LEFT);
    lab.bring_answers();
    assert_eq!((lab.reclaimed(), lab.count("sweeps_void")), (0, 0), "it waits");
    lab.now += Duration::from_secs(300);
    lab.work();
    assert_eq!((lab.reclaimed(), lab.count("sweeps_void")), (0, 1));
    lab.carry_all();
    assert_eq!(lab.reclaimed(), 1);
}

/// Answers of a former sweep, of servers that were not asked, and marks of another region count for nothing.
#[test]
fn answers_that_do_not_fit_free_nothing() {
    let (mut lab, [left, _], at) = written();
    lab.link(left, Some(at));
    lab.work();
    let real = *lab.asks.iter().find(|ask| ask.by == OWN).expect("it asks");
    let none = || Answer::Marks { quiet: 1, marks: fatbtree_memserver::Marked::none(1 << 10, 64) };
    let now = lab.now;
    for ask in [Ask { sweep: !real.sweep, ..real }, Ask { of: 9, ..real }, Ask { of: OWN, ..real }] {
        lab.of(OWN).handle(now, Request::Answered { ask, answer: Some(none()) });
    }
    lab.work();
    assert_eq!(lab.count("sweeps_void"), 0, "they are not of this sweep");
    lab.of(OWN).handle(now, Request::Answered { ask: real, answer: Some(none()) });
    lab.work();
    assert_eq!((lab.count("sweeps_void"), lab.reclaimed()), (1, 0), "a region of another size");
    // A confirmation in the place of marks.
    let real = *lab.asks.iter().rfind(|ask| ask.by == OWN).expect("it asks again");
    let now = lab.now;
    lab.of(OWN).handle(now, Request::Answered { ask: real, answer: Some(Answer::Quiet) });
    lab.work();
    assert_eq!((lab.count("sweeps_void"), lab.reclaimed()), (2, 0));
}

#[test]
fn a_server_answers_one_question_of_each_fellow_at_a_time() {
    let (mut lab, ..) = written();
    lab.work();
    let ask = *lab.asks.iter().find(|ask| ask.by == OWN && ask.of == LEFT).expect("it asks");
    let now = lab.now;
    let mut ways = [(); 2].map(|()| {
        let (reply, way) = oneshot::channel();
        lab.of(LEFT).handle(now, Request::Ask { ask, reply });
        way
    });
    assert_eq!(ways[1].try_recv().expect("it was answered").err(), Some(Unanswered::Busy { by: OWN }));
    lab.work();
    assert!(ways[0].try_recv().expect("it was answered").is_ok());
    let too_large = Ask { question: Question::Marks { bytes: 1 << 50 }, ..ask };
    let (reply, mut way) = oneshot::channel();
    lab.of(LEFT).handle(now, Request::Ask { ask: too_large, reply });
    assert_eq!(way.try_recv().expect("it was answered").err(), Some(Unanswered::Region { bytes: 1 << 50 }));
}

/// Blocks found in a story, with a check and without it.
fn with_and_without(check: Check, story: impl Fn() -> u64) -> (u64, u64) {
    (story(), check.without(&story))
}

#[test]
fn each_check_that_is_not_made_is_found() {
    // A slot on another server leads to the block.
    let asks = || {
        let (mut lab, [left, _], at) = written();
        lab.link(left, Some(at));
        lab.carry_all();
        lab.reclaimed()
    };
    // A client comes when one server has answered, and moves a slot there from the one that has not.
    let confirms = || {
        let (mut lab, [left, right], at) = written();
        lab.link(right, Some(at));
        lab.work();
        lab.carry_to(LEFT);
        let sessions = [LEFT, RIGHT].map(|number| (number, lab.open(number)));
        lab.link(left, Some(at));
        lab.link(right, None);
        sessions.into_iter().for_each(|(number, session)| lab.close(number, session));
        lab.carry_to(RIGHT);
        lab.bring_answers();
        lab.carry_to_both();
        lab.reclaimed()
    };
    // The same, by a client that was there before, and stays.
    let answers_alone = || {
        let (mut lab, [left, right], at) = written();
        lab.link(right, Some(at));
        let _sessions = [LEFT, RIGHT].map(|number| lab.open(number));
        lab.work();
        lab.carry_to(LEFT);
        lab.link(left, Some(at));
        lab.link(right, None);
        lab.carry_to(RIGHT);
        lab.bring_answers();
        lab.carry_to_both();
        lab.reclaimed()
    };
    // A client comes to the server that asks, and has written a block that it is about to link. The first one is linked.
    let asks_alone = || {
        let (mut lab, [left, _], at) = written();
        lab.link(left, Some(at));
        lab.work();
        let session = lab.open(OWN);
        let at = lab.take(OWN, session, BLOCKS);
        lab.write_block(at);
        for _ in 0..2 {
            lab.carry_to_both();
        }
        lab.reclaimed()
    };
    // A server has begun anew with an empty part, by mistake: its former one leads to the block.
    let fellows = || {
        let (mut lab, [left, _], at) = written();
        lab.link(left, Some(at));
        lab.servers[usize::from(LEFT)] = server(LEFT);
        lab.carry_all();
        lab.reclaimed()
    };
    // Syncs of the disk for an answer.
    let synced = || {
        let path = tempfile::tempdir().expect("there is a disk");
        let owner =
            FolderOwner { server: "left".to_owned(), partition: LEFT, address: [127, 0, 0, 1].into() };
        let keeping = Keeping { pace: Pace::Every(Duration::from_secs(3600)), ..Keeping::default() };
        let chunk_bytes = ServerOptions::writable().chunk_bytes;
        let folder = Folder::open_with(path.path(), owner, chunk_bytes, keeping).expect("it is new");
        let mut storage = Storage::Folder(folder.into());
        let part = PartOptions { spare_bytes: 16 << 20, ..PartOptions::new(LEFT, SHAPE) };
        let content = make_in::<HashTable>(&mut storage, &part).expect("there is room");
        let mut lab = Lab::new();
        lab.servers[usize::from(LEFT)] = served(content);
        lab.put(LEFT, MEMBERS, &name_of([OWN, LEFT, RIGHT].map(|number| (number, 1))).to_le_bytes());
        let session = lab.open(OWN);
        lab.close(OWN, session);
        let syncs = |lab: &Lab| {
            let all = lab.servers[usize::from(LEFT)].statistics();
            all.into_iter().find(|(name, _)| name == "journal_syncs").map_or(0, |(_, syncs)| syncs)
        };
        lab.work();
        let before = syncs(&lab);
        lab.carry_to(LEFT);
        assert!(matches!(lab.answers[0].1.try_recv(), Ok(Ok(Answer::Marks { .. }))));
        syncs(&lab) - before
    };
    assert_eq!(with_and_without(Check::AnswersSynced, synced), (1, 0));
    assert_eq!(with_and_without(Check::SweepAsks, asks), (0, 1));
    assert_eq!(with_and_without(Check::SweepConfirms, confirms), (0, 1));
    assert_eq!(with_and_without(Check::AnswersAlone, answers_alone), (0, 1));
    assert_eq!(with_and_without(Check::AsksAlone, asks_alone), (0, 1));
    assert_eq!(with_and_without(Check::AnswersFellows, fellows), (0, 1));
}
