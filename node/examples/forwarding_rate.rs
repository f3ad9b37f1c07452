//! Frames a second through the software switch, by the kind of its ports.
//!
//! ```text
//! cargo run --release -p fatbtree-node --features dpdk --example forwarding_rate -- [ROUNDS] [SECONDS]
//! ```
//!
//! ```text
//!   a thread: sends 64-byte frames ──▶ port 1 ┌──────────────┐ port 0 ──▶ the same thread counts them
//!             as fast as it can               │ switch       │
//!                                             │ one thread   │
//!                                             └──────────────┘
//! ```
//!
//! The switch has the project's program and the entries of a switch with hosts, written by a controller over P4Runtime. Its ports are
//! * `udp`: sockets on loopback, one frame a datagram;
//! * `packet`: AF_PACKET on veth pairs, at whose other ends the thread has AF_PACKET ports;
//! * `dpdk af_packet`: DPDK's net_af_packet on the same veth pairs, with the same other ends;
//! * `dpdk memif`: DPDK's net_memif, rings in shared memory, with the same at the other ends.
//!
//! All kinds are measured in turn, ROUNDS times (default 3), each for SECONDS (default 2), in one network namespace of its own: it needs
//! the right to make one (`unshare -rn`). What counts are ratios of one run.

use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use fatbtree_controller::{Fleet, FleetOptions, Programs, cluster_base};
use fatbtree_node::{SwitchOptions, SwitchProcess, switch_ports};
use fatbtree_port::{Batch, Port, PortSpec};
use fatbtree_topology::Cluster;

type Failure = Box<dyn std::error::Error>;

/// Says that this process runs in the namespace.
const INSIDE: &str = "FATBTREE_RATE_NAMESPACE";
const SETUP: &str = "ip link set lo up; for n in 0 1; do ip link add here$n type veth peer name there$n; \
                     ip link set here$n up; ip link set there$n up; done; \
                     echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6";

const SWITCH: &str = "edge-0-0";

/// Frames that are sent together.
const TOGETHER: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Udp,
    Packet,
    DpdkAfPacket,
    DpdkMemif,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Udp => "udp",
            Kind::Packet => "packet",
            Kind::DpdkAfPacket => "dpdk af_packet",
            Kind::DpdkMemif => "dpdk memif",
        }
    }

    /// The switch's end of wire `n`, and the other one.
    fn ends(self, n: u16, first_udp: u16) -> Result<[PortSpec; 2], Failure> {
        let here = format!("packet:here{n}").parse()?;
        let there = format!("packet:there{n}").parse()?;
        Ok(match self {
            Kind::Udp => {
                let [local, remote] = [2 * n, 2 * n + 1].map(|n| ([127, 0, 0, 1], first_udp + n).into());
                [PortSpec::Udp { local, remote }, PortSpec::Udp { local: remote, remote: local }]
            }
            Kind::Packet => [here, there],
            Kind::DpdkAfPacket => {
                [PortSpec::Dpdk(format!("net_af_packet{n},iface=here{n},qdisc_bypass=1")), there]
            }
            Kind::DpdkMemif => {
                let socket = format!("id={n},socket=/tmp/fatbtree-rate-{}", std::process::id());
                [(0, "server"), (1, "client")]
                    .map(|(end, role)| PortSpec::Dpdk(format!("net_memif{},role={role},{socket}", 2 * n + end)))
            }
        })
    }
}

fn main() -> Result<(), Failure> {
    if std::env::var_os(INSIDE).is_none() {
        return run_inside();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, or: u64| arguments.get(at).map_or(Ok(or), |text| text.parse());
    let (rounds, seconds) = (number(0, 3)?, number(1, 2)?);
    let mut kinds = vec![Kind::Udp, Kind::Packet];
    if cfg!(feature = "dpdk") {
        kinds.extend([Kind::DpdkAfPacket, Kind::DpdkMemif]);
    }
    let mut rates = vec![Vec::new(); kinds.len()];
    for _ in 0..rounds {
        for (rates, kind) in rates.iter_mut().zip(&kinds) {
            rates.push(measure(*kind, Duration::from_secs(seconds))?);
        }
    }
    report(&kinds, &rates);
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example reports on the terminal")]
fn report(kinds: &[Kind], rates: &[Vec<f64>]) {
    let packet = kinds.iter().position(|kind| *kind == Kind::Packet).unwrap_or(0);
    println!("{:<16} {:>12}   of packet's, round by round", "ports", "frames/s");
    for (kind, own) in kinds.iter().zip(rates) {
        let mean = own.iter().sum::<f64>() / own.len() as f64;
        let ratios: Vec<String> =
            own.iter().zip(&rates[packet]).map(|(own, packet)| format!("{:.2}", own / packet)).collect();
        println!("{:<16} {mean:>12.0}   {}", kind.name(), ratios.join("  "));
    }
}

/// Runs this program in a network namespace with two veth pairs.
fn run_inside() -> Result<(), Failure> {
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c"]).arg(format!("{SETUP}; exec \"$0\" \"$@\"")).arg(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).env(INSIDE, "1");
    if std::env::var_os("FATBTREE_EAL").is_none() {
        command.env("FATBTREE_EAL", "--no-huge -m 512");
    }
    if command.status()?.success() { Ok(()) } else { Err("it failed in its namespace".into()) }
}

/// An IPv4 packet to the host, 60 bytes: 64 with its checksum.
fn frame(to: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0x02; 60];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    let mut header = [0x45, 0, 0, 46, 0, 0, 0, 0, 64, 255, 0, 0, 10, 1, 0, 2, to[0], to[1], to[2], to[3]];
    let sum: u32 = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame[14..34].copy_from_slice(&header);
    frame
}

/// Frames a second that come out of a switch with such ports.
fn measure(kind: Kind, how_long: Duration) -> Result<f64, Failure> {
    let free = |first: u16| (first..first + 12).all(|port| UdpSocket::bind(("127.0.0.1", port)).is_ok());
    let first = (30_000..).step_by(20).find(|first| free(*first)).ok_or("no free ports")?;
    let cluster = |address: &str| {
        Cluster::from_toml(&format!(
            "[network]\nk = 2\n[wires]\nfirst_port = {first}\n[[memory_server]]\nhost = \"host-0-0-0\"\ngrpc = \"127.0.0.1:2\"\n\
             [[switch]]\nname = \"{SWITCH}\"\np4runtime = \"{address}\"\ndevice_id = 1\n"
        ))
    };
    let before = cluster("127.0.0.1:1")?;
    let switch = before.tree().switch_by_name(SWITCH).ok_or("k = 2 has it")?.id;
    let (mut ports, mut ends) = (Vec::new(), Vec::new());
    for (n, (number, _)) in (0..).zip(switch_ports(&before, switch)?) {
        let [own, other] = kind.ends(n, first)?;
        ports.push((number, own));
        ends.push(other);
    }
    let process = SwitchProcess::open(&SwitchOptions::new("127.0.0.1:0", 1, ports))?;
    let (cluster, stopper) = (cluster(&process.grpc().to_string())?, process.stopper());
    let to_host = frame(cluster.tree().host(cluster.servers()[0].host).ip.octets());
    std::thread::scope(|scope| {
        let running = scope.spawn(|| process.run());
        let measured = load(&cluster).and_then(|()| {
            let (mut out, mut into) = (ends[0].open()?, ends[1].open()?);
            Ok(blast(&mut *into, &mut *out, &to_host, how_long))
        });
        stopper.stop();
        running.join().map_err(|_| "the switch panicked")?;
        measured
    })
}

/// Gives the switch program and entries.
fn load(cluster: &Cluster) -> Result<(), Failure> {
    let switch = cluster.tree().switch_by_name(SWITCH).ok_or("k = 2 has it")?.id;
    let programs = Programs::v1model()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let fleet = Fleet::connect_to(cluster, [switch], &programs, FleetOptions::default()).await?;
        fleet.set_pipeline().await?;
        fleet.load_base(&cluster_base(cluster).into_iter().filter(|(id, _)| *id == switch).collect()).await?;
        Ok(())
    })
}

/// Sends as many frames as there is room for, and gives how many came out in a second.
fn blast(into: &mut dyn Port, out: &mut dyn Port, frame: &[u8], how_long: Duration) -> f64 {
    let frames = [frame; TOGETHER];
    let mut batch = Batch::new();
    let mut counted = |how_long: Duration| {
        let (began, mut came) = (Instant::now(), 0_u32);
        while began.elapsed() < how_long {
            into.send(&frames);
            // What is in the way of nobody: only that the rings are empty again.
            into.receive(&mut batch);
            while out.receive(&mut batch) > 0 {
                came += batch.len() as u32;
                if !batch.is_full() {
                    break;
                }
            }
        }
        f64::from(came) / began.elapsed().as_secs_f64()
    };
    // Until everything is warm.
    counted(Duration::from_millis(300));
    counted(how_long)
}
