//! Where a service listens, and what it knows of whoever comes in.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use tonic::transport::Server;
use tonic::{Request, Status};
use webpki::EndEntityCert;

use crate::Trust;

/// Who is who, by the names of the cluster file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// Memory servers by partition.
    pub partitions: BTreeMap<u16, String>,
    /// Clients by their addresses on the data path.
    pub clients: BTreeMap<Ipv4Addr, String>,
}

/// A listener (`L`, whatever the service accepts from), and whom it lets in. A listener alone lets everybody in.
#[derive(Clone, Debug)]
pub struct Door<L> {
    /// What connections come from.
    pub listener: L,
    /// The certificate that is shown.
    pub trust: Trust,
    /// Who is who.
    pub roster: Arc<Roster>,
}

impl<L> From<L> for Door<L> {
    fn from(listener: L) -> Self {
        Self { listener, trust: Trust::default(), roster: Arc::default() }
    }
}

impl<L> Door<L> {
    /// The same without the listener: what a service keeps, to ask who somebody is.
    pub fn split(self) -> (L, Door<()>) {
        let Self { listener, trust, roster } = self;
        (listener, Door { listener: (), trust, roster })
    }

    /// A server that lets in who has a certificate of the authority.
    ///
    /// # Errors
    /// When the certificates cannot be used.
    pub fn server(&self) -> Result<Server, tonic::transport::Error> {
        self.trust.server()
    }

    /// Whether a request comes from one of these.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`, with the names that would do.
    #[expect(clippy::result_large_err, reason = "tonic's own error")]
    pub fn admit<T>(&self, request: &Request<T>, names: &[&str]) -> Result<(), Status> {
        if self.trust.is_plaintext() {
            return Ok(());
        }
        let certificates = request.peer_certs().unwrap_or_default();
        let shown = certificates.first().and_then(|shown| EndEntityCert::try_from(shown).ok());
        let mut its: Vec<&str> = Vec::new();
        if let Some(shown) = &shown {
            its.extend(shown.valid_dns_names());
        }
        if its.iter().any(|name| names.contains(name)) {
            return Ok(());
        }
        let names = names.join(" or ");
        Err(Status::permission_denied(format!(
            "this is for {names}, by the certificate; this one is of {}",
            its.join(", ")
        )))
    }

    /// Whether a request comes from the memory server of a partition.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`, also for a partition that nobody has.
    #[expect(clippy::result_large_err, reason = "tonic's own error")]
    pub fn admit_server<T>(&self, request: &Request<T>, partition: u16) -> Result<(), Status> {
        self.admit_one(request, self.roster.partitions.get(&partition), || format!("partition {partition}"))
    }

    /// Whether a request comes from the client with this address on the data path.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`, also for an address that nobody has.
    #[expect(clippy::result_large_err, reason = "tonic's own error")]
    pub fn admit_client<T>(&self, request: &Request<T>, address: Ipv4Addr) -> Result<(), Status> {
        self.admit_one(request, self.roster.clients.get(&address), || address.to_string())
    }

    #[expect(clippy::result_large_err, reason = "tonic's own error")]
    fn admit_one<T>(
        &self,
        request: &Request<T>,
        name: Option<&String>,
        what: impl FnOnce() -> String,
    ) -> Result<(), Status> {
        match name {
            Some(name) => self.admit(request, &[name]),
            None if self.trust.is_plaintext() => Ok(()),
            None => Err(Status::permission_denied(format!("nobody of the cluster file has {}", what()))),
        }
    }
}
