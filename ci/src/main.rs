//! `cargo tidegate`: runs programs under the gate and judges what they keep.
//!
//! Exit codes: 0 pass · 1 tidegate itself failed · 2 usage · 3 gate failed by a
//! verdict · 4 gate failed by policy or budget · 5 inconclusive · 6 the workload
//! crashed.
#![deny(unsafe_code)]

mod doctor;
mod explain;
mod run;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A memory-leak gate: runs work in rounds, keeps exact books, and judges them.
#[derive(Debug, Parser)]
#[command(name = "cargo-tidegate", bin_name = "cargo tidegate", version, after_help = EXIT_CODES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 pass, 1 tidegate itself failed, 2 usage, 3 gate failed by a \
    verdict, 4 gate failed by policy or budget, 5 inconclusive, 6 the workload crashed.";

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Arguments),
    Explain(explain::Arguments),
    Doctor(doctor::Arguments),
}

/// Why a command did not come to a verdict.
#[derive(Debug)]
struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn of_usage(message: impl Into<String>) -> Self {
        Self {
            code: 2,
            message: message.into(),
        }
    }

    fn of_ours(message: impl Into<String>) -> Self {
        Self {
            code: 1,
            message: message.into(),
        }
    }
}

fn main() -> ExitCode {
    // Cargo calls `cargo-tidegate tidegate …`.
    let mut words: Vec<_> = std::env::args_os().collect();
    if words.get(1).is_some_and(|word| word == "tidegate") {
        words.remove(1);
    }
    let arguments = Arguments::parse_from(words);
    let done = match arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Explain(arguments) => explain::explain(arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("cargo tidegate: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}
