//! Devices without hardware, huge pages or rights.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used, reason = "helpers of tests, too")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

use fatbtree_dpdk::{BURST, Burst, Device, DpdkError, Eal, LONGEST_FRAME};

const PATIENCE: Duration = Duration::from_secs(20);

/// All tests of a process have one.
fn eal() -> &'static Eal {
    Eal::start("--no-huge -m 512").unwrap()
}

fn open(device: &str) -> Device {
    Device::open(eal(), device, 1).unwrap()
}

fn frame(n: usize, length: usize) -> Vec<u8> {
    let mut frame = vec![n as u8; length];
    frame[..2].copy_from_slice(&(n as u16).to_be_bytes());
    frame
}

/// Receives so many frames.
fn gather(device: &Device, count: usize) -> Vec<Vec<u8>> {
    let (mut burst, mut frames, began) = (Burst::new(), Vec::new(), Instant::now());
    while frames.len() < count {
        assert!(began.elapsed() < PATIENCE, "{} frames of {count} came", frames.len());
        burst.clear();
        for queue in 0..device.queues() {
            device.receive(queue, &mut burst);
        }
        frames.extend(burst.iter().map(<[u8]>::to_vec));
    }
    frames
}

/// Two ends of a wire in shared memory.
fn memif(id: u32) -> (Device, Device) {
    let socket = format!("socket=/tmp/fatbtree-dpdk-test-{}-{id}", std::process::id());
    let end = |n, role| open(&format!("net_memif{},role={role},id={id},{socket}", 2 * id + n));
    let (one, other) = (end(0, "server"), end(1, "client"));
    let began = Instant::now();
    while !(one.is_up() && other.is_up()) {
        assert!(began.elapsed() < PATIENCE, "the ends do not find each other");
        std::thread::sleep(Duration::from_millis(1));
    }
    (one, other)
}

/// Sends all frames, and gives those that came meanwhile: a server finds room when its client looks for frames.
fn pass(from: &Device, to: &Device, frames: &[&[u8]]) -> Vec<Vec<u8>> {
    let (mut sent, mut came, began) = (0, Vec::new(), Instant::now());
    while sent < frames.len() || came.len() < sent {
        assert!(
            began.elapsed() < PATIENCE,
            "{sent} frames of {} were sent, {} came",
            frames.len(),
            came.len()
        );
        sent += from.send(0, &frames[sent..]).taken;
        let mut burst = Burst::new();
        to.receive(0, &mut burst);
        came.extend(burst.iter().map(<[u8]>::to_vec));
    }
    came
}

#[test]
fn frames_of_all_lengths_pass_in_order_both_ways() {
    let (one, other) = memif(1);
    let frames: Vec<Vec<u8>> = (0..3 * BURST + 1).map(|n| frame(n, 60 + n * 31 % 9000)).collect();
    let slices: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
    for (from, to) in [(&one, &other), (&other, &one)] {
        assert!(pass(from, to, &slices) == slices);
        assert_eq!(to.losses().missed, 0);
    }
}

#[test]
fn what_is_too_long_is_dropped_and_the_rest_goes_on() {
    let (one, other) = memif(2);
    let (short, giant) = (frame(1, 60), frame(2, LONGEST_FRAME + 1));
    pass(&one, &other, &[&short]);
    let sent = one.send(0, &[&short, &giant, &short, &giant]);
    assert_eq!((sent.taken, sent.too_long, sent.no_peer), (4, 2, 0));
    assert_eq!(gather(&other, 2), [short.clone(), short]);
}

#[test]
fn a_full_ring_takes_no_more_until_somebody_reads() {
    let (one, other) = memif(3);
    let short = frame(1, 60);
    pass(&one, &other, &[&short]);
    let mut sent = 0;
    loop {
        let taken = one.send(0, &[&short[..]; BURST]).taken;
        sent += taken;
        if taken == 0 {
            break;
        }
        assert!(sent < 1 << 16, "a ring without end");
    }
    assert_eq!(gather(&other, sent).len(), sent);
    assert_eq!(one.send(0, &[&short]).taken, 1);
}

/// A process that is the server of this socket, and sends back what comes.
struct Echo(std::process::Child);

impl Drop for Echo {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Echo {
    fn start(socket: &str) -> Self {
        let mut command = test_in_a_process("an_echo_in_a_process", "--no-huge -m 128");
        Self(command.env("FATBTREE_TEST_SOCKET", socket).spawn().unwrap())
    }
}

#[test]
#[ignore = "nobody_at_the_other_end_is_no_error runs it in a process of its own, and kills it"]
fn an_echo_in_a_process() {
    let socket = std::env::var("FATBTREE_TEST_SOCKET").unwrap();
    let device = format!("net_memif0,role=server,socket={socket}");
    let device = Device::open(Eal::of_environment().unwrap(), &device, 1).unwrap();
    let (mut burst, began) = (Burst::new(), Instant::now());
    while began.elapsed() < PATIENCE {
        burst.clear();
        device.receive(0, &mut burst);
        device.send(0, &burst.iter().collect::<Vec<_>>());
        std::thread::yield_now();
    }
}

#[test]
fn nobody_at_the_other_end_is_no_error() {
    let socket = format!("/tmp/fatbtree-dpdk-test-{}-alone", std::process::id());
    let alone = open(&format!("net_memif90,role=client,socket={socket}"));
    let short = frame(1, 60);
    let sent = alone.send(0, &[&short[..]; 3]);
    assert_eq!((sent.taken, sent.no_peer), (3, 3));
    let mut burst = Burst::new();
    assert_eq!((alone.receive(0, &mut burst), burst.len()), (0, 0));
    // It comes, is killed, and comes again.
    for _ in 0..2 {
        let peer = Echo::start(&socket);
        let began = Instant::now();
        while burst.is_empty() {
            assert!(began.elapsed() < PATIENCE, "no answer");
            alone.mend();
            alone.send(0, &[&short]);
            std::thread::sleep(Duration::from_millis(1));
            alone.receive(0, &mut burst);
        }
        assert_eq!(burst.frame(0), short);
        drop(peer);
        while alone.is_up() {
            assert!(began.elapsed() < PATIENCE, "it is gone");
            std::thread::sleep(Duration::from_millis(1));
        }
        burst.clear();
        assert_eq!(alone.send(0, &[&short[..]; 3]).no_peer, 3);
    }
}

/// The memory of frames outlives the device.
#[test]
fn a_burst_may_be_kept_longer_than_its_device() {
    let mut burst = Burst::new();
    let device = open("net_ring7");
    device.send(0, &[&frame(1, 60), &frame(2, 100)]);
    device.receive(0, &mut burst);
    drop(device);
    let next = open("net_ring8");
    next.send(0, &[&frame(9, 1000); 40].each_ref().map(|frame| &frame[..]));
    let kept: Vec<&[u8]> = burst.iter().collect();
    assert_eq!(kept, [frame(1, 60), frame(2, 100)]);
}

#[test]
fn threads_send_and_receive_at_once() {
    let device = Device::open(eal(), "net_ring9", 5).unwrap();
    let (threads, each) = (3, 2_000);
    let (came, began) = (AtomicUsize::new(0), Instant::now());
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let device = &device;
            scope.spawn(move || {
                let mut sent = 0;
                while sent < each {
                    sent += device.send(0, &[&frame(thread, 64 + thread)]).taken;
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let mut burst = Burst::new();
                while came.load(Ordering::Relaxed) < threads * each {
                    assert!(began.elapsed() < PATIENCE, "{came:?} frames came");
                    burst.clear();
                    device.receive(0, &mut burst);
                    assert!(burst.iter().all(|frame| frame.len() == 64 + usize::from(frame[1])));
                    came.fetch_add(burst.len(), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(came.into_inner(), threads * each);
}

/// A thread's cache of mbufs is of use to that thread alone: those of threads that are gone would empty the pool.
#[test]
fn threads_that_end_leave_their_memory_of_frames() {
    let device = open("net_ring6");
    let short = frame(1, 60);
    let seated = Barrier::new(41);
    std::thread::scope(|scope| {
        let work = |turn: mpsc::Receiver<()>| {
            let mut burst = Burst::new();
            device.receive(0, &mut burst);
            seated.wait();
            turn.recv().unwrap();
            for _ in 0..8 {
                assert_eq!(device.send(0, &[&short[..]; BURST]).taken, BURST);
            }
            for _ in 0..8 {
                burst.clear();
                device.receive(0, &mut burst);
                assert!(burst.is_full());
            }
        };
        // Each has a seat of its own, and works when the one before it has ended.
        let threads: Vec<_> = std::iter::repeat_with(mpsc::channel)
            .take(40)
            .map(|(begin, turn)| (begin, scope.spawn(move || work(turn))))
            .collect();
        seated.wait();
        for (begin, thread) in threads {
            begin.send(()).unwrap();
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_device_has_one_owner_and_is_there_again_when_closed() {
    let device = open("net_ring5");
    let twice = Device::open(eal(), "net_ring5", 1).unwrap_err();
    assert_eq!(twice, DpdkError::InUse { device: "net_ring5".to_owned() });
    drop(device);
    assert_eq!(open("net_ring5").name(), "net_ring5");
}

#[test]
fn what_is_not_there_is_told() {
    for device in
        ["net_nothing0", "0000:ff:1f.7", "", "net_pcap0,rx_pcap=/nowhere/at/all.pcap", "net_ring3\0"]
    {
        let error = Device::open(eal(), device, 1).unwrap_err().to_string();
        assert!(error.contains("no DPDK device") && error.contains("net_memif0,role=client"), "{error}");
    }
}

#[test]
fn a_pool_that_does_not_fit_is_told() {
    // Mbufs for 30,000 threads.
    let error = Device::open(eal(), "net_ring4", 30_000).unwrap_err();
    assert!(matches!(&error, DpdkError::Memory { device, .. } if device == "net_ring4"), "{error}");
    assert!(error.to_string().contains("-m MEGABYTES"), "{error}");
    // It was taken away again.
    open("net_ring4");
}

#[test]
fn other_arguments_are_refused() {
    eal();
    let error = Eal::start("--no-huge -m 64").unwrap_err().to_string();
    assert!(error.contains("-m 512") && error.contains("-m 64"), "{error}");
}

/// The EAL is once a process: another test of this program in one of its own, which is told in the environment what to do.
fn test_in_a_process(test: &str, arguments: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).env(fatbtree_dpdk::ARGUMENTS, arguments);
    command
}

fn in_a_process(arguments: &str) -> (String, bool) {
    let output = test_in_a_process("the_eal_of_a_process", arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (text + &String::from_utf8_lossy(&output.stderr), output.status.success())
}

#[test]
#[ignore = "wrong_arguments_are_told and others run it in a process of its own"]
fn the_eal_of_a_process() {
    match Eal::of_environment().and_then(|eal| Device::open(eal, "net_ring0", 1)) {
        Ok(device) => {
            device.receive(0, &mut Burst::new());
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let cores = status.lines().find(|line| line.starts_with("Cpus_allowed_list")).unwrap();
            println!("runs on {}", cores.split_whitespace().last().unwrap());
        }
        Err(error) => println!("refused: {error}"),
    }
}

#[test]
fn wrong_arguments_are_told() {
    for (arguments, reason) in [
        ("--no-such-option", "Invalid"),
        ("--no-huge --proc-type=what", "Invalid"),
        ("--no-huge -l 4711", "4711"),
    ] {
        let (said, ended_well) = in_a_process(arguments);
        assert!(ended_well, "{said}");
        let refused = said
            .lines()
            .find(|line| line.starts_with("refused: "))
            .unwrap_or_else(|| panic!("{arguments}: {said}"));
        assert!(refused.contains(arguments) && refused.contains(reason), "{refused}");
    }
}

/// Threads have the cores that are named, and only then.
#[test]
fn threads_run_on_the_cores_that_are_named() {
    let everywhere = in_a_process("--no-huge -m 128").0;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let own = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    assert!(everywhere.contains(&format!("runs on {own}\n")), "{everywhere}");
    let last = own.rsplit([',', '-']).next().unwrap();
    let there = in_a_process(&format!("--no-huge -m 128 -l {last}")).0;
    assert!(there.contains(&format!("runs on {last}\n")), "{there}");
}
