//! Packets between the controller and the pipeline ("Packet I/O").
//!
//! ```text
//!   PacketOut { metadata, payload }  ──▶  packet_out header, payload  ──▶  pipeline, as if it came in by port 510
//!   PacketIn  { metadata, payload }  ◀──  packet_in header, rest      ◀──  what leaves the pipeline by port 510
//! ```
//!
//! A program has the CPU port if its P4Info declares the headers (`@controller_header("packet_out")`, `"packet_in"`). On the wire of
//! that port their fields stand in the order of P4Info, each as wide as it says.

use std::collections::VecDeque;

use fatbtree_p4runtime::bytestring;
use fatbtree_p4runtime::config::{ControllerPacketMetadata, P4Info};
use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::v1::{PacketIn, PacketMetadata, PacketOut};

use super::refusal::Refusal;
use crate::MAX_FRAME;

/// Port that leads to the controller: the last one that v1model's 9 bits leave, since 511 means drop. Start BMv2 with
/// `--cpu-port 510` to have it there, too (and with `--priority-queues 8`, for the program names queues).
pub const CPU_PORT: u16 = 510;

/// Packets that wait in either direction at one time.
pub(super) const PACKETS: usize = 256;

/// Longest header, bytes.
const MAX_HEADER: usize = 256;

/// Widest field, bits.
const MAX_FIELD: u32 = 128;

/// A header that carries a packet's metadata.
#[derive(Debug)]
struct Header {
    /// Its name in the specification.
    name: &'static str,
    fields: Vec<Field>,
    /// Length, bytes.
    len: usize,
}

#[derive(Debug)]
struct Field {
    id: u32,
    name: String,
    bitwidth: u32,
}

/// Headers of a program's packets from and to the controller.
#[derive(Debug, Default)]
pub(super) struct Headers {
    packet_in: Option<Header>,
    packet_out: Option<Header>,
}

impl Headers {
    /// Finds the headers in a P4Info. The message of an error says what is wrong with one.
    pub(super) fn new(info: &P4Info) -> Result<Self, String> {
        let mut headers = Self::default();
        for declared in &info.controller_packet_metadata {
            let name = declared.preamble.as_ref().map_or("", |preamble| preamble.name.as_str());
            let (place, name) = match name {
                "packet_in" => (&mut headers.packet_in, "packet_in"),
                "packet_out" => (&mut headers.packet_out, "packet_out"),
                other => {
                    return Err(format!(
                        "expected controller headers `packet_in` and `packet_out`, found `{other}`, which means nothing in P4Runtime"
                    ));
                }
            };
            if place.replace(Header::new(name, declared)?).is_some() {
                return Err(format!("controller header `{name}` is declared twice in P4Info"));
            }
        }
        Ok(headers)
    }

    /// The frame that a message asks for; `None` where the program takes none.
    pub(super) fn frame(&self, packet: &PacketOut) -> Option<Result<Vec<u8>, Refusal>> {
        let header = self.packet_out.as_ref()?;
        Some(header.write(&packet.metadata).and_then(|mut frame| {
            if frame.len() + packet.payload.len() > MAX_FRAME {
                let (most, found) = (MAX_FRAME - frame.len(), packet.payload.len());
                return Err(Refusal::invalid(format!(
                    "expected a payload of at most {most} bytes, found {found}"
                )));
            }
            frame.extend_from_slice(&packet.payload);
            Ok(frame)
        }))
    }

    /// Whether frames for the CPU port go to the controller.
    pub(super) fn has_packet_in(&self) -> bool {
        self.packet_in.is_some()
    }

    /// The message for a frame that has left by the CPU port; `None` where the frame is shorter than the header, or there is none.
    pub(super) fn packet(&self, frame: &[u8]) -> Option<PacketIn> {
        let header = self.packet_in.as_ref()?;
        let payload = frame.get(header.len..)?.to_vec();
        Some(PacketIn { payload, metadata: header.read(frame) })
    }
}

impl Header {
    fn new(name: &'static str, declared: &ControllerPacketMetadata) -> Result<Self, String> {
        let mut fields: Vec<Field> = Vec::with_capacity(declared.metadata.len());
        let mut bits = 0;
        for field in &declared.metadata {
            let bitwidth = u32::try_from(field.bitwidth).unwrap_or(0);
            if !(1..=MAX_FIELD).contains(&bitwidth) {
                return Err(format!(
                    "controller header `{name}`: expected fields of 1 to {MAX_FIELD} bits, found `{}` of {}",
                    field.name, field.bitwidth
                ));
            }
            if fields.iter().any(|known| known.id == field.id) {
                return Err(format!("controller header `{name}`: field id {} is there twice", field.id));
            }
            bits += bitwidth as usize;
            fields.push(Field { id: field.id, name: field.name.clone(), bitwidth });
        }
        if !bits.is_multiple_of(8) || bits / 8 > MAX_HEADER {
            return Err(format!(
                "controller header `{name}`: expected whole bytes, at most {MAX_HEADER}, found {bits} bits"
            ));
        }
        Ok(Self { name, fields, len: bits / 8 })
    }

    /// The header with these values: each field once, in any order.
    fn write(&self, metadata: &[PacketMetadata]) -> Result<Vec<u8>, Refusal> {
        let mut values: Vec<Option<u128>> = vec![None; self.fields.len()];
        for found in metadata {
            let Some(place) = self.fields.iter().position(|field| field.id == found.metadata_id) else {
                let known: Vec<_> =
                    self.fields.iter().map(|field| format!("{}: {}", field.id, field.name)).collect();
                return Err(Refusal::invalid(format!(
                    "`{}`: expected metadata of [{}], found id {}",
                    self.name,
                    known.join(", "),
                    found.metadata_id
                )));
            };
            let field = &self.fields[place];
            let bad = |problem: String| {
                format!("`{}`: metadata `{}` (id {}) {problem}", self.name, field.name, field.id)
            };
            let value = bytestring::decode(&found.value, field.bitwidth)
                .map_err(|error| Refusal::new(Code::OutOfRange, bad(format!("{error}"))))?;
            if values[place].replace(value).is_some() {
                return Err(Refusal::invalid(bad("is given twice".to_owned())));
            }
        }
        let mut frame = vec![0; self.len];
        let mut at = 0;
        for (field, value) in self.fields.iter().zip(values) {
            let value = value.ok_or_else(|| {
                Refusal::invalid(format!(
                    "`{}`: metadata `{}` (id {}) is missing",
                    self.name, field.name, field.id
                ))
            })?;
            for bit in (0..field.bitwidth).rev() {
                frame[at / 8] |= ((value >> bit & 1) as u8) << (7 - at % 8);
                at += 1;
            }
        }
        Ok(frame)
    }

    /// The values of the header that the frame begins with; it is long enough.
    fn read(&self, frame: &[u8]) -> Vec<PacketMetadata> {
        let mut at = 0;
        let mut value = |field: &Field| {
            let bits = at..at + field.bitwidth as usize;
            at = bits.end;
            bits.fold(0u128, |value, at| value << 1 | u128::from(frame[at / 8] >> (7 - at % 8) & 1))
        };
        let fields = self.fields.iter();
        fields
            .map(|field| PacketMetadata { metadata_id: field.id, value: bytestring::encode(value(field)) })
            .collect()
    }
}

/// Packets on their way; packets over the bound are lost and counted.
#[derive(Debug, Default)]
pub(super) struct Packets {
    /// Frames for the pipeline.
    outs: VecDeque<Vec<u8>>,
    /// Messages for the primary.
    ins: VecDeque<PacketIn>,
    /// Number of lost messages for the primary: there was no room, or no primary.
    lost: u64,
}

impl Packets {
    pub(super) fn push_out(&mut self, frame: Vec<u8>) -> Result<(), Refusal> {
        if self.outs.len() >= PACKETS {
            let message = format!("{PACKETS} packets wait for the pipeline: send fewer at a time");
            return Err(Refusal::new(Code::ResourceExhausted, message));
        }
        self.outs.push_back(frame);
        Ok(())
    }

    pub(super) fn pop_out(&mut self) -> Option<Vec<u8>> {
        self.outs.pop_front()
    }

    /// Queues a message for the primary. `None` is a frame that could not be made a message, or that no controller waits for: it is lost.
    pub(super) fn push_in(&mut self, packet: Option<PacketIn>) {
        match packet {
            Some(packet) if self.ins.len() < PACKETS => self.ins.push_back(packet),
            _ => self.lost += 1,
        }
    }

    pub(super) fn pop_in(&mut self) -> Option<PacketIn> {
        self.ins.pop_front()
    }

    pub(super) fn lose(&mut self, count: u64) {
        self.lost += count;
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Drops all packets, because those of another program have no meaning any more.
    pub(super) fn clear(&mut self) {
        self.lost += self.ins.len() as u64;
        self.ins.clear();
        self.outs.clear();
    }
}

#[cfg(test)]
mod tests {
    use fatbtree_p4runtime::config::{Preamble, controller_packet_metadata::Metadata};
    use proptest::prelude::*;

    use super::*;

    fn declared(name: &str, widths: &[i32]) -> ControllerPacketMetadata {
        let metadata = widths.iter().zip(1..).map(|(&bitwidth, id)| Metadata {
            id,
            name: format!("field_{id}"),
            bitwidth,
            ..Metadata::default()
        });
        let preamble = Preamble { name: name.to_owned(), ..Preamble::default() };
        ControllerPacketMetadata { preamble: Some(preamble), metadata: metadata.collect() }
    }

    fn headers(declared: Vec<ControllerPacketMetadata>) -> Result<Headers, String> {
        Headers::new(&P4Info { controller_packet_metadata: declared, ..P4Info::default() })
    }

    #[test]
    fn headers_that_make_no_sense_are_refused_by_name() {
        let refused = |declared: Vec<_>, word: &str| {
            let error = headers(declared).expect_err("it makes no sense");
            assert!(error.contains(word), "{error}");
        };
        refused(vec![declared("packet_up", &[8])], "packet_up");
        refused(vec![declared("packet_in", &[9])], "whole bytes");
        refused(vec![declared("packet_in", &[0, 8])], "field_1");
        refused(vec![declared("packet_in", &[136])], "field_1");
        refused(vec![declared("packet_in", &[8]), declared("packet_in", &[8])], "twice");
        assert!(headers(vec![declared("packet_in", &[9, 7]), declared("packet_out", &[128])]).is_ok());
    }

    #[test]
    fn bits_stand_in_the_order_of_the_fields() {
        let headers = headers(vec![declared("packet_out", &[9, 7])]).unwrap();
        let metadata = |id, value: u64| PacketMetadata { metadata_id: id, value: bytestring::encode(value) };
        let packet = PacketOut { payload: vec![0xaa], metadata: vec![metadata(2, 0x55), metadata(1, 0x101)] };
        assert_eq!(headers.frame(&packet).unwrap().unwrap(), [0x80, 0x80 | 0x55, 0xaa]);
    }

    proptest! {
        /// Values that are written into a header are read back, in canonical form.
        #[test]
        fn values_survive(widths in prop::collection::vec(1u32..=128, 1..8), seed in any::<u128>(), rest in 0usize..20) {
            let total: u32 = widths.iter().sum();
            let fill = (8 - total % 8) % 8;
            let widths: Vec<i32> = widths.into_iter().chain(Some(fill).filter(|fill| *fill > 0)).map(|width| width as i32).collect();
            let headers = headers(vec![declared("packet_in", &widths), declared("packet_out", &widths)]).unwrap();
            let metadata: Vec<PacketMetadata> = widths.iter().zip(1u32..).map(|(&width, id)| {
                let value = seed.wrapping_mul(u128::from(id) | 1) >> (128 - width);
                PacketMetadata { metadata_id: id, value: bytestring::encode(value) }
            }).collect();
            let packet = PacketOut { payload: vec![7; rest], metadata: metadata.clone() };
            let frame = headers.frame(&packet).unwrap().unwrap();
            prop_assert_eq!(headers.packet(&frame), Some(PacketIn { payload: vec![7; rest], metadata }));
            prop_assert_eq!(headers.packet(&frame[..frame.len() - rest - 1]), None);
        }
    }
}
