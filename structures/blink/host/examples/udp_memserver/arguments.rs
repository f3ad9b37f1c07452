//! The command line.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

pub(crate) const USAGE: &str = "usage: udp_memserver --ip ADDRESS --port LOCAL,REMOTE [--grpc ADDRESS:PORT] [--partition N] [--keys N] \
     [--value-bytes N] [--seed N] [--seconds N]";

/// Arguments of the process.
pub(crate) struct Arguments {
    /// Address on the data path.
    pub(crate) ip: Ipv4Addr,
    /// UDP: where frames come in.
    pub(crate) local: SocketAddr,
    /// UDP: where frames go, and where they come from.
    pub(crate) remote: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) partition: u16,
    /// At least 1.
    pub(crate) keys: u64,
    pub(crate) value_bytes: u32,
    pub(crate) seed: u64,
    pub(crate) seconds: Option<u64>,
}

impl Arguments {
    pub(crate) fn from_words(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut ip, mut port) = (None, None);
        let mut found = Self {
            ip: Ipv4Addr::UNSPECIFIED,
            local: SocketAddr::from(([127, 0, 0, 1], 0)),
            remote: SocketAddr::from(([127, 0, 0, 1], 0)),
            grpc: SocketAddr::from(([127, 0, 0, 1], 0)),
            partition: 0,
            keys: 100_000,
            value_bytes: 100,
            seed: 42,
            seconds: None,
        };
        while let Some(name) = words.next() {
            let word = words.next().ok_or_else(|| format!("{name}: expected a value after it"))?;
            match name.as_str() {
                "--ip" => ip = Some(read(&name, &word)?),
                "--port" => port = Some(ends(&word)?),
                "--grpc" => found.grpc = read(&name, &word)?,
                "--partition" => found.partition = read(&name, &word)?,
                "--keys" => found.keys = read(&name, &word)?,
                "--value-bytes" => found.value_bytes = read(&name, &word)?,
                "--seed" => found.seed = read(&name, &word)?,
                "--seconds" => found.seconds = Some(read(&name, &word)?),
                _ => return Err(format!("unknown argument {name}")),
            }
        }
        found.ip = ip.ok_or("--ip is missing")?;
        (found.local, found.remote) = port.ok_or("--port is missing")?;
        if !(1..=10_000_000).contains(&found.keys) {
            return Err(format!("--keys: expected 1 to 10,000,000, found {}", found.keys));
        }
        Ok(found)
    }
}

fn ends(word: &str) -> Result<(SocketAddr, SocketAddr), String> {
    let (local, remote) = word.split_once(',').ok_or_else(|| {
        format!("--port: expected LOCAL,REMOTE such as 127.0.0.1:7000,127.0.0.1:6000, found {word:?}")
    })?;
    Ok((read("--port", local)?, read("--port", remote)?))
}

fn read<T: FromStr<Err: Display>>(name: &str, word: &str) -> Result<T, String> {
    word.parse().map_err(|error| format!("{name}: {word:?}: {error}"))
}
