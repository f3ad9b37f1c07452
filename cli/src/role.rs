//! Options about the end of a role, the same for all roles.

use std::io::Read as _;

use clap::Args;
use fatbtree_processes::Stopper;

#[derive(Args)]
pub(crate) struct End {
    /// Stop after so many seconds.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) seconds: Option<u64>,
    /// Stop when standard input ends, as it does when the process that started this one is gone.
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
}

impl End {
    pub(crate) fn stop_with_stdin(&self, stopper: Stopper) {
        if self.until_stdin_ends {
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                // An error is an end, too.
                while std::io::stdin().read(&mut bytes).is_ok_and(|count| count > 0) {}
                stopper.stop();
            });
        }
    }
}
