//! Answers for people.

use std::time::{SystemTime, UNIX_EPOCH};

use comfy_table::{Table, presets};
use fatbtree_controller::operator::{
    Counters, Difference, DroppedPacket, Drops, Explanation, HotPlace, Planned, ReloadStatus, Reloaded,
    RoleState, Status, Step, SwitchDifference, SwitchDrops, TableCounters,
};
use fatbtree_controller::{Cost, Memory, Stage, TableUse};

use crate::count::AskedKey;

pub(super) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    table
}

fn state(state: RoleState) -> &'static str {
    match state {
        RoleState::Silent => "silent",
        RoleState::Converging => "converging",
        RoleState::Settled => "settled",
        RoleState::Lost => "tree lost",
    }
}

fn dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn mebibytes(bytes: Option<u64>) -> String {
    dash(bytes.map(|bytes| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))))
}

/// Share in use of the fullest table in a memory.
fn fullest(tables: &[TableUse], memory: Memory) -> String {
    dash(TableUse::fullest(tables, memory).map(|table| format!("{:.1} %", 100.0 * table.share())))
}

pub(super) fn status(status: &Status) {
    outln!("{}", status_text(status));
}

pub(super) fn status_text(status: &Status) -> String {
    let mut switches =
        table(["switch", "state", "epoch", "entries", "TCAM", "SRAM", "connections", "program", "P4Runtime"]);
    for switch in &status.switches {
        switches.add_row([
            switch.name.clone(),
            state(switch.state).to_owned(),
            dash(switch.epoch),
            switch.entries.to_string(),
            fullest(&switch.tables, Memory::Tcam),
            fullest(&switch.tables, Memory::Sram),
            switch.connections.to_string(),
            dash(switch.program.as_ref()),
            switch.address.clone(),
        ]);
    }
    let mut servers = table([
        "memory server",
        "state",
        "partition",
        "from key",
        "connections",
        "registered",
        "live",
        "held",
        "free",
        "lost",
        "gRPC",
    ]);
    for server in &status.servers {
        servers.add_row([
            server.name.clone(),
            state(server.state).to_owned(),
            server.partition.to_string(),
            match &server.structure {
                None => dash(server.first_key.clone().or_else(|| Some(format!("{:#x}", server.low?)))),
                Some(_) => dash(None::<String>),
            },
            server.connections.to_string(),
            server.registered.to_string(),
            mebibytes(server.room.map(|room| room.live)),
            mebibytes(server.room.map(|room| room.held)),
            mebibytes(server.room.map(|room| room.free)),
            mebibytes(server.room.map(|room| room.lost)),
            server.address.clone(),
        ]);
    }
    let mut text = format!("{switches}\n{servers}\n");
    for server in &status.servers {
        if let Some(structure) = &server.structure {
            let name = &server.name;
            text += &format!("{name} holds a structure of kind {structure:?}: it takes no part in plans\n");
        }
    }
    if !status.clients.is_empty() {
        let mut clients = table(["client", "index reads", "to hot keys", "stale hints"]);
        for client in &status.clients {
            clients.add_row([
                client.name.clone(),
                client.index_reads.to_string(),
                client.hot_keys.to_string(),
                client.stale_hints.to_string(),
            ]);
        }
        text += &format!("{clients}\n");
    }
    for switch in &status.switches {
        if let Some(reason) = &switch.reason {
            text += &format!("{} is silent: {reason}\n", switch.name);
        }
    }
    for switch in &status.switches_down {
        text += &format!("switch {switch} is down\n");
    }
    for cable in &status.cables_down {
        text += &format!("cable {cable} is down\n");
    }
    for warning in &status.warnings {
        text += &format!("warning: {warning}\n");
    }
    if let Some(trouble) = &status.trouble {
        text += &format!("no new plan: {trouble}\n");
    }
    if status.refused_connections > 0 {
        text += &format!("{} connections refused\n", status.refused_connections);
    }
    text + &force_text(status)
}

/// The plan that index reads follow, and the one that is on its way. A reload may keep the epoch, and write only what
/// differs.
fn force_text(status: &Status) -> String {
    let active = match status.epoch {
        Some(epoch) => match &status.plan {
            Some(plan) => format!("plan {plan} active in epoch {epoch}, {} entries", status.entries),
            None => format!("a plan that is not known here active in epoch {epoch}"),
        },
        None => "no active plan: index reads end at the roots of their partitions".to_owned(),
    };
    let Some(ReloadStatus { epoch, plan, stage, entries }) = &status.reload else { return active };
    let is_difference = status.epoch == Some(*epoch);
    let next = match stage {
        Stage::Clear => "what is left of the plan before is being deleted".to_owned(),
        Stage::Write if is_difference => {
            format!("changes to it are being written, plan {plan} of {entries} entries then")
        }
        Stage::Write => format!("plan {plan} is being written in epoch {epoch}, {entries} entries"),
        Stage::Flip if is_difference => format!("plan {plan} is being put active, {entries} entries"),
        Stage::Flip => format!("plan {plan} is being put active in epoch {epoch}, {entries} entries"),
    };
    format!("{active}; {next}")
}

pub(super) fn planned(planned: &Planned) {
    out!("{}", planned.text);
    let cost = Cost { round_trips: planned.trips, bytes: planned.bytes };
    let before = planned.trips_active.map(|round_trips| {
        let bytes = planned.bytes_active.unwrap_or(0.0);
        format!("; {} by the active plan", Cost { round_trips, bytes })
    });
    outln!("from where it leads down to the leaf: {cost}{}", before.unwrap_or_default());
}

pub(super) fn reloaded(reloaded: &Reloaded) {
    let Reloaded { epoch, plan, entries, changes, seconds } = reloaded;
    outln!("plan {plan} active in epoch {epoch}, {entries} entries, {changes} changes in {seconds:.2} s");
}

pub(super) fn difference(difference: &Difference) {
    if difference.switches.is_empty() {
        return outln!("no difference");
    }
    let mut changes = table(["switch", "insert", "modify", "delete"]);
    for SwitchDifference { name, insert, modify, delete } in &difference.switches {
        changes.add_row([name.clone(), insert.to_string(), modify.to_string(), delete.to_string()]);
    }
    outln!("{changes}");
}

pub(super) fn explanation(asked: AskedKey, explanation: &Explanation) {
    let Explanation { key: _, epoch, partition, address, hot, steps, because } = explanation;
    outln!("key {asked} in epoch {epoch}, partition {partition}");
    if let Some(HotPlace { address, switches }) = hot {
        let switches = switches.join(", ");
        outln!(
            "  it is hot: {switches} lead lookups straight to {address:#x}; what is not a lookup goes on:"
        );
    }
    for Step { switch, table, low, next, address, cached } in steps {
        let (low, until) = (asked.show(*low), next.map_or("the end".to_owned(), |next| asked.show(next)));
        let further = if *cached { ", cached further on" } else { "" };
        outln!("  {switch:<10} {table:<14} keys from {low} to {until}: {address:#x}{further}");
    }
    outln!("it ends at {address:#x}: {because}");
}

pub(super) fn counters(counters: &Counters) {
    outln!("{}", counters_text(counters));
}

pub(super) fn counters_text(counters: &Counters) -> String {
    let mut sums = table(["table", "index reads", "of them ended here", "share"]);
    let stops: u64 = counters.tables.iter().map(|table| table.stops).sum();
    for TableCounters { table, hits, stops: ended } in &counters.tables {
        let share = if stops > 0 { 100.0 * *ended as f64 / stops as f64 } else { 0.0 };
        sums.add_row([table.clone(), hits.to_string(), ended.to_string(), format!("{share:.1} %")]);
    }
    let mut text = sums.to_string();
    if !counters.silent.is_empty() {
        text += &format!("\nnot counted: {}", counters.silent.join(", "));
    }
    text
}

pub(super) fn drops(drops: &Drops) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    outln!("{}", drops_text(drops, u64::try_from(now.as_millis()).unwrap_or(u64::MAX)));
}

/// Dropped packets as text, at a time in milliseconds since 1970.
fn drops_text(drops: &Drops, now: u64) -> String {
    let all = drops.switches.iter().flat_map(|SwitchDrops { name, reasons }| {
        reasons.iter().filter(|count| count.packets > 0).map(move |count| (name, count))
    });
    let mut counts = table(["switch", "reason", "packets"]);
    counts.add_rows(all.map(|(name, count)| [name.clone(), count.reason.clone(), count.packets.to_string()]));
    let mut text = match counts.row_count() {
        0 => "nothing was dropped".to_owned(),
        _ => counts.to_string(),
    };
    if !drops.samples.is_empty() {
        let mut samples = table(["seconds ago", "switch", "port", "reason", "bytes", "first of them"]);
        for DroppedPacket { unix_ms, switch, port, reason, length, bytes } in &drops.samples {
            let ago = now.saturating_sub(*unix_ms) as f64 / 1000.0;
            let first = bytes.get(..FIRST).unwrap_or(bytes);
            samples.add_row([
                format!("{ago:.1}"),
                switch.clone(),
                port.to_string(),
                reason.clone(),
                length.to_string(),
                first.to_owned(),
            ]);
        }
        text += &format!("\n{samples}");
    }
    if !drops.silent.is_empty() {
        text += &format!("\nnot counted: {}", drops.silent.join(", "));
    }
    text
}

/// Digits of a sample that are shown: Ethernet, IPv4 and UDP headers. `--json` has more.
const FIRST: usize = 2 * 42;

#[cfg(test)]
mod tests {
    use fatbtree_controller::operator::DropCount;

    use super::*;

    #[test]
    fn an_epoch_is_in_force_or_on_its_way_never_both() {
        let status = |epoch: Option<u8>, reload: Option<(u8, Stage)>| {
            let plan = || "b2".to_owned();
            let reload = reload.map(|(epoch, stage)| ReloadStatus { epoch, plan: plan(), stage, entries: 9 });
            let plan = epoch.map(|_| "a1".to_owned());
            force_text(&Status { epoch, plan, reload, entries: 7, ..Status::default() })
        };
        let active = "plan a1 active in epoch 4, 7 entries";
        assert_eq!(status(Some(4), None), active);
        let write = status(Some(4), Some((6, Stage::Write)));
        assert_eq!(write, format!("{active}; plan b2 is being written in epoch 6, 9 entries"));
        let difference = status(Some(4), Some((4, Stage::Write)));
        assert_eq!(
            difference,
            format!("{active}; changes to it are being written, plan b2 of 9 entries then")
        );
        let flip = status(Some(4), Some((6, Stage::Flip)));
        assert_eq!(flip, format!("{active}; plan b2 is being put active in epoch 6, 9 entries"));
        let clear = status(Some(6), Some((6, Stage::Clear)));
        assert!(clear.ends_with("; what is left of the plan before is being deleted"), "{clear}");
        let unknown = force_text(&Status { epoch: Some(3), ..Status::default() });
        assert_eq!(unknown, "a plan that is not known here active in epoch 3");
        assert!(status(None, Some((6, Stage::Write))).starts_with("no active plan"));
    }

    #[test]
    fn drops_are_told_by_switch_and_reason() {
        let of = |name: &str, counts: &[(&str, u64)]| SwitchDrops {
            name: name.to_owned(),
            reasons: counts
                .iter()
                .map(|(reason, packets)| DropCount { reason: (*reason).to_owned(), packets: *packets })
                .collect(),
        };
        let sample = DroppedPacket {
            unix_ms: 10_000,
            switch: "edge-0-1".to_owned(),
            port: 3,
            reason: "TTL".to_owned(),
            length: 128,
            bytes: "ab".repeat(128),
        };
        let drops = Drops {
            switches: vec![of("core-0", &[("TTL", 17), ("IPv6", 0), ("no route", 4)]), of("edge-0-1", &[])],
            samples: vec![sample],
            silent: vec!["edge-0-0".to_owned()],
        };
        let text = drops_text(&drops, 12_500);
        let lines: Vec<_> = text.lines().collect();
        let has = |words: &[&str]| lines.iter().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(has(&["core-0", "TTL", "17"]) && has(&["core-0", "no route", "4"]), "{text}");
        assert!(!has(&["IPv6"]), "{text}");
        assert!(has(&["2.5", "edge-0-1", "3", "TTL", "128", &"ab".repeat(42)]), "{text}");
        assert!(!text.contains(&"ab".repeat(43)) && has(&["not counted: edge-0-0"]), "{text}");
        let none = drops_text(&Drops { switches: vec![of("core-0", &[("TTL", 0)])], ..Drops::default() }, 0);
        assert_eq!(none, "nothing was dropped");
    }
}
