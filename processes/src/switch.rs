//! The software switch as a process: its ports, threads that forward packets, P4Runtime beside them.

mod forwarder;
mod worker;

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use fatbtree_port::{Counters, PortSpec, Wire};
use fatbtree_switch::service::{CPU_PORT, Inbox, Switch, mailbox_with_waker, serve};
use fatbtree_switch::{DropReason, Drops, Pipe, Pipeline};
use fatbtree_trust::{Door, Refused, Trust};
use tokio::runtime::Runtime;

use crate::NodeError;
use crate::metrics::{Metrics, Questions, serve_thread};
use crate::stop::{Stopper, control_runtime_behind, listen};
use forwarder::{CpuPort, Forwarder};
use worker::{Counted, Worker};

/// Options of a switch process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwitchOptions {
    /// Address of its P4Runtime service.
    pub grpc: String,
    /// Its certificate.
    pub trust: Trust,
    /// Address at which metrics are served.
    pub metrics: Option<String>,
    /// P4Runtime device id, at least 1.
    pub device_id: u64,
    /// Ports by number.
    pub ports: Vec<(u16, PortSpec)>,
    /// Threads that forward packets; more than there are ports, or queues of one that has several, have nothing to do.
    pub threads: usize,
    /// Time after which the process ends.
    pub limit: Option<Duration>,
}

impl SwitchOptions {
    /// Options with one thread, without metrics, certificate and time limit.
    pub fn new(grpc: impl Into<String>, device_id: u64, ports: Vec<(u16, PortSpec)>) -> Self {
        Self {
            grpc: grpc.into(),
            trust: Trust::default(),
            metrics: None,
            device_id,
            ports,
            threads: 1,
            limit: None,
        }
    }
}

/// A switch with open ports, and a control plane that listens.
///
/// ```text
///   ports 0, 2 ──▶ first thread: pipe 0, control plane's mailbox ──▶ all ports
///   ports 1, 3 ──▶ worker:       pipe 1                           ──▶ all ports
/// ```
///
/// Frames that leave by port [`CPU_PORT`] go to the controller, from workers by way of the first thread.
pub struct SwitchProcess {
    switch: Switch,
    inbox: Inbox,
    forwarder: Forwarder,
    workers: Vec<Worker>,
    /// Frames for the CPU port from workers.
    for_controller: Receiver<Vec<u8>>,
    stopper: Stopper,
    limit: Option<Duration>,
    grpc: SocketAddr,
    questions: Questions,
    /// gRPC connections that were closed at once.
    refused: Refused,
    _control: Runtime,
}

impl fmt::Debug for SwitchProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwitchProcess")
            .field("grpc", &self.grpc)
            .field("threads", &(1 + self.workers.len()))
            .finish_non_exhaustive()
    }
}

/// Work of a switch until its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwitchReport {
    /// Counters of all ports together.
    pub ports: Counters,
    /// Frames that the program dropped, by reason.
    pub drops: Drops,
    /// Frames that came before there was a program.
    pub without_program: u64,
    /// Frames for ports that the switch does not have.
    pub no_such_port: u64,
    /// Frames for ports that had no room for them.
    pub port_full: u64,
    /// Frames for the controller that were lost: there was none, or it did not take them.
    pub controller_full: u64,
}

/// Frames for the CPU port that wait in a worker's way to the first thread.
const FOR_CONTROLLER: usize = 256;

impl fmt::Display for SwitchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ports)?;
        let mut lost = self.lost().filter(|(_, count)| *count > 0);
        lost.try_for_each(|(what, count)| write!(f, ", {count} {what}"))
    }
}

impl SwitchProcess {
    /// Opens the ports and listens for controllers. From now on Ctrl-C and SIGTERM end [`run`](Self::run).
    ///
    /// # Errors
    /// When an address is taken, a port cannot be opened, or one has the controller's number.
    pub fn open(options: &SwitchOptions) -> Result<Self, NodeError> {
        if options.ports.iter().any(|(number, _)| *number == CPU_PORT) {
            return Err(NodeError::CpuPort { number: CPU_PORT });
        }
        let control = control_runtime_behind()?;
        // What is taken by others is found first.
        let listener = listen(&control, &options.grpc)?;
        let grpc = listener.local_addr().map_err(NodeError::system("asking for the listener's address"))?;
        let open = |(number, spec): &(u16, PortSpec)| Ok((*number, spec.open_wire_for(options.threads)?));
        let wires: Arc<[(u16, Wire)]> = options.ports.iter().map(open).collect::<Result<_, NodeError>>()?;
        let useful = wires.iter().map(|(_, wire)| wire.queues()).max().unwrap_or(1).max(wires.len());
        let threads = options.threads.clamp(1, useful.max(1));
        let began = Instant::now();
        let forwarder = Forwarder::new(&wires, 0, threads, began, None)?;
        let (frames, for_controller) = sync_channel(FOR_CONTROLLER);
        let cpu = || CpuPort { frames: frames.clone(), waker: forwarder.waker() };
        let workers = (1..threads).map(|thread| Worker::start(&wires, thread, threads, began, cpu()));
        let workers = workers.collect::<Result<_, _>>()?;
        let waker = forwarder.waker();
        let (mailbox, inbox) = mailbox_with_waker(move || waker.wake());
        let questions = serve_thread(&control, options.metrics.as_deref(), forwarder.waker())?;
        let waker = forwarder.waker();
        let stopper = Stopper::new(move || waker.wake());
        stopper.at_signals(&control)?;
        let door = Door { trust: options.trust.clone(), ..Door::from(listener) };
        let refused = door.refused.clone();
        control.spawn(serve(door, mailbox, std::future::pending()));
        Ok(Self {
            switch: Switch::with_pipes(options.device_id, threads),
            inbox,
            forwarder,
            workers,
            for_controller,
            stopper,
            limit: options.limit,
            grpc,
            questions,
            refused,
            _control: control,
        })
    }

    /// Address of its P4Runtime service.
    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// Stopper that ends the process.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Forwards frames and answers controllers until it is told to stop.
    ///
    /// A batch from each port that has one, then a look into the mailbox, where a large request is only answered for a
    /// [part](Inbox::SLICE) of itself. Meanwhile the other threads wait.
    pub fn run(mut self) -> SwitchReport {
        let began = Instant::now();
        while !self.stopper.is_told() {
            let rest = self.limit.map(|limit| limit.saturating_sub(began.elapsed()));
            if rest.is_some_and(|rest| rest.is_zero()) {
                break;
            }
            let Self { switch, forwarder, inbox, for_controller, .. } = &mut self;
            let patience = if inbox.is_waiting() { Some(Duration::ZERO) } else { rest };
            forwarder
                .turn(patience, |now, port, frame, output| switch.handle_frame(now, port, frame, output));
            for_controller.try_iter().take(FOR_CONTROLLER).for_each(|frame| switch.handle_packet_in(&frame));
            inbox.deliver(switch);
            if self.inbox.is_waiting() || self.questions.are_waiting() {
                self.take_pipes_back();
                self.inbox.try_drain(&mut self.switch);
                let Self { questions, switch, forwarder, workers, refused, .. } = &mut self;
                questions.answer(|| metrics(switch, &counted(switch, forwarder, workers), refused));
                self.lend_pipes();
                let Self { switch, forwarder, inbox, .. } = &mut self;
                forwarder.send(|now, output| switch.handle_packets_out(now, output));
                inbox.deliver(switch);
            }
        }
        self.take_pipes_back();
        let report = report(&self.switch, &counted(&self.switch, &self.forwarder, &self.workers));
        self.workers.into_iter().for_each(Worker::stop);
        report
    }

    fn take_pipes_back(&mut self) {
        self.workers.iter().for_each(Worker::want);
        let pipes: Vec<Pipe> = self.workers.iter().filter_map(Worker::take_back).collect();
        self.switch.take_back(pipes);
    }

    fn lend_pipes(&mut self) {
        let mut pipes = self.switch.lend().into_iter();
        self.workers.iter().for_each(|worker| worker.go_on(pipes.next()));
    }
}

/// Counters of all threads whose pipes were taken back.
fn counted(switch: &Switch, forwarder: &Forwarder, workers: &[Worker]) -> Counted {
    let mut counted = Counted::default();
    counted.add(forwarder, switch.frames_without_program());
    workers.iter().fold(counted, |counted, worker| worker.count(counted))
}

fn report(switch: &Switch, counted: &Counted) -> SwitchReport {
    let mut ports = Counters::default();
    counted.ports.values().for_each(|counters| ports.add(counters));
    SwitchReport {
        ports,
        drops: switch.pipeline().map(Pipeline::drops).unwrap_or_default(),
        without_program: counted.without_program,
        no_such_port: counted.no_such_port,
        port_full: counted.port_full,
        controller_full: switch.packets_in_lost(),
    }
}

impl SwitchReport {
    /// Frames that were not forwarded, by reason.
    fn lost(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let own = [
            ("came without a program", self.without_program),
            ("for ports that are not there", self.no_such_port),
            ("for ports that were full", self.port_full),
            ("for the controller, which did not take them", self.controller_full),
        ];
        own.into_iter().chain(DropReason::ALL.map(|reason| (reason.name(), self.drops.count(reason))))
    }
}

fn metrics(switch: &Switch, counted: &Counted, refused: &Refused) -> Metrics {
    let mut metrics = Metrics::default();
    let is_empty = switch.pipeline().is_none();
    metrics.unready(is_empty.then(|| "no controller has given the switch its program yet".to_owned()));
    let ports: Vec<(u16, Counters)> =
        counted.ports.iter().map(|(number, counters)| (*number, *counters)).collect();
    metrics.ports(&ports);
    metrics.refused(refused);
    let report = report(switch, counted);
    let reasons = report.lost().map(|(reason, count)| (vec![("reason", reason.to_owned())], count));
    metrics.labelled_counter("switch_drops", "Frames that were not forwarded", reasons);
    if let Some(pipeline) = switch.pipeline() {
        let program = pipeline.program();
        // The compiler makes tables of its own, which controllers do not see.
        let info = switch.control().config().and_then(|config| config.p4info.as_ref());
        let declared = info.iter().flat_map(|info| &info.tables);
        let declared: BTreeSet<&str> =
            declared.filter_map(|table| Some(table.preamble.as_ref()?.name.as_str())).collect();
        let tables = || {
            let named = program.tables().iter().map(|table| (&table.name, table.max_size));
            let named = named.filter(|(name, _)| declared.contains(name.as_str()));
            named.filter_map(|(name, size)| Some((vec![("table", name.clone())], program.table(name)?, size)))
        };
        let entries = tables().map(|(labels, table, _)| (labels, pipeline.len(table) as u64));
        metrics.labelled_gauge("switch_table_entries", "Entries in a table", entries);
        let sizes = tables().map(|(labels, _, size)| (labels, size as u64));
        metrics.labelled_gauge("switch_table_size", "Entries that a table has room for", sizes);
    }
    metrics
}
