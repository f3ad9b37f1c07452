//! The gRPC service of a memory server and its client: thin drivers that turn calls into requests and answers into messages.
//!
//! Everything that a peer sends is checked when its message is read ([`proto`] to types of this crate); what cannot be is
//! refused with its field, what was expected and what was found. What a peer can make the other side hold is bounded:
//! connections and requests per connection, bytes of a message ([`ServiceOptions`]). Every call of the [`Client`] has a deadline.
//!
//! An operator fills servers by loads ([`load_all`], [`load_parts`]), and has servers of a structure over several begin anew by [`empty`].
//!
//! A structure [describes](Describe) itself in the server's description, and may have services of its own beside this one: see [`serve`]
//! and [`Client::channel`].

mod client;
mod convert;
mod emptying;
mod fellows;
mod installing;
mod loader;
mod loading;
mod moments;
mod part_load;
mod service;

pub use client::{Client, ClientError, Deadlines};
pub use convert::MessageError;
pub use emptying::{Emptying, empty, serve_part};
pub use fellows::{WALK, ask};
pub use installing::Replacing;
pub use loader::{Content, KeysAndValues, LoadData, LoadProgress, LoadServersError, load_all};
pub use loading::{Built, Incoming, LOAD_MESSAGE_BYTES, LoadService};
pub use moments::{Answers, CompareError, Compared, exchange};
pub use part_load::{LoadPartsError, PartIncoming, PartLoading, Plan, load_parts};
pub use service::{ServiceOptions, answer_within, host, serve};

/// Metadata of a refusal of memory: the word of its [`Shortage`](fatbtree_remote_memory::Shortage).
const SHORTAGE: &str = "shortage";

/// Description of a structure as it goes over the wire.
pub trait Describe: Sized {
    /// Name of the structure. A client of another structure is told of it.
    const STRUCTURE: &'static str;

    /// Message with the description.
    fn encode(&self) -> Vec<u8>;

    /// Description in a message of memory server `server`.
    ///
    /// # Errors
    /// When no such structure can be.
    fn decode(server: u16, description: &[u8]) -> Result<Self, MessageError>;
}

/// Messages and stubs as the proto compiler makes them.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]
pub mod proto {
    tonic::include_proto!("fatbtree.memserver.v2");
}
