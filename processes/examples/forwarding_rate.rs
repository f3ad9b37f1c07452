//! Frames a second through the software switch, by the kind of its ports.
//!
//! ```text
//! cargo run --release -p fatbtree-processes --features dpdk --example forwarding_rate -- [ROUNDS] [SECONDS] [KIND…]
//! ```
//!
//! ```text
//!      ┌──────────────┐ port 1, to other switches
//!      │ switch       │─────────┐   256 frames of 64 bytes go round: what leaves by port 1
//!      │ one thread   │─────────┘   comes by port 0, and has to leave by port 1
//!      └──────────────┘ port 0, to a host
//! ```
//!
//! The switch has no other load: its one thread only forwards, including the kernel's work in its calls. The switch has the
//! project's program and the entries of a switch with hosts, written by a controller over P4Runtime, which also hands in the frames
//! (PacketOut). Its ports are
//! * `udp`: two sockets on loopback; frames that leave together are one message;
//! * `packet`: AF_PACKET on the two ends of a veth pair;
//! * `af_packet`: DPDK's net_af_packet on the two ends of a veth pair;
//! * `memif`: DPDK's net_memif, rings in shared memory.
//!
//! All kinds, or those that are named, are measured in turn, ROUNDS times (default 3), each for SECONDS (default 2), in one network namespace
//! of its own: it needs the right to make one (`unshare -rn`). What counts are ratios of one run.
//!
//! Three runs of three rounds of a second, on two processors with compilers beside them, in frames of `packet`'s (about 510,000 a second):
//! `memif` 5.2 to 6.3 in the two quiet ones, `udp` 5.3 to 6.1, `af_packet` 0.96 to 1.09; in the third, where even `packet` was not steady,
//! 4.0 to 6.8, 4.1 to 8.5, and 0.7 to 1.5.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fatbtree_controller::{Fleet, FleetOptions, Programs, cluster_base};
use fatbtree_p4runtime::PacketFormat;
use fatbtree_port::PortSpec;
use fatbtree_processes::{SwitchOptions, SwitchProcess, switch_ports};
use fatbtree_topology::Cluster;

type Failure = Box<dyn std::error::Error>;

/// Says that this process runs in the namespace.
const INSIDE: &str = "FATBTREE_RATE_NAMESPACE";
const SETUP: &str = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; ip link set lo up; \
                     ip link add veth0 type veth peer name veth1; ip link set veth0 up; ip link set veth1 up";

const SWITCH: &str = "edge-0-0";

/// The port to other switches.
const UP: u16 = 1;

/// Frames that go round.
const FRAMES: usize = 256;

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
            Kind::DpdkAfPacket => "af_packet",
            Kind::DpdkMemif => "memif",
        }
    }

    /// Both ends of a wire.
    fn ends(self, first_udp: u16) -> [PortSpec; 2] {
        match self {
            Kind::Udp => {
                let [local, remote] = [0, 1].map(|n| ([127, 0, 0, 1], first_udp + n).into());
                [PortSpec::Udp { local, remote }, PortSpec::Udp { local: remote, remote: local }]
            }
            Kind::Packet => [0, 1].map(|n| PortSpec::Packet(format!("veth{n}"))),
            Kind::DpdkAfPacket => [0, 1].map(|n| PortSpec::Dpdk(format!("net_af_packet{n},iface=veth{n}"))),
            Kind::DpdkMemif => {
                // A server that was closed does not let go of its socket before its process ends.
                static SERVERS: AtomicU32 = AtomicU32::new(0);
                let number = SERVERS.fetch_add(1, Ordering::Relaxed);
                let socket = format!("socket=/tmp/fatbtree-rate-{}-{number}", std::process::id());
                [(0, "server"), (1, "client")]
                    .map(|(n, role)| PortSpec::Dpdk(format!("net_memif{n},role={role},{socket}")))
            }
        }
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
    if let Some(named) = arguments.get(2..).filter(|named| !named.is_empty()) {
        kinds.retain(|kind| named.iter().any(|name| name == kind.name()));
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
    command
        .args(["-rn", "sh", "-c"])
        .arg(format!("{SETUP}; exec \"$0\" \"$@\""))
        .arg(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).env(INSIDE, "1");
    if std::env::var_os("FATBTREE_EAL").is_none() {
        command.env("FATBTREE_EAL", "--no-huge -m 512");
    }
    if command.status()?.success() { Ok(()) } else { Err("it failed in its namespace".into()) }
}

/// An IPv4 packet to a host, 60 bytes: 64 with its checksum. Its hop limit is so low that a switch which has it from a host makes it a new one,
/// every time.
fn frame(to: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0x02; 60];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    let mut header = [0x45, 0, 0, 46, 0, 0, 0, 0, 8, 255, 0, 0, 10, 1, 0, 2, to[0], to[1], to[2], to[3]];
    let sum: u32 = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame[14..34].copy_from_slice(&header);
    frame
}

/// Frames a second that a switch with such ports forwards.
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
    let numbers = switch_ports(&before, switch)?.into_iter().map(|(number, _)| number);
    let ports = numbers.zip(kind.ends(first)).collect();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let options = SwitchOptions::new("127.0.0.1:0", 1, ports);
        let running = scope.spawn(move || match SwitchProcess::open(&options) {
            Ok(process) => {
                let _ = tell.send(Ok((process.grpc(), process.stopper())));
                Some(process.run())
            }
            Err(error) => {
                let _ = tell.send(Err(error));
                None
            }
        });
        let (grpc, stopper) = told.recv()??;
        let loaded = load_and_wait(&cluster(&grpc.to_string())?, how_long);
        stopper.stop();
        let report = running.join().map_err(|_| "the switch panicked")?.ok_or("it has no ports")?;
        let took = loaded?;
        if report.ports.sent <= FRAMES as u64 {
            return Err(format!("{}: frames do not go round: {report}", kind.name()).into());
        }
        Ok(report.ports.sent as f64 / took.as_secs_f64())
    })
}

/// Gives the switch program, entries and frames, and time. Tells how long the frames went round.
fn load_and_wait(cluster: &Cluster, how_long: Duration) -> Result<Duration, Failure> {
    let switch = cluster.tree().switch_by_name(SWITCH).ok_or("k = 2 has it")?.id;
    let far = cluster.tree().host_by_name("host-1-0-0").ok_or("k = 2 has it")?;
    let to_far = frame(far.ip.octets());
    let programs = Programs::v1model()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let fleet = Fleet::connect_to(cluster, [switch], &programs, FleetOptions::default()).await?;
        fleet.set_pipeline().await?;
        fleet.load_base(&cluster_base(cluster).into_iter().filter(|(id, _)| *id == switch).collect()).await?;
        let client = fleet.client(switch).ok_or("connected")?;
        let format = PacketFormat::of(client.p4info().await?.p4info()).ok_or("it has controller headers")?;
        let began = Instant::now();
        for _ in 0..FRAMES {
            client.packet_out(format.packet_out(UP, to_far.clone())).await?;
        }
        // Meanwhile the session goes on: what was handed in may still be on the way.
        tokio::time::sleep(how_long).await;
        Ok(began.elapsed())
    })
}
