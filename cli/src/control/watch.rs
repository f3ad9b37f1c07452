//! `control status --watch`: a live table.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use anyhow::Result;
use fatbtree_controller::operator::{Counters, Question, Status, TableCounters};

use super::{Asked, CONNECT, print};
use crate::stdout;

const PERIOD: Duration = Duration::from_secs(1);

/// Prints the status again and again until Ctrl-C or SIGTERM. A controller that is gone later is reported, and asked again.
pub(super) async fn watch(asked: &Asked) -> Result<()> {
    let mut before: BTreeMap<String, TableCounters> = BTreeMap::new();
    let controllers = asked.controllers()?;
    let patience = Duration::from_secs(asked.patience);
    // One for all the time: a Ctrl-C while the table is printed counts as well.
    let mut stopped = pin!(fatbtree_processes::stop_signal()?);
    let mut is_first = true;
    loop {
        let answers = async {
            let status: Status = controllers.ask(&Question::Status, CONNECT, patience).await?;
            let counters: Counters = controllers.ask(&Question::Counters, CONNECT, patience).await?;
            Ok::<_, anyhow::Error>((status, counters))
        };
        let text = tokio::select! {
            _ = &mut stopped => return Ok(()),
            answers = answers => match answers {
                Err(error) if is_first => return Err(error),
                Err(error) => format!("{error:#}"),
                Ok((status, mut counters)) => {
                    // Of the last period only; after a reload the counters begin anew.
                    for table in &mut counters.tables {
                        let now = table.clone();
                        let before = before.insert(now.table.clone(), now.clone());
                        if let Some(before) = before.filter(|before| before.hits <= now.hits && before.stops <= now.stops) {
                            table.hits -= before.hits;
                            table.stops -= before.stops;
                        }
                    }
                    let status = print::status_text(&status);
                    // The first counts are those since the plan was loaded.
                    match std::mem::take(&mut is_first) {
                        true => format!("{status}\n\nwhat index reads do comes in a second"),
                        false => format!("{status}\n\nin the last second:\n{}", print::counters_text(&counters)),
                    }
                }
            },
        };
        // To the upper left corner, and nothing below.
        outln!("\x1b[H\x1b[2J{text}");
        if stdout::is_lost() {
            return Ok(());
        }
        tokio::select! {
            _ = &mut stopped => return Ok(()),
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}
