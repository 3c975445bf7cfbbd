//! The real prover on a real card, under the ledgers of the heap and of the GPU.
//!
//! Without a card these tests fail: what was not run has not passed.

use serial_test::file_serial;
use tidegate::books::{Amount, Layer};
use tidegate::{Run, Scenario};
use tidegate_prover::{Api, Config, Defect, DefectKind};
use tidegate_tests::{expected_per_item, run_prover};

#[global_allocator]
static ALLOC: tidegate::Alloc = tidegate::Alloc::system();

/// Large enough that the card has work: 2^14 constraints or so.
const LARGE: usize = 32;

fn healthy(api: Api) -> Config {
    Config {
        api,
        circuit_size: LARGE,
        partitions: 4,
        partition_workers: 2,
        proving_workers: 2,
        ..Config::default()
    }
}

fn on_the_card(scenario: Scenario, config: Config) -> Run {
    assert!(
        std::path::Path::new("/dev/nvidiactl").exists(),
        "not run: no GPU"
    );
    let run = run_prover(scenario, config);
    println!("{run}");
    // Whoever proves on the CPU instead has shown nothing.
    let proved_there = traffic(&run, Layer::Device);
    assert!(proved_there.0.blocks > 0, "nothing was on the card: {run}");
    run
}

/// Allocated and released in the measured rounds.
fn traffic(run: &Run, layer: Layer) -> (Amount, Amount) {
    let phases = run.books().phases.iter();
    let of_layer = phases.filter(|phase| phase.layer == layer);
    of_layer.fold((Amount::ZERO, Amount::ZERO), |(a, r), phase| {
        (a + phase.allocated, r + phase.released)
    })
}

fn expect_healthy(name: &str, api: Api, rounds: u32) {
    let scenario = Scenario::new(name).rounds(rounds);
    let run = on_the_card(scenario, healthy(api));
    run.assert_passes();
    for layer in [Layer::Device, Layer::GpuStreams, Layer::GpuModules] {
        let (allocated, released) = traffic(&run, layer);
        assert!(!allocated.is_zero(), "no {layer}: {run}");
        assert_eq!(allocated, released, "{layer}: {run}");
    }
    assert!(run.books().refusals.is_empty(), "{run}");
}

#[test]
#[file_serial(gpu)]
fn a_healthy_split_prover_passes_on_the_card_at_8_rounds() {
    expect_healthy("split on the card, 8 rounds", Api::Split, 8);
}

#[test]
#[file_serial(gpu)]
fn a_healthy_split_prover_passes_on_the_card_at_60_rounds() {
    expect_healthy("split on the card, 60 rounds", Api::Split, 60);
}

#[test]
#[file_serial(gpu)]
fn a_healthy_sync_prover_passes_on_the_card_at_8_rounds() {
    expect_healthy("sync on the card, 8 rounds", Api::Sync, 8);
}

#[test]
#[file_serial(gpu)]
fn a_healthy_sync_prover_passes_on_the_card_at_60_rounds() {
    expect_healthy("sync on the card, 60 rounds", Api::Sync, 60);
}

fn expect_planted(kind: DefectKind, every: usize) {
    let config = Config {
        defect: Some(Defect::new(kind, every)),
        ..healthy(Api::Split)
    };
    let scenario = Scenario::new(format!("{kind:?} on the card"));
    let run = on_the_card(scenario, config);
    run.assert_class(tidegate::Class::Leak);
    let findings = run.verdict().findings.iter();
    let mut found: Vec<_> = findings
        .map(|finding| {
            let each = finding.per_item.and_then(|items| items.each);
            let each = each.unwrap_or_else(|| panic!("uneven: {finding:?}\n{run}"));
            (finding.layer, finding.phase.as_str(), each)
        })
        .collect();
    found.sort();
    assert_eq!(found, expected_per_item(&config), "{run}");
}

#[test]
#[file_serial(gpu)]
fn a_pending_proof_that_is_forgotten_is_a_leak_to_the_byte_on_the_card_too() {
    expect_planted(DefectKind::ForgetPending, 2);
}

#[test]
#[file_serial(gpu)]
fn an_error_path_that_skips_the_finish_is_a_leak_on_the_card_too() {
    expect_planted(DefectKind::SkipFinish, 2);
}

#[test]
#[file_serial(gpu)]
fn aux_kept_in_a_static_is_a_leak_on_the_card_too() {
    expect_planted(DefectKind::AuxInStatic, 1);
}

#[test]
#[file_serial(gpu)]
fn a_lost_c_block_is_a_leak_on_the_card_too() {
    expect_planted(DefectKind::LostMalloc, 1);
}

#[test]
#[file_serial(gpu)]
fn scratch_that_is_never_freed_is_a_leak_on_the_card_too() {
    expect_planted(DefectKind::LostScratch, 1);
}
