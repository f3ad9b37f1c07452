//! The software switch as a process: its ports, its pipeline in one thread, P4Runtime beside it.

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fatbtree_port::{BATCH, Batch, Counters, Port, PortSpec, Waiter};
use fatbtree_switch::service::{Inbox, Switch, mailbox_with_waker, serve};
use fatbtree_switch::{DropReason, Drops, Output};
use fatbtree_trust::{Door, Refused, Trust};
use tokio::runtime::Runtime;

use crate::NodeError;
use crate::metrics::{Metrics, Questions, serve_thread};
use crate::stop::{Stopper, control_runtime_behind, listen, stopper_of};

/// What a switch process is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwitchOptions {
    /// Where controllers connect: P4Runtime over gRPC.
    pub grpc: String,
    /// Its certificate.
    pub trust: Trust,
    /// Where it tells its metrics.
    pub metrics: Option<String>,
    /// P4Runtime device id, at least 1.
    pub device_id: u64,
    /// Ports by number.
    pub ports: Vec<(u16, PortSpec)>,
    /// End after so long.
    pub limit: Option<Duration>,
}

/// A switch with open ports, and a control plane that listens.
pub struct SwitchProcess {
    switch: Switch,
    inbox: Inbox,
    /// In the order of `numbers`.
    ports: Vec<Box<dyn Port>>,
    numbers: Vec<u16>,
    /// By a port's number: its place in `ports`.
    places: Vec<Option<usize>>,
    waiter: Waiter,
    stopper: Stopper,
    limit: Option<Duration>,
    grpc: SocketAddr,
    report: SwitchReport,
    questions: Questions,
    /// gRPC connections that were closed at once.
    refused: Refused,
    _control: Runtime,
}

impl fmt::Debug for SwitchProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SwitchProcess")
            .field("grpc", &self.grpc)
            .field("ports", &self.numbers)
            .finish_non_exhaustive()
    }
}

/// What a switch has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwitchReport {
    /// All ports together.
    pub ports: Counters,
    /// Frames that the program dropped, by reason.
    pub drops: Drops,
    /// Frames that came before there was a program.
    pub without_program: u64,
    /// Frames for ports that the switch does not have.
    pub no_such_port: u64,
    /// Frames for ports that had no room for them.
    pub port_full: u64,
}

impl fmt::Display for SwitchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ports)?;
        let program = DropReason::ALL.map(|reason| (reason.name(), self.drops.count(reason)));
        let own = [
            ("came without a program", self.without_program),
            ("for ports that are not there", self.no_such_port),
            ("for ports that were full", self.port_full),
        ];
        let all = own.iter().chain(&program).filter(|(_, count)| *count > 0);
        all.into_iter().try_for_each(|(what, count)| write!(f, ", {count} {what}"))
    }
}

impl SwitchProcess {
    /// Opens the ports and listens for controllers. From now on Ctrl-C and SIGTERM end [`run`](Self::run).
    ///
    /// # Errors
    /// When an address is taken, or a port cannot be opened.
    pub fn open(options: &SwitchOptions) -> Result<Self, NodeError> {
        let control = control_runtime_behind()?;
        let waiter = Waiter::new()?;
        let waker = waiter.waker();
        let (mailbox, inbox) = mailbox_with_waker(move || waker.wake());
        let listener = listen(&control, &options.grpc)?;
        let grpc = listener.local_addr().map_err(NodeError::system("asking for the listener's address"))?;
        let questions = serve_thread(&control, options.metrics.as_deref(), waiter.waker())?;
        let stopper = stopper_of(&waiter);
        stopper.at_signals(&control)?;
        let (mut ports, mut places) = (Vec::new(), Vec::new());
        for (place, (number, spec)) in options.ports.iter().enumerate() {
            ports.push(spec.open()?);
            let number = usize::from(*number);
            places.resize(places.len().max(number + 1), None);
            places[number] = Some(place);
        }
        let door = Door { trust: options.trust.clone(), ..Door::from(listener) };
        let refused = door.refused.clone();
        control.spawn(serve(door, mailbox, std::future::pending()));
        Ok(Self {
            switch: Switch::new(options.device_id),
            inbox,
            ports,
            numbers: options.ports.iter().map(|(number, _)| *number).collect(),
            places,
            waiter,
            stopper,
            limit: options.limit,
            grpc,
            report: SwitchReport::default(),
            questions,
            refused,
            _control: control,
        })
    }

    /// Where controllers connect.
    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// What ends it.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Forwards frames and answers controllers until it is told to stop.
    ///
    /// A batch from each port that has one, then a look into the mailbox, where a large request is only answered for a
    /// [part](Inbox::SLICE) of itself.
    pub fn run(mut self) -> SwitchReport {
        let began = Instant::now();
        let (mut batch, mut output, mut ready) = (Batch::new(), Output::new(), Vec::new());
        let mut leaving = vec![false; self.ports.len()];
        while !self.stopper.is_told() {
            let rest = self.limit.map(|limit| limit.saturating_sub(began.elapsed()));
            if rest.is_some_and(|rest| rest.is_zero()) {
                break;
            }
            let patience = if self.inbox.is_waiting() { Some(Duration::ZERO) } else { rest };
            self.waiter.wait(&self.ports, patience, &mut ready);
            for (place, ready) in ready.iter().enumerate() {
                if !ready || self.ports[place].receive(&mut batch) == 0 {
                    continue;
                }
                let (now, number) = (began.elapsed().as_nanos() as u64, self.numbers[place]);
                output.clear();
                for frame in batch.iter() {
                    self.switch.handle_frame(now, number, frame, &mut output);
                }
                self.transmit(&output, &mut leaving);
            }
            self.inbox.try_drain(&mut self.switch);
            let Self { questions, switch, ports, numbers, report, refused, .. } = &mut self;
            questions.answer(|| metrics(switch, ports, numbers, report, refused));
        }
        self.ports.iter().for_each(|port| self.report.ports.add(&port.counters()));
        self.report.without_program = self.switch.frames_without_program();
        self.report.drops = self.switch.pipeline().map(|pipeline| *pipeline.drops()).unwrap_or_default();
        self.report
    }

    /// Sends each port its frames together.
    fn transmit(&mut self, output: &Output, leaving: &mut [bool]) {
        for (number, _) in output {
            match self.places.get(usize::from(number)).copied().flatten() {
                Some(place) => leaving[place] = true,
                None => self.report.no_such_port += 1,
            }
        }
        for (place, leaving) in leaving.iter_mut().enumerate().filter(|(_, leaving)| **leaving) {
            *leaving = false;
            let (port, number) = (&mut self.ports[place], self.numbers[place]);
            let mut frames: [&[u8]; BATCH] = [&[]; BATCH];
            let mut count = 0;
            let mut send =
                |frames: &[&[u8]]| self.report.port_full += (frames.len() - port.send(frames)) as u64;
            for (_, frame) in output.iter().filter(|(to, _)| *to == number) {
                frames[count] = frame;
                count += 1;
                if count == BATCH {
                    send(&frames);
                    count = 0;
                }
            }
            send(&frames[..count]);
        }
    }
}

fn metrics(
    switch: &Switch,
    ports: &[Box<dyn Port>],
    numbers: &[u16],
    report: &SwitchReport,
    refused: &Refused,
) -> Metrics {
    let mut metrics = Metrics::default();
    let counters: Vec<(u16, Counters)> =
        numbers.iter().zip(ports).map(|(number, port)| (*number, port.counters())).collect();
    metrics.ports(&counters);
    metrics.refused(refused);
    let drops = switch.pipeline().map(|pipeline| *pipeline.drops()).unwrap_or_default();
    let own = [
        ("came without a program", switch.frames_without_program()),
        ("for ports that are not there", report.no_such_port),
        ("for ports that were full", report.port_full),
    ];
    let all = DropReason::ALL.map(|reason| (reason.name(), drops.count(reason))).into_iter().chain(own);
    let reasons = all.map(|(reason, count)| (vec![("reason", reason.to_owned())], count));
    metrics.labelled_counter("switch_drops", "Frames that were not forwarded", reasons);
    if let Some(pipeline) = switch.pipeline() {
        let program = pipeline.program();
        let tables = || {
            let named = program.tables().iter().map(|table| (&table.name, table.max_size));
            named.filter_map(|(name, size)| Some((vec![("table", name.clone())], program.table(name)?, size)))
        };
        let entries = tables().map(|(labels, table, _)| (labels, pipeline.len(table) as u64));
        metrics.labelled_gauge("switch_table_entries", "Entries in a table", entries);
        let sizes = tables().map(|(labels, _, size)| (labels, size as u64));
        metrics.labelled_gauge("switch_table_size", "Entries that a table has room for", sizes);
    }
    metrics
}
