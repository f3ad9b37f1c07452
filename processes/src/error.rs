//! Errors that prevent a role from starting or from going on.

use std::io;
use std::time::Duration;

/// A role that cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A port cannot be opened.
    #[error(transparent)]
    Port(#[from] fatbtree_port::OpenError),
    /// The program was built without libibverbs.
    #[error(
        "--nic ibverbs:{0}: this program was built without libibverbs; build it with: apt-get install gcc libc6-dev libibverbs-dev; \
         cargo build --release -p fatbtree-cli --features ibverbs"
    )]
    NoIbverbs(String),
    /// An RDMA device cannot be opened.
    #[cfg(feature = "ibverbs")]
    #[error("--nic ibverbs: {0}")]
    Rdma(#[from] fatbtree_ibverbs::OpenError),
    /// Other clients have all UDP ports of the host's range.
    #[error(
        "{}, {waited:?} long, and each client needs one: close clients that are not used, share one connection within a process, or \
         give the host a {} in the cluster file (in its [[host]] entry, wire = \"udp:ADDRESS:FIRST-LAST\")",
        match seats {
            1 => format!("the only UDP port of {host}, {first}, was taken"),
            _ => format!("all {seats} UDP ports of {host}, {first} to {last}, were taken"),
        },
        if *seats == 1 { "range of ports" } else { "longer range" }
    )]
    NoSeat {
        /// The host.
        host: String,
        /// Its seats.
        seats: u16,
        /// UDP address of the first seat.
        first: String,
        /// UDP address of the last one.
        last: String,
        /// Time waited for one.
        waited: Duration,
    },
    /// The cluster file does not say where a wire is.
    #[error(transparent)]
    Wire(#[from] fatbtree_topology::NoWire),
    /// A role's certificate or key cannot be used.
    #[error(transparent)]
    Trust(#[from] fatbtree_trust::TrustError),
    /// A role cannot listen at an address, mostly because another process does.
    #[error("listening on {address}: {source}; is another process running there?")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// A wire at the port that the controller is behind.
    #[error(
        "expected ports other than {number}, behind which a switch's controller is, found a wire there; give the wire another number"
    )]
    CpuPort {
        /// The port.
        number: u16,
    },
    /// The system refuses an operation, such as starting a thread.
    #[error("{what}: {source}")]
    System {
        /// The operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A tree cannot have this shape.
    #[error("loading the tree: {0}")]
    Shape(#[from] fatbtree_blink::ConfigError),
    /// The tree cannot be built.
    #[error("loading the tree: {0}")]
    Load(#[from] fatbtree_blink_host::LoadError),
    /// The tree cannot be built, or cannot be saved.
    #[error("loading the tree: {0}")]
    Build(#[from] fatbtree_blink_host::BuildError),
    /// The server's part of a structure cannot be made.
    #[error("making the structure {structure:?}: {source}")]
    Make {
        /// Kind of the structure.
        structure: &'static str,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The data folder has a part of another structure.
    #[error(
        "the data folder has a part of a structure {structure:?} of another shape: expected {expected}, found {found}; start the cluster with the \
         memory servers that it had, or name another folder"
    )]
    OtherShape {
        /// Kind of the structure.
        structure: &'static str,
        /// Shape of the one in the folder.
        found: String,
        /// Shape that the cluster file makes.
        expected: String,
    },
    /// Error from the folder that the structure is kept in.
    #[error("the data folder: {0}")]
    Folder(#[from] fatbtree_memserver::FolderError),
    /// The disk of the data folder has failed while the server ran.
    #[error("the data folder: {0}")]
    Journal(#[from] fatbtree_verbs::journal::JournalError),
    /// An interval between syncs, with a device that writes memory itself.
    #[error(
        "--sync: an RDMA card writes the memory of the tree without telling this process, so nothing can be brought to the disk in order:          leave the option away or give --sync never, and load anew after a power failure; or use --nic software"
    )]
    SyncOfCard,
    /// The device does not take the structure.
    #[error("serving the structure: {0}")]
    Serve(#[from] fatbtree_memserver::ServerError),
    /// A query worker cannot work on the tree.
    #[error("answering queries: {0}")]
    Queries(#[from] fatbtree_blink_host::query::WorkerError),
    /// Some memory servers answer queries at addresses, others on their hosts' wires.
    #[error(
        "memory server {with} answers queries at an address of its own (`query` in the cluster file), {without} on its host's wire; a client \
         has one way to all of them: give every memory server such a line, or none"
    )]
    QueryWays {
        /// A server with an address.
        with: String,
        /// A server without one.
        without: String,
    },
    /// Queries need a software NIC's wire, and the device is an RDMA card.
    #[error(
        "queries come over the wire of the software NIC, and this device has its frames for itself; start it with --nic software, or give \
         memory servers lines such as query = \"127.0.0.1:4793\" in the cluster file"
    )]
    NoWire,
    /// A memory server does not answer, or refuses.
    #[error(transparent)]
    MemoryServer(#[from] fatbtree_memserver::grpc::ClientError),
    /// The memory servers' partitions are not those of one tree.
    #[error(
        "the memory servers do not fit together: {0}; one was started anew without what it held, or a load was broken off: \
         `fatbtree load --replace` fills them all"
    )]
    Roots(Box<dyn std::error::Error + Send + Sync>),
    /// The memory servers' trees have different shapes.
    #[error(
        "memory servers {0} and {1} have trees of different shapes: start them alike, all with --checksums where one has a device that \
         tears lines, as soft RoCE does; load them together, with the same --inline and --leaves"
    )]
    Shapes(String, String),
    /// A memory server's tree has another layout than the one that it had when this client connected.
    #[error(
        "memory server {0} has a tree of another layout than when this client connected: connect anew, after all memory servers are loaded alike"
    )]
    Layout(String),
    /// The memory servers' parts are not those of one structure.
    #[error(
        "the memory servers do not hold parts of one {structure}: {server} has a part of another one; the cluster file must name all servers of \
         it, and no others"
    )]
    Parts {
        /// Kind of the structure, for people.
        structure: &'static str,
        /// A server with another part.
        server: String,
    },
    /// The device or the connections cannot be used.
    #[error("connecting to a memory server: {0}")]
    Memory(#[from] fatbtree_remote_memory::ConnectError),
    /// The structure cannot be used.
    #[error("connecting to a memory server: {0}")]
    Structure(Box<dyn std::error::Error + Send + Sync>),
    /// The folder of a memory server is an older copy than what another one has worked with.
    #[error(
        "memory server {server} was restored from an older copy: its folder is of {found}, but memory server {by} has worked with what it held on \
         {known}; stop all memory servers and restore all of their folders from copies of one moment, or load anew (fatbtree load --replace)"
    )]
    OlderCopy {
        /// Name of the server.
        server: String,
        /// The last moment that its folder knows.
        found: fatbtree_memserver::Moment,
        /// Name of the server that has heard of a later one.
        by: String,
        /// That moment.
        known: fatbtree_memserver::Moment,
    },
    /// A memory server refuses, or was out of reach for too long.
    #[error("connecting to a memory server: {0}")]
    OutOfReach(fatbtree_remote_memory::session_keeper::Denied),
    /// The process was told to stop before the end.
    #[error("stopped before the end")]
    Stopped,
    /// A switch would have no program.
    #[error(transparent)]
    Program(#[from] fatbtree_controller::ProgramError),
    /// No controller would program the switches.
    #[error(
        "the cluster file has no [controller]: add the address where it should listen, such as grpc = \"127.0.0.1:9690\""
    )]
    NoController,
    /// Error from the folder where a controller keeps its plans.
    #[error("--state {}: {source}; give a folder that can be written", folder.display())]
    State {
        /// The folder.
        folder: std::path::PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another controller is primary.
    #[error(
        "{0} is primary of these switches, and stays it: stop it first; or start this one with --standby, to take its place when it is \
         gone, or with --take-over, to take its place now"
    )]
    OtherController(String),
    /// The address of a role is taken before it is started.
    #[error(
        "expected {address}, where {role} is to listen, to be free; {found}: stop it first, or give other ports in the cluster file"
    )]
    Taken {
        /// The role.
        role: String,
        /// Address at which it should listen.
        address: String,
        /// Listener that is there.
        found: String,
    },
    /// A role that does not answer.
    #[error(
        "{role} does not answer at {address} after {seconds} s; start it by hand to see why, with `fatbtree {kind}`"
    )]
    Silent {
        /// Its name.
        role: String,
        /// Kind of the role.
        kind: &'static str,
        /// Address at which it should listen.
        address: String,
        /// Time waited, in seconds.
        seconds: u64,
    },
    /// A role that ended and is not started again.
    #[error("{role} has ended: {status}")]
    Ended {
        /// Its name.
        role: String,
        /// Exit status of its process.
        status: std::process::ExitStatus,
    },
}

impl NodeError {
    pub(crate) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
