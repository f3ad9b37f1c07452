//! Processes of the real binary, on ports of this test's own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fatbtree_processes::{ClientOptions, NicSpec, host_port};
use fatbtree_topology::Cluster;

use crate::common::{fatbtree, run};

#[path = "../../../../processes/tests/common/ports.rs"]
pub(crate) mod ports;

const PATIENCE: Duration = Duration::from_secs(90);

/// A cluster file like the example, on ports of its own.
pub(crate) fn cluster_file(folder: &Path) -> PathBuf {
    cluster_file_like(folder, &["topology", "example"])
}

/// The same for the example that this prints.
pub(crate) fn cluster_file_like(folder: &Path, example: &[&str]) -> PathBuf {
    let example = run(example);
    let text = String::from_utf8(example.stdout).expect("text");
    let file = folder.join("cluster.toml");
    std::fs::write(&file, on_own_ports(text)).expect("the cluster file is written");
    file
}

/// A cluster file of one switch, whose memory servers begin with keys of bytes; with these lines before all others.
pub(crate) fn cluster_file_of_bytes(folder: &Path, first: &str) -> PathBuf {
    let file = cluster_file_like(folder, &["topology", "example", "single"]);
    let text = std::fs::read_to_string(&file).expect("a cluster file");
    let text = text.replace("low = 0\n", "low = \"\"\n").replace("\"0x4000_0000_0000_0000\"", "\"m\"");
    std::fs::write(&file, format!("{first}keys = \"bytes\"\n{text}")).expect("it is written");
    file
}

/// A trace of so many operations on so many keys.
pub(crate) fn made_trace(folder: &Path, operations: &str, keys: &str) -> PathBuf {
    let file = folder.join("made.trace");
    let counts = ["trace", "make", "--operations", operations, "--keys", keys];
    let shares = ["--gets", "0.5", "--deletes", "0.2", "--out", file.to_str().expect("a plain path")];
    assert!(run(&[&counts[..], &shares].concat()).status.success());
    file
}

/// The example's text with other ports.
pub(crate) fn on_own_ports(mut text: String) -> String {
    let (wires, control, seats) = (ports::take(100), ports::take(40), ports::take(32));
    for (from, to) in [
        ("first_port = 12000", format!("first_port = {wires}")),
        ("udp:127.0.0.1:12200-12231", format!("udp:127.0.0.1:{seats}-{}", seats + 31)),
        ("first_port = 9600", format!("first_port = {control}")),
        ("first_port = 9800", format!("first_port = {}", control + 20)),
        ("127.0.0.1:9690", format!("127.0.0.1:{}", control + 17)),
        ("127.0.0.1:9700", format!("127.0.0.1:{}", control + 18)),
        ("127.0.0.1:9701", format!("127.0.0.1:{}", control + 19)),
    ] {
        assert!(text.contains(from), "{from} is not in the example");
        text = text.replace(from, &to);
    }
    text
}

/// A process whose lines are read, and which ends with the test.
pub(crate) struct Role {
    child: Child,
    lines: mpsc::Receiver<(Instant, String)>,
}

impl Role {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = fatbtree();
        command.args(arguments);
        Self::of(command)
    }

    /// What this starts.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (line, lines) = mpsc::channel();
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|text| line.send((Instant::now(), text)))
        });
        Role { child, lines }
    }

    /// The next line that contains `text`.
    pub(crate) fn until(&self, text: &str) -> String {
        self.until_all(&[text])
    }

    /// Waits until each of these texts has come in some line, in any order. Returns the last of these lines.
    pub(crate) fn until_all(&self, texts: &[&str]) -> String {
        let (began, mut missing) = (Instant::now(), texts.to_vec());
        loop {
            let left = PATIENCE.saturating_sub(began.elapsed());
            let (_, line) =
                self.lines.recv_timeout(left).unwrap_or_else(|_| panic!("no line with {missing:?} came"));
            missing.retain(|text| !line.contains(text));
            if missing.is_empty() {
                return line;
            }
        }
    }

    /// A line that has come and was not taken yet, and when it came.
    pub(crate) fn line(&self) -> Option<(Instant, String)> {
        self.lines.try_recv().ok()
    }

    /// Writes a line to its standard input, which must be a pipe.
    pub(crate) fn tell(&self, line: &str) {
        let mut stdin = self.child.stdin.as_ref().expect("piped");
        writeln!(stdin, "{line}").expect("it reads");
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stop(self, signal: &str) -> ExitStatus {
        assert!(kill(signal, self.id()));
        self.end()
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            match self.child.try_wait().expect("it is ours") {
                Some(status) => return status,
                None if began.elapsed() > PATIENCE => panic!("it goes on"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = kill("TERM", self.child.id());
        let began = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn kill(signal: &str, process: u32) -> bool {
    Command::new("kill")
        .args([&format!("-{signal}"), &process.to_string()])
        .status()
        .is_ok_and(|status| status.success())
}

pub(crate) fn bench(cluster: &str, further: &[&str]) -> serde_json::Value {
    let mut arguments = vec!["bench", "--cluster", cluster, "--json", "-"];
    if !further.contains(&"--operations") {
        arguments.extend(["--operations", "3000"]);
    }
    arguments.extend(further);
    let output = run(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The number of the process that a line tells.
pub(crate) fn process(line: &str) -> u32 {
    line.split_whitespace().last().and_then(|word| word.parse().ok()).expect("started, process N")
}

/// Options of a client in this process, at the wire that the file has for that of this name, or for the first.
pub(crate) fn client_options(file: &Path, name: Option<&str>) -> ClientOptions {
    let text = std::fs::read_to_string(file).expect("the cluster file");
    let cluster = Cluster::from_toml(&text).expect("it was checked");
    let mut clients = cluster.clients().iter();
    let client = clients.find(|client| name.is_none_or(|name| client.name == name));
    let host = client.expect("it is in the file").host;
    let nic = NicSpec::Software(host_port(&cluster, host).expect("it has a wire"));
    ClientOptions {
        lanes: 1,
        patience: Duration::from_secs(30),
        ..ClientOptions::new(cluster.tree().host(host).clone(), nic, cluster.servers())
    }
}

/// Kills a process of `up` three times, each time when all roles are ready. It gives `up` back at its end.
pub(crate) fn kill_repeatedly(up: Role, mut server: u32) -> JoinHandle<Role> {
    std::thread::spawn(move || {
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(300));
            assert!(kill("KILL", server));
            server = process(&up.until("started"));
            up.until("ready");
        }
        up
    })
}
