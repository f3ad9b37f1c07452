//! The table of switches, ports, addresses and routes.

use std::fmt::Write;

use crate::cluster::{Cluster, KeyKind};
use crate::network::{HostId, Peer};

/// Switches with ports, routes and control endpoints, then the hosts with addresses and roles.
///
/// Plain text of aligned columns, no trailing spaces, ends with a newline.
pub fn render_text(cluster: &Cluster) -> String {
    let tree = cluster.tree();
    let mut out = String::new();
    let mut line =
        |text: std::fmt::Arguments<'_>| writeln!(out, "{text}").expect("writing to a String cannot fail");
    line(format_args!(
        "{}: {} switches, {} hosts, fat root in {}\n",
        tree.kind(),
        tree.switches().len(),
        tree.hosts().len(),
        tree.roots().iter().map(|root| tree.switch(*root).name()).collect::<Vec<_>>().join(", ")
    ));

    let mut rows =
        vec![["switch", "role", "address", "P4Runtime", "ports", "routes"].map(str::to_owned).to_vec()];
    for s in tree.switches() {
        let ports: Vec<String> = tree
            .ports(s.id)
            .map(|(port, peer)| match peer {
                Peer::Switch { switch, port: theirs } => {
                    format!("{port}:{}.{theirs}", tree.switch(switch).name())
                }
                Peer::Host(host) => format!("{port}:{}", tree.host(host).name()),
            })
            .collect();
        let routes: Vec<String> =
            tree.routes(s.id).iter().map(|r| format!("{}>{}", r.prefix, r.port)).collect();
        let endpoint = cluster.p4runtime(s.id);
        rows.push(vec![
            s.name(),
            s.role.to_string(),
            s.ip.to_string(),
            format!("{}#{}", endpoint.address, endpoint.device_id),
            ports.join(" "),
            routes.join(" "),
        ]);
    }
    line(format_args!("{}", table(&rows)));

    let mut rows = vec![["host", "address", "MAC", "at", "role"].map(str::to_owned).to_vec()];
    for h in tree.hosts() {
        rows.push(vec![
            h.name(),
            h.ip.to_string(),
            h.mac.to_string(),
            format!("{}.{}", tree.edge_of(h.id).name(), h.index),
            if tree.is_plugged_in(h.id) { role(cluster, h.id) } else { "not wired".to_owned() },
        ]);
    }
    line(format_args!("{}", table(&rows).trim_end_matches('\n')));
    out
}

fn role(cluster: &Cluster, host: HostId) -> String {
    if let Some(server) = cluster.servers().iter().find(|s| s.host == host) {
        let keys = match cluster.keys() {
            KeyKind::Numbers => format!("{:#018x} to {:#018x}", server.low, server.high),
            KeyKind::Bytes => match server.high.checked_add(1) {
                Some(next) => format!("from {} to before {}", border(server.low), border(next)),
                None => format!("from {}", border(server.low)),
            },
        };
        let (partition, grpc) = (server.partition, &server.grpc);
        return format!("memory server: partition {partition}, keys {keys}, gRPC {grpc}");
    }
    cluster
        .clients()
        .iter()
        .find(|c| c.host == host)
        .map_or_else(String::new, |c| format!("client {}", c.name))
}

/// A border between keys of bytes, as a cluster file has it.
fn border(word: u64) -> String {
    let word = word.to_be_bytes();
    let len = word.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let bytes = &word[..len];
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => format!("{text:?}"),
        _ => format!("0x{}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
}

/// Columns as wide as their widest cell, two spaces between them.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        rows.iter().filter_map(|row| row.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        out.push_str(cells.join("  ").trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_everything_of_the_example() {
        let text = render_text(&Cluster::example());
        for part in [
            "FatTree k = 4 (one core): 13 switches, 16 hosts, fat root in core-0",
            "0:edge-1-0.2 1:edge-1-1.2 2:core-0.1",
            "127.0.0.1:9559#1",
            "127.0.0.1:9612#13",
            "0.0.0.0/0>2 10.1.0.0/24>0 10.1.1.0/24>1",
            "memory server: partition 1, keys 0x4000000000000000 to 0x7fffffffffffffff, gRPC 127.0.0.1:9701",
            "client loader",
            "host-2-1-1  10.2.1.200  02:00:0a:02:01:c8  edge-2-1.1",
        ] {
            assert!(text.contains(part), "{part:?} missing in\n{text}");
        }
        assert!(
            text.lines().all(|line| line == line.trim_end())
                && text.ends_with('\n')
                && !text.ends_with("\n\n")
        );
        assert_eq!(text.lines().count(), 1 + 1 + 14 + 1 + 17);
    }
}
