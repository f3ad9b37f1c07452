//! Prints the table and the drawing of the example cluster, or of the cluster file given.
//!
//! `cargo run -p fatbtree-topology --example show [FILE]` prints the table, then the SVG.
#![allow(clippy::print_stdout, reason = "an example's output is its point")]

use fatbtree_topology::{Annotations, Cluster, render_svg, render_text};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = match std::env::args().nth(1) {
        Some(file) => Cluster::from_toml(&std::fs::read_to_string(file)?)?,
        None => Cluster::example(),
    };
    let lines = vec!["fat root".to_owned(), "A".to_owned()];
    let annotations: Annotations = cluster.tree().roots().iter().map(|root| (*root, lines.clone())).collect();
    println!("{}\n{}", render_text(&cluster), render_svg(&cluster, &annotations));
    Ok(())
}
