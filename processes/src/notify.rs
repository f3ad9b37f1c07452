//! Readiness as systemd wants to be told of it (`Type=notify`, sd_notify(3)).

use std::ffi::OsStr;
use std::io;
#[cfg(target_os = "linux")]
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable in which a service manager names its socket.
pub(crate) const SOCKET: &str = "NOTIFY_SOCKET";

/// Tells the service manager that started this process, if one did, that it is ready. A manager that cannot be told is a warning in the log.
pub fn notify_ready() {
    let Some(name) = std::env::var_os(SOCKET).filter(|name| !name.is_empty()) else { return };
    if let Err(error) = notify(&name, b"READY=1") {
        tracing::warn!(socket = %name.display(), %error, "the service manager could not be told that this process is ready");
    }
}

/// Sends a message to a socket with a path, or, where the name begins with `@`, to an abstract one.
fn notify(name: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match name.as_bytes() {
        #[cfg(target_os = "linux")]
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address).map(drop)
}
