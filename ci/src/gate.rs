//! `cargo tidegate gate`: runs, a policy and baselines in; one exit code out.

use std::path::PathBuf;

use clap::Args;
use tidegate::Day;
use tidegate::gate::judge;

use crate::Failure;
use crate::project::{Project, read_runs};
use crate::store::store_json;

/// Judges runs by the project's policy and baselines: each finding once, new or known;
/// budgets; and what is above what the baseline's runs gave.
///
/// Exits with 0 (pass), 3 (failed by a verdict), 4 (by policy or budget), 6 (the workload
/// crashed) or 5 (inconclusive), of several the first of these.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Runs: their folders, or run.json.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    #[command(flatten)]
    project: Project,
    /// Write the report here as JSON, whole or not at all.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The day by which suppressions expire; the day of each run unless given.
    #[arg(long, value_name = "YYYY-MM-DD")]
    as_of: Option<Day>,
}

/// Judges, reports, and returns the exit code.
pub(crate) fn gate(arguments: &Arguments) -> Result<u8, Failure> {
    let policy = arguments.project.policy(arguments.as_of)?;
    let store = arguments.project.store()?;
    let runs = read_runs(&arguments.runs)?;
    let report = judge(&runs, &policy, &store);
    print!("{}", report.terminal());
    if let Some(path) = &arguments.json {
        store_json(path, &report)?;
    }
    Ok(report.answer.exit_code())
}
