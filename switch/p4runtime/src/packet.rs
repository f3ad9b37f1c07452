//! Packets from and to a controller ("Packet I/O"): a port and a frame on one side, messages with metadata on the other.

use crate::bytestring;
use crate::config::{ControllerPacketMetadata, P4Info};
use crate::v1::{PacketIn, PacketMetadata, PacketOut};

/// Ids of packet metadata in a program.
///
/// ```
/// use fatbtree_p4runtime::PacketFormat;
/// use fatbtree_p4runtime::v1::PacketIn;
///
/// let info = fatbtree_p4runtime::p4info::parse(r#"
///     controller_packet_metadata {
///       preamble { id: 1 name: "packet_out" }
///       metadata { id: 1 name: "egress_port" bitwidth: 9 }
///       metadata { id: 2 name: "padding" bitwidth: 7 }
///     }
///     controller_packet_metadata {
///       preamble { id: 2 name: "packet_in" }
///       metadata { id: 1 name: "ingress_port" bitwidth: 9 }
///       metadata { id: 2 name: "reason" bitwidth: 7 }
///     }
/// "#)?;
/// let format = PacketFormat::of(&info).expect("it declares both headers");
/// let out = format.packet_out(300, vec![0; 60]);
/// assert_eq!((out.metadata[0].value.as_slice(), out.metadata[1].value.as_slice()), (&[1, 44][..], &[0][..]));
/// let back = PacketIn { payload: out.payload, metadata: out.metadata };
/// assert_eq!(format.read(&back), Some((300, 0)));
/// # Ok::<(), fatbtree_p4runtime::P4InfoError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketFormat {
    /// Ids of all metadata of a `packet_out`.
    out: Vec<u32>,
    egress_port: u32,
    ingress_port: u32,
    reason: Option<u32>,
}

impl PacketFormat {
    /// Format of a program that declares controller headers `packet_out` with an `egress_port` and `packet_in` with an `ingress_port`;
    /// `None`
    /// for any other program.
    pub fn of(info: &P4Info) -> Option<Self> {
        let header = |name: &str| {
            let mut all = info.controller_packet_metadata.iter();
            all.find(|header| header.preamble.as_ref().is_some_and(|preamble| preamble.name == name))
        };
        let field = |header: &ControllerPacketMetadata, name: &str| {
            Some(header.metadata.iter().find(|field| field.name == name)?.id)
        };
        let (out, packet_in) = (header("packet_out")?, header("packet_in")?);
        Some(Self {
            out: out.metadata.iter().map(|field| field.id).collect(),
            egress_port: field(out, "egress_port")?,
            ingress_port: field(packet_in, "ingress_port")?,
            reason: field(packet_in, "reason"),
        })
    }

    /// Message for a frame to be sent by a port. All other fields of the header are 0.
    pub fn packet_out(&self, port: u16, payload: Vec<u8>) -> PacketOut {
        let value = |id| if id == self.egress_port { port } else { 0 };
        let metadata = self.out.iter();
        let metadata = metadata
            .map(|id| PacketMetadata { metadata_id: *id, value: bytestring::encode(value(*id)) })
            .collect();
        PacketOut { payload, metadata }
    }

    /// The port by which a packet came in, and the reason for which it was passed on (0 if the program gives none). `None` without a port.
    pub fn read(&self, packet: &PacketIn) -> Option<(u16, u16)> {
        let value = |id: u32| {
            let found = packet.metadata.iter().find(|metadata| metadata.metadata_id == id)?;
            u16::try_from(bytestring::decode(&found.value, 16).ok()?).ok()
        };
        Some((value(self.ingress_port)?, self.reason.and_then(value).unwrap_or(0)))
    }
}
