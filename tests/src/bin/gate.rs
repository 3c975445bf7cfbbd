//! What `ci/gate` runs: the healthy split prover and one with a planted leak, both
//! judged, and whether the gate judged right.
//!
//! `gate --healthy N` instead runs the healthy split prover N times in a row, with
//! 8 rounds and 4 workers, and counts how often it passes.
#![deny(unsafe_code)]

use std::collections::BTreeMap;
use std::process::ExitCode;

use tidegate::{Class, Run, Scenario};
use tidegate_prover::{Api, Config, Defect, DefectKind};
use tidegate_tests::{expected_per_item, run_prover};

#[global_allocator]
static ALLOC: tidegate::Alloc = tidegate::Alloc::system();

fn main() -> ExitCode {
    let healthy = Config {
        api: Api::Split,
        circuit_size: 1,
        partitions: 4,
        partition_workers: 2,
        ..Config::default()
    };
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => judge_both(healthy),
        ["--healthy", times] => match times.parse() {
            Ok(times) => judge_often(
                Config {
                    partition_workers: 4,
                    ..healthy
                },
                times,
            ),
            Err(_) => usage(),
        },
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: gate [--healthy TIMES]");
    ExitCode::from(2)
}

/// Judges the healthy prover so many times in a row.
fn judge_often(healthy: Config, times: u32) -> ExitCode {
    let mut passes = 0;
    let mut classes = BTreeMap::<&str, u32>::new();
    for time in 1..=times {
        // A name for each, because a scenario's name is what the child goes by.
        let run = run_prover(
            Scenario::new(format!("healthy split prover, run {time}")),
            healthy,
        );
        passes += u32::from(run.verdict().class.passes());
        *classes.entry(run.verdict().class.name()).or_default() += 1;
        println!(
            "{time:>3}  {:<12}  {}",
            run.verdict().class,
            run.verdict().sentence
        );
    }
    println!("{passes} of {times} runs pass: {classes:?}");
    if passes == times {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn judge_both(healthy: Config) -> ExitCode {
    let run = run_prover(Scenario::new("healthy split prover"), healthy);
    let passes = run.verdict().class.passes();
    show(
        &run,
        "It gives back what it takes: a gate lets this change through.",
        passes,
    );

    let leaking = Config {
        defect: Some(Defect::new(DefectKind::LostMalloc, 1)),
        ..healthy
    };
    let run = run_prover(Scenario::new("prover that loses a C block"), leaking);
    let expected = expected_per_item(&leaking);
    let found: Vec<_> = run
        .verdict()
        .findings
        .iter()
        .filter_map(|finding| {
            let each = finding.per_item.and_then(|items| items.each)?;
            Some((finding.layer, finding.phase.as_str(), each))
        })
        .collect();
    let is_found = run.verdict().class == Class::Leak && found == expected;
    show(
        &run,
        "One C block of 96 bytes was planted in each partition: a gate stops this change.",
        is_found,
    );

    if passes && is_found {
        println!("The gate judged both right.");
        ExitCode::SUCCESS
    } else {
        println!("The gate judged WRONG: please report this with the folders named above.");
        ExitCode::FAILURE
    }
}

fn show(run: &Run, meaning: &str, right: bool) {
    println!("{run}");
    println!("  What it means: {meaning}");
    println!(
        "  The gate was {}.\n",
        if right { "right" } else { "WRONG" }
    );
}
