//! The client that is measured.

use std::time::Duration;

use anyhow::{Result, bail};
use fatbtree_blink::{Pool, Start};
use fatbtree_blink_client::RequesterStats;
use fatbtree_processes::{
    ClientOptions, ClientProcess, NodeError, QueryClientOptions, QueryClientProcess, QueryWay, at_free_seat,
};
use fatbtree_topology::{Client, Cluster, Host, Structure};
use fatbtree_verbs::Verbs;
use fatbtree_wire::query::WINDOW;
use fatbtree_workload::measure::Recorder;
use fatbtree_workload::{Direct, LoadGenerator, Operations, Pace, Store as _, Values};

use super::keys::Keys;
use super::spread::{self, Measured};
use super::{Arguments, MOST, Protocol, Treatment};

/// A client of any kind.
pub(super) enum Process {
    /// Of trees, by RDMA.
    Roce(Box<ClientProcess>),
    /// Of a structure over all memory servers, by RDMA.
    Spread(Box<dyn Measured>),
    /// Of trees, by queries.
    Query(Box<QueryClientProcess>),
}

impl Process {
    pub(super) fn open(
        arguments: &Arguments,
        structure: Structure,
        cluster: &Cluster,
        described: &Client,
    ) -> Result<Self> {
        if arguments.protocol == Protocol::Query && arguments.contention == Treatment::Smart {
            bail!("--contention smart is for RDMA: with --protocol query, the memory servers take the locks");
        }
        let trust = crate::topology::trust(cluster, &arguments.cluster, &described.name)?;
        let patience = Duration::from_secs(arguments.patience);
        if arguments.protocol == Protocol::Query {
            // A server remembers so many requests of a client. One that is late leaves room for as many behind it.
            let open = arguments.rate.is_some() || arguments.ramp;
            let mut options = QueryClientOptions {
                way: QueryWay::Sockets,
                root_to_leaf: arguments.root_to_leaf,
                servers: cluster.servers().to_vec(),
                metrics: cluster.metrics(&described.name).map(str::to_owned),
                lanes: if open { MOST } else { arguments.depth }.div_ceil(WINDOW as u16 / 2),
                trust,
                patience,
            };
            let process = match cluster.servers().iter().all(|server| server.query.is_some()) {
                true => QueryClientProcess::open(&options)?,
                false => at_free_seat(cluster, described.host, patience, |host, port| {
                    options.way = QueryWay::at(cluster, host, || Ok(port))?;
                    QueryClientProcess::open(&options)
                })?,
            };
            process.stop_at_signals()?;
            return Ok(Self::Query(Box::new(process)));
        }
        let with_controllers = !arguments.root_to_leaf && structure == Structure::Tree;
        let first = cluster.tree().host(described.host).ip;
        let options = |host: Host, nic| ClientOptions {
            servers: cluster.servers().to_vec(),
            lanes: arguments.lanes,
            controllers: if with_controllers { cluster.controllers().to_vec() } else { Vec::new() },
            // There is one address for metrics.
            metrics: cluster.metrics(&described.name).map(str::to_owned).filter(|_| host.ip == first),
            host,
            nic,
            trust: trust.clone(),
            patience,
            contention: arguments.contention.into(),
        };
        if let Some(process) = spread::open(arguments, structure, cluster, described, options)? {
            return Ok(Self::Spread(process));
        }
        let open = |host, nic| ClientProcess::open(&options(host, nic));
        let process = arguments.nic.at_seat(cluster, described.host, patience, open)?;
        process.stop_at_signals()?;
        Ok(Self::Roce(Box::new(process)))
    }

    /// Number of keys that the memory servers were loaded with. Those of other structures than trees do not know it: the
    /// keys are looked for.
    pub(super) fn records(&mut self, keys: &Keys) -> Result<u64> {
        let loaded: u64 = match self {
            Self::Roce(process) => process.infos().map(|info| info.counts.keys).sum(),
            Self::Query(process) => process.infos().map(|info| info.counts.keys).sum(),
            Self::Spread(process) => return process.records(keys),
        };
        // Keys that clients have put are not counted: whether those of a file are there is seen from the first.
        Ok(match keys {
            Keys::Of { file, .. } if loaded == 0 => file.keys().len() as u64,
            _ => loaded,
        })
    }

    /// Name of its structure, if that has no ranges of keys.
    pub(super) fn without_ranges(&mut self) -> Result<Option<&'static str>> {
        let Self::Spread(process) = self else { return Ok(None) };
        Ok(if process.has_ranges()? { None } else { Some(process.name()) })
    }

    /// The value of a key, if it is there; `None` if its server does not answer.
    pub(super) fn value_of(&mut self, key: u64) -> Result<Option<Option<Vec<u8>>>> {
        let found = match self {
            Self::Roce(process) => {
                let client = process.client().clone();
                let store = Direct { client: &client, start: Start::Root };
                process.run(store.read(key))?.result.map(|value| value.map(|value| value.to_vec()))
            }
            Self::Spread(process) => return process.value_of(key),
            Self::Query(process) => {
                let client = process.client().clone();
                process.run(client.read(key))?.result
            }
        };
        Ok(found.ok())
    }

    /// Statistics of the client's queries so far; `None` if it makes none.
    pub(super) fn asked(&self) -> Option<RequesterStats> {
        match self {
            Self::Roce(_) | Self::Spread(_) => None,
            Self::Query(process) => Some(process.client().stats()),
        }
    }

    /// System calls of the client's own sockets so far; `None` if it has none.
    pub(super) fn system_calls(&self) -> Option<u64> {
        match self {
            Self::Roce(_) | Self::Spread(_) => None,
            Self::Query(process) => process.has_sockets().then(|| process.datagrams().calls),
        }
    }

    pub(super) fn close(self) {
        match self {
            Self::Roce(process) => process.close(),
            Self::Spread(process) => process.close(),
            Self::Query(_) => {}
        }
    }
}

/// Parts of a load.
pub(super) struct Load<'l> {
    pub(super) process: &'l mut Process,
    pub(super) start: Start,
    pub(super) operations: &'l mut dyn Operations,
    pub(super) values: &'l Values,
}

impl Load<'_> {
    /// Runs the load. Returns `false` if a signal ended it early; then `done` tells how far it came.
    pub(super) fn run(
        &mut self,
        done: &mut LoadGenerator,
        count: u64,
        pace: Pace,
        shown: &mut impl FnMut(&Recorder, bool),
    ) -> Result<bool> {
        let Self { process, start, operations, values } = self;
        let ended = match process {
            Process::Roce(process) => {
                let client = process.client().clone();
                let watch = |recorder: &Recorder| shown(recorder, is_registered(client.pool()));
                let store = Direct { client: &client, start: *start };
                process.run(done.run_on(&store, *operations, count, pace, values, watch))
            }
            Process::Spread(process) => {
                let mut watch = |recorder: &Recorder| shown(recorder, false);
                process.run(done, *operations, count, pace, values, &mut watch)?
            }
            Process::Query(process) => {
                let client = process.client().clone();
                let watch = |recorder: &Recorder| shown(recorder, false);
                process.run(done.run_on(&client, *operations, count, pace, values, watch))
            }
        };
        match ended {
            Ok(result) => result.map(|()| true).map_err(Into::into),
            Err(NodeError::Stopped) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether index reads are sent to all memory servers.
fn is_registered<V: Verbs>(pool: &Pool<V>) -> bool {
    pool.connections().into_iter().all(|id| pool.is_registered(id))
}
