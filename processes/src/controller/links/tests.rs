//! Two switch processes with a cable between them that can be cut.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fatbtree_controller::packets;
use fatbtree_p4runtime::{P4InfoIndex, P4RuntimeClient, PacketFormat};
use fatbtree_port::PortSpec;
use tokio::time::timeout;

use fatbtree_controller::links::{CableEnd, cables};
use fatbtree_topology::Cluster;

use super::*;
use crate::{Stopper, SwitchOptions, SwitchProcess};

const JSON: &str = include_str!("../../../../switch/testdata/packets.json");
const P4INFO: &str = include_str!("../../../../switch/testdata/packets.p4info.txtpb");

/// The number of each switch's port.
const PORT: u16 = 7;

/// A cable of two halves, each a UDP socket pair; frames pass from one to the other unless it is cut.
struct Relay {
    /// Of each switch: its own address, and that of the relay.
    ends: [(SocketAddr, SocketAddr); 2],
    cut: Arc<AtomicBool>,
}

impl Relay {
    fn new() -> Self {
        let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let relays = [socket(), socket()];
        // Free until the switch takes it.
        let switches = [socket(), socket()].map(|socket| socket.local_addr().unwrap());
        let cut = Arc::new(AtomicBool::new(false));
        let ends = [0, 1].map(|at| (switches[at], relays[at].local_addr().unwrap()));
        for at in [0, 1] {
            let (from, to) = (relays[at].try_clone().unwrap(), relays[1 - at].try_clone().unwrap());
            let (there, cut) = (switches[1 - at], Arc::clone(&cut));
            thread::spawn(move || {
                let mut frame = [0; 2048];
                while let Ok(length) = from.recv(&mut frame) {
                    if !cut.load(Ordering::Relaxed) {
                        let _ = to.send_to(&frame[..length], there);
                    }
                }
            });
        }
        Self { ends, cut }
    }

    fn cut(&self, is_cut: bool) {
        self.cut.store(is_cut, Ordering::Relaxed);
    }
}

/// A switch process, with its program; it has a second port that is connected to nothing, for a second thread.
struct Running {
    client: Arc<P4RuntimeClient>,
    stopper: Stopper,
    sender: Option<PacketSender>,
    receiver: Option<PacketReceiver>,
}

impl Running {
    async fn new((local, remote): (SocketAddr, SocketAddr), threads: usize) -> Self {
        let spare = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        // The second port's frames are the second thread's.
        let ports = vec![
            (PORT + 1, PortSpec::Udp { local: spare, remote: spare }),
            (PORT, PortSpec::Udp { local, remote }),
        ];
        let options = SwitchOptions { threads, ..SwitchOptions::new("127.0.0.1:0", 1, ports) };
        let (tell, told) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let process = SwitchProcess::open(&options).unwrap();
            tell.send((process.grpc(), process.stopper())).unwrap();
            process.run()
        });
        let (address, stopper) = told.recv().unwrap();
        let mut client = P4RuntimeClient::connect(&address.to_string(), 1).await.unwrap();
        client.become_primary(1).await.unwrap();
        let info = P4InfoIndex::from_text(P4INFO).unwrap();
        client.set_pipeline(info.p4info().clone(), JSON.as_bytes().to_vec()).await.unwrap();
        let messages = client.take_messages();
        let client = Arc::new(client);
        let format = PacketFormat::of(info.p4info()).unwrap();
        let (sender, receiver) = packets(Arc::clone(&client), messages, format).unwrap();
        Self { client, stopper, sender: Some(sender), receiver: Some(receiver) }
    }

    /// Connects the switch to the watch, as a keeper does.
    async fn connect(&mut self, switch: SwitchId, news: &mpsc::Sender<LinkNews>) {
        let (way, probes) = probes();
        let (sender, receiver) = (self.sender.take().unwrap(), self.receiver.take().unwrap());
        tokio::spawn(carry(switch, sender, receiver, probes, news.clone()));
        news.send(LinkNews::Open(switch, Some(way))).await.ok().unwrap();
        let (client, news) = (Arc::clone(&self.client), news.clone());
        tokio::spawn(async move {
            client.session_ends().await;
            let _ = news.send(LinkNews::Lost(switch)).await;
        });
    }
}

/// Waits until the outages are the wanted ones; returns how long that took.
async fn until(outages: &mut watch::Receiver<Outages>, wanted: impl Fn(&Outages) -> bool) -> Duration {
    let began = Instant::now();
    let reached = timeout(Duration::from_secs(20), outages.wait_for(wanted)).await;
    reached.expect("in time").expect("the watch goes on");
    began.elapsed()
}

async fn notices_what_is_cut_and_what_is_killed(threads: usize) {
    let relay = Relay::new();
    let [a, b] = [SwitchId(0), SwitchId(1)];
    let (mut first, mut second) =
        (Running::new(relay.ends[0], threads).await, Running::new(relay.ends[1], threads).await);
    let end = |switch| CableEnd { switch, port: PORT };
    let cable = Cable { a: end(a), b: end(b) };
    let (news, told) = mpsc::channel(64);
    let (tell, mut outages) = watch::channel(Outages::default());
    let samples = Samples::default();
    tokio::spawn(Watch::new(vec![cable], [a, b], 0x5eed, told, tell, samples.clone()).watch());
    first.connect(a, &news).await;
    second.connect(b, &news).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(*outages.borrow(), Outages::default());

    relay.cut(true);
    let took = until(&mut outages, |now| now.cables.contains(&cable)).await;
    println!("a cut cable was noticed after {took:?}");
    assert!(took < Duration::from_millis(1500), "{took:?}");
    relay.cut(false);
    let took = until(&mut outages, |now| *now == Outages::default()).await;
    println!("a mended cable was up after {took:?}");
    assert!((Duration::from_secs(1)..Duration::from_secs(5)).contains(&took), "{took:?}");

    // What a switch drops, it shows some of.
    let host = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut frame = vec![0; 200];
    frame[12..14].copy_from_slice(&[0x12, 0x34]);
    for number in 0..=255 {
        frame[199] = number;
        // Sent to the relay, which takes frames from any address.
        host.send_to(&frame, relay.ends[1].1).unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    timeout(Duration::from_secs(5), async {
        while samples.all().len() < 30 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("about one in four");
    let kept = samples.all();
    assert!(kept.len() <= 64);
    let sample = &kept[0];
    assert_eq!((sample.switch, sample.port, sample.reason, sample.length), (a, PORT, 3, 200));
    assert_eq!(sample.bytes, frame[..128]);

    second.stopper.stop();
    let took = until(&mut outages, |now| now.switches.contains(&b)).await;
    println!("a killed switch was noticed after {took:?}");
    assert!(took < Duration::from_millis(1500), "{took:?}");
    assert!(!outages.borrow().switches.contains(&a));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_cable_and_a_killed_switch_are_noticed() {
    notices_what_is_cut_and_what_is_killed(1).await;
}

/// Probes that come in at a port of another thread find their way to the controller.
#[tokio::test(flavor = "multi_thread")]
async fn switches_of_several_threads_pass_packets() {
    notices_what_is_cut_and_what_is_killed(2).await;
}

#[test]
fn cables_of_a_network_are_each_there_once() {
    let cluster = Cluster::from_toml(
        "[network]\nk = 4\ncores = \"all\"\n[[memory_server]]\nhost = \"host-0-0-0\"\ngrpc = \"127.0.0.1:1\"\n",
    )
    .unwrap();
    let cables = cables(&cluster);
    let ends: std::collections::BTreeSet<_> = cables.iter().flat_map(|cable| [cable.a, cable.b]).collect();
    assert_eq!((cables.len(), ends.len()), (32, 64));
}
