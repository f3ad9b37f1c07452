//! Addresses at which roles serve metrics: one port for each, by rule.

use std::collections::BTreeMap;

use toml::Spanned;

use super::error::ClusterProblem as Problem;
use super::validate::{Check, Checked, Endpoints};
use super::{Client, MemoryServer, file};
use crate::network::Network;

impl Check<'_> {
    /// Metrics addresses by name: switches in their order, memory servers by their keys, the controller, clients in the file's order.
    pub(super) fn metrics(
        &self,
        metrics: Option<&file::Metrics>,
        (tree, servers, clients): (&Network, &[MemoryServer], &[Client]),
        endpoints: &mut Endpoints,
    ) -> Checked<BTreeMap<String, String>> {
        let Some(metrics) = metrics else { return Ok(BTreeMap::new()) };
        let host = match &metrics.host {
            None => "127.0.0.1",
            Some(value) => {
                let with_port = Spanned::new(value.span(), format!("{}:1", value.get_ref()));
                self.endpoint(&with_port, "metrics.host")?;
                value.get_ref()
            }
        };
        let switches = tree.switches().iter().map(|switch| switch.name());
        let servers = servers.iter().map(|server| server.name.clone());
        let clients = clients.iter().map(|client| client.name.clone());
        let names = switches.chain(servers).chain(["controller".to_owned()]).chain(clients);
        const FIELD: &str = "metrics.first_port";
        let span = metrics.first_port.span();
        let first: u16 = self.number(&metrics.first_port, FIELD, "a port from 1 to 65535")?;
        let mut all = BTreeMap::new();
        for (n, name) in names.enumerate() {
            let port = usize::from(first) + n;
            if first == 0 || port > usize::from(u16::MAX) {
                let found = format!("port {port} for {name}");
                let expected = "a first port from 1, so low that every role has a port up to 65535";
                return self.refuse(span, FIELD, Problem::OutOfRange { found, expected });
            }
            let address = format!("{host}:{port}");
            let owner = format!("the place of {name}'s metrics");
            self.claim(endpoints, (&address, None), owner, span.clone(), FIELD)?;
            all.insert(name, address);
        }
        Ok(all)
    }
}
