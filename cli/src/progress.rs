//! Progress bars of long work, on the terminal.

use std::sync::Arc;

use fatbtree_controller::{OnProgress, Progress};
use indicatif::{ProgressBar, ProgressStyle};

/// A bar for `total` steps of `what`.
pub(crate) fn bar(what: &'static str, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} {eta}")
        .expect("the template is right: every demo shows it");
    ProgressBar::new(total).with_style(style).with_message(what)
}

/// A bar for a push of so many updates, and what moves it.
pub(crate) fn of_push(updates: usize) -> (ProgressBar, OnProgress) {
    let bar = bar("pushing over P4Runtime", updates as u64);
    let watched = bar.clone();
    (bar, Arc::new(move |progress: Progress| watched.set_position(progress.done as u64)))
}
