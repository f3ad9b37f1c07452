//! A memory server's statistics as metrics.

use fatbtree_memserver::Counter;

use crate::metrics::Metrics;

/// Kind of a number in the statistics.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Counter since the start.
    Counter,
    /// Present value.
    Gauge,
    /// Name: as a number it would be rounded.
    Name,
}

use Kind::{Counter as Counts, Gauge, Name};

const KNOWN: [(&str, Kind, &str); 58] = [
    ("blocks_reclaimed", Counts, "Blocks that clients had lost, and that a sweep has found"),
    ("sweeps", Counts, "Sweeps for blocks that clients had lost"),
    (
        "sweeps_void",
        Counts,
        "Sweeps that have ended without effect, because clients or other servers were in the way",
    ),
    ("chunks", Gauge, "Chunks of the region's spare memory, given out or not"),
    ("chunks_free_again", Gauge, "Chunks that have come back and wait to be given out again"),
    ("chunks_held", Gauge, "Parts of chunks that open sessions have been given"),
    ("chunk_tails_came_back", Counts, "Unused rests of chunks that came back when sessions ended"),
    ("chunks_published", Gauge, "Parts of chunks that belong to the structure"),
    ("events_not_taken", Gauge, "Events that wait to be told to the controller"),
    (
        "generation",
        Name,
        "The generation of the tree's memory, as a label: another after each load; always 1",
    ),
    ("journal_applied", Counts, "Halves of the journal that were brought into the region's file"),
    ("journal_batches", Counts, "Batches of changes that were written to the journal"),
    ("journal_bytes", Counts, "Bytes that were written to the journal"),
    ("journal_sync_microseconds", Counts, "Time of all syncs of the journal, in microseconds"),
    ("journal_syncs", Counts, "Syncs of the journal: times that changes were brought to the disk"),
    (
        "journal_unsynced_microseconds",
        Gauge,
        "Age of the oldest change that is not on the disk, in microseconds",
    ),
    ("journal_waits", Counts, "Times that changes have waited for a slow disk"),
    ("keys_located", Counts, "Keys whose places the controller has asked for"),
    ("keys_located_nodes", Counts, "Nodes that were read to find these keys"),
    (
        "loaded_keys",
        Gauge,
        "Keys that the tree was loaded with; what clients inserted and deleted since is not counted",
    ),
    ("loaded_record_bytes", Gauge, "Bytes of the records that the tree was loaded with"),
    ("nic_duplicates", Counts, "Requests that the NIC has answered again"),
    ("nic_frames_received", Counts, "Frames that the NIC has received"),
    ("nic_frames_sent", Counts, "Frames that the NIC has sent"),
    ("nic_naks_sent", Counts, "Requests that the NIC has refused"),
    ("nic_requests", Counts, "READs, WRITEs and atomics that the NIC has carried out"),
    ("owners", Gauge, "Lock owners, one for each session of a client that may write"),
    ("owners_went_round", Counts, "Times that the numbers of lock owners have begun anew"),
    ("free_blocks", Gauge, "Places of freed nodes and records that wait to be given out again"),
    ("free_blocks_dropped", Counts, "Places that came back and found no room in the lists"),
    ("free_blocks_returned", Counts, "Places of freed nodes and records that clients gave back"),
    ("free_blocks_granted", Counts, "Places of freed nodes and records that were given out again"),
    ("free_blocks_refused", Counts, "Places that clients gave back and that cannot be"),
    ("queue_pairs", Gauge, "Connected queue pairs"),
    ("queue_pairs_broken", Counts, "Queue pairs that have failed"),
    ("queue_pairs_opened", Counts, "Queue pairs that were connected"),
    ("queue_pairs_replaced", Counts, "Queue pairs that clients have replaced"),
    ("refused", Counts, "Requests of the control plane that were refused"),
    ("region_bytes", Gauge, "Bytes of the region that the tree lies in, spare memory included"),
    ("region_bytes_used", Gauge, "Bytes of the region that the loaded tree and the chunks in use take"),
    ("region_bytes_free", Gauge, "Free bytes of the region"),
    (
        "region_bytes_held",
        Gauge,
        "Bytes of the region that clients with sessions hold, with what they have written there",
    ),
    ("region_bytes_live", Gauge, "Bytes of the region that are the structure's"),
    ("region_bytes_lost", Gauge, "Bytes of the region that clients which died have lost, as far as is known"),
    ("requests", Counts, "Requests of the control plane"),
    ("roots_seen", Counts, "Times that the tree was found to have another root"),
    ("sessions", Gauge, "Sessions of clients"),
    ("sessions_lapsed", Counts, "Sessions that have ended because their clients did not renew them"),
    ("sessions_opened", Counts, "Sessions that were opened"),
    ("snapshots", Counts, "Snapshots of the tree's top that were taken"),
    ("snapshots_failed", Counts, "Snapshots that could not be taken"),
    ("snapshots_waiting", Gauge, "Snapshots that are being taken"),
    ("superblocks_refused", Counts, "Times that what clients wrote of the root could not be"),
    (
        "region_older",
        Gauge,
        "1 while the server's folder is an older copy than what others have worked with, and it refuses all clients",
    ),
    ("region_lost", Gauge, "1 while the server has lost its tree and refuses all clients until it is loaded"),
    ("reloads", Counts, "Trees that were loaded while the server ran"),
    (
        "undecided",
        Gauge,
        "1 while the server waits for a controller to say whether its empty tree is the first one",
    ),
    ("used", Gauge, "1 if the structure holds anything that a load would replace"),
];

/// Counters of the device by reason begin with this.
const DROPPED: &str = "nic_dropped_";

pub(super) fn counted(statistics: Vec<Counter>) -> Metrics {
    let (mut metrics, mut dropped) = (Metrics::default(), vec![]);
    for (name, value) in statistics {
        if let Some(reason) = name.strip_prefix(DROPPED) {
            dropped.push((vec![("reason", reason.to_owned())], value));
            continue;
        }
        let known = KNOWN.iter().find(|(known, ..)| *known == name);
        let (kind, help) =
            known.map_or((Counts, "A counter of the device"), |(_, kind, help)| (*kind, *help));
        let full = format!("memory_server_{name}");
        match kind {
            Counts => metrics.counter(&full, help, value),
            Gauge => metrics.gauge(&full, help, value),
            Name => metrics.labelled_gauge(&full, help, [(vec![("value", value.to_string())], 1)]),
        }
    }
    metrics.labelled_counter("memory_server_nic_dropped", "Frames that the NIC has dropped", dropped);
    metrics
}
