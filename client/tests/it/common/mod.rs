//! A cluster of one memory server on a thread of this process, and a client's cluster file. Nothing is between the two.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use fatbtree::{Client, Options};
use fatbtree_blink::TreeConfig;
use fatbtree_processes::{
    Hosted, MemoryServerOptions, MemoryServerProcess, NicSpec, PartSource, QueryOptions, Stopper, TreeSource,
    roster_of, switch_ports,
};
use fatbtree_registry::SpreadKind;
use fatbtree_topology::{Cluster, MemoryServer};
use fatbtree_trust::Trust;

/// Bytes of the server for what clients write.
const SPARE: u64 = 256 << 20;

/// The server stops when this is dropped.
pub(crate) struct Running {
    pub(crate) folder: tempfile::TempDir,
    stopper: Stopper,
    server: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

#[path = "../../../../processes/tests/common/ports.rs"]
mod ports;

/// Writes a cluster file, on ports of this test's own.
pub(crate) fn write_file(folder: &tempfile::TempDir) -> PathBuf {
    write_file_with(folder, 1)
}

/// The same for several clients on the host.
fn write_file_with(folder: &tempfile::TempDir, seats: u16) -> PathBuf {
    let [wires, grpc, query] = [8 + seats, 1, 1].map(ports::take);
    let (grpc, query) = (format!("127.0.0.1:{grpc}"), format!("127.0.0.1:{query}"));
    // Queries of several clients go by the wire.
    let (query, range) = match seats {
        1 => (format!("query = \"{query}\"\n"), String::new()),
        _ => (
            String::new(),
            format!(
                "[[host]]\nname = \"host-0-1\"\nwire = \"udp:127.0.0.1:{}-{}\"\n",
                wires + 8,
                wires + 7 + seats
            ),
        ),
    };
    let text = format!(
        "[network]\nkind = \"single\"\nhosts = 4\n[wires]\nhost = \"127.0.0.1\"\nfirst_port = {wires}\n[[memory_server]]\nhost = \
         \"host-0-0\"\ngrpc = \"{grpc}\"\n{query}[[client]]\nhost = \"host-0-1\"\n{range}"
    );
    let file = folder.path().join("cluster.toml");
    std::fs::write(&file, text).expect("the file is written");
    file
}

impl Running {
    pub(crate) fn start() -> Self {
        Self::with_seats(1)
    }

    /// With so many seats for clients.
    pub(crate) fn with_seats(seats: u16) -> Self {
        Self::with_trees(seats, TreeConfig::default())
    }

    /// With trees of this shape.
    pub(crate) fn with_trees(seats: u16, config: TreeConfig) -> Self {
        Self::serve(seats, None, |described| TreeSource {
            keys: Vec::new(),
            value_bytes: 16,
            seed: 42,
            config,
            spare_bytes: SPARE,
            region_bytes: 1 << 30,
            queries: Some(QueryOptions {
                address: described.query.clone(),
                workers: 1,
                servers: vec![(0, described.partition)],
                cache_bytes: 1 << 20,
                secret: None,
            }),
        })
    }

    /// With an empty structure of this kind in place of a tree.
    pub(crate) fn with<K: SpreadKind>() -> Self {
        Self::serve(1, None, |_| PartSource::<K::Part> { shape: K::shape(1), spare_bytes: SPARE })
    }

    /// The same with keys of bytes.
    pub(crate) fn with_byte_keys<K: SpreadKind>() -> Self {
        let shape = K::with_byte_keys(1).expect("it has such keys").shape;
        Self::serve(1, None, |_| PartSource::<K::Part> { shape, spare_bytes: SPARE })
    }

    /// The same, with what lies in this folder.
    pub(crate) fn with_data<K: SpreadKind>(data: &Path) -> Self {
        let part = PartSource::<K::Part> { shape: K::shape(1), spare_bytes: SPARE };
        Self::serve(1, Some(data.to_owned()), |_| part)
    }

    fn serve<S: Hosted + Send>(
        seats: u16,
        data: Option<PathBuf>,
        structure: impl FnOnce(&MemoryServer) -> S,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let text = std::fs::read_to_string(write_file_with(&folder, seats)).expect("the file");
        let cluster = Cluster::from_toml(&text).expect("a cluster file");
        let (described, client) = (cluster.servers()[0].clone(), &cluster.clients()[0]);
        // The server is at the other end of the client's wire.
        let edge = cluster.tree().edge_of(client.host);
        let ports = switch_ports(&cluster, edge.id).expect("wires");
        let port = ports.into_iter().find(|(port, _)| *port == cluster.tree().host(client.host).index);
        let (_, port) = port.expect("the client has a wire");
        let options = MemoryServerOptions {
            servers: cluster.servers().to_vec(),
            host: cluster.tree().host(described.host).clone(),
            nic: NicSpec::Software(port),
            controllers: Vec::new(),
            trust: Trust::default(),
            roster: roster_of(&cluster),
            metrics: None,
            structure: structure(&described),
            data,
            sync: None,
            limit: None,
            described,
        };
        let (ready, is_ready) = mpsc::channel();
        let server = std::thread::spawn(move || {
            let process = MemoryServerProcess::open(options).expect("the server starts");
            ready.send(process.stopper()).expect("the test waits");
            process.run(|_| ()).expect("the disk does not fail");
        });
        let stopper = is_ready.recv().expect("the server starts");
        Self { folder, stopper, server: Some(server) }
    }

    pub(crate) fn stop(&mut self) {
        self.stopper.stop();
        if let Some(server) = self.server.take() {
            server.join().expect("the server ends");
        }
    }

    pub(crate) fn options(&self) -> Options {
        Options::new(self.folder.path().join("cluster.toml")).patience(Duration::from_secs(20))
    }

    pub(crate) async fn client(&self) -> Client {
        self.options().connect().await.expect("the cluster runs")
    }
}
