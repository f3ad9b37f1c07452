//! The server as programs meet it, over a memory server in this process.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

#[allow(dead_code, reason = "the library's own tests use the rest")]
#[path = "../../tests/it/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::Running;
use fatbtree_blink::{Keys, TreeConfig, ValueLayout};
use fatbtree_registry::Hash;
use redis_protocol::resp2::decode::decode;
use redis_protocol::resp2::types::OwnedFrame;

/// The server's process, which ends with this.
struct Server {
    process: Child,
    address: String,
    _cluster: Running,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Starts it over trees. The error is what it says where it does not start.
fn start(keys: Keys) -> Result<Server, String> {
    let config = TreeConfig::default().with_values(ValueLayout::SHORT).unwrap();
    start_over(Running::with_trees(1, config.with_keys(keys).unwrap()))
}

/// Starts it over a hash table.
fn start_over_hash_table() -> Server {
    let cluster = Running::with_byte_keys::<Hash>();
    let file = cluster.folder.path().join("cluster.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(file, format!("structure = \"hash\"\n{text}")).unwrap();
    start_over(cluster).unwrap()
}

fn start_over(cluster: Running) -> Result<Server, String> {
    let mut process = Command::new(env!("CARGO_BIN_EXE_fatbtree-resp"))
        .arg("--cluster")
        .arg(cluster.folder.path().join("cluster.toml"))
        .args(["--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let Some(address) = line.trim().strip_prefix("ready on ") else {
        let mut why = String::new();
        process.stderr.take().unwrap().read_to_string(&mut why).unwrap();
        assert!(!process.wait().unwrap().success());
        return Err(why);
    };
    Ok(Server { address: address.to_owned(), process, _cluster: cluster })
}

/// A connection of a program.
struct Program {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Program {
    fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(&server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self { stream, input: Vec::new() }
    }

    fn send(&mut self, words: &[&str]) {
        let mut line = format!("*{}\r\n", words.len());
        for word in words {
            line += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.stream.write_all(line.as_bytes()).unwrap();
    }

    /// The next reply; none at the end of the connection.
    fn receive(&mut self) -> Option<OwnedFrame> {
        loop {
            if let Some((frame, bytes)) = decode(&self.input).unwrap() {
                self.input.drain(..bytes);
                return Some(frame);
            }
            let mut more = [0; 4096];
            match self.stream.read(&mut more).unwrap() {
                0 => return None,
                bytes => self.input.extend_from_slice(&more[..bytes]),
            }
        }
    }

    fn ask(&mut self, words: &[&str]) -> OwnedFrame {
        self.send(words);
        self.receive().unwrap()
    }
}

fn bulk(text: &str) -> OwnedFrame {
    OwnedFrame::BulkString(text.into())
}

fn ok() -> OwnedFrame {
    OwnedFrame::SimpleString("OK".into())
}

#[test]
fn programs_are_answered_as_redis_does() {
    answered(&start(Keys::Bytes).unwrap());
    answered(&start_over_hash_table());
}

fn answered(server: &Server) {
    let mut program = Program::connect(server);
    assert_eq!(program.ask(&["PING"]), OwnedFrame::SimpleString("PONG".into()));
    assert_eq!(program.ask(&["GET", "user:1"]), OwnedFrame::Null);
    assert_eq!(program.ask(&["SET", "user:1", "Ada", "XX"]), OwnedFrame::Null);
    assert_eq!(program.ask(&["SET", "user:1", "Ada", "NX"]), ok());
    assert_eq!(program.ask(&["SET", "user:1", "Grace", "NX"]), OwnedFrame::Null);
    assert_eq!(program.ask(&["get", "user:1"]), bulk("Ada"));
    assert_eq!(
        program.ask(&["MGET", "user:1", "user:2"]),
        OwnedFrame::Array(vec![bulk("Ada"), OwnedFrame::Null])
    );
    assert_eq!(program.ask(&["EXISTS", "user:1", "user:1", "user:2"]), OwnedFrame::Integer(2));
    assert_eq!(program.ask(&["DEL", "user:1", "user:1", "user:2"]), OwnedFrame::Integer(1));
    let OwnedFrame::Error(why) = program.ask(&["LPUSH", "list", "x"]) else { panic!("it is refused") };
    assert!(why.starts_with("ERR unknown command 'LPUSH'"), "{why}");
    assert_eq!(program.ask(&["GET", "user:1"]), OwnedFrame::Null, "an error ends no connection");
    // What is no command does, after what came before it.
    program.stream.write_all(b"*1\r\n$4\r\nPING\r\nnonsense\r\n").unwrap();
    assert_eq!(program.receive(), Some(OwnedFrame::SimpleString("PONG".into())));
    assert!(matches!(program.receive(), Some(OwnedFrame::Error(_))));
    assert_eq!(program.receive(), None);
}

/// Commands of a pipeline on one key have the results of one after the other.
#[test]
fn a_pipeline_is_in_order() {
    let server = start(Keys::Bytes).unwrap();
    let mut program = Program::connect(&server);
    let mut expected = Vec::new();
    for n in 0..300 {
        let (key, value) = (format!("user:{}", n % 7), n.to_string());
        program.send(&["SET", &key, &value]);
        program.send(&["GET", &key]);
        program.send(&["EXISTS", &key, "missing"]);
        expected.extend([ok(), bulk(&value), OwnedFrame::Integer(1)]);
        if n % 10 == 9 {
            program.send(&["DEL", &key]);
            program.send(&["GET", &key]);
            expected.extend([OwnedFrame::Integer(1), OwnedFrame::Null]);
        }
    }
    let found: Vec<OwnedFrame> = expected.iter().map(|_| program.receive().unwrap()).collect();
    assert_eq!(found, expected);
}

#[test]
fn a_scan_gives_each_key_once_whatever_else_is_scanned() {
    scanned(&start(Keys::Bytes).unwrap());
    scanned(&start_over_hash_table());
}

fn scanned(server: &Server) {
    let mut program = Program::connect(server);
    for n in 0..250 {
        let key = format!("{}:{n}", ["user", "mail"][n % 2]);
        assert_eq!(program.ask(&["SET", &key, "x"]), ok());
    }
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        // Another scan in between.
        program.ask(&["SCAN", "0", "COUNT", "3"]);
        let reply = program.ask(&["SCAN", &cursor, "MATCH", "user:*", "COUNT", "20"]);
        let OwnedFrame::Array(parts) = reply else { panic!("{reply:?}") };
        let [OwnedFrame::BulkString(next), OwnedFrame::Array(keys)] = &parts[..] else { panic!("{parts:?}") };
        found.extend(keys.iter().map(|key| format!("{key:?}")));
        cursor = String::from_utf8(next.clone()).unwrap();
        if cursor == "0" {
            break;
        }
    }
    let all = found.len();
    found.sort();
    found.dedup();
    assert_eq!((all, found.len()), (125, 125));
    let OwnedFrame::Error(why) = program.ask(&["SCAN", "4711"]) else { panic!("no such cursor") };
    assert!(why.contains("begin the scan again"), "{why}");
}

#[test]
fn a_tree_of_numbers_is_refused_at_the_start() {
    let why = start(Keys::Numbers).err().unwrap();
    assert!(why.contains("keys of this tree are numbers"), "{why}");
}
