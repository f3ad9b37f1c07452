//! rping, of rdma-core, on the software NIC: one side of it, the other may be the kernel's. Frames travel in UDP datagrams, one each, as
//! `fatbtree switch` and QEMU's `-netdev dgram` carry them; `--capture FILE` keeps them for Wireshark. `scripts/interop_rxe.py` runs it.
//!
//! ```text
//!   rping 192.168.7.3 127.0.0.1:7000,127.0.0.1:6000                                              serves until it is ended
//!   rping 192.168.7.3 127.0.0.1:7000,127.0.0.1:6000 hang-up                                      ends what connects, as ucmatose expects
//!   rping 192.168.7.3 127.0.0.1:7000,127.0.0.1:6000 192.168.7.2,02:00:00:00:00:02 10 64          pings another one: 10 times 64 bytes
//!
//!     client                                  server
//!       SEND address, rkey, size   ─────►
//!                                  ◄─────     READ of these bytes
//!                                  ◄─────     SEND go on
//!       SEND address, rkey, size   ─────►
//!                                  ◄─────     WRITE of what was read
//!                                  ◄─────     SEND done
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the command line")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::time;

use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{
    Access, Buffer, Connection, ConnectionEvent, Connector, Device, Memory, Message, Messages, Operation,
    Output, QueuePair, Region, Remote, Service, Verbs, WorkRequest,
};
use pcap_file::pcap::{PcapPacket, PcapWriter};

/// Port of rping.
const PORT: u16 = 7174;

/// What one side tells the other of its memory: address, rkey, size.
const ADVERTISEMENT: u32 = 16;

/// Bytes of the longest ping, as in rping.
const LONGEST: u64 = 64 * 1024;

type Failure = Box<dyn Error>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (capture, words) = match &words[..] {
        [option, file, words @ ..] if option == "--capture" => (Some(file), words),
        words => (None, words),
    };
    let run = || match words {
        [ip, ports] => serve(&mut Host::open(ip, ports, capture)?, false),
        [ip, ports, word] if word == "hang-up" => serve(&mut Host::open(ip, ports, capture)?, true),
        [ip, ports, server, count, size] => {
            let (to, mac) = server.split_once(',').ok_or("expected ADDRESS,MAC of the server")?;
            let to = Service { mac: mac_of(mac)?, ip: to.parse()?, port: PORT };
            ping(&mut Host::open(ip, ports, capture)?, &to, count.parse()?, size.parse()?)
        }
        _ => {
            Err("usage: rping [--capture FILE] ADDRESS OURS,THEIRS [hang-up | SERVER,MAC COUNT BYTES]".into())
        }
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rping: {error}");
            ExitCode::FAILURE
        }
    }
}

fn mac_of(text: &str) -> Result<[u8; 6], Failure> {
    let bytes: Vec<u8> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>()?;
    bytes.try_into().map_err(|_| format!("expected a MAC address, found {text}").into())
}

/// A NIC, its wire and a clock.
struct Host {
    nic: Nic,
    wire: UdpSocket,
    began: time::Instant,
    capture: Option<PcapWriter<File>>,
    frame: Vec<u8>,
    came: Vec<u8>,
    /// Connections that have ended, in the order of their ends.
    ended: Vec<(Connection, ConnectionEvent)>,
    requested: Vec<Connection>,
    established: Vec<Connection>,
}

impl Host {
    fn open(ip: &str, ports: &str, capture: Option<&String>) -> Result<Self, Failure> {
        let ip: Ipv4Addr = ip.parse()?;
        let (ours, theirs) = ports.split_once(',').ok_or("expected OURS,THEIRS: two UDP addresses")?;
        let wire = UdpSocket::bind(ours.parse::<SocketAddr>()?)?;
        wire.connect(theirs.parse::<SocketAddr>()?)?;
        let [.., host] = ip.octets();
        let config = NicConfig {
            ack_timeout: Duration::from_millis(100),
            ..NicConfig::new([2, 0, 0, 0, 0, host], ip)
        };
        let nic = Nic::new(config, time::UNIX_EPOCH.elapsed()?.as_nanos() as u64)?;
        Ok(Self {
            nic,
            wire,
            began: time::Instant::now(),
            capture: match capture {
                Some(file) => Some(PcapWriter::new(File::create(file)?)?),
                None => None,
            },
            frame: Vec::new(),
            came: vec![0; 10_000],
            ended: Vec::new(),
            requested: Vec::new(),
            established: Vec::new(),
        })
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.began.elapsed().as_nanos() as u64)
    }

    /// Sends what is to be sent, and waits a moment for what comes.
    fn turn(&mut self) -> Result<(), Failure> {
        let now = self.now();
        self.nic.handle_timeout(now);
        while self.nic.poll_transmit(now, &mut self.frame) {
            keep(&mut self.capture, now, &self.frame)?;
            // A wire whose other end is away loses frames.
            let _ = self.wire.send(&self.frame);
        }
        self.wire.set_read_timeout(Some(time::Duration::from_millis(1)))?;
        if let Ok(len) = self.wire.recv(&mut self.came) {
            let now = self.now();
            keep(&mut self.capture, now, &self.came[..len])?;
            self.nic.handle_frame(now, &self.came[..len]);
        }
        while let Some((connection, event)) = self.nic.poll_connection() {
            match event {
                ConnectionEvent::Requested { .. } => self.requested.push(connection),
                ConnectionEvent::Established { .. } => self.established.push(connection),
                // What fills private data up says nothing.
                ConnectionEvent::Rejected { reason, .. } => {
                    self.ended.push((connection, ConnectionEvent::Rejected { reason, private: vec![] }));
                }
                event => self.ended.push((connection, event)),
            }
        }
        Ok(())
    }

    /// Turns until there is something.
    fn until<T>(
        &mut self,
        connection: Connection,
        mut something: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, Failure> {
        loop {
            if let Some(found) = something(self) {
                return Ok(found);
            }
            if let Some((_, event)) = self.ended.iter().find(|(ended, _)| *ended == connection) {
                return Err(format!("the connection has ended: {event:?}").into());
            }
            self.turn()?;
        }
    }

    fn await_message(&mut self, link: &Link) -> Result<Vec<u8>, Failure> {
        let received = self.until(link.connection, |host| host.nic.poll_received())?;
        let message = received.result?;
        self.nic.receive(link.queue_pair, 0, ADVERTISEMENT)?;
        Ok(message.data.to_vec())
    }

    fn await_completion(&mut self, link: &Link) -> Result<Output, Failure> {
        Ok(self.until(link.connection, |host| host.nic.poll())?.result?)
    }

    fn send(&mut self, link: &Link, data: &[u8]) -> Result<(), Failure> {
        self.nic.send(link.queue_pair, 0, Message::Send { data, immediate: None })?;
        self.await_completion(link).map(drop)
    }
}

/// Keeps a frame in the capture, if there is one.
fn keep(capture: &mut Option<PcapWriter<File>>, now: Instant, frame: &[u8]) -> Result<(), Failure> {
    if let Some(capture) = capture {
        let at = time::Duration::from_nanos((now - Instant::ZERO).as_nanos());
        capture.write_packet(&PcapPacket::new(at, frame.len() as u32, frame))?;
    }
    Ok(())
}

/// A connection and its queue pair.
struct Link {
    connection: Connection,
    queue_pair: QueuePair,
}

/// What a side that is served does next.
enum Step {
    /// It waits for the place of the ping.
    Start,
    /// The ping is read.
    Read,
    /// The peer is told to go on.
    GoOn(Buffer),
    /// It waits for the place of the answer.
    Answer(Buffer),
    /// The answer is written.
    Write,
    /// The peer is told that it is done.
    Done,
}

struct Served {
    connection: Connection,
    step: Step,
    pings: u32,
}

fn serve(host: &mut Host, hangs_up: bool) -> Result<(), Failure> {
    host.nic.listen(PORT);
    println!("ready");
    let mut all: BTreeMap<QueuePair, Served> = BTreeMap::new();
    loop {
        host.turn()?;
        while let Some(connection) = host.requested.pop() {
            let queue_pair = host.nic.create()?;
            host.nic.receive(queue_pair, 0, ADVERTISEMENT)?;
            if host.nic.accept(connection, queue_pair, b"").is_err() {
                host.nic.destroy(queue_pair);
                continue;
            }
            all.insert(queue_pair, Served { connection, step: Step::Start, pings: 0 });
        }
        for connection in std::mem::take(&mut host.established) {
            if hangs_up {
                host.nic.disconnect(connection);
            }
        }
        while let Some(received) = host.nic.poll_received() {
            let message = received.result.map(|message| message.data);
            step(host, &mut all, received.queue_pair, message.map(Output::Read));
        }
        while let Some(completion) = host.nic.poll() {
            step(host, &mut all, completion.queue_pair, completion.result);
        }
        for (connection, event) in std::mem::take(&mut host.ended) {
            let ended = all.iter().find(|(_, served)| served.connection == connection);
            if let Some(queue_pair) = ended.map(|(queue_pair, _)| *queue_pair)
                && let Some(Served { pings, .. }) = all.remove(&queue_pair)
            {
                println!("served {pings} pings: {event:?}");
                host.nic.destroy(queue_pair);
            }
        }
    }
}

/// Goes on with a connection: a message has come, or a request is done. One that breaks the rules is ended.
fn step(
    host: &mut Host,
    all: &mut BTreeMap<QueuePair, Served>,
    queue_pair: QueuePair,
    news: Result<Output, fatbtree_verbs::Failure>,
) {
    let Some(served) = all.get_mut(&queue_pair) else { return };
    let last = std::mem::replace(&mut served.step, Step::Done);
    let is_written = matches!(last, Step::Write);
    match news.map_err(Failure::from).and_then(|news| answer(host, queue_pair, last, news)) {
        Ok(step) => {
            served.pings += u32::from(is_written);
            served.step = step;
        }
        Err(error) => {
            println!("{queue_pair}: {error}");
            host.nic.disconnect(served.connection);
        }
    }
}

fn answer(host: &mut Host, queue_pair: QueuePair, last: Step, news: Output) -> Result<Step, Failure> {
    let post = |nic: &mut Nic, operation| {
        nic.post(queue_pair, &[WorkRequest { tag: 0, signalled: true, operation }])
    };
    let go_on = Message::Send { data: &[0; ADVERTISEMENT as usize], immediate: None };
    Ok(match (last, news) {
        // A message may overtake the completion before it.
        (Step::Start | Step::Done, Output::Read(message)) => {
            host.nic.receive(queue_pair, 0, ADVERTISEMENT)?;
            let (from, len) = place(&message)?;
            post(&mut host.nic, Operation::Read { from, len })?;
            Step::Read
        }
        (Step::Read, Output::Read(bytes)) => {
            host.nic.send(queue_pair, 0, go_on)?;
            Step::GoOn(bytes)
        }
        (Step::GoOn(bytes), Output::Written) => Step::Answer(bytes),
        (Step::GoOn(bytes) | Step::Answer(bytes), Output::Read(message)) => {
            host.nic.receive(queue_pair, 0, ADVERTISEMENT)?;
            let (to, room) = place(&message)?;
            let data = &bytes[..bytes.len().min(room as usize)];
            post(&mut host.nic, Operation::Write { to, data })?;
            Step::Write
        }
        (Step::Write, Output::Written) => {
            host.nic.send(queue_pair, 0, go_on)?;
            Step::Done
        }
        (step, Output::Written) => step,
        _ => return Err("a message that is not expected".into()),
    })
}

/// The place in an advertisement, and its bytes.
fn place(message: &[u8]) -> Result<(Remote, u32), Failure> {
    let whole: &[u8; ADVERTISEMENT as usize] =
        message.try_into().map_err(|_| format!("expected {ADVERTISEMENT} bytes, found {}", message.len()))?;
    let [address, rest] = [&whole[..8], &whole[8..]];
    let number = |bytes: &[u8]| bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let (rkey, len) = (number(&rest[..4]) as u32, number(&rest[4..]));
    if len > LONGEST {
        return Err(format!("a ping of {len} bytes, the longest has {LONGEST}").into());
    }
    Ok((Remote { address: number(address), rkey }, len as u32))
}

fn ping(host: &mut Host, to: &Service, count: u32, size: u32) -> Result<(), Failure> {
    if !(1..=LONGEST).contains(&u64::from(size)) {
        return Err(format!("expected pings of 1 to {LONGEST} bytes, found {size}").into());
    }
    let queue_pair = host.nic.create()?;
    host.nic.receive(queue_pair, 0, ADVERTISEMENT)?;
    let connection = host.nic.request(queue_pair, to, b"")?;
    host.until(connection, |host| host.established.pop())?;
    println!("connected");
    let link = Link { connection, queue_pair };
    let size = u64::from(size);
    let mut register = |iova: u64| -> Result<(Arc<Memory>, Region), Failure> {
        let memory = Memory::shared(size.next_multiple_of(4096))?;
        let region = host.nic.register(&memory, iova, Access::READ | Access::WRITE)?;
        Ok((memory, region))
    };
    let (start, sink) = (register(0x10_0000)?, register(0x20_0000)?);
    let advertised = |region: &Region| {
        let size = (size as u32).to_be_bytes();
        [&region.iova.to_be_bytes()[..], &region.rkey.to_be_bytes(), &size].concat()
    };
    for number in 0..count {
        let mut bytes = format!("rdma-ping-{number}: ").into_bytes();
        bytes.extend((0..).map(|at| b'A' + ((number + at) % 58) as u8).take(size as usize));
        bytes.truncate(size as usize - 1);
        bytes.push(0);
        start.0.write(0, &bytes)?;
        host.send(&link, &advertised(&start.1))?;
        host.await_message(&link)?;
        host.send(&link, &advertised(&sink.1))?;
        host.await_message(&link)?;
        let mut found = vec![0; bytes.len()];
        sink.0.read(0, &mut found)?;
        if found != bytes {
            return Err(format!("ping {number}: other bytes came back").into());
        }
    }
    println!("{count} pings of {size} bytes came back");
    host.nic.disconnect(connection);
    host.until(Connection(u64::MAX), |host| host.ended.pop()).map(|(_, event)| println!("{event:?}"))
}
