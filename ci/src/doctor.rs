//! `cargo tidegate doctor`: what this machine lets tidegate measure.

use tidegate::doctor::{Check, State, examine};

use crate::Failure;

/// Says what this machine lets tidegate measure, and what to do about the rest.
///
/// Exits with 0 if all that is wanted is there, with 5 if something is missing.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn doctor(arguments: &Arguments) -> Result<u8, Failure> {
    let checks = examine();
    if arguments.json {
        let text = serde_json::to_string_pretty(&checks);
        println!(
            "{}",
            text.map_err(|error| Failure::of_ours(error.to_string()))?
        );
    } else {
        checks.iter().for_each(|check| println!("{}", line(check)));
    }
    let missing = checks.iter().any(|check| check.state == State::Missing);
    Ok(if missing { 5 } else { 0 })
}

fn line(check: &Check) -> String {
    let head = format!("{:<8} {:<24} ", check.state.name(), check.what);
    let indent = " ".repeat(head.len());
    let fill = |text: &str| {
        let options = textwrap::Options::new(80)
            .initial_indent(&indent)
            .subsequent_indent(&indent)
            .break_words(false);
        textwrap::fill(text, options)
    };
    let seen = fill(&check.seen);
    let mut text = format!("{head}{}", seen.trim_start());
    if let Some(advice) = &check.advice {
        text.push('\n');
        text.push_str(&fill(advice));
    }
    text
}
