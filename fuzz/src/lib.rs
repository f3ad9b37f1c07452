//! What the targets share: how they cut their input into what they do, and how much memory is held.

mod held;
mod input;
pub mod switches;

pub use held::{Counting, held};
pub use input::Input;
