//! The live page: a cluster's switches, memory servers and clients in a browser.
//!
//! ```text
//!   browser ── GET /              ──► page.html: no build step, no asset of another host
//!           ── GET /state.json    ──► controller: Status, Counters (asked at once, or told from less than half a second ago)
//!           ── GET /metrics/NAME  ──► the role's own /metrics, which a browser may not ask itself
//! ```
//!
//! The page draws, and computes rates from what it was told a second ago. It changes nothing in the cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fatbtree_controller::grpc::Controllers;
use fatbtree_controller::operator::{Counters, Question, Status};
use fatbtree_topology::{Cluster, Network, Peer};
use fatbtree_trust::{CONTROLLER, Trust};
use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

use crate::http::{self, Found};

const PAGE: &str = include_str!("page.html");
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const METRICS: &str = "text/plain; charset=utf-8";
const USAGE: &str = "expected GET /, /state.json, or /metrics/NAME of a role in the cluster file\n";

/// Time limit for reaching the controller, for each of its answers, and for the metrics of a role. A browser has 5 s.
const PATIENCE: Duration = Duration::from_secs(2);
/// Age up to which a state is told again: several browsers ask the controller as often as one.
const FRESH: Duration = Duration::from_millis(500);
/// Bytes of the longest metrics that are passed on.
const METRICS_BYTES: u64 = 1 << 20;

/// A page about a cluster.
#[derive(Clone, Debug)]
pub struct LivePage(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    controllers: Controllers,
    network: Drawing,
    /// Addresses of metrics, by the role's name.
    metrics: BTreeMap<String, String>,
    begun: Instant,
    last: Mutex<Option<(Instant, Arc<str>)>>,
    plan: Mutex<Option<Plan>>,
}

/// The active plan since when.
#[derive(Clone, Copy, Debug)]
struct Plan {
    epoch: u8,
    since: Instant,
    /// Whether the page has seen the plan become active.
    is_exact: bool,
}

/// The network as the page draws it.
#[derive(Clone, Debug, Serialize)]
struct Drawing {
    kind: &'static str,
    switches: Vec<DrawnSwitch>,
    hosts: Vec<DrawnHost>,
    /// Names of both ends, the upper one first.
    cables: Vec<(String, String)>,
}

#[derive(Clone, Debug, Serialize)]
struct DrawnSwitch {
    name: String,
    tier: u8,
}

#[derive(Clone, Debug, Serialize)]
struct DrawnHost {
    name: String,
    /// Memory server or client on it.
    role: String,
    is_client: bool,
}

/// Content of `/state.json`.
#[derive(Debug, Serialize)]
struct State<'a> {
    network: &'a Drawing,
    /// Roles with metrics, by name.
    metrics: Vec<&'a str>,
    status: Option<Status>,
    counters: Option<Counters>,
    /// Age of the active plan in seconds, and whether it may be older: the page was not there before.
    plan_age_s: Option<(f64, bool)>,
    /// Reason for which the controller has not answered.
    trouble: Option<String>,
    /// Milliseconds from the begin of the page to this state.
    at_ms: u64,
}

impl LivePage {
    /// A page about a cluster, which asks its controllers as the owner of `trust`.
    #[must_use]
    pub fn new(cluster: &Cluster, trust: &Trust) -> Self {
        let controllers =
            Controllers::new(cluster.controllers().iter().map(|address| trust.to(address, CONTROLLER)));
        let switches = cluster.tree().switches().iter().map(fatbtree_topology::Switch::name);
        let servers = cluster.servers().iter().map(|server| server.name.clone());
        let clients = cluster.clients().iter().map(|client| client.name.clone());
        let names = switches.chain(servers).chain(clients).chain([CONTROLLER.to_owned()]);
        let metrics = names.filter_map(|name| Some((name.clone(), cluster.metrics(&name)?.to_owned())));
        Self(Arc::new(Shared {
            controllers,
            network: Drawing::of(cluster),
            metrics: metrics.collect(),
            begun: Instant::now(),
            last: Mutex::default(),
            plan: Mutex::default(),
        }))
    }

    /// Serves the page, until the future is dropped.
    pub async fn serve(self, listener: TcpListener) {
        http::serve(listener, USAGE, move |path| self.find(path)).await;
    }

    fn find(&self, path: &str) -> Option<impl Future<Output = Found> + Send + use<>> {
        let shared = Arc::clone(&self.0);
        let role = match path {
            "/" | "/state.json" => None,
            path => Some(self.0.metrics.get(path.strip_prefix("/metrics/")?)?.clone()),
        };
        let is_page = path == "/";
        Some(async move {
            match role {
                Some(address) => match scrape(&address).await {
                    Ok(text) => Found::Text(METRICS, format!("{text}# at_ms {}\n", shared.at_ms())),
                    Err(error) => Found::Unavailable(format!("{address} does not answer: {error}\n")),
                },
                None if is_page => Found::Text(HTML, PAGE.to_owned()),
                None => Found::Text(JSON, shared.state().await.to_string()),
            }
        })
    }
}

impl Shared {
    async fn state(&self) -> Arc<str> {
        let mut last = self.last.lock().await;
        if let Some((_, text)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Arc::clone(text);
        }
        let asked = async {
            let status: Status = self.controllers.ask(&Question::Status, PATIENCE, PATIENCE).await?;
            let counters: Counters = self.controllers.ask(&Question::Counters, PATIENCE, PATIENCE).await?;
            Ok::<_, fatbtree_controller::grpc::ClientError>((status, counters))
        };
        // Reaching one controller after the other must not take longer than a browser waits.
        let (status, counters, trouble) = match tokio::time::timeout(2 * PATIENCE, asked).await {
            Ok(Ok((status, counters))) => (Some(status), Some(counters), None),
            Ok(Err(error)) => (None, None, Some(error.to_string())),
            Err(_) => (None, None, Some(format!("the controller has not answered in {:?}", 2 * PATIENCE))),
        };
        let plan_age_s = match &status {
            Some(status) => self.plan_age(status.epoch).await,
            None => None,
        };
        let metrics = self.metrics.keys().map(String::as_str).collect();
        let at_ms = self.at_ms();
        let state = State { network: &self.network, metrics, status, counters, plan_age_s, trouble, at_ms };
        let text: Arc<str> = serde_json::to_string(&state).expect("numbers and names become JSON").into();
        *last = Some((Instant::now(), Arc::clone(&text)));
        text
    }

    fn at_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    async fn plan_age(&self, epoch: Option<u8>) -> Option<(f64, bool)> {
        let mut plan = self.plan.lock().await;
        let is_first = plan.is_none();
        let Some(epoch) = epoch else {
            // The next plan becomes active before the page's eyes.
            *plan = Some(Plan { epoch: u8::MAX, since: Instant::now(), is_exact: true });
            return None;
        };
        if plan.is_none_or(|plan| plan.epoch != epoch) {
            *plan = Some(Plan { epoch, since: Instant::now(), is_exact: !is_first });
        }
        plan.map(|plan| (plan.since.elapsed().as_secs_f64(), !plan.is_exact))
    }
}

impl Drawing {
    fn of(cluster: &Cluster) -> Self {
        let network: &Network = cluster.tree();
        let servers = cluster.servers().iter().map(|server| (server.host, &server.name, false));
        let clients = cluster.clients().iter().map(|client| (client.host, &client.name, true));
        let roles: BTreeMap<_, _> =
            servers.chain(clients).map(|(host, name, is_client)| (host, (name, is_client))).collect();
        let hosts = roles.iter().map(|(&host, &(role, is_client))| DrawnHost {
            name: network.host(host).name(),
            role: role.clone(),
            is_client,
        });
        let cables = network.links().into_iter().filter_map(|link| {
            let lower = match link.lower {
                Peer::Switch { switch, .. } => network.switch(switch).name(),
                Peer::Host(host) => roles.contains_key(&host).then(|| network.host(host).name())?,
            };
            Some((network.switch(link.upper).name(), lower))
        });
        Self {
            kind: network.kind().name(),
            switches: network
                .switches()
                .iter()
                .map(|switch| DrawnSwitch { name: switch.name(), tier: switch.tier })
                .collect(),
            hosts: hosts.collect(),
            cables: cables.collect(),
        }
    }
}

/// Text of a role's metrics.
async fn scrape(address: &str) -> std::io::Result<String> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(METRICS_BYTES).read_to_end(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer);
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok(body.to_owned())
    };
    tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
}
