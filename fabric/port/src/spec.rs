//! Names of ports in cluster files and on command lines.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use crate::packet::PacketPort;
use crate::shared::{Clients, SharedUdpPort};
use crate::udp::UdpPort;
use crate::{OpenError, Port};

/// Name of a port to open.
///
/// ```
/// use fatbtree_port::PortSpec;
///
/// let wire: PortSpec = "udp:127.0.0.1:6000,127.0.0.1:7000".parse()?;
/// assert!(matches!(wire, PortSpec::Udp { local, .. } if local.port() == 6000));
/// assert_eq!("packet:eth1".parse(), Ok(PortSpec::Packet("eth1".into())));
/// assert_eq!("dpdk:0000:03:00.0".parse(), Ok(PortSpec::Dpdk("0000:03:00.0".into())));
/// assert!("tap0".parse::<PortSpec>().unwrap_err().contains("packet:IFACE"));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PortSpec {
    /// `udp:LOCAL,REMOTE`: receives at one address, sends to the other.
    Udp {
        /// Local address, to receive at.
        local: SocketAddr,
        /// Remote address, to send to and to receive from.
        remote: SocketAddr,
    },
    /// The end of a UDP wire that several clients share. Cluster files say so for hosts; it has no name on command lines.
    SharedUdp {
        /// Local address, to receive at.
        local: SocketAddr,
        /// The other ends.
        clients: Clients,
    },
    /// `packet:IFACE`: a network interface.
    Packet(String),
    /// `dpdk:DEVICE`: a DPDK device with its arguments, such as `net_memif0,role=client`, or the PCI address of a card. Opening it needs the
    /// cargo feature `dpdk`.
    Dpdk(String),
}

impl PortSpec {
    /// Opens the port.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(&self) -> Result<Box<dyn Port>, OpenError> {
        Ok(match self {
            Self::Udp { local, remote } => Box::new(UdpPort::open(*local, *remote)?),
            Self::SharedUdp { local, clients } => Box::new(SharedUdpPort::open(*local, clients)?),
            Self::Packet(interface) => Box::new(PacketPort::open(interface)?),
            Self::Dpdk(_) => self.open_wire()?.port()?,
        })
    }

    /// Opens the port's wire for several threads, of which one receives.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open_wire(&self) -> Result<Wire, OpenError> {
        self.open_wire_for(1)
    }

    /// Opens the port's wire for `threads` threads, all of which receive if the device has a queue for each.
    ///
    /// # Errors
    /// When the system refuses.
    #[cfg_attr(not(feature = "dpdk"), expect(unused_variables, reason = "others have one queue"))]
    pub fn open_wire_for(&self, threads: usize) -> Result<Wire, OpenError> {
        Ok(Wire(match self {
            Self::Udp { local, remote } => {
                let port = UdpPort::open(*local, *remote)?;
                End::Udp(port.wire()?, port.local())
            }
            Self::SharedUdp { local, clients } => {
                let port = SharedUdpPort::open(*local, clients)?;
                End::SharedUdp(port.wire()?, port.local(), Clients::clone(clients))
            }
            Self::Packet(interface) => {
                let port = PacketPort::open(interface)?;
                End::Packet(port.wire()?, interface.clone())
            }
            #[cfg(feature = "dpdk")]
            Self::Dpdk(device) => End::Dpdk(crate::dpdk::DpdkWire::open(device, threads)?),
            #[cfg(not(feature = "dpdk"))]
            Self::Dpdk(device) => return Err(OpenError::NoDpdk { device: device.clone() }),
        }))
    }
}

/// An open end of a wire by which several threads send. A [`Port`] belongs to one thread, so each thread makes one of
/// its own here. Only one thread receives, unless the wire has several [queues](Self::queues): then each receives
/// from some of these.
#[derive(Debug)]
pub struct Wire(End);

#[derive(Debug)]
enum End {
    Udp(OwnedFd, SocketAddr),
    SharedUdp(OwnedFd, SocketAddr, Clients),
    Packet(OwnedFd, String),
    #[cfg(feature = "dpdk")]
    Dpdk(crate::dpdk::DpdkWire),
}

impl Wire {
    /// A port for the calling thread, where one thread receives.
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    pub fn port(&self) -> Result<Box<dyn Port>, OpenError> {
        self.port_for(0)
    }

    /// Number of receive queues. Each thread has some of them, and does not see frames of the others. Frames of one
    /// flow arrive in one queue.
    pub fn queues(&self) -> usize {
        match &self.0 {
            End::Udp(..) | End::SharedUdp(..) | End::Packet(..) => 1,
            #[cfg(feature = "dpdk")]
            End::Dpdk(wire) => wire.queues(),
        }
    }

    /// Whether the wire's ports are [polled](Port::is_polled).
    pub fn is_polled(&self) -> bool {
        match &self.0 {
            End::Udp(..) | End::SharedUdp(..) | End::Packet(..) => false,
            #[cfg(feature = "dpdk")]
            End::Dpdk(_) => true,
        }
    }

    /// A port for thread `thread` of those that the wire was [opened for](PortSpec::open_wire_for).
    ///
    /// # Errors
    /// When the process has no file descriptors left.
    #[cfg_attr(not(feature = "dpdk"), expect(unused_variables, reason = "others have one queue"))]
    pub fn port_for(&self, thread: usize) -> Result<Box<dyn Port>, OpenError> {
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(OpenError::Descriptor);
        Ok(match &self.0 {
            End::Udp(fd, local) => Box::new(UdpPort::on(copy(fd)?, *local)),
            End::SharedUdp(fd, local, clients) => Box::new(SharedUdpPort::on(copy(fd)?, *local, clients)),
            End::Packet(fd, interface) => Box::new(PacketPort::on(copy(fd)?, interface.clone())),
            #[cfg(feature = "dpdk")]
            End::Dpdk(wire) => Box::new(wire.port(thread)?),
        })
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp { local, remote } => write!(f, "udp:{local},{remote}"),
            Self::SharedUdp { local, clients } => write!(f, "udp:{local}, for {} clients", clients.len()),
            Self::Packet(interface) => write!(f, "packet:{interface}"),
            Self::Dpdk(device) => write!(f, "dpdk:{device}"),
        }
    }
}

impl FromStr for PortSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "expected udp:LOCAL,REMOTE such as udp:127.0.0.1:6000,127.0.0.1:7000, packet:IFACE, or dpdk:DEVICE, found {text:?}"
            )
        };
        match text.split_once(':') {
            Some(("packet", interface)) if !interface.is_empty() => Ok(Self::Packet(interface.to_owned())),
            Some(("dpdk", device)) if !device.is_empty() => Ok(Self::Dpdk(device.to_owned())),
            Some(("udp", ends)) => {
                let (local, remote) = ends.split_once(',').ok_or_else(form)?;
                let read = |end: &str| end.parse().map_err(|_| form());
                Ok(Self::Udp { local: read(local)?, remote: read(remote)? })
            }
            _ => Err(form()),
        }
    }
}
