//! The cost of a frame per port hop: sent by one port and received by the other, one frame or 32 with a system call, both by the one thread.
//! AF_PACKET is measured on a veth pair in a network namespace, where the machine allows one; with the feature `dpdk` net_memif, too, between
//! two ports of this process.
#![allow(clippy::print_stdout, reason = "a skipped measurement is said aloud")]

use std::hint::black_box;
use std::net::UdpSocket;
use std::process::Command;

use criterion::{Criterion, Throughput};
use fatbtree_port::{Batch, PacketPort, Port, UdpPort, pair};

/// Says that this process runs in the namespace.
const INSIDE: &str = "FATBTREE_BENCH_NAMESPACE";

/// Bytes of a frame: a READ request, and an answer with a node of 1 KB.
const LENGTHS: [usize; 2] = [78, 1_086];

fn main() {
    if std::env::var_os(INSIDE).is_none() && run_inside() {
        return;
    }
    let mut criterion = Criterion::default().configure_from_args();
    let (one, other) = pair(256).expect("two file descriptors");
    measure(&mut criterion, "in process", Box::new(one), Box::new(other));
    let free = || UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let (here, there) = (free(), free());
    let udp = |local, remote| Box::new(UdpPort::open(local, remote).expect("free a moment ago"));
    measure(&mut criterion, "udp", udp(here, there), udp(there, here));
    match (PacketPort::open("fatbtree0"), PacketPort::open("fatbtree1")) {
        (Ok(one), Ok(other)) => measure(&mut criterion, "packet", Box::new(one), Box::new(other)),
        _ => println!("SKIPPED packet: no veth pair in a network namespace here"),
    }
    #[cfg(feature = "dpdk")]
    {
        let [one, other] = memif();
        measure(&mut criterion, "dpdk net_memif", one, other);
    }
    criterion.final_summary();
}

/// Two ends of a wire in shared memory, which have found each other.
#[cfg(feature = "dpdk")]
fn memif() -> [Box<dyn Port>; 2] {
    fatbtree_dpdk::Eal::start("--no-huge -m 128").expect("no huge pages are needed");
    let socket = format!("socket=/tmp/fatbtree-bench-{}", std::process::id());
    let open = |name: &str, role: &str| {
        fatbtree_port::DpdkPort::open(&format!("{name},role={role},{socket}")).expect("it needs no rights")
    };
    let (other, one) = (open("net_memif0", "server"), open("net_memif1", "client"));
    while !(one.is_up() && other.is_up()) {
        std::thread::yield_now();
    }
    [Box::new(one), Box::new(other)]
}

/// Runs this bench in a network namespace with a veth pair; false where the machine does not allow that.
fn run_inside() -> bool {
    const SETUP: &str = "ip link set lo up && ip link add fatbtree0 type veth peer name fatbtree1 && ip link set fatbtree0 up \
                         && ip link set fatbtree1 up";
    let allowed = Command::new("unshare")
        .args(["-rn", "sh", "-c", SETUP])
        .status()
        .is_ok_and(|status| status.success());
    let Ok(program) = std::env::current_exe() else { return false };
    let inside = || {
        let mut command = Command::new("unshare");
        command.args(["-rn", "sh", "-c"]).arg(format!("{SETUP} && exec \"$0\" \"$@\"")).arg(program);
        command.args(std::env::args_os().skip(1)).env(INSIDE, "1").status()
    };
    allowed && inside().is_ok_and(|status| status.success())
}

fn measure(criterion: &mut Criterion, name: &str, mut one: Box<dyn Port>, mut other: Box<dyn Port>) {
    let mut group = criterion.benchmark_group("a frame per port hop");
    let mut batch = Batch::new();
    for length in LENGTHS {
        let frame = vec![0x02; length];
        for together in [1, 32] {
            let frames = vec![&frame[..]; together];
            group.throughput(Throughput::Elements(together as u64));
            group.bench_function(format!("{name}, {length} bytes, {together} together"), |bencher| {
                bencher.iter(|| {
                    assert_eq!(one.send(&frames), together);
                    let mut came = 0;
                    while came < together {
                        came += other.receive(&mut batch);
                    }
                    black_box(batch.len())
                });
            });
        }
    }
    group.finish();
}
