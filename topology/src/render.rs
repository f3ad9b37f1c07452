//! The network and the cluster for people: a table and a drawing.

mod svg;
mod text;

pub use svg::render_svg;
pub use text::render_text;

use std::collections::BTreeMap;

use crate::network::SwitchId;

/// Labels of the switches in a drawing, such as `fat root 600 ranges` or `A: 3600 nodes`: one line per string.
pub type Annotations = BTreeMap<SwitchId, Vec<String>>;
