//! Large requests are answered part by part, and packets pass in between.
//!
//! Without gRPC: requests come through a mailbox, and the test owns the switch, so that it sees every part.

use std::collections::BTreeMap;

use fatbtree_p4runtime::client::uint128;
use fatbtree_p4runtime::entry::{delete, insert, table_entity};
use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::v1::{
    self, CounterData, CounterEntry, Entity, ForwardingPipelineConfig, MasterArbitrationUpdate, ReadRequest,
    SetForwardingPipelineConfigRequest, StreamMessageRequest, TableEntry, Update, WriteRequest, entity,
    set_forwarding_pipeline_config_request::Action, stream_message_request,
};
use fatbtree_switch::Output;
use fatbtree_switch::service::{
    Inbox, Mailbox, ReadOutcome, Request, Response, StreamEvent, StreamId, Switch, mailbox,
};

use crate::harness::{DEVICE, JSON, config, frame, info};

/// Entries of a large request.
const MANY: u64 = 6_000;

struct Owner {
    runtime: tokio::runtime::Runtime,
    mailbox: Mailbox,
    inbox: Inbox,
    switch: Switch,
}

impl Owner {
    fn new(config: ForwardingPipelineConfig) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("threads");
        let (mailbox, inbox) = mailbox();
        let mut switch = Switch::new(DEVICE);
        switch.load(config).expect("a sound program");
        let bid = MasterArbitrationUpdate {
            device_id: DEVICE,
            election_id: Some(uint128(1)),
            ..MasterArbitrationUpdate::default()
        };
        let update = Some(stream_message_request::Update::Arbitration(bid));
        let event = StreamEvent::Message(StreamMessageRequest { update });
        switch.handle_request(Request::Stream(StreamId(1), event));
        Self { runtime, mailbox, inbox, switch }
    }

    /// Has a request answered; counts the parts that it took, and calls `between` after each.
    fn ask(&mut self, request: Request, mut between: impl FnMut(&mut Switch, usize)) -> (Response, usize) {
        let mailbox = self.mailbox.clone();
        let asking = self.runtime.spawn(async move { mailbox.call(request).await });
        let mut parts = 0;
        while !asking.is_finished() {
            match self.inbox.try_drain(&mut self.switch) {
                0 => std::thread::yield_now(),
                _ => {
                    parts += 1;
                    between(&mut self.switch, parts);
                }
            }
        }
        let answer = self.runtime.block_on(asking).expect("it does not panic");
        (answer.expect("the switch is there"), parts)
    }

    fn write(&mut self, updates: Vec<Update>) -> usize {
        let (Response::Write(result), parts) = self.ask(write(updates), |_, _| {}) else {
            panic!("not a write")
        };
        result.expect("legal");
        parts
    }

    fn read(&mut self, entity: Entity, between: impl FnMut(&mut Switch, usize)) -> (ReadOutcome, usize) {
        let request = ReadRequest { device_id: DEVICE, entities: vec![entity], ..ReadRequest::default() };
        match self.ask(Request::Read(request), between) {
            (Response::Read(outcome), parts) => (outcome, parts),
            (other, _) => panic!("not a read: {other:?}"),
        }
    }

    fn set(&mut self, action: Action, config: ForwardingPipelineConfig) -> (Result<(), Code>, usize) {
        let request = SetForwardingPipelineConfigRequest {
            device_id: DEVICE,
            election_id: Some(uint128(1)),
            action: action.into(),
            config: Some(config),
            ..SetForwardingPipelineConfigRequest::default()
        };
        match self.ask(Request::SetPipeline(Box::new(request)), |_, _| {}) {
            (Response::SetPipeline(result), parts) => (result.map(|_| ()).map_err(|s| s.code()), parts),
            (other, _) => panic!("not the pipeline: {other:?}"),
        }
    }
}

fn write(updates: Vec<Update>) -> Request {
    let election_id = Some(uint128(1));
    Request::Write(WriteRequest { device_id: DEVICE, election_id, updates, ..WriteRequest::default() })
}

fn entry(key: u64) -> TableEntry {
    let info = info();
    let table = info.table("exact_table").expect("there");
    let forward = table.action("forward_counted").expect("there");
    table.entry().exact(&table.fields[0], key).action(forward, &[key % 500]).build().expect("legal")
}

fn entries(keys: impl Iterator<Item = u64>) -> Vec<TableEntry> {
    let (first, info) = (entry(0), info());
    let table = info.table("exact_table").expect("there");
    let forward = table.action("forward_counted").expect("there");
    let entry = |key| {
        let entry = table.entry().exact(&table.fields[0], key).action(forward, &[key % 500]);
        entry.build().expect("legal")
    };
    assert_eq!(entry(0), first);
    keys.map(entry).collect()
}

fn whole_table() -> Entity {
    let table_id = entry(0).table_id;
    table_entity(TableEntry { table_id, ..TableEntry::default() })
}

/// Number of times that each entry was found, by its message.
fn found(outcome: &ReadOutcome) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for entity in outcome.parts.iter().flat_map(|part| &part.entities) {
        let Some(entity::Entity::TableEntry(entry)) = &entity.entity else { panic!("{entity:?}") };
        *found.entry(format!("{entry:?}")).or_default() += 1;
    }
    found
}

/// The same program, but another text of it.
fn another(config: ForwardingPipelineConfig) -> ForwardingPipelineConfig {
    ForwardingPipelineConfig { p4_device_config: format!("{JSON}\n\n").into_bytes(), ..config }
}

#[test]
fn packets_pass_between_the_parts_of_a_request() {
    let mut owner = Owner::new(config());
    let all = entries(0..MANY);
    let least = MANY as usize / 512;
    let parts = owner.write(all.iter().cloned().map(insert).collect());
    assert!(parts >= least, "written in {parts} parts");

    let mut output = Output::new();
    let mut passed = 0;
    let (outcome, parts) = owner.read(whole_table(), |switch, _| {
        output.clear();
        switch.handle_frame(0, 1, &frame(77, 5, 6), &mut output);
        passed += output.len();
    });
    assert!(parts >= least && passed == parts, "read in {parts} parts, {passed} frames passed");
    outcome.end.clone().expect("all was read");
    let found = found(&outcome);
    assert_eq!(found.len() as u64, MANY);
    assert!(found.values().all(|&times| times == 1));

    // One of the same program finds everything where it is; one of another carries it over, in parts.
    let (result, parts) = owner.set(Action::ReconcileAndCommit, config());
    assert_eq!((result, parts), (Ok(()), 2), "asked whether it may, then set");
    let (result, parts) = owner.set(Action::ReconcileAndCommit, another(config()));
    assert_eq!(result, Ok(()));
    assert!(parts >= least, "carried over in {parts} parts");
    let (outcome, _) = owner.read(whole_table(), |_, _| {});
    assert_eq!(outcome.parts.iter().map(|part| part.entities.len() as u64).sum::<u64>(), MANY);
    let of_77 = TableEntry { counter_data: Some(CounterData::default()), action: None, ..entry(77) };
    let (outcome, _) = owner.read(table_entity(of_77), |_, _| {});
    let Some(entity::Entity::TableEntry(entry)) = &outcome.parts[0].entities[0].entity else { panic!() };
    assert_eq!(entry.counter_data.map(|data| data.packet_count), Some(passed as i64));

    let parts = owner.write(all.into_iter().map(delete).collect());
    assert!(parts >= least, "deleted in {parts} parts");
    assert_eq!(owner.read(whole_table(), |_, _| {}).0.parts.len(), 0);
}

#[test]
fn arrays_are_read_in_parts() {
    let large = JSON.replace("\"size\": 8,", "\"size\": 8000,");
    assert_ne!(large, JSON);
    let mut owner = Owner::new(ForwardingPipelineConfig { p4_device_config: large.into_bytes(), ..config() });
    let all = Entity { entity: Some(entity::Entity::CounterEntry(CounterEntry::default())) };
    let (outcome, parts) = owner.read(all, |_, _| {});
    assert!(parts >= 8000 / 512, "read in {parts} parts");
    let cells = outcome.parts.iter().flat_map(|part| &part.entities);
    let indices: Vec<i64> = cells
        .map(|cell| match &cell.entity {
            Some(entity::Entity::CounterEntry(v1::CounterEntry { index: Some(index), .. })) => index.index,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(indices, (0..8000).collect::<Vec<_>>());
}

/// Writes between the parts of a read: it may tell either state of what they change, and has what they do not change exactly once.
#[test]
fn a_read_finds_what_stays_once_while_others_come_and_go() {
    let mut owner = Owner::new(config());
    let all = entries(0..MANY);
    owner.write(all.iter().cloned().map(insert).collect());
    let mut leaving = all.iter().skip(1).step_by(2).cloned().map(delete);
    let coming = entries(100_000..100_000 + 8 * MANY);
    let mut coming = coming.into_iter().map(insert); // the table doubles several times
    let (outcome, _) = owner.read(whole_table(), |switch, _| {
        let updates = leaving.by_ref().take(200).chain(coming.by_ref().take(2500)).collect();
        let Response::Write(result) = switch.handle_request(write(updates)) else { panic!("not a write") };
        result.expect("legal");
    });
    outcome.end.clone().expect("all was read");
    assert!(leaving.next().is_none() || coming.next().is_none(), "there was much to do in between");
    let found = found(&outcome);
    for stays in all.iter().step_by(2) {
        assert_eq!(found.get(&format!("{stays:?}")), Some(&1), "{stays:?}");
    }
}

#[test]
fn a_read_ends_when_the_program_is_replaced() {
    let mut owner = Owner::new(config());
    owner.write(entries(0..MANY).into_iter().map(insert).collect());
    let (outcome, _) = owner.read(whole_table(), |switch, part| {
        if part == 3 {
            switch.load(another(config())).expect("sound");
        }
    });
    let status = outcome.end.expect_err("its entries are gone");
    assert_eq!(status.code(), Code::Aborted, "{status}");
}

/// A program that is no good is no reason to lose what runs.
#[test]
fn a_program_that_cannot_hold_the_state_leaves_it() {
    let mut owner = Owner::new(config());
    owner.write(entries(0..MANY).into_iter().map(insert).collect());
    let smaller = JSON.replace("\"max_size\": 200000,", "\"max_size\": 5000,");
    assert_ne!(smaller, JSON);
    let smaller = ForwardingPipelineConfig { p4_device_config: smaller.into_bytes(), ..config() };
    let (result, parts) = owner.set(Action::ReconcileAndCommit, smaller);
    assert_eq!(result, Err(Code::InvalidArgument));
    assert!(parts > 5, "it had begun: {parts} parts");
    let (outcome, _) = owner.read(whole_table(), |_, _| {});
    assert_eq!(outcome.parts.iter().map(|part| part.entities.len() as u64).sum::<u64>(), MANY);
}
