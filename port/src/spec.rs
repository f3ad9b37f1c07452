//! Ports by name, as cluster files and command lines have them.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use crate::packet::PacketPort;
use crate::udp::UdpPort;
use crate::{OpenError, Port};

/// Which port to open.
///
/// ```
/// use fatbtree_port::PortSpec;
///
/// let wire: PortSpec = "udp:127.0.0.1:6000,127.0.0.1:7000".parse()?;
/// assert!(matches!(wire, PortSpec::Udp { local, .. } if local.port() == 6000));
/// assert_eq!("packet:eth1".parse(), Ok(PortSpec::Packet("eth1".into())));
/// assert!("tap0".parse::<PortSpec>().unwrap_err().contains("packet:IFACE"));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PortSpec {
    /// `udp:LOCAL,REMOTE`: receives at one address, sends to the other.
    Udp {
        /// Where it receives.
        local: SocketAddr,
        /// Where it sends, and from where it receives.
        remote: SocketAddr,
    },
    /// `packet:IFACE`: a network interface.
    Packet(String),
}

impl PortSpec {
    /// Opens it.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(&self) -> Result<Box<dyn Port>, OpenError> {
        Ok(match self {
            Self::Udp { local, remote } => Box::new(UdpPort::open(*local, *remote)?),
            Self::Packet(interface) => Box::new(PacketPort::open(interface)?),
        })
    }

    /// Opens it for several threads.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open_wire(&self) -> Result<Wire, OpenError> {
        Ok(Wire(match self {
            Self::Udp { local, remote } => {
                let port = UdpPort::open(*local, *remote)?;
                End::Udp(port.wire()?, port.local())
            }
            Self::Packet(interface) => {
                let port = PacketPort::open(interface)?;
                End::Packet(port.wire()?, interface.clone())
            }
        }))
    }
}

/// An open end of a wire that several threads send by. A [`Port`] belongs to one thread: each makes one of its own here, and one thread
/// alone receives.
#[derive(Debug)]
pub struct Wire(End);

#[derive(Debug)]
enum End {
    Udp(OwnedFd, SocketAddr),
    Packet(OwnedFd, String),
}

impl Wire {
    /// A port for the calling thread.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub fn port(&self) -> Result<Box<dyn Port>, OpenError> {
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(OpenError::Descriptor);
        Ok(match &self.0 {
            End::Udp(fd, local) => Box::new(UdpPort::on(copy(fd)?, *local)),
            End::Packet(fd, interface) => Box::new(PacketPort::on(copy(fd)?, interface.clone())),
        })
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp { local, remote } => write!(f, "udp:{local},{remote}"),
            Self::Packet(interface) => write!(f, "packet:{interface}"),
        }
    }
}

impl FromStr for PortSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "expected udp:LOCAL,REMOTE such as udp:127.0.0.1:6000,127.0.0.1:7000, or packet:IFACE, found {text:?}"
            )
        };
        match text.split_once(':') {
            Some(("packet", interface)) if !interface.is_empty() => Ok(Self::Packet(interface.to_owned())),
            Some(("udp", ends)) => {
                let (local, remote) = ends.split_once(',').ok_or_else(form)?;
                let read = |end: &str| end.parse().map_err(|_| form());
                Ok(Self::Udp { local: read(local)?, remote: read(remote)? })
            }
            _ => Err(form()),
        }
    }
}
