//! What the ledger costs the real prover: paired runs of the same work, with and
//! without a ledger, in one command.
//!
//! `overhead [PAIRS [ROUNDS]]` runs each pair back to back, in alternating order,
//! and compares CPU time, which other work on the machine disturbs less than wall
//! time. A run is a fresh process; starting up and mapping the parameters is not
//! measured.
#![deny(unsafe_code)]

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tidegate_hook::{Capacity, FD_VARIABLE, Ledger};
use tidegate_prover::{Config, Pipeline, Srs, default_params_dir};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

#[global_allocator]
static ALLOC: tidegate::Alloc = tidegate::Alloc::system();

/// Marks a process that does the work.
const WORK: &str = "work";

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        Some(WORK) => work(number(&arguments, 1, 5)),
        _ => compare(number(&arguments, 0, 12), number(&arguments, 1, 5)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overhead: {error}");
            ExitCode::FAILURE
        }
    }
}

fn number(arguments: &[String], at: usize, default: u32) -> u32 {
    arguments
        .get(at)
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

fn config() -> Config {
    Config {
        circuit_size: 2,
        partitions: 4,
        partition_workers: 2,
        ..Config::default()
    }
}

/// One run: a round to warm up, then `rounds` that count. Prints their CPU seconds.
fn work(rounds: u32) -> Result<(), Failure> {
    // Spans cost the same with and without a ledger: they are the program's own.
    let _ = tracing_subscriber::registry()
        .with(tidegate::PhaseLayer::new())
        .try_init();
    let pipeline = Pipeline::open(config(), &default_params_dir())?;
    pipeline.run_round()?;
    let begun = cpu();
    for _ in 0..rounds {
        pipeline.run_round()?;
    }
    println!("{}", (cpu() - begun).as_secs_f64());
    Ok(())
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn compare(pairs: u32, rounds: u32) -> Result<(), Failure> {
    Srs::ensure(&default_params_dir(), config().circuit_size)?;
    let mut ratios = Vec::new();
    println!("pair   without      with     ratio");
    for pair in 1..=pairs {
        let (without, with) = if pair % 2 == 0 {
            let with = metered(rounds)?;
            (unmetered(rounds)?, with)
        } else {
            (unmetered(rounds)?, metered(rounds)?)
        };
        println!(
            "{pair:>4}  {without:>6.3} s  {with:>6.3} s  {:>8.4}",
            with / without
        );
        ratios.push(with / without);
    }
    ratios.sort_by(f64::total_cmp);
    let at = |share: f64| ratios[((ratios.len() - 1) as f64 * share).round() as usize];
    println!(
        "CPU time with the ledger over without: median {:.4}, quartiles {:.4} to {:.4}, \
         {} pairs of {} rounds",
        at(0.5),
        at(0.25),
        at(0.75),
        ratios.len(),
        rounds
    );
    Ok(())
}

fn unmetered(rounds: u32) -> Result<f64, Failure> {
    run(&mut worker(rounds)?)
}

fn metered(rounds: u32) -> Result<f64, Failure> {
    let ledger = Ledger::create(Capacity::default())?;
    let inherited = rustix::io::dup(ledger.as_fd())?; // A duplicate is kept through exec.
    let mut command = worker(rounds)?;
    command.env(
        &*FD_VARIABLE.to_string_lossy(),
        inherited.as_raw_fd().to_string(),
    );
    let seconds = run(&mut command)?;
    let snapshot = ledger.snapshot();
    let booked: u64 = snapshot
        .accounts
        .iter()
        .map(|a| a.counters.allocated_blocks)
        .sum();
    if booked < 10_000 || snapshot.lost != 0 {
        return Err(format!(
            "the ledger booked {booked} blocks and lost {}",
            snapshot.lost
        )
        .into());
    }
    Ok(seconds)
}

fn worker(rounds: u32) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([WORK, &rounds.to_string()]);
    Ok(command)
}

fn run(command: &mut Command) -> Result<f64, Failure> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}
