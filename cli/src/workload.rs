//! Workloads by name.

use anyhow::{Context, Result};
use fatbtree_workload::ycsb::{Properties, builtin};

/// The properties of a built-in workload, or those in a file.
pub(crate) fn properties(workload: &str) -> Result<Properties> {
    if let Ok(properties) = builtin(workload) {
        return Ok(properties);
    }
    let text = std::fs::read_to_string(workload).with_context(|| {
        format!("--workload {workload}: neither a built-in workload (a to f) nor a file that can be read")
    })?;
    Ok(Properties::parse(workload, &text)?)
}
