use std::fs;

use tempfile::TempDir;

use super::*;
use crate::Memory;

const GENERATION: u64 = 7;
const BYTES: [u64; 2] = [256 << 10, 800];
const INTERVAL: Duration = Duration::from_secs(1);

/// A number of a sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Change number n of a memory: after it the first word of memory 0 is set to n.
#[derive(Clone)]
enum Op {
    Write(usize, u64, Vec<u8>),
    Add(usize, u64, u64),
}

impl Op {
    fn draw(random: &mut Random) -> Self {
        let memory = usize::from(random.below(4) == 0);
        let bytes = BYTES[memory];
        match random.below(3) {
            0 => Self::Add(memory, 8 + random.below((bytes - 8) / 8) * 8, random.below(1 << 40)),
            _ => {
                let longest = [300, 300, 300, Journal::WHOLE_WRITE as u64][random.below(4) as usize];
                let at = 8 + random.below(bytes - 8);
                let len = (1 + random.below(longest)).min(bytes - at);
                Self::Write(memory, at, (0..len).map(|_| random.below(256) as u8).collect())
            }
        }
    }

    fn carry_out(&self, memories: &[Memory; 2], number: u64) {
        match self {
            Self::Write(memory, at, bytes) => memories[*memory].write(*at, bytes).unwrap(),
            Self::Add(memory, at, add) => {
                memories[*memory].update(*at, |word| word.wrapping_add(*add)).unwrap();
            }
        }
        memories[0].write(0, &number.to_le_bytes()).unwrap();
    }

    fn model(&self, model: &mut [Vec<u8>; 2]) {
        match self {
            Self::Write(memory, at, bytes) => {
                model[*memory][*at as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            Self::Add(memory, at, add) => {
                let word = &mut model[*memory][*at as usize..][..8];
                let sum = u64::from_le_bytes(word.try_into().unwrap()).wrapping_add(*add);
                word.copy_from_slice(&sum.to_le_bytes());
            }
        }
    }
}

const NAMES: [&str; 3] = ["tree-7", "chunks-7", "journal-7"];

fn make(disk: &Arc<dyn Disk>, folder: &Path) {
    for (name, bytes) in NAMES.iter().zip(BYTES) {
        let path = folder.join(name);
        let file = disk.open(&path, true).unwrap();
        disk.reserve(&path, &file, 0, bytes).unwrap();
        disk.sync(&path, &file).unwrap();
    }
    Journal::create(&**disk, &folder.join(NAMES[2]), Journal::SMALLEST_HALF, GENERATION).unwrap();
    disk.sync_names(folder).unwrap();
}

fn open(disk: &Arc<dyn Disk>, folder: &Path, pace: Pace) -> Result<(Arc<Journal>, [Memory; 2]), OpenError> {
    let target = |number: usize| {
        let path = folder.join(NAMES[number]);
        Target { file: disk.open(&path, false).unwrap(), path, len: BYTES[number] }
    };
    let journal = Journal::open(disk, &folder.join(NAMES[2]), GENERATION, vec![target(0), target(1)], pace)?;
    let memory = |number: usize| {
        let Target { path, file, len } = target(number);
        let memory = Memory::file(&path, file, len).unwrap();
        memory.reserve(len).unwrap();
        memory.journalled(&journal, number as u8).unwrap();
        memory
    };
    Ok((Arc::clone(&journal), [memory(0), memory(1)]))
}

fn os_disk() -> Arc<dyn Disk> {
    Arc::new(OsDisk::default())
}

fn contents(memories: &[Memory; 2]) -> [Vec<u8>; 2] {
    [0, 1].map(|number| {
        let mut bytes = vec![0; BYTES[number] as usize];
        memories[number].read(0, &mut bytes).unwrap();
        bytes
    })
}

/// Checks that the memories are as they were after some of the changes, at least `least`. Returns how many, with the one that is there without
/// its number.
fn check(memories: &[Memory; 2], ops: &[Op], least: u64, context: &str) -> u64 {
    let found = contents(memories);
    let count = u64::from_le_bytes(found[0][..8].try_into().unwrap());
    assert!(count >= least, "{context}: {count} changes are there, {least} were synced");
    assert!(count <= ops.len() as u64, "{context}: {count} changes are there of {}", ops.len());
    let mut model = BYTES.map(|bytes| vec![0; bytes as usize]);
    for op in &ops[..count as usize] {
        op.model(&mut model);
    }
    model[0][..8].copy_from_slice(&count.to_le_bytes());
    // The next change may be there without its number.
    let mut next = model.clone();
    ops.iter().skip(count as usize).take(1).for_each(|op| op.model(&mut next));
    assert!(found == model || found == next, "{context}: a mixture after {count} changes");
    count + u64::from(found != model)
}

/// Runs changes, with syncs and applications in between, and cuts the power in some operations; then starts from each of these disks.
fn cut_power(seed: u64, cuts: u64) -> u64 {
    let mut random = Random(seed);
    let folder = TempDir::new().unwrap();
    let lossy = Arc::new(LossyDisk::new(seed));
    let disk: Arc<dyn Disk> = Arc::clone(&lossy) as Arc<dyn Disk>;
    make(&disk, folder.path());
    let mut ops = Vec::new();
    let mut seen = 0;
    // The first one begins with nothing, each other one with a disk that is left.
    let mut begins: Option<(TempDir, u64)> = None;
    for life in 0..3 {
        let (folder, disk, lossy) = match &begins {
            None => (folder.path(), Arc::clone(&disk), Arc::clone(&lossy)),
            Some((folder, _)) => {
                let lossy = Arc::new(LossyDisk::new(seed + life));
                lossy.adopt(folder.path()).unwrap();
                (folder.path(), Arc::clone(&lossy) as Arc<dyn Disk>, lossy)
            }
        };
        // Operations while it starts, too.
        let from = lossy.operations();
        lossy.cut_in((0..cuts).map(|_| from + random.below(700)));
        let least = begins.as_ref().map_or(0, |(_, least)| *least);
        lossy.mark(least);
        let (journal, memories) = open(&disk, folder, Pace::Every(INTERVAL)).unwrap();
        let count = check(&memories, &ops, least, "a start");
        ops.truncate(count as usize);
        memories[0].write(0, &count.to_le_bytes()).unwrap();
        for _ in 0..250 {
            let op = Op::draw(&mut random);
            ops.push(op.clone());
            op.carry_out(&memories, ops.len() as u64);
            match random.below(12) {
                0..6 => journal.commit().unwrap(),
                6 => {
                    journal.commit().unwrap();
                    journal.sync().unwrap();
                    lossy.mark(ops.len() as u64);
                }
                7 => drop(journal.apply().unwrap()),
                8 if random.below(8) == 0 => {
                    journal.checkpoint().unwrap();
                    lossy.mark(ops.len() as u64);
                }
                _ => {}
            }
        }
        let mut all = lossy.cuts();
        all.push(lossy.cut());
        drop((memories, journal));
        let mut next = None;
        for cut in all {
            let to = TempDir::new().unwrap();
            cut.restore(folder, to.path()).unwrap();
            let context =
                format!("seed {seed}, life {life}, cut in operation {}, {}", cut.operation, cut.kind);
            let (_, memories) =
                open(&os_disk(), to.path(), Pace::Never).unwrap_or_else(|error| panic!("{context}: {error}"));
            check(&memories, &ops, cut.mark, &context);
            seen += 1;
            if random.below(3) == 0 {
                let to = TempDir::new().unwrap();
                cut.restore(folder, to.path()).unwrap();
                next = Some((to, cut.mark));
            }
        }
        if next.is_none() {
            break;
        }
        begins = next;
    }
    seen
}

#[test]
fn whatever_a_power_failure_leaves_is_a_state_that_was() {
    let seen: u64 = (0..6).map(|seed| cut_power(seed, 10)).sum();
    assert!(seen > 100, "{seen}");
}

#[test]
#[ignore = "a minute: 2,000 cuts and more"]
fn whatever_thousands_of_power_failures_leave_is_a_state_that_was() {
    let seen: u64 = (100..180).map(|seed| cut_power(seed, 15)).sum();
    assert!(seen > 2000, "{seen}");
}

/// A folder of memories with a journal, on a disk that fails.
struct Lab {
    folder: TempDir,
    lossy: Arc<LossyDisk>,
    journal: Arc<Journal>,
    memories: [Memory; 2],
}

impl Lab {
    fn new(pace: Pace) -> Self {
        let (folder, lossy) = (TempDir::new().unwrap(), Arc::new(LossyDisk::new(1)));
        let disk: Arc<dyn Disk> = Arc::clone(&lossy) as Arc<dyn Disk>;
        make(&disk, folder.path());
        let (journal, memories) = open(&disk, folder.path(), pace).unwrap();
        Self { folder, lossy, journal, memories }
    }

    fn write(&self, byte: u8) {
        self.memories[0].write(8, &[byte; 100]).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn first(memories: &[Memory; 2]) -> u8 {
    let mut byte = [0];
    memories[0].read(8, &mut byte).unwrap();
    byte[0]
}

#[test]
fn a_killed_process_loses_nothing_that_was_committed_and_its_files_do_not_change_before() {
    let lab = Lab::new(Pace::Never);
    lab.write(1);
    lab.journal.commit().unwrap();
    assert_eq!(fs::read(lab.path("tree-7")).unwrap()[8], 0, "only the journal has it");
    lab.write(2);
    let killed = TempDir::new().unwrap();
    for name in NAMES {
        fs::copy(lab.path(name), killed.path().join(name)).unwrap();
    }
    let (_, memories) = open(&os_disk(), killed.path(), Pace::Never).unwrap();
    assert_eq!((first(&memories), first(&lab.memories)), (1, 2));
    lab.journal.checkpoint().unwrap();
    assert_eq!(fs::read(lab.path("tree-7")).unwrap()[8], 2, "a server that stops");
}

#[test]
fn the_pace_decides_when_a_change_is_on_the_disk() {
    let on_disk = |lab: &Lab| {
        let folder = TempDir::new().unwrap();
        // Of many cuts the least that survives.
        (0..20)
            .map(|number| {
                let to = folder.path().join(number.to_string());
                lab.lossy.cut().restore(lab.folder.path(), &to).unwrap();
                first(&open(&os_disk(), &to, Pace::Never).unwrap().1)
            })
            .min()
            .unwrap()
    };
    for (pace, at_once, later) in [(Pace::Each, 1, 2), (Pace::Every(INTERVAL), 0, 2), (Pace::Never, 0, 0)] {
        let lab = Lab::new(pace);
        lab.write(1);
        lab.journal.commit().unwrap();
        assert_eq!(on_disk(&lab), at_once, "{pace:?}");
        // No thread syncs. A commit does not go on without the disk for longer than the interval.
        lab.lossy.pass(INTERVAL * 2);
        lab.write(2);
        lab.journal.commit().unwrap();
        assert_eq!(on_disk(&lab), later, "{pace:?}");
        assert_eq!(lab.journal.counts().waits, u64::from(pace == Pace::Every(INTERVAL)), "{pace:?}");
    }
}

#[test]
fn a_disk_that_has_failed_once_is_not_believed_again() {
    for (kind, pace) in [("sync", Pace::Each), ("sync", Pace::Every(INTERVAL)), ("write", Pace::Never)] {
        let lab = Lab::new(pace);
        lab.lossy.fail(0, kind);
        lab.write(1);
        let failed = match pace {
            Pace::Every(_) => lab.journal.commit().and_then(|()| lab.journal.sync()),
            _ => lab.journal.commit(),
        };
        let text = failed.unwrap_err().to_string();
        assert!(text.contains("journal-7") && text.contains("the disk fails"), "{text}");
        // The disk would do it now.
        for _ in 0..3 {
            lab.write(2);
            assert_eq!(lab.journal.commit().unwrap_err().to_string(), text);
            assert!(lab.journal.sync().is_err() && lab.journal.checkpoint().is_err());
        }
        // What can never be written takes no memory without end.
        (0..100).for_each(|_| lab.memories[0].write(8, &[3; 60_000]).unwrap());
        assert!(lock(&lab.journal.tail).capacity() < 2 * LARGEST_BATCH);
    }
}

#[test]
fn damage_of_what_was_on_the_disk_is_refused_and_a_lost_end_is_not() {
    let lab = Lab::new(Pace::Never);
    for byte in 1..=3 {
        lab.write(byte);
        lab.journal.commit().unwrap();
        lab.journal.sync().unwrap();
    }
    // Never synced.
    lab.write(4);
    lab.journal.commit().unwrap();
    const NOTE: usize = BATCH_HEAD + RECORD_HEAD;
    // A note stands before each but the first.
    let note = |number: u64| (SECTOR + number * SECTOR) as usize;
    let batch = |number: u64| note(number) + if number == 0 { 0 } else { NOTE };
    let start = |change: &dyn Fn(&mut Vec<u8>)| {
        let to = TempDir::new().unwrap();
        for name in NAMES {
            fs::copy(lab.path(name), to.path().join(name)).unwrap();
        }
        let path = to.path().join("journal-7");
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        open(&os_disk(), to.path(), Pace::Never).map(|(_, memories)| first(&memories))
    };
    assert_eq!(start(&|_| ()).unwrap(), 4);
    for number in [0, 1, 2] {
        for at in 0..BATCH_HEAD + RECORD_HEAD + 100 {
            let error = start(&|bytes| bytes[batch(number) + at] ^= 4).unwrap_err();
            assert!(
                matches!(error, OpenError::Damaged(JournalDamage::Missing { .. })),
                "{number} {at}: {error}"
            );
        }
    }
    // Nothing says that it was on the disk.
    assert_eq!(start(&|bytes| bytes[batch(3) + 30] ^= 4).unwrap(), 3);
    assert_eq!(start(&|bytes| bytes[note(3) + 4] ^= 4).unwrap(), 3);
    assert_eq!(start(&|bytes| bytes[0] ^= 1).unwrap(), 4, "the other header is enough");
    let half = Journal::SMALLEST_HALF as usize;
    let error = start(&|bytes| [0, half].iter().for_each(|&at| bytes[at] ^= 1)).unwrap_err();
    assert!(matches!(error, OpenError::Damaged(JournalDamage::Headers { .. })), "{error}");
    let error = start(&|bytes| bytes.truncate(half)).unwrap_err();
    assert!(matches!(error, OpenError::Damaged(JournalDamage::Length { .. })), "{error}");
}

/// A pause after a sync: the note says what is on the disk, and is itself no reason for a sync.
#[test]
fn a_sync_is_noted_once() {
    let lab = Lab::new(Pace::Never);
    lab.write(1);
    lab.journal.commit().unwrap();
    lab.journal.sync().unwrap();
    let after = lab.journal.counts();
    for _ in 0..10 {
        lab.journal.sync().unwrap();
    }
    let counts = lab.journal.counts();
    assert_eq!((counts.batches, counts.syncs, counts.unsynced_micros), (2, after.syncs, 0));
    let mut bytes = fs::read(lab.path("journal-7")).unwrap();
    bytes[SECTOR as usize + BATCH_HEAD + RECORD_HEAD] ^= 1;
    let to = TempDir::new().unwrap();
    NAMES.iter().for_each(|name| _ = fs::copy(lab.path(name), to.path().join(name)).unwrap());
    fs::write(to.path().join("journal-7"), bytes).unwrap();
    let error = open(&os_disk(), to.path(), Pace::Never).unwrap_err();
    assert!(matches!(error, OpenError::Damaged(JournalDamage::Missing { .. })), "{error}");
}

/// Threads that write the same words: the journal has their writes in the order in which they were done.
#[test]
fn the_journal_has_the_order_of_the_memory() {
    let lab = Lab::new(Pace::Never);
    for round in 0..300_u64 {
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let memory = &lab.memories[0];
                scope.spawn(move || {
                    for step in 0..8 {
                        match (thread + step) % 4 {
                            0 => drop(memory.update(16, |word| word.rotate_left(7) ^ round).unwrap()),
                            _ => memory.write(8, &[thread * 8 + step; 24]).unwrap(),
                        }
                    }
                });
            }
        });
        lab.journal.checkpoint().unwrap();
        let file = fs::read(lab.path("tree-7")).unwrap();
        let mut bytes = [0; 24];
        lab.memories[0].read(8, &mut bytes).unwrap();
        assert_eq!(file[8..32], bytes, "round {round}");
    }
}

/// Header 0 is on the disk before its half is written again: otherwise a part of the half would be replayed over what came after it.
#[test]
fn a_half_is_not_written_again_before_its_header_is_on_the_disk() {
    let lab = Lab::new(Pace::Never);
    let mut random = Random(5);
    let mut ops = Vec::new();
    let mut fill = |upto: u64| {
        while lab.journal.counts().bytes < upto {
            ops.push(Op::draw(&mut random));
            ops[ops.len() - 1].carry_out(&lab.memories, ops.len() as u64);
            lab.journal.commit().unwrap();
        }
        ops.len() as u64
    };
    // The first half is full and applied; then the other one; then the first one is begun again.
    let half = Journal::SMALLEST_HALF;
    let applied = fill(half) - 20;
    assert!(lab.journal.apply().unwrap());
    fill(2 * half + half / 2);
    let folder = TempDir::new().unwrap();
    for number in 0..150 {
        let to = folder.path().join(number.to_string());
        lab.lossy.cut().restore(lab.folder.path(), &to).unwrap();
        let (_, memories) = open(&os_disk(), &to, Pace::Never).unwrap();
        check(&memories, &ops, applied, &format!("cut {number}"));
        fs::remove_dir_all(&to).unwrap();
    }
}

/// What a power failure has left after the first hole is never taken for a batch of the next life, though it has the right place and sum.
#[test]
fn batches_of_a_former_life_are_not_replayed() {
    let lab = Lab::new(Pace::Never);
    const BATCH: usize = 1000;
    const RECORD: usize = BATCH - BATCH_HEAD - RECORD_HEAD;
    for byte in 1..=3 {
        lab.memories[0].write(8, &[byte; RECORD]).unwrap();
        lab.journal.commit().unwrap();
    }
    let left = TempDir::new().unwrap();
    let copy = |from: &Path, to: &Path| {
        NAMES.iter().for_each(|name| _ = fs::copy(from.join(name), to.join(name)).unwrap());
    };
    copy(lab.folder.path(), left.path());
    let path = left.path().join("journal-7");
    let mut bytes = fs::read(&path).unwrap();
    bytes[SECTOR as usize + BATCH..][..BATCH].fill(0);
    fs::write(&path, bytes).unwrap();
    let (journal, memories) = open(&os_disk(), left.path(), Pace::Never).unwrap();
    assert_eq!(first(&memories), 1);
    // It ends where the third batch of the former life begins.
    memories[0].write(8, &[4; RECORD + BATCH]).unwrap();
    journal.commit().unwrap();
    let killed = TempDir::new().unwrap();
    copy(left.path(), killed.path());
    assert_eq!(first(&open(&os_disk(), killed.path(), Pace::Never).unwrap().1), 4);
}

#[test]
fn room_that_was_given_out_is_there_after_a_power_failure() {
    let (folder, lossy) = (TempDir::new().unwrap(), Arc::new(LossyDisk::new(1)));
    let disk: Arc<dyn Disk> = Arc::clone(&lossy) as Arc<dyn Disk>;
    let path = folder.path().join("tree-7");
    let file = disk.open(&path, true).unwrap();
    disk.sync(&path, &file).unwrap();
    let journal_path = folder.path().join("journal-7");
    Journal::create(&*disk, &journal_path, Journal::SMALLEST_HALF, GENERATION).unwrap();
    disk.sync_names(folder.path()).unwrap();
    let target = |path: &Path| {
        let file = File::options().read(true).write(true).open(path).unwrap();
        vec![Target { path: path.to_owned(), file, len: 1 << 20 }]
    };
    let journal = Journal::open(&disk, &journal_path, GENERATION, target(&path), Pace::Never).unwrap();
    let memory = Memory::file(&path, file, 1 << 20).unwrap();
    memory.journalled(&journal, 0).unwrap();
    memory.reserve(300_000).unwrap();
    memory.write(5000, b"x").unwrap();
    journal.commit().unwrap();
    journal.sync().unwrap();
    let to = TempDir::new().unwrap();
    lossy.cut().restore(folder.path(), to.path()).unwrap();
    let path = to.path().join("tree-7");
    assert_eq!(fs::metadata(&path).unwrap().len(), 0, "the length was not synced");
    drop(
        Journal::open(&os_disk(), &to.path().join("journal-7"), GENERATION, target(&path), Pace::Never)
            .unwrap(),
    );
    assert_eq!(fs::metadata(&path).unwrap().len(), 300_000);
}

/// The writer waits where no thread applies: two halves are all there is.
#[test]
fn a_journal_goes_round_without_threads() {
    let lab = Lab::new(Pace::Never);
    for round in 0..60_u64 {
        lab.memories[0].write(8, &[round as u8; 50_000]).unwrap();
        lab.journal.commit().unwrap();
    }
    let counts = lab.journal.counts();
    assert!(counts.applied >= 3 && counts.waits >= 3 && counts.bytes > 3_000_000, "{counts:?}");
    assert_eq!(fs::metadata(lab.path("journal-7")).unwrap().len(), 2 * Journal::SMALLEST_HALF);
}
