//! How two sides talk before and beside RDMA: lines of words over TCP.
//!
//! ```text
//!   capabilities                       ok masked_atomics=0 device_memory=0 line_atomicity=0 …
//!   register LEN RIGHTS                ok RKEY IOVA LEN          zeroed memory; RIGHTS: 1 READ + 2 WRITE + 4 atomics
//!   register_device_memory LEN RIGHTS  ok RKEY IOVA LEN
//!   deregister RKEY                    ok
//!   accept ENDPOINT                    ok ENDPOINT               mac=02:… ip=10.0.0.1 queue_pair=17 psn=… mtu=1024 …
//!   disconnect NUMBER                  ok
//!   broken                             ok NUMBER …               queue pairs that have failed since this was last asked
//!   read RKEY OFFSET LEN               ok HEX                    memory, as its owner sees it
//!   write RKEY OFFSET HEX              ok
//! ```
//!
//! A request that fails is answered with `error TEXT`. Numbers are decimal.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::str::FromStr;
use std::time::Duration;

use fatbtree_verbs::conformance::Responder;
use fatbtree_verbs::{Access, Capabilities, Endpoint, Mtu, QueuePairNumber, Region};

/// Bytes of the longest line: a read of 256 KiB in hexadecimal.
const LONGEST_LINE: u64 = 1 << 19;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Lines over a TCP connection.
pub(crate) struct Lines {
    reader: BufReader<TcpStream>,
}

impl Lines {
    pub(crate) fn new(stream: TcpStream) -> Result<Self, String> {
        // Lines are short, and the other side waits for each.
        stream.set_nodelay(true).map_err(said)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(said)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(said)?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    /// The next line without its end; `None` when the other side is gone.
    pub(crate) fn receive(&mut self) -> Result<Option<String>, String> {
        let mut line = String::new();
        let read = (&mut self.reader).take(LONGEST_LINE).read_line(&mut line).map_err(said)?;
        if read == 0 {
            return Ok(None);
        }
        let Some(whole) = line.strip_suffix('\n') else {
            return Err(format!(
                "expected a line of at most {LONGEST_LINE} bytes, found {read} without an end"
            ));
        };
        Ok(Some(whole.to_owned()))
    }

    pub(crate) fn send(&mut self, line: &str) -> Result<(), String> {
        self.reader.get_mut().write_all(format!("{line}\n").as_bytes()).map_err(said)
    }
}

fn said(error: impl Display) -> String {
    error.to_string()
}

/// The side with the memory, at the other end of a TCP connection.
pub(crate) struct RemoteResponder {
    lines: Lines,
}

impl RemoteResponder {
    pub(crate) fn connect(address: &str) -> Result<Self, String> {
        let stream =
            TcpStream::connect(address).map_err(|error| format!("connecting to {address}: {error}"))?;
        Ok(Self { lines: Lines::new(stream)? })
    }

    fn ask(&mut self, request: &str) -> Result<String, String> {
        self.lines.send(request)?;
        let answer = self.lines.receive()?.ok_or("the responder is gone")?;
        match answer.split_once(' ').unwrap_or((&answer, "")) {
            ("ok", rest) => Ok(rest.to_owned()),
            ("error", text) => Err(format!("the responder says: {text}")),
            _ => Err(format!("expected ok or error, found {answer:?}")),
        }
    }
}

impl Responder for RemoteResponder {
    fn capabilities(&mut self) -> Result<Capabilities, String> {
        capabilities_from(&self.ask("capabilities")?)
    }

    fn register(&mut self, len: u64, access: Access) -> Result<Region, String> {
        region_from(&self.ask(&format!("register {len} {}", access.bits()))?)
    }

    fn register_device_memory(&mut self, len: u64, access: Access) -> Result<Region, String> {
        region_from(&self.ask(&format!("register_device_memory {len} {}", access.bits()))?)
    }

    fn deregister(&mut self, rkey: u32) -> Result<(), String> {
        self.ask(&format!("deregister {rkey}")).map(drop)
    }

    fn accept(&mut self, client: &Endpoint) -> Result<Endpoint, String> {
        endpoint_from(&self.ask(&format!("accept {}", endpoint_text(client)))?)
    }

    fn disconnect(&mut self, queue_pair: QueuePairNumber) -> Result<(), String> {
        self.ask(&format!("disconnect {}", queue_pair.0)).map(drop)
    }

    fn broken(&mut self) -> Result<Vec<QueuePairNumber>, String> {
        self.ask("broken")?.split_whitespace().map(|word| number(word).map(QueuePairNumber)).collect()
    }

    fn read(&mut self, rkey: u32, offset: u64, len: u64) -> Result<Vec<u8>, String> {
        bytes_from(&self.ask(&format!("read {rkey} {offset} {len}"))?)
    }

    fn write(&mut self, rkey: u32, offset: u64, bytes: &[u8]) -> Result<(), String> {
        self.ask(&format!("write {rkey} {offset} {}", bytes_text(bytes))).map(drop)
    }
}

/// Carries out one request on `responder`; what to answer.
pub(crate) fn answer(responder: &mut impl Responder, request: &str) -> String {
    match carry_out(responder, request) {
        Ok(text) if text.is_empty() => "ok".to_owned(),
        Ok(text) => format!("ok {text}"),
        Err(error) => format!("error {}", error.replace('\n', " ")),
    }
}

fn carry_out(responder: &mut impl Responder, request: &str) -> Result<String, String> {
    let (what, rest) = request.split_once(' ').unwrap_or((request, ""));
    let words: Vec<&str> = rest.split_whitespace().collect();
    match (what, &words[..]) {
        ("capabilities", []) => responder.capabilities().map(|found| capabilities_text(&found)),
        ("register", [len, rights]) => {
            let region = responder.register(bounded(len)?, Access::from_bits(number(rights)?))?;
            Ok(region_text(&region))
        }
        ("register_device_memory", [len, rights]) => {
            let region =
                responder.register_device_memory(bounded(len)?, Access::from_bits(number(rights)?))?;
            Ok(region_text(&region))
        }
        ("deregister", [rkey]) => responder.deregister(number(rkey)?).map(|()| String::new()),
        ("accept", [_, ..]) => responder.accept(&endpoint_from(rest)?).map(|local| endpoint_text(&local)),
        ("disconnect", [queue_pair]) => {
            responder.disconnect(QueuePairNumber(number(queue_pair)?)).map(|()| String::new())
        }
        ("broken", []) => {
            let numbers: Vec<String> =
                responder.broken()?.iter().map(|queue_pair| queue_pair.0.to_string()).collect();
            Ok(numbers.join(" "))
        }
        ("read", [rkey, offset, len]) => {
            responder.read(number(rkey)?, number(offset)?, bounded(len)?).map(|bytes| bytes_text(&bytes))
        }
        ("write", [rkey, offset, bytes]) => {
            responder.write(number(rkey)?, number(offset)?, &bytes_from(bytes)?).map(|()| String::new())
        }
        _ => Err(format!("unknown request {what:?} with {} words; see control.rs", words.len())),
    }
}

/// A length that the other side may ask for.
fn bounded(word: &str) -> Result<u64, String> {
    let len = number(word)?;
    if len > LONGEST_LINE / 2 - 16 {
        return Err(format!("expected at most {} bytes, found {len}", LONGEST_LINE / 2 - 16));
    }
    Ok(len)
}

fn number<T: FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("expected a number, found {word:?}"))
}

fn bytes_text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_from(text: &str) -> Result<Vec<u8>, String> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    match pairs.iter().map(byte).collect::<Option<Vec<u8>>>() {
        Some(bytes) if rest.is_empty() => Ok(bytes),
        _ => Err(format!("expected bytes in hexadecimal, found {} characters of something else", text.len())),
    }
}

fn region_text(region: &Region) -> String {
    format!("{} {} {}", region.rkey, region.iova, region.len)
}

fn region_from(text: &str) -> Result<Region, String> {
    match text.split_whitespace().collect::<Vec<_>>()[..] {
        [rkey, iova, len] => Ok(Region { rkey: number(rkey)?, iova: number(iova)?, len: number(len)? }),
        _ => Err(format!("expected RKEY IOVA LEN, found {text:?}")),
    }
}

/// Words of the form `name=value`.
struct Fields<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Fields<'a> {
    fn new(text: &'a str) -> Self {
        Self(text.split_whitespace().filter_map(|word| word.split_once('=')).collect())
    }

    fn get<T: FromStr>(&self, name: &str) -> Result<T, String> {
        let word = self.0.get(name).ok_or_else(|| format!("expected a word {name}=…, found none"))?;
        word.parse().map_err(|_| format!("{name}: {word:?} cannot be"))
    }
}

fn endpoint_text(endpoint: &Endpoint) -> String {
    let Endpoint { mac, ip, queue_pair, psn, mtu, responder_reads, initiator_reads } = endpoint;
    let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
    format!(
        "mac={mac} ip={ip} queue_pair={} psn={psn} mtu={mtu} responder_reads={responder_reads} initiator_reads={initiator_reads}",
        queue_pair.0
    )
}

fn endpoint_from(text: &str) -> Result<Endpoint, String> {
    let fields = Fields::new(text);
    let mac: String = fields.get("mac")?;
    let mac = bytes_from(&mac.replace(':', ""))?;
    Ok(Endpoint {
        mac: mac.try_into().map_err(|_| "expected a MAC address of 6 bytes")?,
        ip: fields.get("ip")?,
        queue_pair: QueuePairNumber(fields.get("queue_pair")?),
        psn: fields.get("psn")?,
        mtu: Mtu::from_bytes(fields.get("mtu")?).ok_or("expected an MTU of 256 to 4096, a power of two")?,
        responder_reads: fields.get("responder_reads")?,
        initiator_reads: fields.get("initiator_reads")?,
    })
}

fn capabilities_text(found: &Capabilities) -> String {
    let Capabilities {
        masked_atomics,
        device_memory,
        line_atomicity,
        longest_chain,
        inline_bytes,
        send_queue,
        responder_reads,
        initiator_reads,
        longest_message,
    } = found;
    format!(
        "masked_atomics={masked_atomics} device_memory={device_memory} line_atomicity={line_atomicity} longest_chain={longest_chain} \
         inline_bytes={inline_bytes} send_queue={send_queue} responder_reads={responder_reads} initiator_reads={initiator_reads} \
         longest_message={longest_message}"
    )
}

fn capabilities_from(text: &str) -> Result<Capabilities, String> {
    let fields = Fields::new(text);
    Ok(Capabilities {
        masked_atomics: fields.get("masked_atomics")?,
        device_memory: fields.get("device_memory")?,
        line_atomicity: fields.get("line_atomicity")?,
        longest_chain: fields.get("longest_chain")?,
        inline_bytes: fields.get("inline_bytes")?,
        send_queue: fields.get("send_queue")?,
        responder_reads: fields.get("responder_reads")?,
        initiator_reads: fields.get("initiator_reads")?,
        longest_message: fields.get("longest_message")?,
    })
}
