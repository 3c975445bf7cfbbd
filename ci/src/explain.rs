//! `cargo tidegate explain`: from which lines of code a program leaks, in the
//! formats that other tools open.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use tidegate::{Explain, Run};

use crate::Failure;
use crate::workload::Workload;

/// Runs any program under the gate, and again with call stacks if it leaks: says from
/// which lines, and writes the sites as DHAT JSON, folded stacks, flame graph and pprof.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Take the stack of every allocation, whether anything leaks or not.
    #[arg(long)]
    full: bool,
    /// Write the exported files here, too; they stay in the run's folder otherwise.
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    workload: Workload,
}

/// Runs the program, twice where there is something to explain; the exit code is the
/// verdict's.
pub(crate) fn explain(arguments: Arguments) -> Result<u8, Failure> {
    let explain = match arguments.full {
        true => Explain::EverySite,
        false => Explain::OnLeak,
    };
    let run = arguments.workload.judge(Some(explain))?;
    if run.explanation().is_none() {
        eprintln!(
            "cargo tidegate: no leak was found in a run that went to its end, so there is nothing \
             to explain; --full takes the stack of every allocation"
        );
    } else {
        let files = match &arguments.out {
            Some(folder) => copied(&run, folder)
                .map_err(|problem| Failure::of_ours(format!("failed to {problem}")))?,
            None => run.exports(),
        };
        for file in files {
            eprintln!("  {}", file.display());
        }
    }
    Ok(run.verdict().class.exit_code())
}

/// Copies what was exported into a folder, and returns the new files.
fn copied(run: &Run, folder: &Path) -> Result<Vec<PathBuf>, String> {
    fs::create_dir_all(folder)
        .map_err(|error| format!("make the folder {}: {error}", folder.display()))?;
    let exports = run.exports();
    let copies = exports.iter().map(|from| {
        let to = folder.join(from.file_name().unwrap_or_default());
        match fs::copy(from, &to) {
            Ok(_) => Ok(to),
            Err(error) => Err(format!("write {}: {error}", to.display())),
        }
    });
    copies.collect()
}
