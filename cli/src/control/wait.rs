//! `control wait-ready`: waits until the cluster is whole.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use fatbtree_controller::operator::{Question, Status};

use super::{Asked, CONNECT};

/// Time between two questions.
const PAUSE: Duration = Duration::from_millis(200);
/// What is missing is listed up to so many.
const LISTED: usize = 5;

/// Asks again and again, a controller that is not there yet as well.
pub(super) async fn wait_ready(asked: &Asked) -> Result<()> {
    let controllers = asked.controllers()?;
    let (began, patience) = (Instant::now(), Duration::from_secs(asked.patience));
    loop {
        let left = patience.saturating_sub(began.elapsed()).max(PAUSE);
        let status = controllers.ask::<Status>(&Question::Status, CONNECT.min(left), left).await;
        let missing = match &status {
            Ok(status) => status.missing(),
            Err(error) => vec![error.to_string()],
        };
        if let (Ok(status), []) = (&status, &missing[..]) {
            return asked.tell(status, |_| outln!("ready"));
        }
        if began.elapsed() >= patience {
            let more = match missing.len().saturating_sub(LISTED) {
                0 => String::new(),
                more => format!("; and {more} more: see `fatbtree control status`"),
            };
            let listed = missing[..missing.len().min(LISTED)].join("; ");
            bail!("the cluster is not whole after {} s: {listed}{more}", asked.patience);
        }
        tokio::time::sleep(PAUSE).await;
    }
}
