//! Listener of a service, with its knowledge of peers.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Status};
use webpki::EndEntityCert;

use crate::Trust;
use crate::incoming::{Accepted, Connections, Refused, incoming};

/// Roles and their addresses, by the names of the cluster file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// Memory servers by partition.
    pub partitions: BTreeMap<u16, String>,
    /// Clients by their addresses on the data path.
    pub clients: BTreeMap<Ipv4Addr, String>,
}

/// Listener (`L`, of the type that the service accepts from), and the peers that it admits. A listener alone admits all.
#[derive(Clone, Debug)]
pub struct Door<L> {
    /// Source of connections.
    pub listener: L,
    /// The certificate that is shown.
    pub trust: Trust,
    /// Roles and their addresses.
    pub roster: Arc<Roster>,
    /// Counts peers for which there was no place.
    pub refused: Refused,
}

impl<L> From<L> for Door<L> {
    fn from(listener: L) -> Self {
        Self { listener, trust: Trust::default(), roster: Arc::default(), refused: Refused::default() }
    }
}

impl Door<TcpListener> {
    /// Begins to accept connections, at most `bound` at once; others are closed and counted. Returns the connections, and the door without
    /// its
    /// listener, which the service keeps to ask for a peer's role.
    ///
    /// Must be called on a tokio runtime.
    pub fn open(self, bound: Connections) -> (ReceiverStream<io::Result<Accepted>>, Door<()>) {
        let Self { listener, trust, roster, refused } = self;
        let accepted = incoming(listener, bound, refused.clone());
        (accepted, Door { listener: (), trust, roster, refused })
    }
}

impl<L> Door<L> {
    /// A server that admits peers with a certificate of the authority.
    ///
    /// # Errors
    /// When the certificates cannot be used.
    pub fn server(&self) -> Result<Server, tonic::transport::Error> {
        self.trust.server()
    }

    /// The sender of a request.
    pub fn caller<T>(&self, request: &Request<T>) -> Caller {
        if self.trust.is_plaintext() {
            return Caller(None);
        }
        let certificates = request.peer_certs().unwrap_or_default();
        let shown = certificates.first().and_then(|shown| EndEntityCert::try_from(shown).ok());
        Caller(Some(shown.iter().flat_map(|shown| shown.valid_dns_names()).map(str::to_owned).collect()))
    }

    /// Checks that a request comes from one of these roles.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`, with the names that would do.
    #[allow(clippy::result_large_err, reason = "tonic's own error")]
    pub fn admit<T>(&self, request: &Request<T>, names: &[&str]) -> Result<(), Status> {
        self.caller(request).admit(names)
    }

    /// Checks that the caller is the memory server of a partition.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`, also for a partition without an owner.
    #[allow(clippy::result_large_err, reason = "tonic's own error")]
    pub fn admit_server(&self, caller: &Caller, partition: u16) -> Result<(), Status> {
        caller.admit_one(self.roster.partitions.get(&partition), || format!("partition {partition}"))
    }

    /// Checks that the caller is the client with this address on the data path.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`, also for an address without an owner.
    #[allow(clippy::result_large_err, reason = "tonic's own error")]
    pub fn admit_client(&self, caller: &Caller, address: Ipv4Addr) -> Result<(), Status> {
        caller.admit_one(self.roster.clients.get(&address), || address.to_string())
    }
}

/// The sender of a request: by the names of its certificate, or any peer, where there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller(Option<Vec<String>>);

impl Caller {
    #[allow(clippy::result_large_err, reason = "tonic's own error")]
    fn admit(&self, names: &[&str]) -> Result<(), Status> {
        let Some(its) = &self.0 else { return Ok(()) };
        if its.iter().any(|name| names.contains(&name.as_str())) {
            return Ok(());
        }
        let (names, its) = (names.join(" or "), its.join(", "));
        Err(Status::permission_denied(format!("only {names} may do this, and the certificate is of {its}")))
    }

    #[allow(clippy::result_large_err, reason = "tonic's own error")]
    fn admit_one(&self, name: Option<&String>, what: impl FnOnce() -> String) -> Result<(), Status> {
        match name {
            Some(name) => self.admit(&[name]),
            None if self.0.is_none() => Ok(()),
            None => Err(Status::permission_denied(format!("no role of the cluster file has {}", what()))),
        }
    }
}
