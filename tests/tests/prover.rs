//! The main job: a real Groth16 prover under the gate, healthy and with planted defects.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use serial_test::file_serial;
use tidegate::books::{Amount, Ending, Layer};
use tidegate::{Class, Run, Scenario};
use tidegate_prover::{Api, Config, Dealloc, Defect, DefectKind, Observer, Permit, Shape};
use tidegate_tests::{expected_per_item, run_prover, run_prover_observed};

#[global_allocator]
static ALLOC: tidegate::Alloc = tidegate::Alloc::system();

/// A small circuit: some 20 ms a partition on two cores.
const SMALL: usize = 1;

fn healthy(api: Api, partition_workers: usize) -> Config {
    Config {
        api,
        circuit_size: SMALL,
        partitions: 4,
        partition_workers,
        channel_capacity: partition_workers,
        ..Config::default()
    }
}

fn expect_healthy(name: &str, config: Config) {
    let run = run_prover(Scenario::new(name), config);
    run.assert_passes().assert_releases_match();
    let rounds = &run.books().rounds;
    assert!(rounds.iter().all(|round| round.failed.is_none()), "{run}");
}

#[test]
#[file_serial(resident)]
fn a_healthy_sync_prover_with_1_worker_passes() {
    expect_healthy("sync, 1 worker", healthy(Api::Sync, 1));
}

#[test]
#[file_serial(resident)]
fn a_healthy_sync_prover_with_2_workers_passes() {
    expect_healthy("sync, 2 workers", healthy(Api::Sync, 2));
}

#[test]
#[file_serial(resident)]
fn a_healthy_sync_prover_with_4_workers_passes() {
    expect_healthy("sync, 4 workers", healthy(Api::Sync, 4));
}

#[test]
#[file_serial(resident)]
fn a_healthy_split_prover_with_1_worker_passes() {
    expect_healthy("split, 1 worker", healthy(Api::Split, 1));
}

#[test]
#[file_serial(resident)]
fn a_healthy_split_prover_with_2_workers_passes() {
    expect_healthy("split, 2 workers", healthy(Api::Split, 2));
}

#[test]
#[file_serial(resident)]
fn a_healthy_split_prover_with_4_workers_passes() {
    expect_healthy("split, 4 workers", healthy(Api::Split, 4));
}

#[test]
#[file_serial(resident)]
fn a_healthy_split_prover_that_frees_inline_and_late_passes() {
    let config = Config {
        early_free: false,
        dealloc: Dealloc::Inline,
        ..healthy(Api::Split, 2)
    };
    expect_healthy("split, inline, no early free", config);
}

/// A defect must be found in its layer and phase, with exactly the bytes and blocks
/// per partition that the circuit's shape says, for exactly the partitions that it
/// strikes, and nowhere else.
fn expect_planted(name: &str, config: Config) -> Run {
    let run = run_prover(Scenario::new(name), config);
    run.assert_class(Class::Leak);
    let mut found: Vec<(Layer, &str, Amount)> = Vec::new();
    for finding in &run.verdict().findings {
        let items = finding
            .per_item
            .unwrap_or_else(|| panic!("no items in {finding:?}\n{run}"));
        let each = items
            .each
            .unwrap_or_else(|| panic!("uneven: {finding:?}\n{run}"));
        let struck = config
            .defect
            .map_or(0, |defect| items.items / defect.every as u64);
        assert_eq!(items.losing, struck, "{run}");
        found.push((finding.layer, &finding.phase, each));
    }
    found.sort();
    assert_eq!(found, expected_per_item(&config), "{run}");
    run
}

fn planted(kind: DefectKind, every: usize) -> Config {
    Config {
        defect: Some(Defect::new(kind, every)),
        ..healthy(Api::Split, 2)
    }
}

#[test]
#[file_serial(resident)]
fn a_pending_proof_forgotten_on_every_2nd_partition_is_a_leak_to_the_byte() {
    expect_planted(
        "forgotten pending proof",
        planted(DefectKind::ForgetPending, 2),
    );
}

#[test]
#[file_serial(resident)]
fn a_pending_proof_forgotten_before_early_free_keeps_a_b_and_c_too() {
    let config = Config {
        early_free: false,
        ..planted(DefectKind::ForgetPending, 4)
    };
    expect_planted("forgotten pending proof with a, b, c", config);
}

#[test]
#[file_serial(resident)]
fn a_prove_finish_skipped_on_an_error_path_is_a_leak_to_the_byte() {
    expect_planted("skipped prove_finish", planted(DefectKind::SkipFinish, 2));
}

#[test]
#[file_serial(resident)]
fn an_aux_assignment_kept_in_a_static_is_a_leak_to_the_byte() {
    expect_planted("aux in a static", planted(DefectKind::AuxInStatic, 1));
}

#[test]
#[file_serial(resident)]
fn an_aux_assignment_kept_by_the_sync_api_is_a_leak_to_the_byte() {
    let config = Config {
        api: Api::Sync,
        ..planted(DefectKind::AuxInStatic, 2)
    };
    expect_planted("aux in a static, sync", config);
}

#[test]
#[file_serial(resident)]
fn a_c_block_of_96_bytes_lost_per_partition_is_a_leak_within_8_rounds() {
    let run = expect_planted("lost c block", planted(DefectKind::LostMalloc, 1));
    assert_eq!(
        run.verdict().findings[0].per_driver,
        Some(Amount::new(96 * 4, 4)),
        "{run}"
    );
    assert!(run.books().rounds.len() <= 2 + 8, "{run}");
}

#[test]
#[file_serial(resident)]
fn a_cpp_scratch_that_is_never_freed_is_a_leak_to_the_byte() {
    let run = expect_planted("lost scratch", planted(DefectKind::LostScratch, 2));
    // And the explanation names the three lines of C++ that allocate it.
    let explanation = run.explanation().unwrap_or_else(|| panic!("{run}"));
    let mut lines = Vec::new();
    for site in &explanation.sites {
        let line = site.line().unwrap_or_else(|| panic!("{site:#?}"));
        assert_eq!(line.function, "tidegate_prover_scratch_new", "{run}");
        let file = line.file.as_deref().unwrap_or_default();
        assert!(file.ends_with("fixtures/prover/cpp/finaliser.cpp"), "{run}");
        lines.push(line.source.clone().unwrap_or_default());
    }
    lines.sort();
    assert_eq!(
        lines,
        [
            "auto *scratch = new Scratch;",
            "scratch->lanes.assign(lanes, 0);",
            "scratch->wire.assign(bytes, bytes + size);"
        ],
        "{run}"
    );
}

/// The reading of the code that this project began with, as a test: every partition
/// of a split prover with detached freeing gives each of its blocks back, those of
/// Rust and those of C++.
#[test]
#[file_serial(resident)]
fn two_hundred_partitions_make_two_hundred_matching_releases() {
    let config = Config {
        partitions: 200,
        partition_workers: 4,
        ..healthy(Api::Split, 4)
    };
    let run = run_prover(Scenario::new("200 partitions").warmup(0).rounds(1), config);
    run.assert_releases_match();
    let scratch: Vec<_> = run
        .books()
        .items
        .iter()
        .filter(|item| item.round == 1 && item.phase == "finish" && item.layer == Layer::NativeHeap)
        .collect();
    assert_eq!(scratch.len(), 200, "{run}");
    for partition in scratch {
        assert_eq!(partition.allocated, partition.released, "{partition:?}");
        assert!(partition.allocated.blocks >= 3, "{partition:?}");
    }
}

#[test]
#[file_serial(resident)]
fn releases_that_do_not_match_are_named_by_partition_and_phase() {
    let run = run_prover(
        Scenario::new("mismatch by partition"),
        planted(DefectKind::AuxInStatic, 4),
    );
    let mismatches = tidegate::verdict::unmatched_releases(run.books());
    let aux = expected_per_item(&planted(DefectKind::AuxInStatic, 4))[0].2;
    assert!(!mismatches.is_empty(), "{run}");
    for mismatch in &mismatches {
        assert_eq!(
            (mismatch.item, mismatch.phase.as_str()),
            (3, "synthesis"),
            "{mismatch}"
        );
        assert_eq!(mismatch.missing, aux, "{mismatch}");
    }
}

/// A proving stage slower than synthesis, as in the incident that this project
/// began with.
fn slow_proving(permit: Permit) -> Config {
    Config {
        permit,
        partitions: 12,
        early_free: false,
        proving_delay_ms: 60,
        ..healthy(Api::Split, 2)
    }
}

#[test]
#[file_serial(resident)]
fn a_permit_released_before_the_send_is_a_backlog() {
    let config = slow_proving(Permit::ReleasedBeforeSend);
    let run = run_prover(
        Scenario::new("permit released before send").rounds(4),
        config,
    );
    run.assert_class(Class::Backlog);
}

#[test]
#[file_serial(resident)]
fn a_permit_held_through_the_send_is_no_backlog() {
    let config = slow_proving(Permit::HeldThroughSend);
    let run = run_prover(Scenario::new("permit held through send").rounds(4), config);
    run.assert_passes();
}

#[test]
#[file_serial(resident)]
fn a_prover_over_its_limit_is_a_ceiling() {
    let config = Config {
        circuit_size: 8,
        partition_workers: 4,
        ..healthy(Api::Split, 4)
    };
    let free = run_prover(Scenario::new("no limit").rounds(4), config);
    free.assert_passes();
    let peak = free
        .books()
        .rounds
        .iter()
        .filter_map(|round| round.gauges)
        .map(|g| g.rss_peak)
        .max();
    let limit = peak.unwrap() / 3;
    let run = run_prover(
        Scenario::new("a third of the peak")
            .rounds(4)
            .memory_limit(limit),
        config,
    );
    run.assert_class(Class::Ceiling);
}

/// Kills its own process when so many partitions have been handed over.
struct KillAfter {
    left: AtomicU32,
}

impl Observer for KillAfter {
    fn consumed(&self, _partition: usize) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            // SAFETY: kill of this very process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    }
}

#[test]
#[file_serial(resident)]
fn a_prover_killed_half_way_is_a_crash_with_its_books_and_samples() {
    // In the middle of the sixth round of four partitions.
    let kill = KillAfter {
        left: AtomicU32::new(22),
    };
    let config = healthy(Api::Split, 2);
    let run = run_prover_observed(Scenario::new("killed half-way"), config, kill);
    run.assert_class(Class::Crash);
    assert_eq!(
        run.books().ending,
        Ending::Signal {
            signal: libc::SIGKILL
        }
    );

    let books = run.books();
    assert_eq!(books.rounds.len(), 5, "{run}");
    let synthesised: BTreeSet<u32> = books
        .items
        .iter()
        .filter(|item| item.round == 6 && item.phase == "synthesis")
        .map(|item| item.item)
        .collect();
    assert!(
        synthesised.is_superset(&BTreeSet::from([0, 1])),
        "{synthesised:?}\n{run}"
    );
    let aux = (Shape::of(&config).aux * 32) as i64;
    let in_flight: i64 = books
        .survivors
        .iter()
        .filter(|left| left.round == 6)
        .map(|left| left.left.bytes)
        .sum();
    assert!(
        in_flight >= aux,
        "{in_flight} bytes of the round that was killed\n{run}"
    );

    let again = Run::read(run.folder()).unwrap();
    assert_eq!(again.books(), books);
    let (samples, torn) = tidegate::read_samples(run.folder()).unwrap();
    assert!(!torn);
    assert_eq!(
        samples.last().unwrap().round,
        6,
        "the samples go on to the end"
    );
}
