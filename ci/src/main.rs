//! `cargo tidegate`: runs programs under the gate and judges what they keep.
//!
//! Exit codes: 0 pass · 1 tidegate itself failed · 2 usage · 3 gate failed by a
//! verdict · 4 gate failed by policy or budget · 5 inconclusive · 6 the workload
//! crashed.
#![deny(unsafe_code)]

mod ab;
mod bless;
mod diff;
mod doctor;
mod explain;
mod fresh;
mod gate;
mod init;
mod merge;
mod project;
mod replay;
mod report;
mod run;
mod signals;
mod store;
mod sweep;
mod watch;
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
    Watch(watch::Arguments),
    Explain(explain::Arguments),
    Replay(replay::Arguments),
    Ab(ab::Arguments),
    Sweep(sweep::Arguments),
    Merge(merge::Arguments),
    Doctor(doctor::Arguments),
    Diff(diff::Arguments),
    Gate(gate::Arguments),
    Bless(bless::Arguments),
    Init(init::Arguments),
    Report(report::Arguments),
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
    become_subreaper();
    let done = match arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Watch(arguments) => watch::watch(&arguments),
        Command::Replay(arguments) => replay::replay(&arguments),
        Command::Explain(arguments) => explain::explain(arguments),
        Command::Ab(arguments) => ab::ab(arguments),
        Command::Sweep(arguments) => sweep::sweep(arguments),
        Command::Merge(arguments) => merge::merge(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Diff(arguments) => diff::diff(&arguments),
        Command::Gate(arguments) => gate::gate(&arguments),
        Command::Bless(arguments) => bless::bless(&arguments),
        Command::Init(arguments) => init::init(&arguments),
        Command::Report(arguments) => report::report(&arguments),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("cargo tidegate: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// Has orphans of what is started here become our children, so that it is known how a
/// program ends that puts itself into the background. Where the kernel refuses, it is not.
fn become_subreaper() {
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}
