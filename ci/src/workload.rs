//! The program that a command runs, and how: the options that commands share.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;
use regex::bytes::Regex;
use tidegate::{Day, Explain, Program, Run, Suppressions};

use crate::Failure;

/// A program to run under the gate.
#[derive(Debug, Args)]
pub(crate) struct Workload {
    /// A line of the program's output that this regular expression matches ends a round.
    #[arg(long, value_name = "REGEX")]
    round_on: Regex,
    /// Rounds before the measured ones.
    #[arg(long, value_name = "N", default_value_t = 2)]
    warmup: u32,
    /// Kill the program when it takes more memory than this, such as 512MiB or 8GiB.
    #[arg(long, value_name = "SIZE")]
    limit: Option<ByteSize>,
    /// Without any progress for so long, the program hangs and is killed.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = humantime::parse_duration)]
    hang_after: Duration,
    /// Write the run here as JSON, whole or not at all.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the run (samples, output, books) in this folder.
    #[arg(long, value_name = "FOLDER")]
    keep_in: Option<PathBuf>,
    /// Let through the known leaks that this file lists: LeakSanitizer's `leak:` lines,
    /// each with a reason and a last day above it.
    #[arg(long, value_name = "FILE")]
    suppressions: Option<PathBuf>,
    /// The day by which suppressions expire; the day of the run unless given.
    #[arg(long, value_name = "YYYY-MM-DD", requires = "suppressions")]
    as_of: Option<Day>,
    /// The program and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Workload {
    /// Runs the program, reports on the standard error and stores the run where that was asked.
    pub(crate) fn judge(self, explain: Option<Explain>) -> Result<Run, Failure> {
        let suppressions = self.read_suppressions()?;
        let run = Program::new(self.command, self.round_on)
            .warmup(self.warmup)
            .memory_limit(self.limit.map(|limit| limit.as_u64()))
            .hang_after(self.hang_after)
            .keep_in(self.keep_in)
            .explain(explain)
            .suppressions(suppressions)
            .run()
            .map_err(|error| Failure::of_ours(error.chain()))?;
        // The program's own output goes to the standard output; this is about it.
        eprint!("{run}");
        if let Some(path) = &self.json {
            write(path, &run).map_err(|error| {
                Failure::of_ours(format!("failed to write {}: {error}", path.display()))
            })?;
        }
        Ok(run)
    }

    /// Reads the suppressions before anything is run, for a mistake in them is the user's.
    fn read_suppressions(&self) -> Result<Option<Suppressions>, Failure> {
        let Some(file) = &self.suppressions else {
            return Ok(None);
        };
        let read = Suppressions::read(file).map_err(|error| Failure::of_usage(error.chain()))?;
        Ok(Some(match self.as_of {
            Some(day) => read.as_of(day),
            None => read,
        }))
    }
}

fn write(path: &Path, run: &Run) -> std::io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&mut file, run)?;
    file.write_all(b"\n")?;
    file.persist(path)?;
    Ok(())
}
