//! `--nic`: how a role reaches the network.

use std::time::Duration;

use clap::Args;
use fatbtree_processes::{NicSpec, NodeError, at_free_seat, host_port};
use fatbtree_topology::{Cluster, Host, HostId};

/// The device of a role.
#[derive(Args)]
pub(crate) struct Nic {
    /// Device on the network: `software`, a NIC in software behind the wire of the cluster file; or `ibverbs:DEVICE`,
    /// an RDMA device of this machine, as `rdma link` names it. Its port has the address that the cluster file gives
    /// the host.
    #[arg(long, value_name = "software|ibverbs:DEVICE", default_value = "software", value_parser = parse)]
    nic: Choice,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Choice {
    Software,
    Ibverbs(String),
}

fn parse(text: &str) -> Result<Choice, String> {
    match text.split_once(':') {
        None if text == "software" => Ok(Choice::Software),
        Some(("ibverbs", device)) if !device.is_empty() => Ok(Choice::Ibverbs(device.to_owned())),
        _ => Err("expected software, or an RDMA device such as ibverbs:mlx5_0 or ibverbs:rxe0".to_owned()),
    }
}

impl Nic {
    /// Description of the NIC for a host of the cluster.
    pub(crate) fn spec(&self, cluster: &Cluster, host: HostId) -> Result<NicSpec, NodeError> {
        Ok(match &self.nic {
            Choice::Software => NicSpec::Software(host_port(cluster, host)?),
            Choice::Ibverbs(device) => NicSpec::Ibverbs(device.clone()),
        })
    }

    /// Opens a client at a free seat of its host, which it waits for as long as `patience` lasts; with an RDMA device, at the host's own address.
    pub(crate) fn at_seat<T>(
        &self,
        cluster: &Cluster,
        host: HostId,
        patience: Duration,
        mut open: impl FnMut(Host, NicSpec) -> Result<T, NodeError>,
    ) -> Result<T, NodeError> {
        match &self.nic {
            Choice::Software => {
                at_free_seat(cluster, host, patience, |host, port| open(host, NicSpec::Software(port)))
            }
            Choice::Ibverbs(_) => open(cluster.tree().host(host).clone(), self.spec(cluster, host)?),
        }
    }

    /// Name of the RDMA device; `None` for the software NIC.
    pub(crate) fn device(&self) -> Option<&str> {
        match &self.nic {
            Choice::Software => None,
            Choice::Ibverbs(device) => Some(device),
        }
    }

    /// Whether memory that others reach is held in this machine's, touched or not.
    pub(crate) fn pins_memory(&self) -> bool {
        self.nic != Choice::Software
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_by_their_kind() {
        assert_eq!(parse("software"), Ok(Choice::Software));
        assert_eq!(parse("ibverbs:mlx5_0"), Ok(Choice::Ibverbs("mlx5_0".to_owned())));
        for bad in ["", "ibverbs", "ibverbs:", "mlx5_0", "udp:1", "software:rxe0"] {
            assert!(parse(bad).is_err_and(|error| error.contains("ibverbs:rxe0")), "{bad:?}");
        }
    }
}
