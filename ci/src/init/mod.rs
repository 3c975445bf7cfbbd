//! `cargo tidegate init`: what a crate needs for its first test, and its first gate.
//!
//! First a [`Plan`] is made, which reads and writes nothing; it is shown; then it is
//! carried out as a whole or not at all. What exists is never overwritten.

mod apply;
mod crates;
mod plan;
mod source;

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::Failure;
use crate::store::store_json;
use crates::Package;
use plan::{Does, Plan, Step};

/// Name and version of the format of `--json`.
const SCHEMA: &str = "tidegate.init/1";
/// Lines of a file that the listing shows.
const SHOWN: usize = 40;

/// Sets a crate up: the dev-dependency, a first test, nextest's groups, a policy, a
/// workflow.
///
/// Shows what it will do, and asks before it does it where there is somebody to ask. What
/// is there stays as it is: then it says what to add by hand. All is written, or nothing.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The package, where there are several.
    #[arg(short, long, value_name = "NAME")]
    package: Option<String>,
    /// Where the crate `tidegate` comes from: a folder, or the URL of a git repository, which
    /// #COMMIT may follow; unless given, the folder that this command was built in.
    #[arg(long, value_name = "PATH|URL")]
    tidegate: Option<String>,
    /// Show what would be done, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
    /// Write what was done (or would be) here as JSON, whole or not at all.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What was done, as JSON.
#[derive(Serialize)]
struct Done<'a> {
    schema: &'static str,
    package: &'a str,
    dry_run: bool,
    steps: &'a [Step],
    next: &'a [String],
}

/// Plans, shows, asks, and does.
pub(crate) fn init(arguments: &Arguments) -> Result<u8, Failure> {
    let package = Package::find(arguments.package.as_deref())?;
    let plan = Plan::of(&package, arguments.tidegate.as_deref())?;
    print!("{}", told(&package, &plan));
    if plan.is_done() {
        println!("\nThere is nothing to do.");
    } else if arguments.dry_run {
        println!("\nNothing was written (--dry-run).");
    } else if arguments.yes || agreed()? {
        apply::apply(&plan)?;
        println!("\nDone.");
    } else {
        println!("\nNothing was written.");
        return Ok(0);
    }
    print!("{}", list("\nNext:\n", &plan.next));
    if let Some(path) = &arguments.json {
        let done = Done {
            schema: SCHEMA,
            package: &package.name,
            dry_run: arguments.dry_run,
            steps: &plan.steps,
            next: &plan.next,
        };
        store_json(path, &done)?;
    }
    Ok(0)
}

/// The plan in words, as a diff shows it.
fn told(package: &Package, plan: &Plan) -> String {
    let mut out = format!(
        "package `{}` in {}\n",
        package.name,
        package.folder.display()
    );
    for step in &plan.steps {
        let file = package.shown(&step.file);
        let head = match step.does {
            Does::Create => format!("\n  create  {file}\n"),
            Does::Add => format!("\n  add to  {file}\n"),
            Does::Leave => format!("\n  leave   {file}: {}\n", step.why),
        };
        out.push_str(&head);
        let mark = match step.does {
            Does::Leave => "  by hand |",
            _ => "          +",
        };
        let lines: Vec<&str> = step.lines.lines().collect();
        for line in lines.iter().take(SHOWN) {
            out.push_str(format!("{mark} {line}").trim_end());
            out.push('\n');
        }
        if lines.len() > SHOWN {
            out.push_str(&format!("          ({} lines more)\n", lines.len() - SHOWN));
        }
    }
    out
}

/// A list, each entry wrapped to a terminal's width.
fn list(head: &str, entries: &[String]) -> String {
    let options = textwrap::Options::new(80)
        .initial_indent("  - ")
        .subsequent_indent("    ")
        .break_words(false);
    let entries = entries
        .iter()
        .map(|entry| textwrap::fill(entry, &options) + "\n");
    match entries.len() {
        0 => String::new(),
        _ => head.to_owned() + &entries.collect::<String>(),
    }
}

/// Whether the person at the terminal agrees; without one, nobody is asked.
fn agreed() -> Result<bool, Failure> {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        return Ok(true);
    }
    let ask = || -> io::Result<String> {
        print!("\nDo this? [y/N] ");
        io::stdout().flush()?;
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line)?;
        Ok(line)
    };
    let answer = ask().map_err(|error| Failure::of_ours(format!("failed to ask: {error}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
