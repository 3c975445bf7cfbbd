//! `cargo tidegate watch`: the gauges of a process that is running already.

use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use tidegate::{Reading, Watching};

use crate::store::store_json;
use crate::workload::interval;
use crate::{Failure, signals};

/// Watches a running process and its descendants from outside, and judges at its end (or
/// yours: Ctrl-C) whether something grows.
///
/// Gauges cannot tell what is needed from what is kept: growth is `unexplained-growth`
/// (exit code 3), and where nothing grows the verdict is `inconclusive` (5), for a leak
/// need not show in them. `cargo tidegate run` keeps a ledger, which knows.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The process.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pid: i32,
    /// Time between two readings.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    every: Duration,
    /// Stop watching after so long, such as 10m.
    #[arg(long = "for", value_name = "TIME", value_parser = interval)]
    for_time: Option<Duration>,
    /// Write what was read here as JSON, whole or not at all.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn watch(arguments: &Arguments) -> Result<u8, Failure> {
    let asked_to_end = signals::asked_to_end()?;
    let mut watching = Watching::begin(arguments.pid, arguments.every).map_err(|error| {
        Failure::of_usage(format!(
            "cannot watch the process {}: {error}",
            arguments.pid
        ))
    })?;
    let begun = Instant::now();
    let mut due = begun;
    let mut out = std::io::stdout();
    if out.is_terminal() {
        println!("     time         anon         file        shmem  threads    fds     cpu");
    }
    let mut before: Option<Reading> = None;
    while let Some(reading) = watching.read() {
        // Nobody may be there to read it.
        let _ = writeln!(out, "{}", line(&reading, before.as_ref()));
        before = Some(reading);
        due += arguments.every;
        let over = || {
            asked_to_end.load(Ordering::Relaxed)
                || arguments
                    .for_time
                    .is_some_and(|most| begun.elapsed() >= most)
        };
        while Instant::now() < due && !over() {
            let wait = due.saturating_duration_since(Instant::now());
            std::thread::sleep(wait.min(Duration::from_millis(50)));
        }
        if over() {
            break;
        }
    }
    let run = watching.finish();
    print!("\n{run}");
    if let Some(path) = &arguments.json {
        store_json(path, &run)?;
    }
    Ok(run.verdict().class.exit_code())
}

/// One reading in 80 columns.
fn line(reading: &Reading, before: Option<&Reading>) -> String {
    let gauges = &reading.gauges;
    let size = |bytes: u64| ByteSize::b(bytes).display().iec().to_string();
    let cpu = before.map_or(0.0, |before| {
        let spent = gauges.cpu_ms.saturating_sub(before.gauges.cpu_ms) as f64;
        let passed = (reading.at - before.at).as_secs_f64() * 1000.0;
        100.0 * spent / passed.max(1.0)
    });
    format!(
        "{:>8.1}s {:>12} {:>12} {:>12} {:>8} {:>6} {:>6.0}%",
        reading.at.as_secs_f64(),
        size(gauges.rss_anon),
        size(gauges.rss_file),
        size(gauges.rss_shmem),
        gauges.threads,
        gauges.fds,
        cpu,
    )
}
