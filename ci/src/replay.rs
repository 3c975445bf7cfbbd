//! `cargo tidegate replay`: stored books, judged with today's engine.

use std::path::PathBuf;

use tidegate::Run;

use crate::Failure;
use crate::store::store_json;

/// Judges the stored books of a run again, with the engine of this version: says what it
/// finds today, and whether it found the same then.
///
/// Exits as the command that made the run would. A run that was broken off has no books
/// and is refused.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The run's folder, or its run.json.
    run: PathBuf,
    /// Write the run with its new verdict here as JSON, whole or not at all.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn replay(arguments: &Arguments) -> Result<u8, Failure> {
    let then = Run::read(&arguments.run).map_err(|error| Failure::of_usage(error.chain()))?;
    let now = then.judged_again();
    print!("{now}");
    let (was, is) = (then.verdict(), now.verdict());
    let same = (was.class, &was.sentence) == (is.class, &is.sentence);
    println!(
        "\nJudged then, by tidegate {}: {}",
        then.tidegate,
        match same {
            true => "the same".to_owned(),
            false => format!("{}: {}", was.class, was.sentence),
        }
    );
    if let Some(path) = &arguments.json {
        store_json(path, &now)?;
    }
    Ok(is.class.exit_code())
}
