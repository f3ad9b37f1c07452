//! Errors of work that was interrupted: it is no success, and a message says how far it came.

use std::fmt;

use fatbtree_processes::NodeError;

/// Exit code of interrupted work: 128 and the number of SIGINT, as shells have it.
pub(crate) const EXIT_CODE: u8 = 130;

/// The error of work that ended early at Ctrl-C or SIGTERM, with how far it came.
#[derive(Debug)]
pub(crate) struct Interrupted(pub(crate) String);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted: {}", self.0)
    }
}

impl std::error::Error for Interrupted {}

/// The exit code of a command that has failed.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    let is_interrupt = error.chain().any(|cause| {
        cause.is::<Interrupted>() || matches!(cause.downcast_ref::<NodeError>(), Some(NodeError::Stopped))
    });
    if is_interrupt { EXIT_CODE } else { 1 }
}
