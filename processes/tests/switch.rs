//! A switch process forwards while its control plane works.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fatbtree_controller::{Fleet, FleetOptions, Programs, cluster_base};
use fatbtree_p4runtime::entry::insert;
use fatbtree_p4runtime::v1::PacketOut;
use fatbtree_p4runtime::v1::stream_message_response::Update;
use fatbtree_p4runtime::v1::write_request::Atomicity;
use fatbtree_p4runtime::{ClientOptions, P4InfoIndex, P4RuntimeClient};
use fatbtree_port::{Batch, Port, PortSpec, Waiter};
use fatbtree_processes::{Stopper, SwitchOptions, SwitchProcess, SwitchReport, switch_ports};
use fatbtree_topology::{Cluster, Role};

#[path = "common/ports.rs"]
mod ports;

/// A network of two hosts, on ports of this test's own.
fn cluster() -> Cluster {
    let first = ports::take(12);
    let text = format!(
        "[network]\nk = 2\n[wires]\nfirst_port = {first}\n[[memory_server]]\nhost = \"host-0-0-0\"\ngrpc = \"127.0.0.1:1\"\n"
    );
    Cluster::from_toml(&text).expect("a good file")
}

/// An IPv4 packet to the host: a switch does not care what is in it.
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
fn other_end(spec: &PortSpec) -> Box<dyn Port> {
    let PortSpec::Udp { local, remote } = spec else { panic!("{spec}") };
    PortSpec::Udp { local: *remote, remote: *local }.open().expect("a free port")
}

#[test]
fn frames_pass_between_the_parts_of_a_large_write() {
    pass_between_the_parts_of_a_large_write(1);
}

/// What the control plane writes is active in all threads, and what it reads is the sum of theirs.
/// Ports belong to the thread that opens them.
fn start(options: SwitchOptions) -> (SocketAddr, Stopper, JoinHandle<SwitchReport>) {
    let (tell, told) = std::sync::mpsc::channel();
    let running = std::thread::spawn(move || {
        let process = SwitchProcess::open(&options).expect("it opens");
        tell.send((process.grpc(), process.stopper())).expect("the test waits for it");
        process.run()
    });
    let (address, stopper) = told.recv().expect("it has opened");
    (address, stopper, running)
}

#[test]
fn frames_pass_in_several_threads() {
    pass_between_the_parts_of_a_large_write(2);
}

#[expect(clippy::print_stdout, reason = "figures for a run by hand")]
fn pass_between_the_parts_of_a_large_write(threads: usize) {
    let cluster = cluster();
    let switch = cluster.tree().switch_by_name("edge-0-0").expect("k = 2 has it").id;
    let ports = switch_ports(&cluster, switch).expect("there are wires");
    let (to_agg, to_host) = (ports[1].1.clone(), ports[0].1.clone());
    let grpc = cluster.p4runtime(switch).clone();
    // Whatever port is free: the cluster file says it only to controllers, and there is another way to tell this one.
    let options = SwitchOptions { threads, ..SwitchOptions::new("127.0.0.1:0", grpc.device_id, ports) };
    let (address, stopper, running) = start(options);

    let text = format!(
        "[network]\nk = 2\n[[memory_server]]\nhost = \"host-0-0-0\"\ngrpc = \"127.0.0.1:1\"\n[[switch]]\nname = \"edge-0-0\"\np4runtime = \"{address}\"\ndevice_id = {}\n",
        grpc.device_id
    );
    let reachable = Cluster::from_toml(&text).expect("a good file");
    let programs = Programs::v1model().expect("it is part of the program");
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let fleet = runtime.block_on(async {
        let fleet = Fleet::connect_to(&reachable, [switch], &programs, FleetOptions::default()).await?;
        fleet.set_pipeline().await?;
        fleet
            .load_base(&cluster_base(&reachable).into_iter().filter(|(id, _)| *id == switch).collect())
            .await?;
        Ok::<_, fatbtree_controller::PushError>(fleet)
    });
    let fleet = fleet.expect("the switch is there");

    // Frames, one after the other, as long as something lasts.
    let bytes = frame(cluster.tree().host(cluster.servers()[0].host).ip.octets());
    let mut all = 0;
    let mut while_frames_pass = |what: &str, work: &mut dyn FnMut()| {
        let (stopped, watched) =
            (Arc::new(AtomicBool::new(false)), (to_agg.clone(), to_host.clone(), bytes.clone()));
        let stop = Arc::clone(&stopped);
        let watcher = std::thread::spawn(move || {
            let (to_agg, to_host, bytes) = watched;
            let (waiter, mut ready, mut batch) =
                (Waiter::new().expect("a descriptor"), Vec::new(), Batch::new());
            let (mut agg, mut host) = (other_end(&to_agg), [other_end(&to_host)]);
            let (mut passed, mut longest) = (0u32, Duration::ZERO);
            while !stop.load(Ordering::Relaxed) {
                // From both ports in turn: each thread has one.
                for from_host in [false, true] {
                    let sent = Instant::now();
                    let from = if from_host { &mut host[0] } else { &mut agg };
                    assert_eq!(from.send(&[&bytes]), 1);
                    waiter.wait(&host, Some(Duration::from_secs(10)), &mut ready);
                    assert_eq!(host[0].receive(&mut batch), 1, "the frame has passed");
                    (passed, longest) = (passed + 1, longest.max(sent.elapsed()));
                }
            }
            (passed, longest)
        });
        let began = Instant::now();
        work();
        let took = began.elapsed();
        stopped.store(true, Ordering::Relaxed);
        let (passed, longest) = watcher.join().expect("every frame came");
        println!("{what} in {took:.1?}; {passed} frames passed meanwhile, the slowest in {longest:.1?}");
        all += passed;
        passed
    };

    // All in one request: were it applied in one go, no frame could pass meanwhile.
    const ENTRIES: u64 = 60_000;
    let client = fleet.client(switch).expect("connected");
    let info: P4InfoIndex = runtime.block_on(client.p4info()).expect("it has a program");
    let child = info.table("node_set_a.child").expect("the program has it");
    let field = |name| child.field(name).expect("the table has it");
    let (epoch, node, branch) = (field("epoch"), field("slot"), field("branch"));
    let descend = child.action("descend_to").expect("the table has it");
    let updates: Vec<_> = (0..ENTRIES)
        .map(|n| {
            let entry = child.entry().exact(epoch, 1).exact(node, 1 + n / 16).exact(branch, n % 16);
            insert(entry.action(descend, &[n << 10]).build().expect("in range"))
        })
        .collect();
    // In one go there would be a handful of frames, before and after; so there is at least one between most of some hundred parts.
    let passed = while_frames_pass("write", &mut || {
        let write = client.write_batch(updates.clone(), Atomicity::ContinueOnError);
        runtime.block_on(write).expect("all are new");
    });
    assert!(passed > 50, "{passed} frames passed");
    let passed = while_frames_pass("read", &mut || {
        let found = runtime.block_on(client.read_table(child, true)).expect("it answers");
        assert_eq!(found.len() as u64, ENTRIES);
    });
    assert!(passed > 50, "{passed} frames passed");
    stopper.stop();
    let report = running.join().expect("it ends");
    assert_eq!(report.ports.sent, u64::from(all), "{report}");
}

/// A packet from a controller is looked at between two parts of a write. This one is a backup's, so that it is answered.
#[test]
fn packets_do_not_wait_for_large_writes() {
    const DEVICE: u64 = 9;
    let (address, stopper, running) = start(SwitchOptions::new("127.0.0.1:0", DEVICE, Vec::new()));
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let connect = async || {
            // As the controller writes.
            let mut options = ClientOptions::default();
            (options.batch, options.in_flight) = (1000, 1);
            let address = address.to_string();
            P4RuntimeClient::connect_with(&address, DEVICE, options).await.expect("it listens")
        };
        let (mut primary, mut backup) = (connect().await, connect().await);
        primary.become_primary(2).await.expect("the highest bid");
        assert!(backup.become_primary(1).await.is_err());
        let programs = Programs::v1model().expect("it is part of the program");
        let info = programs.of(Role::Edge).info();
        let json = include_bytes!("../../p4/build/fatbtree_v1model.json").to_vec();
        primary.set_pipeline(info.p4info().clone(), json).await.expect("it is part of the program");
        let child = info.table("node_set_a.child").expect("the program has it");
        let field = |name| child.field(name).expect("the table has it");
        let (epoch, node, branch) = (field("epoch"), field("slot"), field("branch"));
        let descend = child.action("descend_to").expect("the table has it");
        let updates: Vec<_> = (0..60_000)
            .map(|n| {
                let entry = child.entry().exact(epoch, 1).exact(node, 1 + n / 16).exact(branch, n % 16);
                insert(entry.action(descend, &[n << 10]).build().expect("in range"))
            })
            .collect();
        let mut messages = backup.take_messages().expect("the first taker");
        let writing = tokio::spawn(async move { (primary.write(updates).await, primary) });
        let (mut answered, mut slowest, began) = (0, Duration::ZERO, Instant::now());
        while !writing.is_finished() {
            let sent = Instant::now();
            backup.packet_out(PacketOut::default()).await.expect("the stream is open");
            let answer = messages.recv().await.expect("the stream is open");
            assert!(matches!(answer, Update::Error(_)), "{answer:?}");
            (answered, slowest) = (answered + 1, slowest.max(sent.elapsed()));
        }
        let took = began.elapsed();
        writing.await.expect("it ends").0.expect("all are new");
        println!("{answered} packets were answered while 60,000 entries were written in {took:.1?}, the slowest in {slowest:.1?}");
        assert!(slowest < took / 2, "{slowest:?} of {took:?}");
    });
    stopper.stop();
    running.join().expect("it ends");
}
