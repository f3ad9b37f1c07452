//! The contract of every kind of port.
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use fatbtree_port::{
    BATCH, Batch, Clients, LONGEST_FRAME, OpenError, PacketPort, Port, PortSpec, UdpPort, Waiter, pair,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for so many frames and gives them.
fn gather(ports: &mut [Box<dyn Port>], at: usize, count: usize) -> Vec<Vec<u8>> {
    let (waiter, mut ready, mut batch) = (Waiter::new().unwrap(), Vec::new(), Batch::new());
    let (mut frames, began) = (Vec::new(), Instant::now());
    while frames.len() < count {
        assert!(began.elapsed() < PATIENCE, "{} frames of {count} came", frames.len());
        waiter.wait(ports, Some(Duration::from_millis(100)), &mut ready);
        if ready[at] {
            ports[at].receive(&mut batch);
            frames.extend(batch.iter().map(<[u8]>::to_vec));
        }
    }
    frames
}

/// A frame that says which it is. The first bytes are addresses and an EtherType for experiments.
fn frame(n: usize, length: usize) -> Vec<u8> {
    let mut frame = vec![n as u8; length];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
    frame[14..16].copy_from_slice(&(n as u16).to_be_bytes());
    frame
}

/// What both ends of any wire promise.
#[track_caller]
fn keeps_its_promises(one: Box<dyn Port>, other: Box<dyn Port>) {
    let mut ports = vec![one, other];
    // More than a batch, of all lengths, both ways at once, in order.
    let count = 3 * BATCH + 1;
    let frames: Vec<Vec<u8>> = (0..count).map(|n| frame(n, 60 + n * 7 % 1400)).collect();
    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    assert_eq!(ports[0].send(&slices), count);
    assert_eq!(ports[1].send(&slices), count);
    assert_eq!(gather(&mut ports, 1, count), frames);
    assert_eq!(gather(&mut ports, 0, count), frames);
    for port in &ports {
        let counters = port.counters();
        assert_eq!((counters.received, counters.sent, counters.lost()), (count as u64, count as u64, 0));
    }
    let mut batch = Batch::new();
    assert_eq!(ports[0].receive(&mut batch), 0, "nothing comes back to its sender");
}

#[test]
fn pairs_keep_their_promises() {
    let (one, other) = pair(1024).unwrap();
    keeps_its_promises(Box::new(one), Box::new(other));
}

/// Two ports of UDP, wired to each other.
fn udp() -> (UdpPort, UdpPort) {
    let free = || UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).unwrap();
    let (here, there) = (free(), free());
    (UdpPort::open(here, there).unwrap(), UdpPort::open(there, here).unwrap())
}

#[test]
fn udp_keeps_its_promises() {
    let (one, other) = udp();
    keeps_its_promises(Box::new(one), Box::new(other));
}

/// Frames of one length leave as one message, and arrive as datagrams of their own, also at a socket that knows nothing of that.
#[test]
fn trains_of_frames_arrive_as_frames() {
    let free = || UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).unwrap();
    let (here, there) = (free(), free());
    let mut one = UdpPort::open(here, there).unwrap();
    let plain = UdpSocket::bind(there).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    // Long trains, short ones, shorter and longer frames after them, frames on their own, and those that fill a datagram soon.
    let lengths = [
        [78; 70].as_slice(),
        &[1086; 70],
        &[60],
        &[61, 61, 60, 60],
        &[1400, 78, 1400, 78],
        &[9000; 9],
        &[100, 100, 99, 101, 101],
        &[LONGEST_FRAME; 3],
    ];
    let frames: Vec<Vec<u8>> =
        lengths.concat().into_iter().enumerate().map(|(n, length)| frame(n, length)).collect();
    let mut bytes = vec![0; 1 << 16];
    // So many as the socket has room for, and each on its own: what was set for one is not in the way of another.
    for together in [20, 1, 5] {
        for part in frames.chunks(together) {
            let slices: Vec<&[u8]> = part.iter().map(Vec::as_slice).collect();
            assert_eq!(one.send(&slices), part.len());
            for frame in part {
                let length = plain.recv(&mut bytes).unwrap();
                assert!(bytes[..length] == *frame, "{length} bytes instead of {}", frame.len());
            }
        }
    }
    assert_eq!((one.counters().sent, one.counters().lost()), (3 * frames.len() as u64, 0));
}

/// Where one thread has the kernel cut its trains is not where another has.
#[test]
fn threads_send_by_one_wire() {
    let free = || UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).unwrap();
    let (here, there) = (free(), free());
    let wire = PortSpec::Udp { local: here, remote: there }.open_wire().unwrap();
    let mut ports: Vec<Box<dyn Port>> = vec![Box::new(UdpPort::open(there, here).unwrap())];
    const ROUNDS: usize = 50;
    for _ in 0..ROUNDS {
        std::thread::scope(|scope| {
            for length in [60, 90, 1200] {
                let wire = &wire;
                scope.spawn(move || {
                    let mut port = wire.port().unwrap();
                    let frames: Vec<Vec<u8>> = (0..10).map(|n| frame(n, length)).collect();
                    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
                    assert_eq!((port.send(&slices), port.send(&slices[..1])), (10, 1));
                    assert_eq!(port.counters().sent, 11);
                });
            }
        });
        let mut came = gather(&mut ports, 0, 33);
        came.sort_by_key(Vec::len);
        assert_eq!(came.iter().map(Vec::len).collect::<Vec<_>>(), [[60; 11], [90; 11], [1200; 11]].concat());
    }
}

/// An IPv4 frame to and from this address, as far as a shared wire looks.
fn for_address(ip: [u8; 4], n: usize, length: usize) -> Vec<u8> {
    let mut frame = frame(n, length);
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[30..34].copy_from_slice(&ip);
    frame
}

#[test]
fn each_client_of_a_shared_wire_gets_its_own_frames() {
    let free = || UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).unwrap();
    let (switch, ends) = (free(), [free(), free(), free()]);
    let ips = [[10, 0, 0, 9], [172, 16, 0, 1], [172, 16, 0, 2]];
    let clients: Clients = ips.iter().zip(ends).map(|(ip, end)| ((*ip).into(), end)).collect();
    let wire = PortSpec::SharedUdp { local: switch, clients }.open_wire().unwrap();
    // The last client is not there yet, and that hurts no other one.
    let mut ports: Vec<Box<dyn Port>> = vec![wire.port().unwrap()];
    ports.extend(ends[..2].iter().map(|end| Box::new(UdpPort::open(*end, switch).unwrap()) as Box<dyn Port>));
    let count = 2 * BATCH + 7;
    let frames: Vec<Vec<u8>> =
        (0..count).map(|n| for_address(ips[n % 3], n, if n % 5 == 0 { 60 } else { 1000 })).collect();
    let stray = for_address([10, 0, 0, 8], 0, 60);
    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).chain([&stray[..], b"short"]).collect();
    assert_eq!(ports[0].send(&slices), count + 2);
    for client in 0..2 {
        let own: Vec<&Vec<u8>> = frames.iter().skip(client).step_by(3).collect();
        let came = gather(&mut ports, 1 + client, own.len());
        assert_eq!(came.iter().collect::<Vec<_>>(), own);
    }
    assert_eq!((ports[0].counters().sent, ports[0].counters().no_peer), (count as u64, 2));

    // Both ways; and a socket that is no client is not heard.
    UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&frames[0], switch).unwrap();
    for client in &mut ports[1..3] {
        assert_eq!(client.send(&slices[..70]), 70);
    }
    let mut came = gather(&mut ports, 0, 140);
    came.sort();
    let mut sent = [&frames[..70], &frames[..70]].concat();
    sent.sort();
    assert_eq!(came, sent);
    assert_eq!(ports[0].counters().received, 140);
}

#[test]
fn a_full_queue_takes_no_more_and_nothing_is_lost() {
    let (mut one, other) = pair(4).unwrap();
    let frames: Vec<Vec<u8>> = (0..6).map(|n| frame(n, 60)).collect();
    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    assert_eq!(one.send(&slices), 4);
    assert_eq!(one.send(&slices[4..]), 0);
    let mut ports: Vec<Box<dyn Port>> = vec![Box::new(other)];
    assert_eq!(gather(&mut ports, 0, 4), frames[..4]);
    assert_eq!(one.send(&slices[4..]), 2);
    assert_eq!(gather(&mut ports, 0, 2), frames[4..]);
    ports.clear();
    assert_eq!(one.send(&slices), 6, "without a peer");
    assert_eq!(one.counters().no_peer, 6);
}

#[test]
fn a_queue_of_the_kernel_is_bounded_and_its_losses_are_counted() {
    let (mut one, mut other) = udp();
    let long = frame(0, 9_000);
    let mut sent = 0;
    // 90 MB into a queue that holds at most 16.
    while sent < 10_000 {
        sent += one.send(&vec![&long[..]; 100]);
    }
    let (mut came, mut batch) = (0, Batch::new());
    while other.receive(&mut batch) > 0 {
        came += batch.len() as u64;
    }
    let counters = other.counters();
    assert_eq!(came, counters.received);
    // The kernel counts messages, and up to seven such frames are one.
    let lost = sent as u64 - came;
    assert!(
        lost.div_ceil(7) <= counters.queue_full && counters.queue_full <= lost,
        "{lost} lost, {counters}"
    );
}

#[test]
fn a_peer_that_is_not_up_is_no_error() {
    let free = || UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).unwrap();
    let (here, there) = (free(), free());
    let mut one = UdpPort::open(here, there).unwrap();
    let bytes = frame(1, 60);
    let mut batch = Batch::new();
    for _ in 0..20 {
        assert_eq!(one.send(&[&bytes]), 1);
        assert_eq!(one.receive(&mut batch), 0);
    }
    assert!(one.counters().no_peer > 0, "{}", one.counters());
    // It comes up, and frames flow.
    let other = UdpPort::open(there, here).unwrap();
    one.receive(&mut batch);
    assert_eq!(one.send(&[&bytes]), 1);
    assert_eq!(gather(&mut [Box::new(other)], 0, 1), [bytes]);
}

#[test]
fn strangers_are_not_heard_and_giants_are_dropped() {
    let (one, mut other) = udp();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(b"hello", one.local()).unwrap();
    other.send(&[&vec![0; LONGEST_FRAME + 1], &frame(3, LONGEST_FRAME)]);
    let mut ports: Vec<Box<dyn Port>> = vec![Box::new(one)];
    assert_eq!(gather(&mut ports, 0, 1), [frame(3, LONGEST_FRAME)]);
    assert_eq!((ports[0].counters().received, ports[0].counters().too_long), (1, 1));
    other.send(&[&vec![0; 1 << 17]]);
    assert_eq!(other.counters().too_long, 1, "longer than any datagram");
}

#[test]
fn a_waker_ends_a_wait() {
    let waiter = Waiter::new().unwrap();
    let (waker, mut ready) = (waiter.waker(), Vec::new());
    for _ in 0..100 {
        let waker = waker.clone();
        let other = std::thread::spawn(move || waker.wake());
        waiter.wait(&[], None, &mut ready);
        other.join().unwrap();
    }
    // Rung before the wait: it does not begin.
    waker.wake();
    waker.wake();
    waiter.wait(&[], None, &mut ready);
    let began = Instant::now();
    waiter.wait(&[], Some(Duration::from_millis(20)), &mut ready);
    assert!(began.elapsed() >= Duration::from_millis(20), "it rang twice for one wait");
}

#[test]
fn errors_say_what_to_do() {
    let (one, _other) = udp();
    let taken = PortSpec::Udp { local: one.local(), remote: "127.0.0.1:9".parse().unwrap() };
    let error = taken.open().err().expect("the address is taken").to_string();
    assert!(error.contains("is another process there"), "{error}");
    let error = "packet:none0".parse::<PortSpec>().unwrap().open().err().expect("there is none");
    assert!(matches!(&error, OpenError::NoInterface { interface } if interface == "none0"), "{error}");
}

#[test]
fn a_dpdk_port_without_dpdk_says_how_to_get_it() {
    let spec: PortSpec = "dpdk:net_memif0,role=client".parse().unwrap();
    assert_eq!(spec.to_string(), "dpdk:net_memif0,role=client");
    if !cfg!(feature = "dpdk") {
        let error = spec.open().err().expect("it knows nothing of DPDK").to_string();
        assert!(error.contains("cargo build --release -p fatbtree-cli --features dpdk"), "{error}");
    }
}

/// Runs the test of this name again in a network of its own. False, and loud, where the machine does not allow that.
fn in_namespace(test: &str) -> bool {
    let made = Command::new("unshare")
        .args(["-rn", "sh", "-c"])
        .arg(
            "ip link add fatbtree0 type veth peer name fatbtree1 && ip link set fatbtree0 up && ip link set fatbtree1 up \
             && exec \"$0\" \"$@\"",
        )
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test, "--nocapture"])
        .output();
    match made {
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains("test result") => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
            assert!(text.contains("1 passed"), "{text}");
            true
        }
        other => {
            eprintln!("SKIPPED: no veth pair in a network namespace here: {other:?}");
            false
        }
    }
}

#[test]
fn packet_keeps_its_promises() {
    in_namespace("packet_in_a_namespace");
}

#[test]
#[ignore = "runs in a network namespace with a veth pair: packet_keeps_its_promises starts it there"]
fn packet_in_a_namespace() {
    let open = |interface| {
        let port = PacketPort::open(interface).unwrap();
        Box::new(port)
    };
    // What the kernel says to an interface that has come up, such as IPv6's router solicitations.
    std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").ok();
    keeps_its_promises(open("fatbtree0"), open("fatbtree1"));
}

/// DPDK devices without hardware, huge pages or rights; in a namespace where they need these.
#[cfg(feature = "dpdk")]
mod dpdk {
    use super::*;
    use fatbtree_dpdk::Eal;
    use fatbtree_port::DpdkPort;

    fn open(device: &str) -> DpdkPort {
        Eal::start("--no-huge -m 256").unwrap();
        DpdkPort::open(device).unwrap()
    }

    /// Two ends of a wire in shared memory, which have found each other.
    fn memif(id: u32) -> [Box<dyn Port>; 2] {
        let socket = format!("socket=/tmp/fatbtree-port-test-{}-{id}", std::process::id());
        let end = |n, role| open(&format!("net_memif{},role={role},id={id},{socket}", 2 * id + n));
        let (mut one, mut other, mut batch) = (end(0, "server"), end(1, "client"), Batch::new());
        let began = Instant::now();
        while !(one.is_up() && other.is_up()) {
            assert!(began.elapsed() < PATIENCE, "the ends do not find each other");
            std::thread::sleep(Duration::from_millis(1));
        }
        // The client says where there is room.
        assert_eq!(one.receive(&mut batch) + other.receive(&mut batch), 0);
        [Box::new(one), Box::new(other)]
    }

    #[test]
    fn memif_keeps_its_promises() {
        let [one, other] = memif(1);
        keeps_its_promises(one, other);
    }

    /// What is in a batch is there until it is filled again, also when the port is gone.
    #[test]
    fn a_batch_keeps_frames_where_the_device_has_put_them() {
        let [mut one, other] = memif(2);
        let mut ports = vec![other];
        assert_eq!(one.send(&[&frame(1, 60), &frame(2, 70)]), 2);
        let (mut batch, began) = (Batch::new(), Instant::now());
        while ports[0].receive(&mut batch) == 0 {
            assert!(began.elapsed() < PATIENCE);
        }
        assert!(batch.push(&frame(3, 80)), "there is room for another");
        ports.clear();
        assert_eq!((batch.len(), batch.is_full()), (3, false));
        assert_eq!(batch.iter().collect::<Vec<_>>(), [frame(1, 60), frame(2, 70), frame(3, 80)]);
        batch.clear();
        assert!(batch.is_empty() && batch.iter().next().is_none());
    }

    /// A port that is polled is always ready, others beside it are seen, and so is a wake.
    #[test]
    fn nobody_sleeps_beside_a_port_that_is_polled() {
        let [one, _other] = memif(3);
        let (here, mut there) = pair(16).unwrap();
        let ports: Vec<Box<dyn Port>> = vec![one, Box::new(here)];
        let (waiter, mut ready, began) = (Waiter::new().unwrap(), Vec::new(), Instant::now());
        for _ in 0..100 {
            waiter.wait(&ports, None, &mut ready);
            assert_eq!(ready, [true, false]);
        }
        assert_eq!(there.send(&[&frame(1, 60)]), 1);
        let seen = (0..100).any(|_| {
            waiter.wait(&ports, None, &mut ready);
            ready == [true, true]
        });
        assert!(seen && began.elapsed() < PATIENCE);
        // A wake that was heard rings no more.
        let sleeps = |patience| {
            let began = Instant::now();
            waiter.wait(&[], Some(patience), &mut Vec::new());
            began.elapsed() >= patience
        };
        waiter.waker().wake();
        (0..2).for_each(|_| waiter.wait(&ports[..1], None, &mut Vec::new()));
        assert!(sleeps(Duration::from_millis(20)));
        waiter.waker().wake();
        assert!(!sleeps(Duration::from_secs(10)));
    }

    #[test]
    fn what_cannot_be_opened_is_told() {
        open("net_ring0");
        let error =
            PortSpec::Dpdk("net_nothing0".to_owned()).open().err().expect("there is none").to_string();
        assert!(error.contains("no DPDK device \"net_nothing0\""), "{error}");
    }

    /// Threads of one wire share out what comes by its queues.
    #[test]
    fn each_thread_has_some_of_the_queues() {
        Eal::start("--no-huge -m 256").unwrap();
        // It makes frames up, in every queue, and tells of RSS.
        let wire = PortSpec::Dpdk("net_null0".to_owned()).open_wire_for(2).unwrap();
        assert_eq!(wire.queues(), 2);
        let mut batch = Batch::new();
        for thread in 0..2 {
            let mut port = wire.port_for(thread).unwrap();
            assert_eq!((port.receive(&mut batch), port.counters().received), (BATCH, BATCH as u64));
        }
    }

    #[test]
    fn af_packet_keeps_its_promises() {
        in_namespace("dpdk::af_packet_in_a_namespace");
    }

    #[test]
    #[ignore = "runs in a network namespace with a veth pair: af_packet_keeps_its_promises starts it there"]
    fn af_packet_in_a_namespace() {
        std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").ok();
        let other = Box::new(PacketPort::open("fatbtree1").unwrap());
        keeps_its_promises(Box::new(open("net_af_packet0,iface=fatbtree0")), other);
    }

    #[test]
    fn tap_keeps_its_promises() {
        in_namespace("dpdk::tap_in_a_namespace");
    }

    #[test]
    #[ignore = "runs in a network namespace: tap_keeps_its_promises starts it there"]
    fn tap_in_a_namespace() {
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").ok();
        let one = Box::new(open("net_tap0,iface=fatbtree2"));
        keeps_its_promises(one, Box::new(PacketPort::open("fatbtree2").unwrap()));
    }
}
