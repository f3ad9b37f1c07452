//! P4Runtime: the messages and service of P4Runtime 1.x, P4Info lookup by name, and a client.
//!
//! ```text
//!   controller                                           switch (ours, BMv2, Tofino)
//!  ┌──────────────────────────────┐     gRPC, HTTP/2    ┌────────────────────────────┐
//!  │ P4InfoIndex   names → ids    │                     │ v1::p4_runtime_server      │
//!  │ EntryBuilder  checked entries│  Write, Read, …     │  (generated; implemented   │
//!  │ P4RuntimeClient  session,    │────────────────────▶│   in fatbtree-switch)      │
//!  │   pipeline, batches, reads   │◀────────────────────│                            │
//!  └──────────────────────────────┘  per-update errors  └────────────────────────────┘
//! ```
//!
//! - [`v1`] and [`config`]: the generated types, from the `.proto` files in `proto/`. They are our own text, compatible
//!   on the wire with the P4Runtime specification, and are compiled without `protoc`.
//! - [`p4info`], [`P4InfoIndex`]: the objects of a compiled program. Names match by dotted suffix, so that one controller
//!   drives a v1model program (`ingress.…`) and a Tofino program (`pipe.ingress.…`).
//! - [`entry`]: building and reading table entries; [`bytestring`]: values on the wire.
//! - [`client`]: the one part that does I/O.
//!
//! ```
//! use fatbtree_p4runtime::{P4InfoIndex, entry};
//!
//! # let text = include_str!("../testdata/small.p4info.txtpb");
//! let info = P4InfoIndex::from_text(text)?;
//! // Resolve names once …
//! let child = info.table("node_set_a.child")?;
//! let (epoch, node_id, results) = (child.field("epoch")?, child.field("node_id")?, child.field("results")?);
//! let descend = child.action("descend_to")?;
//! // … then build entries, checked against widths and match kinds.
//! let built = child.entry().exact(epoch, 3).exact(node_id, 17).exact(results, 0x00ff).action(descend, &[0x400, 18]).build()?;
//! assert_eq!(child.view(&built)?.exact(node_id)?, 17);
//! let update = entry::insert(built);
//! // Mistakes are found here, not in the switch.
//! let error = child.entry().exact(epoch, 256).build().unwrap_err();
//! assert_eq!(error.to_string(), "table `ingress.node_set_a.child`, field `epoch`: expected a value of at most 8 bits, found one that needs 9 bits");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod bytestring;
pub mod client;
pub mod entry;
pub mod index;
pub mod names;
pub mod p4info;
mod packet;
pub mod proto;
pub mod status;
#[cfg(test)]
mod testdata;

pub use client::{ClientError, ClientOptions, Mastership, P4RuntimeClient, WriteError};
pub use entry::{EntryBuilder, EntryError, EntryView};
pub use index::{ActionInfo, MatchFieldInfo, MatchKind, P4InfoIndex, ParamInfo, TableInfo};
pub use names::LookupError;
pub use p4info::P4InfoError;
pub use packet::PacketFormat;
pub use proto::p4::config::v1 as config;
pub use proto::p4::v1;
pub use status::UpdateError;

pub use prost;
pub use tonic;
