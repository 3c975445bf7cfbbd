//! The second book: dhat counts the Rust heap too, and both must agree, block for
//! block. And the prover's allocation profile by phase, as a snapshot.

use std::fmt::Write as _;
use std::path::Path;

use insta::{Comparator, Snapshot};
use serial_test::file_serial;
use tidegate::books::{Amount, Layer};
use tidegate::{Round, Run, Scenario};
use tidegate_prover::{Api, Config, Dealloc, synthesize};
use tidegate_tests::run_prover;

#[global_allocator]
static ALLOC: tidegate::Alloc<dhat::Alloc> = tidegate::Alloc::new(dhat::Alloc);

/// What dhat counted, and what it says is alive.
fn dhat_now() -> [(&'static str, u64); 4] {
    let stats = dhat::HeapStats::get();
    [
        ("total_blocks", stats.total_blocks),
        ("total_bytes", stats.total_bytes),
        ("curr_blocks", stats.curr_blocks as u64),
        ("curr_bytes", stats.curr_bytes as u64),
    ]
}

/// Does `work` in a phase and prints what dhat counted meanwhile, for the
/// supervising side to compare with the ledger's book of that phase.
fn counted(round: &Round, phase: &'static str, work: impl FnOnce()) {
    // The guards first: the harness's own memory is the meter's, which dhat cannot know.
    let guards = (tidegate::phase(phase), tidegate::item(0));
    let before = dhat_now();
    work();
    let after = dhat_now();
    drop(guards);
    let mut line = format!("dhat {} {phase}", round.number());
    for ((_, before), (_, after)) in before.iter().zip(&after) {
        let _ = write!(line, " {}", after.wrapping_sub(*before) as i64);
    }
    println!("{line}");
}

/// The lines that [`counted`] printed: round, phase, then blocks and bytes in
/// total and in change.
fn dhat_lines(folder: &Path) -> Vec<(u32, String, Amount, Amount)> {
    let text = std::fs::read_to_string(folder.join("stdout.log")).unwrap();
    let parse = |line: &str| {
        let words: Vec<&str> = line.strip_prefix("dhat ")?.split(' ').collect();
        let number = |at: usize| words[at].parse::<i64>().unwrap();
        Some((
            words[0].parse().unwrap(),
            words[1].to_owned(),
            Amount::new(number(3), number(2)),
            Amount::new(number(5), number(4)),
        ))
    };
    text.lines().filter_map(parse).collect()
}

#[test]
#[file_serial(resident)]
fn dhat_and_the_ledger_count_the_same_blocks_and_bytes() {
    let mut profiler = None;
    let run = Scenario::new("dhat and the ledger").run(|round| {
        profiler.get_or_insert_with(|| dhat::Profiler::builder().testing().build());
        let mut synthesized = None;
        counted(round, "synthesis", || synthesized = synthesize(1, 0).ok());
        assert!(synthesized.is_some(), "the circuit is satisfied");
        counted(round, "growing", || {
            // Reallocations, zeroed and aligned blocks, and a block that stays.
            let mut grows: Vec<u32> = Vec::new();
            (0..10_000).for_each(|n| grows.push(n));
            grows.shrink_to(5_000);
            #[repr(align(256))]
            struct Aligned(#[expect(dead_code)] [u8; 256]);
            let aligned = std::hint::black_box(Box::new(Aligned([1; 256])));
            let zeroed = std::hint::black_box(vec![0_u64; 3_000]);
            drop((grows, aligned));
            std::mem::forget(zeroed);
        });
        counted(round, "dealloc", || drop(synthesized.take()));
    });

    let lines = dhat_lines(run.folder());
    assert_eq!(lines.len(), 3 * run.books().rounds.len(), "{run}");
    for (round, phase, total, _) in &lines {
        let booked: Amount = run
            .books()
            .items
            .iter()
            .filter(|item| (item.round, &item.phase) == (*round, phase))
            .inspect(|item| assert_eq!(item.layer, Layer::RustHeap, "{item:?}"))
            .map(|item| item.allocated)
            .sum();
        assert_eq!(
            booked, *total,
            "allocated in {phase} of round {round}\n{run}"
        );
    }
    // What is alive: dhat's change over all phases of a round is the ledger's
    // survivors of that round.
    for book in &run.books().rounds {
        let change: Amount = lines
            .iter()
            .filter(|(round, ..)| *round == book.round)
            .map(|(.., change)| *change)
            .sum();
        let left: Amount = run
            .books()
            .items
            .iter()
            .filter(|item| item.round == book.round)
            .map(|item| item.allocated - item.released)
            .sum();
        assert_eq!(left, change, "alive of round {}\n{run}", book.round);
        assert_eq!(left, Amount::new(24_000, 1), "round {}\n{run}", book.round);
    }
}

/// Compares two profiles line by line: words must be the same, numbers may differ
/// by a share of the reference and by a few.
#[derive(Clone, Copy)]
struct Tolerance {
    share: f64,
    few: f64,
}

impl Tolerance {
    fn agrees(self, reference: &str, now: &str) -> bool {
        match (reference.parse::<f64>(), now.parse::<f64>()) {
            (Ok(reference), Ok(now)) => {
                (reference - now).abs() <= self.few.max(self.share * reference.abs())
            }
            _ => reference == now,
        }
    }
}

impl Comparator for Tolerance {
    fn matches(&self, reference: &Snapshot, test: &Snapshot) -> bool {
        let (Some(reference), Some(test)) = (reference.as_text(), test.as_text()) else {
            return false;
        };
        let (reference, test) = (reference.to_string(), test.to_string());
        let words = |text: &str| -> Vec<Vec<String>> {
            text.lines()
                .map(|line| line.split_whitespace().map(str::to_owned).collect())
                .collect()
        };
        let (reference, test) = (words(&reference), words(&test));
        reference.len() == test.len()
            && reference.iter().zip(&test).all(|(reference, test)| {
                reference.len() == test.len()
                    && reference.iter().zip(test).all(|(a, b)| self.agrees(a, b))
            })
    }

    fn dyn_clone(&self) -> Box<dyn Comparator> {
        Box::new(*self)
    }
}

/// The Rust heap's traffic per partition, by phase: means over the measured rounds.
fn profile(run: &Run, partitions: usize) -> String {
    let mut out = String::from("phase        blocks      bytes  left\n");
    let rounds = run
        .books()
        .rounds
        .iter()
        .filter(|r| r.round > run.books().warmup)
        .count();
    let per = (rounds * partitions) as f64;
    let mut phases: Vec<&str> = run
        .books()
        .items
        .iter()
        .map(|item| item.phase.as_str())
        .collect();
    phases.sort_unstable();
    phases.dedup();
    for phase in phases {
        let of_phase = || {
            run.books().items.iter().filter(|item| {
                item.phase == phase
                    && item.layer == Layer::RustHeap
                    && item.round > run.books().warmup
            })
        };
        let allocated: Amount = of_phase().map(|item| item.allocated).sum();
        let left: Amount = of_phase().map(|item| item.allocated - item.released).sum();
        let (blocks, bytes) = (allocated.blocks as f64 / per, allocated.bytes as f64 / per);
        let _ = writeln!(
            out,
            "{phase:<10} {blocks:>8.1} {bytes:>10.0} {:>5}",
            left.blocks
        );
    }
    out
}

/// The profile of one prover, with as many threads in the pools whatever the
/// machine has: multiplications split their work by thread.
fn profile_of(name: &str, api: Api) -> String {
    let config = Config {
        api,
        circuit_size: 1,
        partitions: 4,
        dealloc: Dealloc::Inline,
        ..Config::default()
    };
    let scenario = Scenario::new(name)
        .rounds(4)
        .env("RAYON_NUM_THREADS", "2")
        .env("EC_GPU_NUM_THREADS", "2");
    let run = run_prover(scenario, config);
    run.assert_passes().assert_releases_match();
    profile(&run, config.partitions)
}

/// Asserts a profile. Whether a wait blocks decides over a block or two in the
/// multiplications, so numbers may move by 2 %, or by 3.
macro_rules! assert_profile {
    ($profile:expr) => {
        insta::with_settings!({comparator => Box::new(Tolerance { share: 0.02, few: 3.0 })}, {
            insta::assert_snapshot!($profile);
        });
    };
}

#[test]
#[file_serial(resident)]
fn the_sync_prover_keeps_its_allocation_profile_by_phase() {
    assert_profile!(profile_of("profile, sync", Api::Sync));
}

#[test]
#[file_serial(resident)]
fn the_split_prover_keeps_its_allocation_profile_by_phase() {
    assert_profile!(profile_of("profile, split", Api::Split));
}

#[test]
fn a_profile_may_move_by_its_tolerance_and_no_further() {
    let tolerance = Tolerance {
        share: 0.02,
        few: 3.0,
    };
    assert!(tolerance.agrees("1000", "1020") && !tolerance.agrees("1000", "1021"));
    assert!(tolerance.agrees("1", "4") && !tolerance.agrees("1", "5"));
    assert!(tolerance.agrees("ntt", "ntt") && !tolerance.agrees("ntt", "msm_g1"));
    assert!(!tolerance.agrees("ntt", "1"));
}
