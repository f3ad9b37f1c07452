//! `fatbtree switch`: the software switch as a process, its ports UDP sockets that carry one Ethernet frame a datagram, network interfaces or
//! DPDK devices.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use fatbtree_port::PortSpec;
use fatbtree_processes::{SwitchOptions, SwitchProcess, switch_ports};
use fatbtree_topology::Named;

use crate::role;

/// The software switch, programmed over P4Runtime.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree switch core-0 --cluster cluster.toml            a switch of a cluster: its ports are in the file
  fatbtree switch core-0 --cluster cluster.toml --threads 4    as many cores forward its packets
  fatbtree switch                                          waits for a controller on 127.0.0.1:9559
  fatbtree switch --grpc 127.0.0.1:50051 --device-id 7
  fatbtree switch --port 0=127.0.0.1:6000,127.0.0.1:7000   port 0 receives on 6000 and sends to 7000
  fatbtree switch --port 0=packet:eth1 --port 1=packet:eth2    network interfaces
  FATBTREE_EAL='-l 2,3' fatbtree switch --threads 2 --port 0=dpdk:0000:03:00.0 --port 1=dpdk:0000:03:00.1
                                                           cards by DPDK (cargo feature dpdk), two cores

A UDP port carries one Ethernet frame per datagram, as QEMU's network back end does:
  qemu-system-x86_64 … -netdev dgram,id=n,local.type=inet,local.host=127.0.0.1,local.port=7000,\\
                              remote.type=inet,remote.host=127.0.0.1,remote.port=6000")]
pub(crate) struct Arguments {
    /// Name of the switch in the cluster file.
    #[arg(requires = "cluster", conflicts_with_all = ["grpc", "device_id", "ports"])]
    name: Option<String>,
    /// Cluster file (TOML).
    #[arg(long, value_name = "FILE", requires = "name")]
    cluster: Option<PathBuf>,
    /// Address for controllers: P4Runtime over gRPC, in plaintext, and on loopback therefore. A cluster file names
    /// certificates.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9559")]
    grpc: SocketAddr,
    /// P4Runtime device id.
    #[arg(long, value_name = "ID", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    device_id: u64,
    /// A port: its number, and the addresses to receive on and to send to, or packet:IFACE, or dpdk:DEVICE. Repeat it.
    #[arg(long = "port", value_name = "N=LOCAL,REMOTE")]
    ports: Vec<Port>,
    /// Threads that forward packets, each with some of the ports, and with tables of its own as a pipe of a Tofino has. A DPDK device that
    /// shares frames out (RSS) has a queue for each. Control software sees one switch. Programs with registers need one thread.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    #[command(flatten)]
    end: role::End,
}

#[derive(Clone, Debug)]
struct Port {
    number: u16,
    spec: PortSpec,
}

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "expected N=LOCAL,REMOTE such as 0=127.0.0.1:6000,127.0.0.1:7000, N=packet:IFACE or N=dpdk:DEVICE, found {text:?}"
            )
        };
        let (number, port) = text.split_once('=').ok_or_else(form)?;
        let number = number.parse().map_err(|_| form())?;
        let udp = || format!("udp:{port}").parse();
        Ok(Port { number, spec: port.parse().or_else(|_| udp()).map_err(|_: String| form())? })
    }
}

impl Arguments {
    fn options(&self) -> Result<SwitchOptions> {
        let limit = self.end.seconds.map(Duration::from_secs);
        let threads = self.threads as usize;
        let Some(name) = &self.name else {
            let mut seen = std::collections::BTreeSet::new();
            if let Some(twice) = self.ports.iter().find(|port| !seen.insert(port.number)) {
                bail!("--port {}= is there twice; keep one", twice.number);
            }
            let ports = self.ports.iter().map(|Port { number, spec }| (*number, spec.clone()));
            if !self.grpc.ip().is_loopback() {
                bail!(
                    "--grpc {}: plaintext off loopback is refused, any host could program the switch; a cluster file names certificates, or \
                     says in words that they are not wanted: fatbtree switch NAME --cluster FILE",
                    self.grpc
                );
            }
            let options = SwitchOptions::new(self.grpc.to_string(), self.device_id, ports.collect());
            return Ok(SwitchOptions { threads, limit, ..options });
        };
        let Some(file) = &self.cluster else { bail!("switch {name}: which? Give --cluster FILE") };
        let cluster = crate::topology::load(file)?;
        let Some(Named::Switch(switch)) = cluster.named(name) else {
            bail!(
                "no switch {name:?} in {}: `fatbtree topology show --cluster {0}` lists them",
                file.display()
            );
        };
        let endpoint = cluster.p4runtime(switch.id);
        let ports = switch_ports(&cluster, switch.id)?;
        let trust = crate::topology::trust(&cluster, file, &switch.name())?;
        let (grpc, device_id) = (endpoint.address.clone(), endpoint.device_id);
        let metrics = cluster.metrics(&switch.name()).map(str::to_owned);
        Ok(SwitchOptions { metrics, grpc, trust, device_id, ports, threads, limit })
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let options = arguments.options()?;
    let process = SwitchProcess::open(&options)?;
    let number = options.device_id;
    crate::stdout::is_log();
    outln!("switch {number} waits for a controller on {}; Ctrl-C stops it", process.grpc());
    fatbtree_processes::notify_ready();
    arguments.end.stop_with_stdin(process.stopper());
    outln!("stopped: {}", process.run());
    Ok(())
}
