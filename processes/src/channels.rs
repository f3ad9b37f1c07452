//! Control channels of a client to all memory servers, and the comparison of the servers' moments before they are used.
//!
//! A client compares all servers that are there before its first session. When a server was started again, or comes only later, the client has
//! it and all others hear of each other before it opens a session there. A server that does not answer then hears of the others before the
//! next call to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fatbtree_memserver::grpc::{Answers, Client, ClientError, CompareError, Compared, exchange};
use fatbtree_memserver::{Heard, OlderCopy, Statement};
use fatbtree_remote_memory::session_keeper::{Call, Denied};
use fatbtree_topology::MemoryServer;
use fatbtree_trust::{Peer, Trust};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use crate::NodeError;
use crate::ask::ask_within;

/// Longest time for which a server that was started again waits for another one to say what it has heard.
const OTHERS: Duration = Duration::from_secs(1);

/// Channels by the servers' numbers.
pub(crate) struct Channels {
    servers: BTreeMap<u16, Channel>,
    known: Mutex<Known>,
}

struct Channel {
    name: String,
    peer: Peer,
    client: OnceCell<Client>,
}

/// What the client knows of servers' moments.
#[derive(Default)]
struct Known {
    last: BTreeMap<u16, Statement>,
    /// Servers that were just compared.
    fresh: BTreeSet<u16>,
    /// Servers that have not heard of others yet.
    owed: BTreeSet<u16>,
}

impl Channels {
    pub(crate) fn new(servers: &[MemoryServer], trust: &Trust) -> Arc<Self> {
        let channel = |server: &MemoryServer| {
            let peer = trust.to(&server.grpc, &server.name);
            (server.partition, Channel { name: server.name.clone(), peer, client: OnceCell::new() })
        };
        Arc::new(Self { servers: servers.iter().map(channel).collect(), known: Mutex::default() })
    }

    /// Channel to a server, made when it is first asked for.
    pub(crate) async fn client(&self, server: u16) -> Result<Client, ClientError> {
        let channel = self.servers.get(&server).expect("it is one of the cluster");
        channel.client.get_or_try_init(|| Client::connect(channel.peer.clone())).await.cloned()
    }

    /// Address of a server, for people.
    pub(crate) fn address(&self, server: u16) -> &str {
        self.servers.get(&server).map_or("", |channel| channel.peer.address())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a server says of itself and has heard of others.
    async fn moments(&self, server: u16) -> Result<(Client, Compared), ClientError> {
        let mut client = self.client(server).await?;
        let compared = client.moments().await?;
        Ok((client, compared))
    }

    /// Compares the servers of these numbers: before the first session. The others have something to hear when they come.
    ///
    /// # Errors
    /// When the folder of one is an older copy, or one does not answer within `patience`.
    pub(crate) async fn compare_present(
        self: &Arc<Self>,
        present: BTreeSet<u16>,
        patience: Duration,
    ) -> Result<(), NodeError> {
        let mut asked = JoinSet::new();
        for &server in &present {
            let channels = Arc::clone(self);
            asked.spawn(async move {
                let ask = || channels.moments(server);
                (server, ask_within(patience, channels.address(server), "for its moments", ask).await)
            });
        }
        let mut answers = Answers::new();
        for (server, answer) in asked.join_all().await {
            answers.insert(server, answer?);
        }
        self.exchange(&mut answers).await.map_err(|error| match error {
            CompareError::Client(error) => error.into(),
            CompareError::Older(OlderCopy { server, found, by, known }) => {
                let name = |server| self.servers.get(&server).map_or_else(String::new, |of| of.name.clone());
                NodeError::OlderCopy { server: name(server), found, by: name(by), known }
            }
        })?;
        let mut known = self.known();
        known.owed.extend(self.servers.keys().filter(|server| !present.contains(server)));
        known.fresh.extend(present);
        Ok(())
    }

    async fn exchange(&self, answers: &mut Answers) -> Result<(), CompareError> {
        exchange(answers).await?;
        let mut known = self.known();
        known.last.extend(answers.iter().map(|(server, (_, compared))| (*server, compared.own.clone())));
        known.owed.retain(|server| !answers.contains_key(server));
        Ok(())
    }

    /// Compares what must be compared before a call to a server.
    pub(crate) async fn before(self: &Arc<Self>, server: u16, call: &Call) -> Result<(), Denied> {
        let opens = matches!(call, Call::Open { .. });
        let is_fresh = opens && self.known().fresh.remove(&server);
        let is_owed = self.known().owed.contains(&server);
        if is_owed || opens && !is_fresh {
            self.compare(server, is_owed).await?;
        }
        Ok(())
    }

    /// Compares a server with all others that answer, if it was started again, or `anyway`.
    async fn compare(self: &Arc<Self>, server: u16, anyway: bool) -> Result<(), CompareError> {
        let (client, compared) = self.moments(server).await?;
        let last = self.known().last.get(&server).cloned();
        if let Some(last) = last.filter(|last| last.generation == compared.own.generation) {
            if last.present() == compared.own.present() && !anyway {
                return Ok(());
            }
            // This client has seen a later moment: what it remembers is of no use.
            let seen = Heard { generation: last.generation, moment: last.present(), past: Vec::new() };
            compared.own.agrees(server, &seen)?;
        }
        let mut asked = JoinSet::new();
        for &other in self.servers.keys().filter(|other| **other != server) {
            let channels = Arc::clone(self);
            asked.spawn(async move { (other, tokio::time::timeout(OTHERS, channels.moments(other)).await) });
        }
        let mut answers = Answers::from([(server, (client, compared))]);
        for (other, answer) in asked.join_all().await {
            match answer {
                Ok(Ok(answer)) => drop(answers.insert(other, answer)),
                Ok(Err(_)) | Err(_) => drop(self.known().owed.insert(other)),
            }
        }
        self.exchange(&mut answers).await
    }
}
