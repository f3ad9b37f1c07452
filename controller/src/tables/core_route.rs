//! `core_route`: by which port index packets climb, by their path number; its default action says what they do where they do not climb.

use super::declare::{action, key};

key! {
    /// Key of an entry.
    pub struct Key {
        /// The packet's path number, 0 to 63.
        path: u8 = exact,
    }
    in ["core_route"]
}

action! {
    /// Climb.
    pub struct Climb = "climb" {
        /// The port.
        port: u16,
    }
}

action! {
    /// The default action.
    pub enum Action {
        /// This switch holds the fat root: look up that of this epoch. Epoch 0 with sub-table 0 is the empty one: no entry has
        /// them, so packets go down with the root of their partition.
        Descend = "descend" {
            /// The epoch.
            epoch: u8,
            /// The sub-table of the first stage.
            sub_table: u16,
        },
        /// Index packets do not turn round here.
        NoAction = "NoAction",
    }
}
