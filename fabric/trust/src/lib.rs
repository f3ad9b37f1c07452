//! Admission of peers: mutual TLS on every gRPC channel (docs/src/journeys.md "Control channels"), and the certificates for it.
//!
//! A folder has the certificate of one authority, `ca.pem`, and for each role by its name `NAME.pem` and `NAME.key`. A role shows its
//! certificate at both ends of a channel. The connecting side asks for the role it means; the listening side knows the peer's role and
//! decides what it may do. Without a folder, channels are plaintext and every peer may do everything. Cluster files allow that on loopback,
//! and elsewhere only in words.
//!
//! * [`make_certificates`] writes a set for tests and small installations; any authority's certificates do.
//! * [`query_secret`]: secret from which memory servers make the keys of queries.
//! * [`Trust`] is a role's own certificate, [`Peer`] a role to connect to. [`Door`] is a service's listener, with a bound on its
//!   connections ([`Connections`]).
//! * [`Roster`]: names behind partitions and addresses, as the cluster file says.
//!
//! The DNS names of a certificate (RFC 5280, subjectAltName) say whose it is: a role's name is one of them.
//!
//! ```
//! use fatbtree_trust::{OPERATOR, Trust, make_certificates};
//!
//! let folder = tempfile::tempdir()?;
//! make_certificates(folder.path(), ["left", OPERATOR], 365)?;
//! let operator = Trust::read(folder.path(), OPERATOR)?;
//! let to = operator.to("10.9.0.1:9700", "left");
//! assert_eq!(to.endpoint()?.uri().scheme_str(), Some("https"));
//! assert!(Trust::read(folder.path(), "right").is_err(), "it has no certificate");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod certificates;
mod door;
mod incoming;
mod own;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use certificates::{DAYS, MOST_DAYS, MakeError, make_certificates};
pub use door::{Caller, Door, Roster};
pub use incoming::{Accepted, Connections, Place, Places, Refused};
pub use own::query_secret;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig};

/// The name of a cluster's operator, which asks its controller and loads its memory servers.
pub const OPERATOR: &str = "operator";
/// The controller's name.
pub const CONTROLLER: &str = "controller";

/// Name of the file with the secret from which memory servers make the keys of clients for queries: 32 hexadecimal digits.
///
/// All memory servers of a cluster have the same secret; no other role needs it.
pub const QUERY_SECRET: &str = "queries.secret";

/// Time limit of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// A role's certificate and its authority's; without them, channels are plaintext.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Trust(Option<Arc<Credentials>>);

/// All in PEM.
#[derive(PartialEq, Eq)]
struct Credentials {
    name: String,
    authority: String,
    certificate: String,
    key: String,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            // Never the key.
            Some(credentials) => f.debug_tuple("Trust").field(&credentials.name).finish(),
            None => f.write_str("Trust(plaintext)"),
        }
    }
}

/// Certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// A file that is not there.
    #[error("reading {}: is it there? `fatbtree topology certificates` makes a set for a cluster file", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Error from the system.
        source: std::io::Error,
    },
    /// A secret file that others on this machine can read.
    #[error(
        "{}: expected {what}, readable by its owner alone, found that every user of this machine can read it (mode {mode:o}): \
         `chmod 600` it, and make a new set if another user may have read it",
        file.display()
    )]
    Exposed {
        /// The file.
        file: PathBuf,
        /// Its content.
        what: String,
        /// Its permissions.
        mode: u32,
    },
    /// A file that is no certificate.
    #[error("{}: expected the certificate of {whose} in PEM, found none ({why}): copy it from the set again", file.display())]
    NoCertificate {
        /// The file.
        file: PathBuf,
        /// The expected owner.
        whose: String,
        /// The parser's words.
        why: String,
    },
    /// A certificate of another role.
    #[error(
        "{}: expected the certificate of {name}, found that of {found} (it ends on {ends}): start the role {found} with it, or copy \
         {name}.pem and {name}.key from the set",
        file.display()
    )]
    OtherRole {
        /// The file.
        file: PathBuf,
        /// The expected owner.
        name: String,
        /// Its owner.
        found: String,
        /// Its last day.
        ends: String,
    },
    /// A certificate that is no longer good.
    #[error(
        "{}: the certificate of {whose} ended on {ended}: renew it, or make a new set (`fatbtree topology certificates`) and give \
         it to all roles",
        file.display()
    )]
    Expired {
        /// The file.
        file: PathBuf,
        /// Its owner.
        whose: String,
        /// Its last day.
        ended: String,
    },
    /// A certificate that is not yet good.
    #[error("{}: the certificate of {whose} begins on {begins}: is this machine's clock right?", file.display())]
    NotYet {
        /// The file.
        file: PathBuf,
        /// Its owner.
        whose: String,
        /// Its first day.
        begins: String,
    },
    /// A malformed secret of queries.
    #[error(
        "{}: expected 32 hexadecimal digits, the secret of the memory servers, found {found} characters: copy it from the set, or make \
         one for all memory servers (`openssl rand -hex 16`)",
        file.display()
    )]
    NoSecret {
        /// The file.
        file: PathBuf,
        /// Number of characters found.
        found: usize,
    },
    /// Files that do not belong together.
    #[error("the certificate of {name} in {}: expected ca.pem, {name}.pem and {name}.key, all PEM, that belong together", folder.display())]
    Unusable {
        /// Its owner.
        name: String,
        /// Folder of the files.
        folder: PathBuf,
        /// The problem.
        source: tonic::transport::Error,
    },
}

impl Trust {
    /// Reads the certificate of `name` in a folder.
    ///
    /// # Errors
    /// When a file is missing, is no certificate or key, is another role's, or is not valid now; and when every user of the machine can
    /// read the key.
    pub fn read(folder: &Path, name: &str) -> Result<Self, TrustError> {
        Self::read_at(folder, name, SystemTime::now())
    }

    /// Reads the certificate of `name` in a folder, at another time than now.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_at(folder: &Path, name: &str, now: SystemTime) -> Result<Self, TrustError> {
        let [ca, certificate, key] =
            ["ca.pem".to_owned(), format!("{name}.pem"), format!("{name}.key")].map(|file| folder.join(file));
        let credentials = Credentials {
            name: name.to_owned(),
            authority: own::read(&ca)?,
            certificate: own::read(&certificate)?,
            key: own::read_secret(&key, &format!("the key of {name}"))?,
        };
        own::check_authorities(&ca, &credentials.authority, now)?;
        own::check(&certificate, &credentials.certificate, name, now)?;
        let trust = Self(Some(Arc::new(credentials)));
        let unusable =
            |source| TrustError::Unusable { name: name.to_owned(), folder: folder.to_owned(), source };
        // What is wrong with the files is told now, not when the first peer comes.
        trust.server().map_err(unusable)?;
        trust.to("localhost:1", name).endpoint().map_err(unusable)?;
        Ok(trust)
    }

    /// Whether there are no certificates.
    pub fn is_plaintext(&self) -> bool {
        self.0.is_none()
    }

    /// The role at `address` (`name-or-address:port`), which must show the certificate of `name`.
    pub fn to(&self, address: impl Into<String>, name: impl Into<String>) -> Peer {
        Peer { address: address.into(), name: name.into(), trust: self.clone() }
    }

    /// TLS configuration of a channel to a peer that must show the certificate of `name`; `None` in plaintext.
    pub fn tls(&self, name: &str) -> Option<ClientTlsConfig> {
        let credentials = self.0.as_ref()?;
        Some(
            ClientTlsConfig::new()
                .ca_certificate(Certificate::from_pem(&credentials.authority))
                .identity(credentials.identity())
                .domain_name(name)
                .timeout(HANDSHAKE),
        )
    }

    /// A server that admits peers with a certificate of the authority.
    ///
    /// # Errors
    /// When the certificates cannot be used; [`read`](Self::read) has found that out.
    pub fn server(&self) -> Result<Server, tonic::transport::Error> {
        let Some(credentials) = &self.0 else { return Ok(Server::builder()) };
        let tls = ServerTlsConfig::new()
            .identity(credentials.identity())
            .client_ca_root(Certificate::from_pem(&credentials.authority))
            .timeout(HANDSHAKE);
        Server::builder().tls_config(tls)
    }
}

impl Credentials {
    fn identity(&self) -> Identity {
        Identity::from_pem(&self.certificate, &self.key)
    }
}

/// A peer to connect to. A peer made from an address alone, with `http://` or without, is met in plaintext.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    address: String,
    name: String,
    trust: Trust,
}

impl Peer {
    /// Address of the peer: `name-or-address:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Endpoint of the peer, for a channel.
    ///
    /// # Errors
    /// When the address is malformed.
    pub fn endpoint(&self) -> Result<Endpoint, tonic::transport::Error> {
        match self.trust.tls(&self.name) {
            Some(tls) => Endpoint::from_shared(format!("https://{}", self.address))?.tls_config(tls),
            None => Endpoint::from_shared(format!("http://{}", self.address)),
        }
    }
}

impl From<&str> for Peer {
    fn from(address: &str) -> Self {
        Trust::default().to(address.strip_prefix("http://").unwrap_or(address), "")
    }
}

impl From<&String> for Peer {
    fn from(address: &String) -> Self {
        address.as_str().into()
    }
}
