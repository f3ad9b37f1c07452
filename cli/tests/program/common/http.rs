//! What roles answer over HTTP.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Answer to a GET, with its headers.
pub(crate) fn get(address: &str, path: &str) -> String {
    ask(address, "GET", path)
}

/// Answer to a request, with its headers.
pub(crate) fn ask(address: &str, method: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("it is sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}
