//! News of a running controller, for people.

use std::fmt;

use fatbtree_verbs::time::Duration;

/// News of a running controller.
#[derive(Clone, Debug, PartialEq)]
pub enum ControllerNews {
    /// A switch is reached, or is not any more.
    Switch {
        /// Its name.
        name: String,
        /// Reason for which it does not answer; `None` if it holds what it should.
        trouble: Option<String>,
    },
    /// A memory server is here, or is gone.
    Server {
        /// Its name.
        name: String,
        /// Whether it is here.
        here: bool,
    },
    /// A plan is active.
    Reloaded {
        /// Its epoch.
        epoch: u8,
        /// Its [fingerprint](crate::Plan::fingerprint).
        plan: String,
        /// Its entries.
        entries: usize,
        /// Entries that were written or deleted.
        changes: usize,
        /// Duration of the reload.
        took: Duration,
        /// Reason for the plan.
        because: String,
    },
    /// The controller is primary from now on, with this term.
    Leads(u64),
    /// The controller is not primary, for this reason.
    StandsBy(String),
    /// A switch or a cable is dead, or is back.
    Outage {
        /// Which: `switch core-0`, `cable core-0 port 1 - agg-1-0 port 2`.
        what: String,
        /// Whether it is down now.
        is_down: bool,
    },
    /// Trees were filled anew: the active plan was taken out.
    Void,
    /// There is no plan, for this reason.
    Trouble(String),
}

impl fmt::Display for ControllerNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch { name, trouble: None } => write!(f, "switch {name} holds what it should"),
            Self::Switch { name, trouble: Some(reason) } => write!(f, "switch {name} is silent: {reason}"),
            Self::Server { name, here: true } => write!(f, "memory server {name} is here"),
            Self::Server { name, here: false } => write!(f, "memory server {name} is gone"),
            Self::Reloaded { epoch, plan, entries, changes, took, because } => {
                let seconds = took.as_secs_f64();
                write!(
                    f,
                    "plan {plan} active in epoch {epoch}, {entries} entries, {changes} changes in {seconds:.2} s: {because}"
                )
            }
            Self::Outage { what, is_down: true } => write!(f, "{what} is down"),
            Self::Outage { what, is_down: false } => write!(f, "{what} is up again"),
            Self::Leads(term) => write!(f, "primary of the switches from now on, term {term}"),
            Self::StandsBy(reason) => write!(f, "not primary: {reason}"),
            Self::Void => f.write_str("trees were filled anew: no plan is active"),
            Self::Trouble(reason) => write!(f, "no plan: {reason}"),
        }
    }
}
