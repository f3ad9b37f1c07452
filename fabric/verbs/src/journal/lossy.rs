//! A disk for tests that fails: it keeps apart what was not synced, and says what would be left if the power failed now.
//!
//! ```text
//!   files as the process sees them ── real files of a folder
//!   files as they are on the disk ─── content at the last sync, names at the last sync of names
//!   in between ────────────────────── writes and changes of names, each of which may have reached the disk
//! ```
//!
//! A [`Cut`] takes any part of what is in between: of each page any number of its writes in their order, and the last of them in any of its
//! sectors; of changes of names any. Of a file that was never synced, any pages. Sectors of journals that were being written may be
//! destroyed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Disk, OsDisk};
use crate::room::ReserveError;
use crate::time::{Duration, Instant};

const PAGE: u64 = 4096;
const SECTOR: u64 = 512;

/// A disk that loses what was not synced. It belongs to one folder.
#[derive(Debug)]
pub struct LossyDisk {
    real: OsDisk,
    state: Mutex<State>,
}

/// Content of a disk after the power has failed at one moment.
#[derive(Clone, Debug)]
pub struct Cut {
    /// Number of the operation in which the power failed.
    pub operation: u64,
    /// Kind of that operation.
    pub kind: &'static str,
    /// The last [mark](LossyDisk::mark) before.
    pub mark: u64,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, Content>,
    names: BTreeMap<PathBuf, u64>,
    names_on_disk: BTreeMap<PathBuf, u64>,
    renaming: Vec<Change>,
    operations: u64,
    /// Time that operations take, and the time that has passed.
    now: Instant,
    wanted: BTreeSet<u64>,
    failing: Option<(u64, &'static str)>,
    lying: Option<&'static str>,
    seed: u64,
    mark: u64,
    cuts: Vec<Cut>,
}

#[derive(Debug, Default)]
struct Content {
    /// `None`: it was never synced.
    on_disk: Option<Vec<u8>>,
    writes: Vec<(u64, Vec<u8>)>,
}

#[derive(Clone, Debug)]
enum Change {
    Make(PathBuf, u64),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

impl LossyDisk {
    /// A disk without files, which draws from `seed` what survives.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State { seed, ..State::default() };
        Self { real: OsDisk::default(), state: Mutex::new(state) }
    }

    /// Takes over the files of a folder: all of them are on the disk.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn adopt(&self, folder: &Path) -> io::Result<()> {
        let mut state = self.state();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let bytes = fs::read(&path)?;
            state.content(&path).on_disk = Some(bytes);
        }
        state.names_on_disk = state.names.clone();
        Ok(())
    }

    /// Cuts the power in operations with these numbers: see [`cuts`](Self::cuts). The process goes on.
    pub fn cut_in(&self, operations: impl IntoIterator<Item = u64>) {
        self.state().wanted.extend(operations);
    }

    /// Cuts the power now.
    #[must_use]
    pub fn cut(&self) -> Cut {
        self.state().cut("pause")
    }

    /// Has the first operation of a kind from number `from` on fail.
    pub fn fail(&self, from: u64, kind: &'static str) {
        self.state().failing = Some((from, kind));
    }

    /// Has all syncs in which a file's name has this part do nothing, and say that they did: for tests that a sync is missed.
    pub fn lie(&self, part: &'static str) {
        self.state().lying = Some(part);
    }

    /// Number that the next cuts say.
    pub fn mark(&self, mark: u64) {
        self.state().mark = mark;
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        self.state().now += time;
    }

    /// The disk of a machine whose power does not fail now: everything that was written is there.
    #[must_use]
    pub fn whole(&self) -> Cut {
        let state = self.state();
        let files = state.names.keys().map(|path| (path.clone(), fs::read(path).unwrap_or_default()));
        Cut { operation: state.operations, kind: "none", mark: state.mark, files: files.collect() }
    }

    /// Number of operations so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Takes all cuts that were made.
    #[must_use]
    pub fn cuts(&self) -> Vec<Cut> {
        std::mem::take(&mut self.state().cuts)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cut {
    /// Writes the files into a folder, which has the files of no other cut.
    ///
    /// # Errors
    /// As the operating system says.
    pub fn restore(&self, from: &Path, to: &Path) -> io::Result<()> {
        for (path, bytes) in &self.files {
            let path = to.join(path.strip_prefix(from).map_err(io::Error::other)?);
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            fs::write(path, bytes)?;
        }
        Ok(())
    }
}

impl State {
    /// Notes that an operation is under way.
    fn operate(&mut self, kind: &'static str) -> io::Result<()> {
        let number = self.operations;
        self.operations += 1;
        self.now += Duration::from_micros(10);
        if self.wanted.remove(&number) {
            let cut = self.cut(kind);
            self.cuts.push(cut);
        }
        match self.failing {
            Some((from, failing)) if number >= from && failing == kind => {
                self.failing = None;
                Err(io::Error::other("the disk fails"))
            }
            _ => Ok(()),
        }
    }

    fn content(&mut self, path: &Path) -> &mut Content {
        let next = self.files.len() as u64;
        let number = *self.names.entry(path.to_owned()).or_insert(next);
        self.files.entry(number).or_default()
    }

    fn draw(&mut self, below: u64) -> u64 {
        // SplitMix64.
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.seed;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % below.max(1)
    }

    fn cut(&mut self, kind: &'static str) -> Cut {
        // Often all or nothing of it survives.
        let odds = [0, 1, 2, 4][self.draw(4) as usize];
        let mut names = self.names_on_disk.clone();
        for change in self.renaming.clone() {
            if self.draw(4) >= odds {
                continue;
            }
            match change {
                Change::Make(path, number) => _ = names.insert(path, number),
                Change::Rename(from, to) => {
                    if let Some(number) = names.remove(&from) {
                        names.insert(to, number);
                    }
                }
                Change::Remove(path) => _ = names.remove(&path),
            }
        }
        let mut files = BTreeMap::new();
        for (path, number) in names {
            let bytes = self.survivors(&path, number, odds);
            files.insert(path, bytes);
        }
        Cut { operation: self.operations - 1, kind, mark: self.mark, files }
    }

    fn survivors(&mut self, path: &Path, number: u64, odds: u64) -> Vec<u8> {
        let is_journal = path.to_string_lossy().contains("journal");
        let Content { on_disk, writes } = self.files.entry(number).or_default();
        let writes = writes.clone();
        let Some(mut bytes) = on_disk.clone() else {
            // It may have been written by a mapping.
            let mut bytes = fs::read(path).unwrap_or_default();
            for page in bytes.chunks_mut(PAGE as usize) {
                if self.draw(4) >= odds {
                    page.fill(0);
                }
            }
            return bytes;
        };
        let mut by_page: BTreeMap<u64, Vec<(u64, &[u8])>> = BTreeMap::new();
        for (offset, data) in &writes {
            let (mut at, mut data) = (*offset, &data[..]);
            while !data.is_empty() {
                let part = data.len().min((PAGE - at % PAGE) as usize);
                by_page.entry(at / PAGE).or_default().push((at, &data[..part]));
                (at, data) = (at + part as u64, &data[part..]);
            }
        }
        for (page, writes) in by_page {
            if self.draw(4) >= odds {
                continue;
            }
            let count = match self.draw(2) {
                0 => writes.len() as u64,
                _ => self.draw(writes.len() as u64 + 1),
            };
            for (number, (at, data)) in writes[..count as usize].iter().enumerate() {
                let is_last = number as u64 + 1 == count;
                for (place, byte) in (*at..).zip(*data) {
                    let starts = place == *at || place.is_multiple_of(SECTOR);
                    if starts && is_last && self.draw(8) == 0 {
                        // The rest of the page's last write is not there.
                        break;
                    }
                    if bytes.len() as u64 <= place {
                        bytes.resize(place as usize + 1, 0);
                    }
                    bytes[place as usize] = *byte;
                }
            }
            if is_journal && count > 0 && self.draw(8) == 0 {
                let (from, to) = ((page * PAGE) as usize, ((page + 1) * PAGE) as usize);
                let to = to.min(bytes.len());
                bytes[from..to].fill(0xEE);
            }
        }
        bytes
    }
}

impl Disk for LossyDisk {
    fn open(&self, path: &Path, anew: bool) -> io::Result<File> {
        if anew {
            let mut state = self.state();
            let number = state.files.len() as u64;
            state.files.insert(number, Content::default());
            state.names.insert(path.to_owned(), number);
            state.renaming.push(Change::Make(path.to_owned(), number));
            state.operate("make")?;
        }
        self.real.open(path, anew)
    }

    fn write(&self, path: &Path, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.content(path).writes.push((offset, bytes.to_vec()));
        state.operate("write")?;
        self.real.write(path, file, offset, bytes)
    }

    fn reserve(&self, path: &Path, file: &File, from: u64, to: u64) -> Result<(), ReserveError> {
        self.real.reserve(path, file, from, to)
    }

    fn sync(&self, path: &Path, file: &File) -> io::Result<()> {
        let mut state = self.state();
        state.operate("sync")?;
        if state.lying.is_some_and(|part| path.to_string_lossy().contains(part)) {
            return Ok(());
        }
        let content = state.content(path);
        let writes = std::mem::take(&mut content.writes);
        let len = file.metadata()?.len() as usize;
        match &mut content.on_disk {
            Some(bytes) => {
                bytes.resize(len.max(bytes.len()), 0);
                for (offset, data) in writes {
                    bytes[offset as usize..][..data.len()].copy_from_slice(&data);
                }
            }
            none => *none = Some(fs::read(path)?),
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        if let Some(number) = state.names.remove(from) {
            state.names.insert(to.to_owned(), number);
        }
        state.renaming.push(Change::Rename(from.to_owned(), to.to_owned()));
        state.operate("rename")?;
        self.real.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.real.remove(path)?;
        let mut state = self.state();
        state.names.remove(path);
        state.renaming.push(Change::Remove(path.to_owned()));
        state.operate("remove")
    }

    fn sync_names(&self, folder: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.operate("sync names")?;
        if state.lying != Some("names") {
            // Files outside of this folder are not the test's.
            let inside = |path: &PathBuf| path.parent() == Some(folder);
            state.names_on_disk = state.names.clone().into_iter().filter(|(path, _)| inside(path)).collect();
            state.renaming.clear();
        }
        Ok(())
    }

    fn now(&self) -> Instant {
        self.state().now
    }
}
