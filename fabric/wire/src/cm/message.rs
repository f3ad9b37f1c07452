//! Datagrams and their messages.

use super::MAD_BYTES;
use super::fields::Fields;

/// A management datagram with a message of the Communication Manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad {
    /// Number of the exchange: that of the first message of a connection, or of a disconnect. A message that is sent again keeps it.
    pub transaction: u64,
    /// What it says.
    pub message: Message,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "few are there at a time, and all have 232 bytes on the wire")]
pub enum Message {
    /// REQ: a connection is asked for.
    Request(Request),
    /// MRA: an answer takes a while.
    MessageReceipt(MessageReceipt),
    /// REJ: there is none.
    Reject(Reject),
    /// REP: it is accepted.
    Reply(Reply),
    /// RTU: both ends may send.
    ReadyToUse(ReadyToUse),
    /// DREQ: the connection ends.
    Disconnect(Disconnect),
    /// DREP: it has ended here, too.
    DisconnectReply(DisconnectReply),
}

/// Numbers that two sides have given a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ids {
    /// The sender's.
    pub local: u32,
    /// The receiver's; 0 where the sender does not know it.
    pub remote: u32,
}

/// A path between two ports. RoCE has no local identifiers; ports' GIDs are their IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Path {
    /// The sender's port.
    pub local_gid: [u8; 16],
    /// The receiver's port.
    pub remote_gid: [u8; 16],
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Encoded rate, 6 bits.
    pub rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Whether both ports are of one subnet.
    pub is_local: bool,
    /// Time after which a packet is sent again: 4.096 µs times 2 to this power, 5 bits; 0 for never.
    pub ack_timeout: u8,
}

/// REQ (IBTA volume 1, table 106).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number that the sender gives the connection.
    pub local_id: u32,
    /// The service that is asked for.
    pub service_id: u64,
    /// The sender's channel adapter.
    pub guid: u64,
    /// Queue key; 0 for connected queue pairs.
    pub queue_key: u32,
    /// The sender's queue pair, 24 bits.
    pub queue_pair: u32,
    /// READs and atomics that the sender serves at once.
    pub responder_resources: u8,
    /// READs and atomics that the sender asks for at once.
    pub initiator_depth: u8,
    /// Time within which the receiver answers: 4.096 µs times 2 to this power, 5 bits.
    pub remote_timeout: u8,
    /// Transport, 2 bits: 0 is reliable connection.
    pub transport: u8,
    /// Whether the sender has credits of messages.
    pub flow_control: bool,
    /// PSN of the first packet that the receiver is to send, 24 bits.
    pub starting_psn: u32,
    /// Time within which the sender answers, as `remote_timeout`.
    pub local_timeout: u8,
    /// Times that a packet is sent again, 3 bits.
    pub retry_count: u8,
    /// Partition key.
    pub partition_key: u16,
    /// Encoded path MTU, 4 bits: 1 to 5 for 256 to 4,096 bytes.
    pub mtu: u8,
    /// Times that a packet is sent again to a receiver that was not ready, 3 bits; 7 for without end.
    pub rnr_retry_count: u8,
    /// Times that messages of the Communication Manager are sent again, 4 bits.
    pub most_retries: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub has_shared_queue: bool,
    /// The path.
    pub path: Path,
    /// Another path, if there is one; else all is 0.
    pub alternate: Path,
    /// Private data of the sender.
    pub private: [u8; 92],
}

/// REP (IBTA volume 1, table 110).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Numbers of the connection.
    pub ids: Ids,
    /// Queue key; 0 for connected queue pairs.
    pub queue_key: u32,
    /// The sender's queue pair, 24 bits.
    pub queue_pair: u32,
    /// PSN of the first packet that the receiver is to send, 24 bits.
    pub starting_psn: u32,
    /// READs and atomics that the sender serves at once.
    pub responder_resources: u8,
    /// READs and atomics that the sender asks for at once.
    pub initiator_depth: u8,
    /// Time in which the sender acknowledges, encoded as timeouts are, 5 bits.
    pub ack_delay: u8,
    /// Whether the alternate path was taken, 2 bits: 0 yes, 1 not supported, 2 refused.
    pub failover: u8,
    /// Whether the sender has credits of messages.
    pub flow_control: bool,
    /// Times that a packet is sent again to a receiver that was not ready, 3 bits.
    pub rnr_retry_count: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub has_shared_queue: bool,
    /// The sender's channel adapter.
    pub guid: u64,
    /// Private data of the sender.
    pub private: [u8; 196],
}

/// RTU (IBTA volume 1, table 111).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToUse {
    /// Numbers of the connection.
    pub ids: Ids,
    /// Private data of the sender.
    pub private: [u8; 224],
}

/// Message that another one is about, 2 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// REQ.
    Request,
    /// REP.
    Reply,
    /// None of these; of an MRA, a change of the path.
    Other,
}

/// MRA (IBTA volume 1, table 107).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageReceipt {
    /// Numbers of the connection.
    pub ids: Ids,
    /// Message that was received.
    pub what: What,
    /// Time within which the answer follows, encoded as timeouts are, 5 bits.
    pub timeout: u8,
    /// Private data of the sender.
    pub private: [u8; 222],
}

/// Reason of a REJ (IBTA volume 1, table 109).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reason(pub u16);

impl Reason {
    /// There is no queue pair left.
    pub const NO_QUEUE_PAIR: Self = Self(1);
    /// There is no memory or other resource left.
    pub const NO_RESOURCES: Self = Self(3);
    /// No answer has come in the sender's time.
    pub const TIMEOUT: Self = Self(4);
    /// The request cannot be carried out.
    pub const UNSUPPORTED: Self = Self(5);
    /// A number of the connection is of none.
    pub const INVALID_COMMUNICATION_ID: Self = Self(6);
    /// A queue pair of this number is connected already.
    pub const STALE_CONNECTION: Self = Self(10);
    /// There is no such service.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// The transport is not supported.
    pub const INVALID_TRANSPORT: Self = Self(9);
    /// The path MTU is not supported.
    pub const INVALID_MTU: Self = Self(26);
    /// The program has refused; its private data may say why.
    pub const BY_CONSUMER: Self = Self(28);
}

/// REJ (IBTA volume 1, table 108).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Numbers of the connection.
    pub ids: Ids,
    /// Message that is refused.
    pub what: What,
    /// Bytes of `information` that count, 7 bits.
    pub information_bytes: u8,
    /// The reason.
    pub reason: Reason,
    /// What the reason has to say, such as another value.
    pub information: [u8; 72],
    /// Private data of the sender.
    pub private: [u8; 148],
}

/// DREQ (IBTA volume 1, table 112).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnect {
    /// Numbers of the connection.
    pub ids: Ids,
    /// The receiver's queue pair, 24 bits.
    pub queue_pair: u32,
    /// Private data of the sender.
    pub private: [u8; 220],
}

/// DREP (IBTA volume 1, table 113).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisconnectReply {
    /// Numbers of the connection.
    pub ids: Ids,
    /// Private data of the sender.
    pub private: [u8; 224],
}

/// Reason why a datagram is no message of the Communication Manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MadError {
    /// It has another length.
    #[error("management datagram: expected {MAD_BYTES} bytes, found {found}; drop it")]
    Length {
        /// Bytes found.
        found: usize,
    },
    /// A field of the header has another value.
    #[error(
        "management datagram, {field}: expected {expected:#x}, found {found:#x}; it is for another manager, drop it"
    )]
    Header {
        /// The field.
        field: &'static str,
        /// Its value in all messages of the Communication Manager.
        expected: u16,
        /// The value found.
        found: u16,
    },
    /// The attribute is none that this module knows.
    #[error("management datagram: expected an attribute from 0x10 to 0x16, found {found:#x}; drop it")]
    Attribute {
        /// The attribute.
        found: u16,
    },
}

/// Bytes of the header.
const HEADER: usize = 24;

/// Values of the header's first bytes: base version, class of the Communication Manager, its version, method Send.
const BEGIN: [(&str, u8); 4] = [("base version", 1), ("class", 7), ("class version", 2), ("method", 3)];

impl Mad {
    /// Reads a datagram of any bytes.
    ///
    /// # Errors
    /// When it is none of the Communication Manager's, or a message that is not known here.
    pub fn parse(datagram: &[u8]) -> Result<Self, MadError> {
        let Ok(bytes) = <&[u8; MAD_BYTES]>::try_from(datagram) else {
            return Err(MadError::Length { found: datagram.len() });
        };
        for ((field, expected), found) in BEGIN.into_iter().zip(bytes) {
            if *found != expected {
                return Err(MadError::Header { field, expected: expected.into(), found: (*found).into() });
            }
        }
        let (mut transaction, mut attribute) = (0_u64, 0_u16);
        let mut fields = Fields::reading(bytes, 8);
        fields.number(64, &mut transaction);
        fields.number(16, &mut attribute);
        let mut message = Message::empty(attribute).ok_or(MadError::Attribute { found: attribute })?;
        message.visit(&mut Fields::reading(bytes, HEADER));
        Ok(Self { transaction, message })
    }

    /// The bytes of the datagram. Bits of a number beyond its field are left out.
    pub fn to_bytes(&self) -> [u8; MAD_BYTES] {
        let mut bytes = [0; MAD_BYTES];
        for ((_, value), byte) in BEGIN.into_iter().zip(&mut bytes) {
            *byte = value;
        }
        let Self { mut transaction, mut message } = *self;
        let mut attribute = message.attribute();
        let mut fields = Fields::writing(&mut bytes, 8);
        fields.number(64, &mut transaction);
        fields.number(16, &mut attribute);
        message.visit(&mut Fields::writing(&mut bytes, HEADER));
        bytes
    }
}

impl Message {
    /// Number of the message.
    pub const fn attribute(&self) -> u16 {
        match self {
            Self::Request(_) => 0x10,
            Self::MessageReceipt(_) => 0x11,
            Self::Reject(_) => 0x12,
            Self::Reply(_) => 0x13,
            Self::ReadyToUse(_) => 0x14,
            Self::Disconnect(_) => 0x15,
            Self::DisconnectReply(_) => 0x16,
        }
    }

    /// A message of this number in which all is 0.
    fn empty(attribute: u16) -> Option<Self> {
        let ids = Ids::default();
        Some(match attribute {
            0x10 => Self::Request(Request {
                local_id: 0,
                service_id: 0,
                guid: 0,
                queue_key: 0,
                queue_pair: 0,
                responder_resources: 0,
                initiator_depth: 0,
                remote_timeout: 0,
                transport: 0,
                flow_control: false,
                starting_psn: 0,
                local_timeout: 0,
                retry_count: 0,
                partition_key: 0,
                mtu: 0,
                rnr_retry_count: 0,
                most_retries: 0,
                has_shared_queue: false,
                path: Path::default(),
                alternate: Path::default(),
                private: [0; 92],
            }),
            0x11 => Self::MessageReceipt(MessageReceipt {
                ids,
                what: What::Request,
                timeout: 0,
                private: [0; 222],
            }),
            0x12 => Self::Reject(Reject {
                ids,
                what: What::Request,
                information_bytes: 0,
                reason: Reason(0),
                information: [0; 72],
                private: [0; 148],
            }),
            0x13 => Self::Reply(Reply {
                ids,
                queue_key: 0,
                queue_pair: 0,
                starting_psn: 0,
                responder_resources: 0,
                initiator_depth: 0,
                ack_delay: 0,
                failover: 0,
                flow_control: false,
                rnr_retry_count: 0,
                has_shared_queue: false,
                guid: 0,
                private: [0; 196],
            }),
            0x14 => Self::ReadyToUse(ReadyToUse { ids, private: [0; 224] }),
            0x15 => Self::Disconnect(Disconnect { ids, queue_pair: 0, private: [0; 220] }),
            0x16 => Self::DisconnectReply(DisconnectReply { ids, private: [0; 224] }),
            _ => return None,
        })
    }

    fn visit(&mut self, fields: &mut Fields<'_>) {
        match self {
            Self::Request(request) => request.visit(fields),
            Self::MessageReceipt(MessageReceipt { ids, what, timeout, private }) => {
                ids.visit(fields);
                what.visit(fields);
                fields.number(5, timeout);
                fields.skip(3);
                fields.data(private);
            }
            Self::Reject(Reject { ids, what, information_bytes, reason, information, private }) => {
                ids.visit(fields);
                what.visit(fields);
                fields.number(7, information_bytes);
                fields.skip(1);
                fields.number(16, &mut reason.0);
                fields.data(information);
                fields.data(private);
            }
            Self::Reply(reply) => reply.visit(fields),
            Self::ReadyToUse(ReadyToUse { ids, private })
            | Self::DisconnectReply(DisconnectReply { ids, private }) => {
                ids.visit(fields);
                fields.data(private);
            }
            Self::Disconnect(Disconnect { ids, queue_pair, private }) => {
                ids.visit(fields);
                fields.number(24, queue_pair);
                fields.skip(8);
                fields.data(private);
            }
        }
        debug_assert_eq!(fields.at(), MAD_BYTES * 8, "all of a datagram is described");
    }
}

impl Ids {
    fn visit(&mut self, fields: &mut Fields<'_>) {
        fields.number(32, &mut self.local);
        fields.number(32, &mut self.remote);
    }
}

impl What {
    fn visit(&mut self, fields: &mut Fields<'_>) {
        let mut number = *self as u8;
        fields.number(2, &mut number);
        *self = match number {
            0 => Self::Request,
            1 => Self::Reply,
            _ => Self::Other,
        };
        fields.skip(6);
    }
}

impl Path {
    fn visit(&mut self, fields: &mut Fields<'_>) {
        // Local identifiers of both ports.
        fields.skip(32);
        fields.data(&mut self.local_gid);
        fields.data(&mut self.remote_gid);
        fields.number(20, &mut self.flow_label);
        fields.skip(6);
        fields.number(6, &mut self.rate);
        fields.number(8, &mut self.traffic_class);
        fields.number(8, &mut self.hop_limit);
        fields.number(4, &mut self.service_level);
        fields.flag(&mut self.is_local);
        fields.skip(3);
        fields.number(5, &mut self.ack_timeout);
        fields.skip(3);
    }
}

impl Request {
    fn visit(&mut self, fields: &mut Fields<'_>) {
        fields.number(32, &mut self.local_id);
        fields.skip(32);
        fields.number(64, &mut self.service_id);
        fields.number(64, &mut self.guid);
        fields.skip(32);
        fields.number(32, &mut self.queue_key);
        fields.number(24, &mut self.queue_pair);
        fields.number(8, &mut self.responder_resources);
        // End-to-end contexts are of reliable datagrams.
        fields.skip(24);
        fields.number(8, &mut self.initiator_depth);
        fields.skip(24);
        fields.number(5, &mut self.remote_timeout);
        fields.number(2, &mut self.transport);
        fields.flag(&mut self.flow_control);
        fields.number(24, &mut self.starting_psn);
        fields.number(5, &mut self.local_timeout);
        fields.number(3, &mut self.retry_count);
        fields.number(16, &mut self.partition_key);
        fields.number(4, &mut self.mtu);
        fields.skip(1);
        fields.number(3, &mut self.rnr_retry_count);
        fields.number(4, &mut self.most_retries);
        fields.flag(&mut self.has_shared_queue);
        fields.skip(3);
        self.path.visit(fields);
        self.alternate.visit(fields);
        fields.data(&mut self.private);
    }
}

impl Reply {
    fn visit(&mut self, fields: &mut Fields<'_>) {
        self.ids.visit(fields);
        fields.number(32, &mut self.queue_key);
        fields.number(24, &mut self.queue_pair);
        fields.skip(8 + 32);
        fields.number(24, &mut self.starting_psn);
        fields.skip(8);
        fields.number(8, &mut self.responder_resources);
        fields.number(8, &mut self.initiator_depth);
        fields.number(5, &mut self.ack_delay);
        fields.number(2, &mut self.failover);
        fields.flag(&mut self.flow_control);
        fields.number(3, &mut self.rnr_retry_count);
        fields.flag(&mut self.has_shared_queue);
        fields.skip(4);
        fields.number(64, &mut self.guid);
        fields.data(&mut self.private);
    }
}
