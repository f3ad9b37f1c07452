//! The controller's metrics: what it tells operators, and what has happened.

use std::sync::atomic::{AtomicU64, Ordering};

use fatbtree_controller::TableUse;
use fatbtree_controller::grpc::Input;
use fatbtree_controller::operator::{Question, RoleState, Status};
use tokio::sync::{mpsc, oneshot};

use super::ControllerNews;
use crate::metrics::Metrics;

/// Counts of events since the controller began.
#[derive(Debug, Default)]
pub(super) struct Happened {
    reloads: AtomicU64,
    /// Entries of the plans that were loaded.
    reloaded_entries: AtomicU64,
    voided: AtomicU64,
    troubles: AtomicU64,
}

impl Happened {
    pub(super) fn note(&self, news: &ControllerNews) {
        let count = |what: &AtomicU64, by: u64| what.fetch_add(by, Ordering::Relaxed);
        match news {
            ControllerNews::Reloaded { entries, .. } => {
                count(&self.reloads, 1);
                count(&self.reloaded_entries, *entries as u64)
            }
            ControllerNews::Void => count(&self.voided, 1),
            ControllerNews::Trouble(_) => count(&self.troubles, 1),
            ControllerNews::Switch { .. }
            | ControllerNews::Server { .. }
            | ControllerNews::Leads(_)
            | ControllerNews::StandsBy(_)
            | ControllerNews::Outage { .. } => 0,
        };
    }
}

/// Asks the controller for its status, as an operator does.
pub(super) async fn status(inputs: &mpsc::Sender<Input>) -> Option<Status> {
    let (reply, answer) = oneshot::channel();
    inputs.send(Input::Asked { question: Question::Status, reply }).await.ok()?;
    serde_json::from_str(&answer.await.ok()?.ok()?).ok()
}

pub(super) fn metrics(status: &Status, happened: &Happened) -> Metrics {
    let mut metrics = Metrics::default();
    let count = |what: &AtomicU64| what.load(Ordering::Relaxed);
    metrics.counter("controller_reloads", "Plans that were loaded", count(&happened.reloads));
    let entries = count(&happened.reloaded_entries);
    metrics.counter("controller_reloaded_entries", "Entries of the plans that were loaded", entries);
    metrics.counter(
        "controller_voided",
        "Plans taken out because trees were filled anew",
        count(&happened.voided),
    );
    metrics.counter("controller_troubles", "Plans that could not be made", count(&happened.troubles));
    let refused = status.refused_connections;
    metrics.counter("controller_refused_connections", "Connections that were not registered", refused);
    let help = "Index reads that the entries of hot keys led to records, as clients report them";
    metrics.counter("controller_hot_keys", help, status.hot_keys);
    metrics.gauge("controller_plan_active", "1 while a plan is active", status.epoch.is_some().into());
    metrics.gauge("controller_epoch", "The active epoch", status.epoch.unwrap_or(0).into());
    metrics.gauge("controller_entries", "Entries of the active plan", status.entries as u64);
    metrics.gauge("controller_reloading", "1 during a reload", status.reload.is_some().into());
    let of = |name: &str| vec![("name", name.to_owned())];
    let switches = status.switches.iter();
    let (down, cables) = (status.switches_down.len() as u64, status.cables_down.len() as u64);
    metrics.gauge("controller_switches_down", "Switches that paths go round", down);
    metrics.gauge("controller_cables_down", "Cables between switches that are down", cables);
    let silent = switches.clone().map(|it| (of(&it.name), (it.state == RoleState::Silent).into()));
    metrics.labelled_gauge("controller_switch_silent", "1 while a switch does not answer", silent);
    let held = switches.clone().map(|it| (of(&it.name), it.entries as u64));
    metrics.labelled_gauge("controller_switch_entries", "Entries of plans in a switch", held);
    let each = |of: fn(&TableUse) -> usize| {
        let tables = status.switches.iter().flat_map(|it| it.tables.iter().map(move |table| (it, table)));
        let labels =
            |name: &str, table: &TableUse| vec![("name", name.to_owned()), ("table", table.table.clone())];
        tables.map(|(it, table)| (labels(&it.name, table), of(table) as u64)).collect::<Vec<_>>()
    };
    metrics.labelled_gauge(
        "controller_switch_table_entries",
        "Entries in a table of a switch",
        each(|table| table.entries.used),
    );
    metrics.labelled_gauge(
        "controller_switch_table_size",
        "Entries for which a table of a switch has room",
        each(|table| table.entries.size),
    );
    let admitted = switches.map(|it| (of(&it.name), it.connections as u64));
    metrics.labelled_gauge("controller_switch_connections", "Connections that a switch admits", admitted);
    let servers = status.servers.iter();
    let silent = servers.clone().map(|it| (of(&it.name), (it.state == RoleState::Silent).into()));
    metrics.labelled_gauge("controller_server_silent", "1 while a memory server is gone", silent);
    let accepted = servers.map(|it| (of(&it.name), it.connections as u64));
    metrics.labelled_gauge(
        "controller_server_connections",
        "Connections that a memory server has accepted",
        accepted,
    );
    metrics.gauge("controller_clients", "Clients that report", status.clients.len() as u64);
    metrics
}
