//! `fatbtree switch`: the software switch as a process, its ports UDP sockets that carry one Ethernet frame a datagram.

use std::net::{SocketAddr, UdpSocket};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use fatbtree_switch::Output;
use fatbtree_switch::service::{Switch, mailbox_with_waker, serve};

/// The software switch, programmed over P4Runtime.
#[derive(Args)]
#[command(after_help = "Examples:
  fatbtree switch                                          waits for a controller on 127.0.0.1:9559
  fatbtree switch --grpc 127.0.0.1:50051 --device-id 7
  fatbtree switch --port 0=127.0.0.1:6000,127.0.0.1:7000   port 0 receives on 6000 and sends to 7000

A port carries one Ethernet frame per datagram, as QEMU's network back end does:
  qemu-system-x86_64 … -netdev dgram,id=n,local.type=inet,local.host=127.0.0.1,local.port=7000,\\
                              remote.type=inet,remote.host=127.0.0.1,remote.port=6000")]
pub(crate) struct Arguments {
    /// Where controllers connect (P4Runtime over gRPC, without TLS: keep it on loopback).
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9559")]
    grpc: SocketAddr,
    /// P4Runtime device id.
    #[arg(long, value_name = "ID", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    device_id: u64,
    /// A port: number, address to receive on, address to send to. Repeat it.
    #[arg(long = "port", value_name = "N=LOCAL,REMOTE")]
    ports: Vec<Port>,
    /// Stop after so many seconds.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
}

#[derive(Clone, Debug)]
struct Port {
    number: u16,
    local: SocketAddr,
    remote: SocketAddr,
}

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form =
            || format!("expected N=LOCAL,REMOTE such as 0=127.0.0.1:6000,127.0.0.1:7000, found {text:?}");
        let (number, ends) = text.split_once('=').ok_or_else(form)?;
        let (local, remote) = ends.split_once(',').ok_or_else(form)?;
        Ok(Port {
            number: number.parse().map_err(|_| form())?,
            local: local.parse().map_err(|_| form())?,
            remote: remote.parse().map_err(|_| form())?,
        })
    }
}

enum Wake {
    Frame(u16, Vec<u8>),
    Control,
    Stop,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (wake, woken) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;

    let waker = wake.clone();
    // Nobody to wake: the switch is stopping.
    let (mailbox, mut inbox) = mailbox_with_waker(move || drop(waker.send(Wake::Control)));
    let listener = runtime
        .block_on(tokio::net::TcpListener::bind(arguments.grpc))
        .with_context(|| format!("listening on {} (is another switch running there?)", arguments.grpc))?;
    let address = listener.local_addr()?;
    runtime.spawn(serve(listener, mailbox, std::future::pending()));
    let stopper = wake.clone();
    runtime.spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            let _ = stopper.send(Wake::Stop);
        }
    });

    let mut sockets: Vec<Option<(UdpSocket, SocketAddr)>> = Vec::new();
    let running = std::sync::Arc::new(AtomicBool::new(true));
    let mut receivers = Vec::new();
    for port in &arguments.ports {
        let socket = UdpSocket::bind(port.local)
            .with_context(|| format!("port {}: binding {}", port.number, port.local))?;
        socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        let receive = socket.try_clone()?;
        let (wake, running, number) = (wake.clone(), running.clone(), port.number);
        receivers.push(std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while running.load(Ordering::Relaxed) {
                // A time-out lets us see that we are to stop; ICMP errors of a peer that is not up yet pass.
                if let Ok(length) = receive.recv(&mut buffer)
                    && wake.send(Wake::Frame(number, buffer[..length].to_vec())).is_err()
                {
                    return;
                }
            }
        }));
        let index = usize::from(port.number);
        if sockets.len() <= index {
            sockets.resize_with(index + 1, || None);
        }
        sockets[index] = Some((socket, port.remote));
    }

    println!("switch {} waits for a controller on {address}; Ctrl-C stops it", arguments.device_id);
    let started = Instant::now();
    let end = arguments.seconds.map(|seconds| started + Duration::from_secs(seconds));
    let mut switch = Switch::new(arguments.device_id);
    let mut output = Output::new();
    let (mut received, mut sent) = (0u64, 0u64);
    loop {
        let patience =
            end.map_or(Duration::from_secs(3600), |end| end.saturating_duration_since(Instant::now()));
        match woken.recv_timeout(patience) {
            Ok(Wake::Frame(port, mut frame)) => {
                received += 1;
                output.clear();
                switch.forward_frame(started.elapsed().as_nanos() as u64, port, &mut frame, &mut output);
                for (port, frame) in &output {
                    if let Some(Some((socket, remote))) = sockets.get(usize::from(port)) {
                        // A datagram that cannot be sent is a lost frame.
                        sent += u64::from(socket.send_to(frame, remote).is_ok());
                    }
                }
            }
            Ok(Wake::Control) => {
                inbox.try_drain(&mut switch);
            }
            Ok(Wake::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) if end.is_some_and(|end| Instant::now() >= end) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
    running.store(false, Ordering::Relaxed);
    for receiver in receivers {
        let _ = receiver.join();
    }
    println!("stopped: {received} frames received, {sent} sent");
    Ok(())
}
