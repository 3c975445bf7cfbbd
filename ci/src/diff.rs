//! `cargo tidegate diff`: what changed from one profile to another.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tidegate::diff::{Options, compare};
use tidegate::profile::Metric;

use crate::Failure;

/// Says what changed in what a program allocates: by phase and site, the biggest first.
///
/// OLD and NEW are profiles, baselines, runs (their folders, or run.json), or files in
/// DHAT's format, from dhat-rs, Valgrind or `explain`. With several OLD runs it is known
/// what varies by itself, and that is no change. Exits with 0 whatever changed: `gate` is
/// what fails.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// What was before, one or several, and then what is now.
    #[arg(required = true, num_args = 2.., value_names = ["OLD", "NEW"])]
    paths: Vec<PathBuf>,
    /// As Markdown.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// Sites to show.
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// What the biggest change is of; any amount of bytes unless given.
    #[arg(long, value_name = "WHAT")]
    by: Option<By>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    Blocks,
    Bytes,
    LeftBlocks,
    LeftBytes,
    Peak,
    AtPeak,
    Dwell,
}

impl From<By> for Metric {
    fn from(by: By) -> Self {
        match by {
            By::Blocks => Self::Blocks,
            By::Bytes => Self::Bytes,
            By::LeftBlocks => Self::LeftBlocks,
            By::LeftBytes => Self::LeftBytes,
            By::Peak => Self::Peak,
            By::AtPeak => Self::AtPeak,
            By::Dwell => Self::Dwell,
        }
    }
}

/// Prints what changed.
pub(crate) fn diff(arguments: &Arguments) -> Result<u8, Failure> {
    let Some((new, old)) = arguments.paths.split_last() else {
        return Err(Failure::of_usage("there is nothing to compare"));
    };
    let options = Options {
        top: arguments.top,
        by: arguments.by.map(Metric::from),
    };
    // Whatever is wrong is wrong with what was given.
    let diff = compare(old, new, &options).map_err(|error| Failure::of_usage(error.chain()))?;
    if arguments.json {
        let text = serde_json::to_string_pretty(&diff);
        println!(
            "{}",
            text.map_err(|error| Failure::of_ours(error.to_string()))?
        );
    } else if arguments.markdown {
        print!("{}", diff.markdown());
    } else {
        print!("{}", diff.terminal());
    }
    Ok(0)
}
