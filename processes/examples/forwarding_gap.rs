//! How long packets stop while a controller works on a switch process.
//!
//! ```text
//! cargo run --release -p fatbtree-processes --example forwarding_gap -- [ENTRIES]
//! ```
//!
//! There are a switch process (this program again, as a child) with two UDP ports; a thread that gives it a frame every 100 µs and takes
//! what comes out; and a controller that, over gRPC on loopback, pushes ENTRIES (default 350,000) entries, reads all tables back with a
//! wildcard and with their counters, has a program verified, reconciles to the same program and to another, deletes the entries and sets
//! the program anew. For each of these it prints the rate, and the longest time between two frames that came out of the switch (`gap`),
//! beside the longest between two that were put in: what the machine itself did to the thread. Where something else wants the processors,
//! give the switch's first thread and the one with the frames a real-time priority (`chrt -f -p 10 TID`).
//!
//! On two processors, with that (gap in ms; before requests were done in parts, and now):
//!
//! | | before | now |
//! |---|---|---|
//! | push of 350,000 entries (200,000 to 500,000/s) | 25 to 86 | 1.1 |
//! | read of them | 202 | 1.0 |
//! | delete | 0.5 | 0.9 |
//! | VERIFY of another program | 11 to 17 | 0.2 |
//! | RECONCILE_AND_COMMIT, the same program | 3,720 | 0.1 |
//! | RECONCILE_AND_COMMIT, another program | 3,710 | 2.9 |

use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fatbtree_controller::{Fleet, FleetOptions, Programs, cluster_base};
use fatbtree_p4runtime::entry::{delete, insert};
use fatbtree_p4runtime::v1::ForwardingPipelineConfig;
use fatbtree_p4runtime::v1::set_forwarding_pipeline_config_request::Action;
use fatbtree_p4runtime::v1::{TableEntry, Update};
use fatbtree_p4runtime::{P4InfoIndex, TableInfo};
use fatbtree_port::{Batch, Port, PortSpec, Waiter};
use fatbtree_processes::{SwitchOptions, SwitchProcess, switch_ports};
use fatbtree_topology::Cluster;

type Failure = Box<dyn std::error::Error>;

/// A frame goes in so often.
const INTERVAL: Duration = Duration::from_micros(100);

const SWITCH: &str = "edge-0-0";

fn cluster(first_port: u16, address: &str) -> Result<Cluster, Failure> {
    let text = format!(
        "[network]\nk = 2\n[wires]\nfirst_port = {first_port}\n[[memory_server]]\nhost = \"host-0-0-0\"\ngrpc = \"127.0.0.1:2\"\n\
         [[switch]]\nname = \"{SWITCH}\"\np4runtime = \"{address}\"\ndevice_id = 1\n"
    );
    Ok(Cluster::from_toml(&text)?)
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [role, first_port] if role == "switch" => be_the_switch(first_port.parse()?),
        [] => measure(350_000),
        [entries] => measure(entries.parse()?),
        _ => Err("usage: forwarding_gap [ENTRIES]".into()),
    }
}

#[allow(clippy::print_stdout, reason = "it tells its parent where it listens")]
fn be_the_switch(first_port: u16) -> Result<(), Failure> {
    let cluster = cluster(first_port, "127.0.0.1:1")?;
    let switch = cluster.tree().switch_by_name(SWITCH).ok_or("k = 2 has it")?.id;
    let ports = switch_ports(&cluster, switch)?;
    let process = SwitchProcess::open(&SwitchOptions::new("127.0.0.1:0", 1, ports))?;
    println!("{}", process.grpc());
    process.run();
    Ok(())
}

/// The switch ends with its parent.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the thread with the frames has seen since the last report.
#[derive(Default)]
struct Seen {
    over: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
    gap_in_ns: AtomicU64,
    gap_out_ns: AtomicU64,
}

impl Seen {
    #[allow(clippy::print_stdout, reason = "an example reports on the terminal")]
    fn report(&self, what: &str, entries: Option<usize>, took: Duration) {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        let [sent, received] = [take(&self.sent), take(&self.received)];
        let [into, out] = [take(&self.gap_in_ns), take(&self.gap_out_ns)].map(|ns| ns as f64 / 1e6);
        let rate =
            entries.map(|n| format!("{:>9.0} entries/s", n as f64 / took.as_secs_f64())).unwrap_or_default();
        println!(
            "{what:<28} {:>8.1} ms {rate:>19}  gap {out:>7.2} ms  (in {into:.2} ms)  {sent} frames in, {received} out",
            took.as_secs_f64() * 1e3
        );
    }
}

/// An IPv4 packet to the host.
fn frame(to: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0x02; 64];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    let mut header = [0x45, 0, 0, 50, 0, 0, 0, 0, 64, 255, 0, 0, 10, 1, 0, 2, to[0], to[1], to[2], to[3]];
    let sum: u32 = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame[14..34].copy_from_slice(&header);
    frame
}

/// The port at the other end.
fn other_end(spec: &PortSpec) -> Result<Box<dyn Port>, Failure> {
    let PortSpec::Udp { local, remote } = spec else { return Err("not a UDP port".into()) };
    Ok(PortSpec::Udp { local: *remote, remote: *local }.open()?)
}

/// Gives the switch a frame after every interval, and takes what comes out.
fn feed(ports: &[(u16, PortSpec)], frame: &[u8], seen: &Seen) -> Result<(), String> {
    let open = |at: usize| other_end(&ports[at].1).map_err(|error| error.to_string());
    let (mut into, mut out) = (open(1)?, [open(0)?]);
    let waiter = Waiter::new().map_err(|error| error.to_string())?;
    // Where the system allows it, this thread goes before all others: it stands for hosts that have processors of their own.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), -15);
    let (mut ready, mut batch) = (Vec::new(), Batch::new());
    let began = Instant::now();
    let (mut next, mut last_in, mut last_out) = (began, began, began);
    while !seen.over.load(Ordering::Relaxed) {
        let now = Instant::now();
        if now >= next {
            seen.gap_in_ns.fetch_max((now - last_in).as_nanos() as u64, Ordering::Relaxed);
            last_in = now;
            while next <= now {
                seen.sent.fetch_add(into.send(&[frame]) as u64, Ordering::Relaxed);
                next += INTERVAL;
            }
        }
        waiter.wait(&out, Some(next.saturating_duration_since(Instant::now())), &mut ready);
        if out[0].receive(&mut batch) > 0 {
            let now = Instant::now();
            seen.gap_out_ns.fetch_max((now - last_out).as_nanos() as u64, Ordering::Relaxed);
            seen.received.fetch_add(batch.len() as u64, Ordering::Relaxed);
            last_out = now;
        }
    }
    Ok(())
}

/// Entry number `i`, without an action: the first 2^18 are in one node set, the others in another.
fn key(children: &[&TableInfo; 2], i: u64) -> Option<TableEntry> {
    let child = children.get((i >> 18) as usize)?;
    let field = |name| child.field(name).ok();
    let entry = child.entry().exact(field("epoch")?, 1 + (i >> 16 & 3));
    entry.exact(field("slot")?, 1 + (i >> 4 & 4095)).exact(field("branch")?, i & 15).build().ok()
}

fn with_action(children: &[&TableInfo; 2], i: u64) -> Option<Update> {
    let child = children.get((i >> 18) as usize)?;
    let field = |name| child.field(name).ok();
    let entry = child.entry().exact(field("epoch")?, 1 + (i >> 16 & 3));
    let entry = entry.exact(field("slot")?, 1 + (i >> 4 & 4095)).exact(field("branch")?, i & 15);
    Some(insert(entry.action(child.action("descend_to").ok()?, &[i << 10]).build().ok()?))
}

/// The controller's threads stand behind the switch's and the one with the frames where processors are short: it would run elsewhere.
fn step_back() {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 10);
}

fn measure(entries: u64) -> Result<(), Failure> {
    let free = |first: u16| (first..first + 12).all(|port| UdpSocket::bind(("127.0.0.1", port)).is_ok());
    let first_port = (30_000..).step_by(20).find(|first| free(*first)).ok_or("no free ports")?;
    let child = Command::new(std::env::current_exe()?)
        .args(["switch", &first_port.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut child = Running(child);
    let mut address = String::new();
    BufReader::new(child.0.stdout.take().ok_or("it is piped")?).read_line(&mut address)?;
    let cluster = cluster(first_port, address.trim())?;
    let switch = cluster.tree().switch_by_name(SWITCH).ok_or("k = 2 has it")?.id;
    let ports = switch_ports(&cluster, switch)?;

    let programs = Programs::v1model()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .on_thread_start(step_back)
        .enable_all()
        .build()?;
    let base = || cluster_base(&cluster).into_iter().filter(|(id, _)| *id == switch).collect();
    let fleet = runtime.block_on(async {
        let fleet = Fleet::connect_to(&cluster, [switch], &programs, FleetOptions::default()).await?;
        fleet.set_pipeline().await?;
        fleet.load_base(&base()).await?;
        Ok::<_, fatbtree_controller::PushError>(fleet)
    })?;
    let client = fleet.client(switch).ok_or("connected")?;

    let seen = Arc::new(Seen::default());
    let bytes = frame(cluster.tree().host(cluster.servers()[0].host).ip.octets());
    let feeder = std::thread::spawn({
        let seen = Arc::clone(&seen);
        move || feed(&ports, &bytes, &seen)
    });

    step_back();
    runtime.block_on(async {
        let info: P4InfoIndex = client.p4info().await?;
        let children = [info.table("node_set_a.child")?, info.table("node_set_b.child")?];
        let config = client.pipeline(Default::default()).await?.ok_or("it has a program")?;
        let wait = Instant::now();
        tokio::time::sleep(Duration::from_secs(1)).await;
        seen.report("nothing", None, wait.elapsed());

        // Made before: what the controller computes is not what is measured.
        let inserts: Vec<_> = (0..entries).map_while(|i| with_action(&children, i)).collect();
        let deletes: Vec<_> = (0..entries).map_while(|i| key(&children, i)).map(delete).collect();
        assert_eq!((inserts.len() as u64, deletes.len() as u64), (entries, entries), "there is room");
        seen.report("(making the updates)", None, wait.elapsed());

        let began = Instant::now();
        client.write(inserts).await?;
        seen.report("push", Some(entries as usize), began.elapsed());

        let began = Instant::now();
        let found = client.read(vec![fatbtree_p4runtime::entry::table_entity(TableEntry {
            counter_data: Some(Default::default()),
            ..TableEntry::default()
        })]);
        let found = found.await?.len();
        seen.report("read of all tables", Some(found), began.elapsed());
        assert!(found as u64 > entries, "{found}");

        let set = async |action, config: &ForwardingPipelineConfig| {
            let began = Instant::now();
            client.set_pipeline_with(action, Some(config.clone())).await?;
            Ok::<_, Failure>(began.elapsed())
        };
        let took = set(Action::Verify, &config).await?;
        seen.report("verify, the same program", None, took);
        // The same program in another text.
        let mut other = config.clone();
        other.p4_device_config.extend_from_slice(b"\n");
        let took = set(Action::Verify, &other).await?;
        seen.report("verify, another program", None, took);
        let took = set(Action::ReconcileAndCommit, &config).await?;
        seen.report("reconcile, the same program", None, took);
        other.p4_device_config.extend_from_slice(b"\n");
        let took = set(Action::ReconcileAndCommit, &other).await?;
        seen.report("reconcile, another program", None, took);

        let began = Instant::now();
        client.write(deletes).await?;
        seen.report("delete", Some(entries as usize), began.elapsed());
        seen.report("commit, another program", None, set(Action::VerifyAndCommit, &config).await?);
        Ok::<_, Failure>(())
    })?;
    seen.over.store(true, Ordering::Relaxed);
    feeder.join().map_err(|_| "the thread with the frames panicked")??;
    Ok(())
}
