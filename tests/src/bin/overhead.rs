//! What the ledger costs the real prover: paired runs of the same work, with and
//! without a ledger, in one command.
//!
//! `overhead [PAIRS [ROUNDS]]` runs each pair back to back, in alternating order,
//! and compares CPU time, which other work on the machine disturbs less than wall
//! time, and that too. A run is a fresh process; starting up and mapping the
//! parameters is not measured. Built with the feature `cuda` it proves on the card,
//! and the ledger of the GPU is kept as well, but for `overhead PAIRS ROUNDS heap`.
#![deny(unsafe_code)]

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tidegate_hook::{Capacity, FD_VARIABLE, HookLayer, Ledger};
use tidegate_prover::{Config, Pipeline, Srs, default_params_dir};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

#[global_allocator]
static ALLOC: tidegate::Alloc = tidegate::Alloc::system();

/// Marks a process that does the work.
const WORK: &str = "work";
/// The ledger of the heap alone.
const HEAP: &str = "heap";

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        Some(WORK) => work(number(&arguments, 1, 5), keeps_gpu(&arguments)),
        _ => compare(
            number(&arguments, 0, 12),
            number(&arguments, 1, 5),
            keeps_gpu(&arguments),
        ),
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

/// Whether the ledger of the GPU is kept.
fn keeps_gpu(arguments: &[String]) -> bool {
    cfg!(feature = "cuda") && !arguments.iter().any(|argument| argument == HEAP)
}

fn config() -> Config {
    Config {
        circuit_size: if cfg!(feature = "cuda") { 32 } else { 2 },
        partitions: 4,
        partition_workers: 2,
        ..Config::default()
    }
}

/// One run: a round to warm up, then `rounds` that count. Prints their CPU seconds, and
/// those on the clock.
#[cfg_attr(not(feature = "cuda"), expect(unused_variables))]
fn work(rounds: u32, keeps_gpu: bool) -> Result<(), Failure> {
    // Spans cost the same with and without a ledger: they are the program's own.
    let _ = tracing_subscriber::registry()
        .with(tidegate::PhaseLayer::new())
        .try_init();
    #[cfg(feature = "cuda")]
    if keeps_gpu {
        tidegate_hook::gpu::attach();
    }
    let pipeline = Pipeline::open(config(), &default_params_dir())?;
    pipeline.run_round()?;
    let (begun, clock) = (cpu(), Instant::now());
    for _ in 0..rounds {
        pipeline.run_round()?;
    }
    let (cpu, wall) = (cpu() - begun, clock.elapsed());
    println!("{} {}", cpu.as_secs_f64(), wall.as_secs_f64());
    Ok(())
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Seconds that the rounds of one run took.
#[derive(Clone, Copy)]
struct Cost {
    cpu: f64,
    wall: f64,
}

fn compare(pairs: u32, rounds: u32, keeps_gpu: bool) -> Result<(), Failure> {
    Srs::ensure(&default_params_dir(), config().circuit_size)?;
    let (mut cpu, mut wall) = (Vec::new(), Vec::new());
    println!("pair   without      with     ratio, of CPU time; on the clock");
    for pair in 1..=pairs {
        let (without, with) = if pair % 2 == 0 {
            let with = metered(rounds, keeps_gpu)?;
            (unmetered(rounds)?, with)
        } else {
            (unmetered(rounds)?, metered(rounds, keeps_gpu)?)
        };
        cpu.push(with.cpu / without.cpu);
        wall.push(with.wall / without.wall);
        println!(
            "{pair:>4}  {:>6.3} s  {:>6.3} s  {:>8.4}  {:>8.4}",
            without.cpu,
            with.cpu,
            with.cpu / without.cpu,
            with.wall / without.wall
        );
    }
    let runs = format!("{pairs} pairs of {rounds} rounds");
    println!(
        "CPU time with the ledger over without: {}, {runs}",
        spread(cpu)
    );
    println!("on the clock: {}", spread(wall));
    Ok(())
}

fn spread(mut ratios: Vec<f64>) -> String {
    ratios.sort_by(f64::total_cmp);
    let at = |share: f64| ratios[((ratios.len() - 1) as f64 * share).round() as usize];
    format!(
        "median {:.4}, quartiles {:.4} to {:.4}",
        at(0.5),
        at(0.25),
        at(0.75)
    )
}

fn unmetered(rounds: u32) -> Result<Cost, Failure> {
    run(&mut worker(rounds)?)
}

fn metered(rounds: u32, keeps_gpu: bool) -> Result<Cost, Failure> {
    let ledger = Ledger::create(Capacity::default())?;
    let inherited = rustix::io::dup(ledger.as_fd())?; // A duplicate is kept through exec.
    let mut command = worker(rounds)?;
    if !keeps_gpu {
        command.arg(HEAP);
    }
    command.env(
        &*FD_VARIABLE.to_string_lossy(),
        inherited.as_raw_fd().to_string(),
    );
    let cost = run(&mut command)?;
    let snapshot = ledger.snapshot();
    let booked = |layer: fn(HookLayer) -> bool| -> u64 {
        let accounts = snapshot.accounts.iter().filter(|a| layer(a.layer));
        accounts.map(|a| a.counters.allocated_blocks).sum()
    };
    let on_the_card = booked(|layer| layer == HookLayer::Device);
    if booked(|_| true) < 10_000 || snapshot.lost != 0 || (keeps_gpu && on_the_card == 0) {
        return Err(format!(
            "the ledger booked {} blocks, {on_the_card} of them on the card, and lost {}",
            booked(|_| true),
            snapshot.lost
        )
        .into());
    }
    Ok(cost)
}

fn worker(rounds: u32) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([WORK, &rounds.to_string()]);
    Ok(command)
}

fn run(command: &mut Command) -> Result<Cost, Failure> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let text = String::from_utf8(output.stdout)?;
    let (cpu, wall) = text.trim().split_once(' ').ok_or("no figures came back")?;
    Ok(Cost {
        cpu: cpu.parse()?,
        wall: wall.parse()?,
    })
}
