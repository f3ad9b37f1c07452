//! `fatbtree demo`: the whole path in one process, measured.

mod arguments;
mod control;
mod data_path;
mod dolphin;
mod growth;
mod measure;
mod mixtures;
mod network;
mod report;
mod result;
mod run;
mod sessions;

use anyhow::{Result, bail};
use comfy_table::{CellAlignment, Table, presets};

pub(crate) use arguments::Arguments;
use run::{Demonstrated, demonstrate};

use crate::interrupted::EXIT_CODE;
use crate::output::Output;

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let settings = arguments.settings()?;
    let json = Output::optional("--json", arguments.json.as_ref())?;
    let plan_file = Output::optional("--plan", arguments.plan.as_ref())?;
    let page = Output::optional("--report", arguments.report.as_ref())?;
    // Interrupted: nothing is written yet and nothing outlives the process, so there is nothing to clean up.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.spawn(async {
        if tokio::signal::ctrl_c().await.is_ok() {
            errln!("\ninterrupted; nothing was written");
            std::process::exit(EXIT_CODE.into());
        }
    });
    let Demonstrated { result, plan, picture } = runtime.block_on(demonstrate(settings))?;

    outln!("{}\n{}", table(&result.ways_table(), 1), result.explanation());
    outln!("{}", table(&result.mixtures_table(), 1));
    outln!("{}", table(&result.ycsb_table(), 2));
    outln!("round trips of {} operations each", result.ycsb_operations);
    if let Some(growth) = &result.growth {
        outln!("{}\n{}", table(&growth.table(), 1), growth.explanation());
    }
    outln!("{:.1} s in all", result.seconds);
    if let Some(file) = json {
        file.write("figures", &(serde_json::to_string_pretty(&result)? + "\n"))?;
    }
    if let Some(file) = plan_file {
        file.write("plan", &plan)?;
    }
    if let Some(file) = page {
        file.write("report", &report::page(&result, &picture)?)?;
    }
    if let Some(first) = &result.first_wrong {
        bail!(
            "{} operations gave a wrong value, none, or an error ({first}): please report this with the seed",
            result.wrong
        );
    }
    Ok(())
}

/// A table for the terminal. The first row is its head; columns from `numbers` on hold numbers.
fn table(rows: &[Vec<String>], numbers: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    let mut rows = rows.iter();
    table.set_header(rows.next().into_iter().flatten());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(numbers) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
