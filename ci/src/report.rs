//! `cargo tidegate report`: one HTML file that shows what was measured.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tidegate::html::{Entry, Page};

use crate::Failure;
use crate::project::bad_input;
use crate::store::{store, store_json};

/// Name and version of the format of what `--json` writes.
const SCHEMA: &str = "tidegate.page/1";

/// Writes one HTML file that shows runs, comparisons and sweeps: the verdict with its
/// evidence, memory over time, survivors by round and line, the peak taken apart. It needs
/// no network and no other file.
///
/// Exits with 0 whatever the verdicts are: `gate` is what fails.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Runs (their folders, or run.json), and what `ab --json` and `sweep --json` wrote.
    #[arg(required = true, value_name = "RUN")]
    inputs: Vec<PathBuf>,
    /// Write the page here, whole or not at all.
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
    /// Write what the page says here as JSON, whole or not at all.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What was written, as `--json` writes it.
#[derive(Debug, Serialize)]
struct Written<'a> {
    schema: &'static str,
    tidegate: &'static str,
    /// The page.
    page: &'a PathBuf,
    /// Its size.
    bytes: usize,
    /// What it says of each input, in their order.
    entries: &'a [Entry],
}

pub(crate) fn report(arguments: &Arguments) -> Result<u8, Failure> {
    let page = Page::read(&arguments.inputs).map_err(bad_input)?;
    let html = page.html();
    store(&arguments.out, html.as_bytes())?;
    let entries = page.entries();
    for entry in &entries {
        println!("{}", textwrap::fill(&entry.line(), 80));
    }
    println!(
        "\n{}: {} KiB, to be opened in a browser",
        arguments.out.display(),
        html.len().div_ceil(1024)
    );
    if let Some(path) = &arguments.json {
        let written = Written {
            schema: SCHEMA,
            tidegate: env!("CARGO_PKG_VERSION"),
            page: &arguments.out,
            bytes: html.len(),
            entries: &entries,
        };
        store_json(path, &written)?;
    }
    Ok(0)
}
