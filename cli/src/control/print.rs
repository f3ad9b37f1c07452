//! Answers for people.

use comfy_table::{Table, presets};
use fatbtree_controller::operator::{
    Counters, Difference, Explanation, HotPlace, Planned, Reloaded, RoleState, Status, Step,
    SwitchDifference, TableCounters,
};
use fatbtree_controller::{Memory, TableUse};

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
    }
}

fn dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// How full the fullest table in a memory is.
fn fullest(tables: &[TableUse], memory: Memory) -> String {
    dash(TableUse::fullest(tables, memory).map(|table| format!("{:.1} %", 100.0 * table.share())))
}

pub(super) fn status(status: &Status) {
    println!("{}", status_text(status));
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
    let mut servers =
        table(["memory server", "state", "partition", "from key", "connections", "registered", "gRPC"]);
    for server in &status.servers {
        servers.add_row([
            server.name.clone(),
            state(server.state).to_owned(),
            server.partition.to_string(),
            dash(server.low.map(|low| format!("{low:#x}"))),
            server.connections.to_string(),
            server.registered.to_string(),
            server.address.clone(),
        ]);
    }
    let mut text = format!("{switches}\n{servers}\n");
    if !status.clients.is_empty() {
        let mut clients = table(["client", "index reads", "led astray"]);
        for client in &status.clients {
            clients.add_row([client.name.clone(), client.index_reads.to_string(), client.astray.to_string()]);
        }
        text += &format!("{clients}\n");
    }
    for switch in &status.switches {
        if let Some(reason) = &switch.reason {
            text += &format!("{} is silent: {reason}\n", switch.name);
        }
    }
    if let Some(trouble) = &status.trouble {
        text += &format!("no new plan: {trouble}\n");
    }
    if status.refused_connections > 0 {
        text += &format!("{} connections refused\n", status.refused_connections);
    }
    text += &match (&status.reload, status.epoch) {
        (Some(reload), _) => {
            let stage = format!("{:?}", reload.stage).to_lowercase();
            format!("reload to epoch {} under way, {} entries: {stage}", reload.epoch, reload.entries)
        }
        (None, Some(epoch)) => format!("epoch {epoch} in force, {} entries", status.entries),
        (None, None) => "no plan in force: index reads end at the roots of their partitions".to_owned(),
    };
    text
}

pub(super) fn planned(planned: &Planned) {
    print!("{}", planned.text);
    match planned.trips_in_force {
        Some(before) => println!(
            "from where it leads down to the leaf: {:.2} round trips; {before:.2} by the plan in force",
            planned.trips
        ),
        None => println!("from where it leads down to the leaf: {:.2} round trips", planned.trips),
    }
}

pub(super) fn reloaded(reloaded: &Reloaded) {
    let Reloaded { epoch, entries, changes, seconds } = reloaded;
    println!("epoch {epoch} in force, {entries} entries, {changes} changes in {seconds:.2} s");
}

pub(super) fn difference(difference: &Difference) {
    if difference.switches.is_empty() {
        return println!("no difference");
    }
    let mut changes = table(["switch", "insert", "modify", "delete"]);
    for SwitchDifference { name, insert, modify, delete } in &difference.switches {
        changes.add_row([name.clone(), insert.to_string(), modify.to_string(), delete.to_string()]);
    }
    println!("{changes}");
}

pub(super) fn explanation(explanation: &Explanation) {
    let Explanation { key, epoch, partition, address, hot, steps, because } = explanation;
    println!("key {key:#x} in epoch {epoch}, partition {partition}");
    if let Some(HotPlace { address, switches }) = hot {
        let switches = switches.join(", ");
        println!(
            "  it is hot: {switches} lead lookups straight to {address:#x}; what is not a lookup goes on:"
        );
    }
    for Step { switch, table, low, next, address, cached } in steps {
        let until = next.map_or("the end".to_owned(), |next| format!("{next:#x}"));
        let further = if *cached { ", cached further on" } else { "" };
        println!("  {switch:<10} {table:<14} keys from {low:#x} to {until}: {address:#x}{further}");
    }
    println!("it ends at {address:#x}: {because}");
}

pub(super) fn counters(counters: &Counters) {
    println!("{}", counters_text(counters));
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
