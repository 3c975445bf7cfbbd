//! `cargo tidegate gate`: runs, a policy and baselines in; one exit code out.

use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;

use clap::Args;
use tidegate::Day;
use tidegate::gate::{Report, Root, bencher, judge, without_commands};

use crate::Failure;
use crate::project::{Project, read_runs, root};
use crate::store::{store, store_json};

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
    /// The day by which suppressions expire; the day of each run unless given.
    #[arg(long, value_name = "YYYY-MM-DD")]
    as_of: Option<Day>,
    #[command(flatten)]
    told: Told,
}

/// Where a report goes beside the terminal; each file is written whole or not at all.
#[derive(Debug, Args)]
#[command(next_help_heading = "What the report is written as")]
struct Told {
    /// The report as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The report as SARIF 2.1.0, for code scanning.
    #[arg(long, value_name = "FILE")]
    sarif: Option<PathBuf>,
    /// The report as Markdown, for a job's summary.
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// What the runs took, in the Bencher Metric Format.
    #[arg(long, value_name = "FILE")]
    bencher: Option<PathBuf>,
    /// Print GitHub's annotations too, at the lines that allocate what is lost.
    #[arg(long)]
    annotations: bool,
    /// The folder that paths of sources are told from; unless given, the root of the
    /// repository.
    #[arg(long, value_name = "FOLDER")]
    root: Option<PathBuf>,
    /// Where Tidegate's book is, for links to its pages.
    #[arg(long, value_name = "URL", value_parser = link)]
    docs: Option<String>,
}

/// Judges, reports, and returns the exit code.
pub(crate) fn gate(arguments: &Arguments) -> Result<u8, Failure> {
    let policy = arguments.project.policy(arguments.as_of)?;
    let store = arguments.project.store()?;
    let runs = read_runs(&arguments.runs)?;
    let report = judge(&runs, &policy, &store);
    let told = &arguments.told;
    told.print(&report);
    told.store(&report)?;
    if let Some(path) = &told.bencher {
        store_json(path, &bencher(&runs))?;
    }
    Ok(report.answer.exit_code())
}

impl Told {
    fn root(&self) -> Root {
        Root::new(self.root.clone().unwrap_or_else(root))
    }

    fn print(&self, report: &Report) {
        let root = self.root();
        let text = report.terminal(&root);
        if !self.annotations {
            print!("{text}");
            return;
        }
        // Of what reads this log, names of strangers must not be obeyed.
        let state = RandomState::new();
        let token = format!("{:016x}{:016x}", state.hash_one(1), state.hash_one(2));
        print!("{}", without_commands(&text, &token));
        print!("{}", report.annotations(&root));
    }

    fn store(&self, report: &Report) -> Result<(), Failure> {
        let (root, docs) = (self.root(), self.docs.as_deref());
        if let Some(path) = &self.json {
            store_json(path, report)?;
        }
        if let Some(path) = &self.sarif {
            store_json(path, &report.sarif(&root, docs))?;
        }
        if let Some(path) = &self.summary {
            store(path, report.markdown(&root, docs).as_bytes())?;
        }
        Ok(())
    }
}

/// A URL that can stand in Markdown and in JSON as it is.
fn link(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~/%:@".contains(c);
    match rest.is_some_and(|rest| !rest.is_empty() && rest.chars().all(is_plain)) {
        true => Ok(text.to_owned()),
        false => Err("it is no plain https:// URL".to_owned()),
    }
}
