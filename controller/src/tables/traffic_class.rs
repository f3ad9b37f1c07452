//! `traffic_class`: which queue packets of a code point (DSCP) wait in, so that RoCE's can be lossless.

use super::declare::{action, key};

key! {
    /// Key of an entry.
    pub struct Key {
        /// The code point, 0 to 63.
        dscp: u8 = exact,
    }
    in ["traffic_class"]
}

action! {
    /// Queue of the packets.
    pub struct Action = "assign" {
        /// The queue, and the priority of flow control (PFC), 0 to 7.
        class: u8,
    }
}
