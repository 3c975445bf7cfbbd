//! What `ci/gate` runs: the healthy split prover and one with a planted leak, both
//! judged, and whether the gate judged right.
#![deny(unsafe_code)]

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
