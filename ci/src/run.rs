//! `cargo tidegate run`: one program, metered and judged.

use clap::{Args, ValueEnum};
use tidegate::Explain;

use crate::Failure;
use crate::workload::Workload;

/// Runs any program under the gate: the ledger is preloaded, a line of its output
/// that matches ends a round. A leak is run once more with call stacks.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// When to run the program again for the lines of code that allocate.
    ///
    /// TIDEGATE_EXPLAIN in the environment says it where this does not; unless
    /// either says anything, it is on a leak.
    #[arg(long, value_name = "WHEN")]
    explain: Option<When>,
    #[command(flatten)]
    workload: Workload,
}

/// When a program is run again.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum When {
    /// Not at all.
    Never,
    /// When the first run found a leak, for what can have leaked.
    OnLeak,
    /// Always, for every allocation.
    EverySite,
}

impl From<When> for Explain {
    fn from(when: When) -> Self {
        match when {
            When::Never => Self::Never,
            When::OnLeak => Self::OnLeak,
            When::EverySite => Self::EverySite,
        }
    }
}

/// Runs the program; the exit code is the verdict's.
pub(crate) fn run(arguments: Arguments) -> Result<u8, Failure> {
    let run = arguments
        .workload
        .judge(arguments.explain.map(Explain::from))?;
    Ok(run.verdict().class.exit_code())
}
