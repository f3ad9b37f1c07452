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
//! nothing). Updates are applied there one after the other, so no packet ever sees half of one. No packet waits for long:
//!
//! * A large write is applied [part by part](Inbox::SLICE), with packets in between, unless it asks to be atomic for the data plane.
//!   Tables grow in steps, a few with each update.
//! * A read is answered part by part, the next when the last was taken, so that a slow reader delays no other. Each part tells
//!   entries as they are when it is made: what is there all the time is told once, of what changes meanwhile either state may be told. A
//!   read ends with `ABORTED` when the program is replaced meanwhile.
//! * A program is checked and compiled beside the packets, and only put active among them. RECONCILE_AND_COMMIT of the program that runs
//!   leaves the state where it is; of another, it carries the state over part by part.
//! * A packet from the primary waits for no write: it goes into the pipeline between two parts. Packets for the primary wait in a bounded
//!   queue, and are lost where its stream has no room for them. Both pass by port [`CPU_PORT`], of programs that declare the headers.
//!
//! The state that peers can make the switch hold is bounded: messages, streams, concurrent requests, waiting answers, metadata and
//! replicas. A program's need of memory is counted when it is verified ([`LoadError::TooLarge`](crate::LoadError::TooLarge)).
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
mod packet_io;
mod read;
mod refusal;
mod switch;
mod write;
mod write_batch;

pub use arbitration::{StreamId, StreamOutput};
pub use control::{ControlPlane, ReadOutcome, Request, Response, StreamEvent};
pub use grpc::serve;
pub use mailbox::{Inbox, Mailbox, mailbox, mailbox_with_waker};
pub use packet_io::CPU_PORT;
pub use switch::Switch;

/// Version of the P4Runtime API this service speaks, as `Capabilities` reports it.
pub const API_VERSION: &str = "1.4.1";
