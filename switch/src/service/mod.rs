//! P4Runtime in front of the pipeline.
//!
//! ```text
//!   controller                 tokio threads                        the thread that owns the switch
//!  ┌───────────┐   gRPC   ┌───────────────────────┐   Mailbox   ┌──────────────────────────────────────┐
//!  │ any       │─────────▶│ serve(): decodes RPCs │────────────▶│ Inbox::try_drain(&mut Switch)        │
//!  │ P4Runtime │◀─────────│ and streams           │◀────────────│  Switch = ControlPlane + Pipeline    │
//!  │ client    │          └───────────────────────┘   oneshot   │  handle_frame()   handle_request()   │
//!  └───────────┘                                                └──────────────────────────────────────┘
//! ```
//!
//! The pipeline belongs to one thread, which looks into its inbox between packets (one relaxed load when there is
//! nothing). Requests are applied there one after the other, so no packet ever sees half an update. A large write is applied
//! [part by part](Inbox::SLICE), with packets in between, unless it asks to be atomic for the data plane.
//!
//! [`Switch`] and [`ControlPlane`] do no I/O and can be driven without gRPC: in a simulator, or in tests.
//!
//! Sections named in this module are those of the P4Runtime 1.x specification.

mod arbitration;
mod config;
mod control;
mod convert;
mod grpc;
mod mailbox;
mod mapping;
mod multicast;
mod read;
mod refusal;
mod switch;
mod write;
mod write_batch;

pub use arbitration::{StreamId, StreamOutput};
pub use control::{ControlPlane, ReadOutcome, Request, Response, StreamEvent};
pub use grpc::serve;
pub use mailbox::{Inbox, Mailbox, mailbox, mailbox_with_waker};
pub use switch::Switch;

/// Version of the P4Runtime API this service speaks, as `Capabilities` reports it.
pub const API_VERSION: &str = "1.4.1";
