//! The engine, from outside: programs of `tests/data` and the data plane of `p4/`, frame in, frame out.
#![allow(clippy::unwrap_used)] // a test that cannot go on says so

mod arithmetic;
mod control;
mod damage;
mod fatbtree;
mod filter;
mod groups;
mod hosts;
mod pipes;
mod router;
mod tunnel;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fatbtree_switch::{Entry, MatchValue, Output, Pipeline, Program, TableRef};

/// The programs of `tests/data`, compiled.
pub(crate) const ROUTER: &str = include_str!("../data/router.json");
pub(crate) const FILTER: &str = include_str!("../data/filter.json");
pub(crate) const TUNNEL: &str = include_str!("../data/tunnel.json");
pub(crate) const SUMS: &str = include_str!("../data/sums.json");
pub(crate) const GROUPS: &str = include_str!("../data/groups.json");
pub(crate) const FATBTREE: &str = include_str!("../../../p4/build/fatbtree_v1model.json");

/// A pipeline, with entries written by name.
pub(crate) struct Switch {
    pub(crate) pipeline: Pipeline,
    out: Output,
}

impl Switch {
    pub(crate) fn new(json: &str) -> Self {
        Switch::of(load(json))
    }

    pub(crate) fn of(program: Arc<Program>) -> Self {
        Switch { pipeline: Pipeline::new(program), out: Output::new() }
    }

    pub(crate) fn table(&self, name: &str) -> TableRef {
        self.pipeline.program().table(name).unwrap_or_else(|| panic!("no table {name}"))
    }

    pub(crate) fn entry(
        &self,
        table: &str,
        key: &[MatchValue],
        action: &str,
        params: &[u64],
    ) -> (TableRef, Entry) {
        let table = self.table(table);
        let action = self.pipeline.program().table_action(table, action);
        let action = action.unwrap_or_else(|| panic!("no such action"));
        (table, Entry::new(key.to_vec(), action, params.to_vec()))
    }

    pub(crate) fn insert(&mut self, table: &str, key: &[MatchValue], action: &str, params: &[u64]) {
        let (table, entry) = self.entry(table, key, action, params);
        self.pipeline.insert(table, &entry).unwrap_or_else(|e| panic!("{e}"));
    }

    pub(crate) fn insert_at(
        &mut self,
        priority: i32,
        table: &str,
        key: &[MatchValue],
        action: &str,
        params: &[u64],
    ) {
        let (table, entry) = self.entry(table, key, action, params);
        self.pipeline.insert(table, &entry.with_priority(priority)).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Processes one frame; the frames sent, with their ports.
    pub(crate) fn all(&mut self, port: u16, frame: &[u8]) -> Vec<(u16, Vec<u8>)> {
        self.out.clear();
        self.pipeline.process(5_000, port, frame, &mut self.out);
        self.out.iter().map(|(port, frame)| (port, frame.to_vec())).collect()
    }

    /// The same, with a buffer that the pipeline may keep.
    pub(crate) fn all_given(&mut self, port: u16, frame: &[u8]) -> Vec<(u16, Vec<u8>)> {
        self.out.clear();
        self.pipeline.forward(5_000, port, &mut frame.to_vec(), &mut self.out);
        self.out.iter().map(|(port, frame)| (port, frame.to_vec())).collect()
    }

    /// Processes one frame of which one copy at most is sent.
    pub(crate) fn one(&mut self, port: u16, frame: &[u8]) -> Option<(u16, Vec<u8>)> {
        let mut sent = self.all(port, frame);
        assert!(sent.len() <= 1, "{sent:?}");
        sent.pop()
    }
}

/// Loads a program, once per test run.
pub(crate) fn load(json: &str) -> Arc<Program> {
    static LOADED: Loaded = Mutex::new(BTreeMap::new());
    let load = || Program::load(json).unwrap_or_else(|e| panic!("{e}"));
    LOADED.lock().unwrap().entry(json.len()).or_insert_with(load).clone()
}

type Loaded = Mutex<BTreeMap<usize, Arc<Program>>>;

/// RFC 1071.
pub(crate) fn internet_checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | w.get(1).map_or(0, |&b| u32::from(b)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// Ethernet and IPv4 with a right checksum, around `payload`.
pub(crate) fn ipv4_frame(src: u32, dst: u32, ttl: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0];
    ip.extend((20 + payload.len() as u16).to_be_bytes());
    ip.extend([0x12, 0x34, 0x40, 0, ttl, protocol, 0, 0]);
    ip.extend(src.to_be_bytes());
    ip.extend(dst.to_be_bytes());
    let sum = internet_checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1, 0x08, 0x00];
    frame.extend(ip);
    frame.extend(payload);
    frame
}
