//! Metrics of a role, for Prometheus: text over HTTP, `GET /metrics`; and its health, `GET /healthz`.
//!
//! A scrape asks the role's thread by a message and a waker, as gRPC calls do. Without scrapes, a role pays one atomic load per turn.

mod process;

use std::fmt;
use std::future::Future;
use std::io;
use std::time::Duration;

use fatbtree_port::{Counters, Waker};
use fatbtree_remote_memory::{LatencyBuckets, OperationLatencies};
use fatbtree_trust::Refused;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use crate::NodeError;
use crate::http::{self, Found, PEERS};
use crate::stop::listen;
use process::Process;

/// One metric of a role: a value for each set of labels.
#[derive(Clone, Debug)]
pub(crate) struct Metric {
    name: String,
    help: &'static str,
    values: Values,
}

#[derive(Clone, Debug)]
enum Values {
    Counter(Vec<(Labels, u64)>),
    Gauge(Vec<(Labels, u64)>),
    Histogram(Vec<(Labels, LatencyBuckets)>),
}

type Labels = Vec<(&'static str, String)>;

/// Metrics of a role.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    all: Vec<Metric>,
    /// Reason for which the role cannot do its work now.
    unready: Option<String>,
}

impl Metrics {
    /// Says for what reason the role cannot do its work now, if there is one.
    pub(crate) fn unready(&mut self, reason: Option<String>) {
        self.unready = reason;
    }

    /// Adds a count since the role began.
    pub(crate) fn counter(&mut self, name: &str, help: &'static str, value: u64) {
        self.labelled_counter(name, help, [(Labels::new(), value)]);
    }

    pub(crate) fn labelled_counter(
        &mut self,
        name: &str,
        help: &'static str,
        values: impl IntoIterator<Item = (Labels, u64)>,
    ) {
        let values = Values::Counter(values.into_iter().collect());
        self.all.push(Metric { name: name.to_owned(), help, values });
    }

    /// Adds a present value.
    pub(crate) fn gauge(&mut self, name: &str, help: &'static str, value: u64) {
        self.labelled_gauge(name, help, [(Labels::new(), value)]);
    }

    pub(crate) fn labelled_gauge(
        &mut self,
        name: &str,
        help: &'static str,
        values: impl IntoIterator<Item = (Labels, u64)>,
    ) {
        let values = Values::Gauge(values.into_iter().collect());
        self.all.push(Metric { name: name.to_owned(), help, values });
    }

    /// Adds the latencies of a client's operations.
    pub(crate) fn operations(&mut self, latencies: &OperationLatencies) {
        let of = |(name, buckets): (&str, &LatencyBuckets)| (vec![("operation", name.to_owned())], *buckets);
        let values = Values::Histogram(latencies.by_name().map(of).into());
        let help = "Time from the first step of an operation to its end, in seconds";
        self.all.push(Metric { name: "client_operation_seconds".to_owned(), help, values });
    }

    /// Adds the refusals of a gRPC service.
    pub(crate) fn refused(&mut self, refused: &Refused) {
        let help = "gRPC connections closed at once: there were as many as may be";
        self.counter("grpc_refused_connections", help, refused.count());
    }

    /// Adds the counters of ports, by their numbers.
    pub(crate) fn ports(&mut self, ports: &[(u16, Counters)]) {
        let label = |port: &u16| vec![("port", port.to_string())];
        let received = ports.iter().map(|(port, counters)| (label(port), counters.received));
        self.labelled_counter("port_received", "Frames that came in", received);
        let sent = ports.iter().map(|(port, counters)| (label(port), counters.sent));
        self.labelled_counter("port_sent", "Frames that went out", sent);
        let lost = ports.iter().flat_map(|(port, counters)| {
            let Counters { received: _, sent: _, queue_full, too_long, no_peer, failed } = *counters;
            [("queue_full", queue_full), ("too_long", too_long), ("no_peer", no_peer), ("failed", failed)]
                .map(|(reason, count)| {
                    (vec![("port", port.to_string()), ("reason", reason.to_owned())], count)
                })
        });
        self.labelled_counter("port_lost", "Frames that were lost there", lost);
    }

    fn text(mut self) -> Result<String, fmt::Error> {
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        self.labelled_gauge("build_info", "The program's version, as a label; always 1", [(version, 1)]);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Process::now()));
        registry.sub_registry_with_prefix("fatbtree").register_collector(Box::new(self));
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for Metric { name, help, values } in &self.all {
            let kind = match values {
                Values::Counter(_) => MetricType::Counter,
                Values::Gauge(_) => MetricType::Gauge,
                Values::Histogram(_) => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
            match values {
                Values::Counter(values) => {
                    for (labels, value) in values {
                        ConstCounter::new(*value).encode(metric.encode_family(labels)?)?;
                    }
                }
                Values::Gauge(values) => {
                    for (labels, value) in values {
                        let one = metric.encode_family(labels)?;
                        match i64::try_from(*value) {
                            Ok(value) => ConstGauge::new(value).encode(one)?,
                            // As Prometheus keeps all numbers.
                            Err(_) => ConstGauge::new(*value as f64).encode(one)?,
                        }
                    }
                }
                Values::Histogram(values) => {
                    for (labels, latencies) in values {
                        let buckets: Vec<(f64, u64)> = latencies.buckets().collect();
                        let (sum, count) = (latencies.sum_s(), latencies.count());
                        let mut one = metric.encode_family(labels)?;
                        one.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Questions to a role's thread.
#[derive(Debug)]
pub(crate) struct Questions(mpsc::Receiver<oneshot::Sender<Metrics>>);

impl Questions {
    /// Whether something was asked.
    pub(crate) fn are_waiting(&self) -> bool {
        !self.0.is_empty()
    }

    /// Answers all pending questions.
    pub(crate) fn answer(&mut self, metrics: impl Fn() -> Metrics) {
        while let Ok(reply) = self.0.try_recv() {
            // Fails only if the caller has given up.
            let _ = reply.send(metrics());
        }
    }
}

/// Channel for questions to a role's thread.
#[derive(Clone)]
pub(crate) struct Asker {
    ask: mpsc::Sender<oneshot::Sender<Metrics>>,
    waker: Waker,
}

impl Asker {
    async fn ask(self) -> Option<Metrics> {
        let (reply, answer) = oneshot::channel();
        self.ask.send(reply).await.ok()?;
        self.waker.wake();
        answer.await.ok()
    }
}

/// Serves metrics of a role's thread, which waits behind `waker`, if there is an address.
pub(crate) fn serve_thread(
    runtime: &Runtime,
    address: Option<&str>,
    waker: Waker,
) -> Result<Questions, NodeError> {
    let (ask, asked) = mpsc::channel(PEERS);
    if let Some(address) = address {
        let asker = Asker { ask, waker };
        serve(runtime, address, move || asker.clone().ask())?;
    }
    Ok(Questions(asked))
}

/// Serves metrics of a client's thread, unless another process serves its own at the address.
///
/// Several benches may run as one client side by side, with queries from sockets of their own; the metrics are those of the first.
pub(crate) fn serve_client(
    runtime: &Runtime,
    address: Option<&str>,
    waker: Waker,
) -> Result<Questions, NodeError> {
    match serve_thread(runtime, address, waker.clone()) {
        Err(NodeError::Listen { address, source }) if source.kind() == io::ErrorKind::AddrInUse => {
            tracing::warn!(
                address,
                "metrics of this client are not served: another process, such as a second client of this name, serves its own there"
            );
            serve_thread(runtime, None, waker)
        }
        served => served,
    }
}

/// Listens, and answers from now on.
///
/// # Errors
/// When the address is taken.
pub(crate) fn serve<F, A>(runtime: &Runtime, address: &str, ask: F) -> Result<(), NodeError>
where
    F: Fn() -> A + Clone + Send + 'static,
    A: Future<Output = Option<Metrics>> + Send + 'static,
{
    let listener = listen(runtime, address)?;
    let find = move |path: &str| {
        let is_health = path == "/healthz";
        (is_health || path == "/metrics").then(|| {
            let metrics = ask();
            async move {
                let metrics = match is_health {
                    false => metrics.await,
                    true => match tokio::time::timeout(HEALTHY, metrics).await {
                        Ok(metrics) => metrics,
                        Err(_) => {
                            return Found::Unavailable(format!("the role has not answered in {HEALTHY:?}\n"));
                        }
                    },
                };
                match metrics {
                    Some(Metrics { unready: Some(reason), .. }) if is_health => {
                        Found::Unavailable(format!("{reason}\n"))
                    }
                    Some(_) if is_health => Found::Text(http::PLAIN, "ready\n".to_owned()),
                    metrics => match metrics.and_then(|metrics| metrics.text().ok()) {
                        Some(text) => Found::Text(CONTENT, text),
                        None => Found::Unavailable("the role is stopping\n".to_owned()),
                    },
                }
            }
        })
    };
    runtime.spawn(http::serve(listener, "expected GET or HEAD of /metrics or /healthz\n", find));
    Ok(())
}

/// Time in which a healthy role answers. Probes give up after a few seconds at most.
const HEALTHY: Duration = Duration::from_secs(2);

/// Content type of Prometheus and OpenMetrics.
const CONTENT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
