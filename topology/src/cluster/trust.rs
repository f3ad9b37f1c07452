//! Peers that the file trusts: certificates in a folder, or all, in words.

use std::path::PathBuf;

use toml::Spanned;

use super::error::ClusterProblem as Problem;
use super::file;
use super::validate::{Check, Checked};
use super::{Client, MemoryServer};

/// Trust settings of a file.
#[derive(Default)]
pub(super) struct Trusts {
    /// Folder of certificates.
    pub(super) certificates: Option<PathBuf>,
    /// Whether queries of all clients are answered.
    pub(super) query_open: bool,
}

/// Text by which a file permits plaintext channels.
pub(super) const PLAINTEXT: &str = "I trust everybody on this network";

impl Check<'_> {
    /// Folder of certificates, and whether queries need none.
    pub(super) fn trust(
        &self,
        trust: Option<&Spanned<file::Trust>>,
        servers: &[MemoryServer],
        clients: &[Client],
    ) -> Checked<Trusts> {
        let Some(trust) = trust else { return Ok(Trusts::default()) };
        let query_open = trust.get_ref().query_open;
        let folder = match (&trust.get_ref().folder, &trust.get_ref().plaintext) {
            (Some(folder), None) if !folder.get_ref().is_empty() => folder,
            (None, Some(words)) if words.get_ref() == PLAINTEXT => {
                let open = |query: &&String| !query_open && !is_loopback(query);
                if let Some(address) = servers.iter().filter_map(|server| server.query.as_ref()).find(open) {
                    let problem = Problem::OpenQueries { address: address.clone() };
                    return self.refuse(words.span(), "trust.plaintext", problem);
                }
                return Ok(Trusts { certificates: None, query_open });
            }
            (None, Some(words)) => {
                return self.refuse(words.span(), "trust.plaintext", Problem::NoTrust);
            }
            _ => return self.refuse(trust.span(), "trust", Problem::NoTrust),
        };
        let servers = servers.iter().map(|server| &server.name);
        let clients = clients.iter().map(|client| &client.name);
        if let Some(name) = servers.chain(clients).find(|name| !is_certifiable(name)) {
            let problem = Problem::NoCertificateName { name: name.clone() };
            return self.refuse(folder.span(), "trust.folder", problem);
        }
        Ok(Trusts { certificates: Some(folder.get_ref().into()), query_open })
    }
}

/// Whether a name can be a label of a DNS name and a file's name, and is not reserved for another role.
fn is_certifiable(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.len() <= 63
        && name.chars().all(good)
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !["ca", "controller", "operator"].contains(&name)
}

/// Whether only this machine reaches an address.
pub(super) fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
