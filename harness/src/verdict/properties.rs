//! What holds for all books.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::simulated::{FOR_EVER, Program};
use super::*;
use crate::books::{
    Amount, Gauges, Health, ItemBook, Layer, MapKind, MapSeries, Probe, ProbeKind, QueueSample,
    Refusal, RoundBook, Series, Settle, SiteSeries, Survivors,
};

use Layer::{NativeHeap, RustHeap};

/// So many cases, the same in each run: chance decides here what a bounded
/// number of rounds can show, and a suite that fails by chance is worth nothing.
/// `PROPTEST_CASES` and `PROPTEST_RNG_SEED` run others.
fn settled(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        config.rng_seed = RngSeed::Fixed(20_250_101);
    }
    config
}

/// What healthy programs do beside their work, in a phase of its own or of a leak's.
#[derive(Clone, Debug)]
enum Habit {
    /// Each round replaces blocks of the last one, of sizes that differ.
    Rolls { blocks: i64, sizes: Vec<i64> },
    /// A number of blocks that differs from round to round.
    Varies { counts: Vec<i64>, size: i64 },
    /// Something built once.
    Once { round: u32, bytes: i64, blocks: i64 },
    /// A window of the last rounds.
    Window { rounds: u32, bytes: i64 },
    /// A cache that fills evenly and is full after so many rounds.
    Fills { full: u32, bytes: i64 },
    /// Entries that leave after a time that differs.
    Ages { ages: Vec<u32>, bytes: i64 },
}

impl Habit {
    fn act(&self, program: &mut Program, phase: &str) {
        let at = |list: &[i64], round: u32| list[round as usize % list.len()];
        match self {
            Self::Rolls { blocks, sizes } => {
                program.rolls(RustHeap, phase, |round| {
                    (at(sizes, round) * blocks, *blocks)
                });
            }
            Self::Varies { counts, size } => {
                program.rolls(RustHeap, phase, |round| {
                    (at(counts, round) * size, at(counts, round))
                });
            }
            Self::Once {
                round,
                bytes,
                blocks,
            } => {
                program.block(RustHeap, phase, *round, FOR_EVER, *bytes, *blocks);
            }
            Self::Window { rounds, bytes } => {
                let rounds = (*rounds).min(program.rounds / 2);
                for round in 1..=program.rounds {
                    program.block(RustHeap, phase, round, round + rounds, *bytes, 1);
                }
            }
            Self::Fills { full, bytes } => {
                // Seen full for half of the run.
                let full = (*full).min(program.rounds / 2);
                program.keeps(RustHeap, phase, |round| {
                    if round <= full { (*bytes, 1) } else { (0, 0) }
                });
            }
            Self::Ages { ages, bytes } => {
                for round in 1..=program.rounds {
                    let age = ages[round as usize % ages.len()];
                    program.block(RustHeap, phase, round, round + age, *bytes, 1);
                }
            }
        }
    }
}

fn habit() -> impl Strategy<Value = Habit> {
    prop_oneof![
        (1..20i64, prop::collection::vec(1..100_000i64, 61))
            .prop_map(|(blocks, sizes)| Habit::Rolls { blocks, sizes }),
        (prop::collection::vec(0..40i64, 61), 16..4096i64)
            .prop_map(|(counts, size)| Habit::Varies { counts, size }),
        (1..40u32, 1..1_000_000i64, 1..50i64).prop_map(|(round, bytes, blocks)| Habit::Once {
            round,
            bytes,
            blocks
        }),
        (1..12u32, 16..10_000i64).prop_map(|(rounds, bytes)| Habit::Window { rounds, bytes }),
        (1..20u32, 16..10_000i64).prop_map(|(full, bytes)| Habit::Fills { full, bytes }),
        (prop::collection::vec(1..6u32, 61), 16..10_000i64)
            .prop_map(|(ages, bytes)| Habit::Ages { ages, bytes }),
    ]
}

fn phase() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["synthesis", "ntt", "msm_g1", "b_g2_msm", "finish"])
}

fn fails(class: Class) -> bool {
    !class.passes() && class != Class::Inconclusive
}

fn shuffled<T>(mut list: Vec<T>, mut seed: u64) -> Vec<T> {
    for at in (1..list.len()).rev() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        list.swap(at, (seed >> 33) as usize % (at + 1));
    }
    list
}

proptest! {
    #![proptest_config(settled(400))]

    #[test]
    fn a_healthy_run_never_fails(
        warmup in 1..4u32,
        rounds in 12..60u32,
        habits in prop::collection::vec((phase(), habit()), 0..5),
    ) {
        let mut program = Program::new(warmup, rounds);
        for (phase, habit) in &habits {
            habit.act(&mut program, phase);
        }
        let verdict = judge(&program.books(), &Settings::default());
        prop_assert!(!fails(verdict.class), "{}", verdict.sentence);
    }

    #[test]
    fn a_leak_is_found_and_exact(
        warmup in 1..4u32,
        k in 1..=16u32,
        more in 0..20u32,
        size in 16..100_000i64,
        blocks in 1..5i64,
        noise in prop::collection::vec(1..1_000_000i64, 61),
        once in 1..4u32,
        others in prop::collection::vec((prop::sample::select(vec!["ntt", "finish"]), habit()), 0..3),
    ) {
        let settings = Settings::default();
        prop_assume!(settings.matters(Amount::new(size * blocks, blocks), k as usize));
        // What begins within the pattern (a first use) would only delay it.
        let rounds = warmup.max(once) + 3 * k + 4 + more;
        let mut program = Program::new(warmup, rounds);
        program
            .block(NativeHeap, "msm_g1", once, FOR_EVER, 12_345, 6)
            .rolls(NativeHeap, "msm_g1", |round| (noise[round as usize % 61], 3))
            .keeps(NativeHeap, "msm_g1", |round| {
                if round % k == 0 { (size * blocks, blocks) } else { (0, 0) }
            });
        for (phase, habit) in &others {
            habit.act(&mut program, phase);
        }
        let verdict = judge(&program.books(), &settings);
        prop_assert_eq!(verdict.class, Class::Leak, "{}", verdict.sentence);
        let finding = verdict
            .findings
            .iter()
            .find(|finding| finding.layer == NativeHeap)
            .expect("the leak's layer");
        prop_assert_eq!(finding.phase.as_str(), "msm_g1");
        prop_assert_eq!(finding.per_driver, Some(Amount::new(size * blocks, blocks)));
        let driver = if k == 1 { Driver::PerRound } else { Driver::EveryKthRound(k) };
        prop_assert_eq!(finding.driver, driver);
    }

    #[test]
    fn adding_a_constant_changes_nothing(
        rounds in 6..40u32,
        habits in prop::collection::vec((phase(), habit()), 1..4),
        leak in 0..2i64,
        bytes in -1_000_000..1_000_000i64,
        blocks in -1000..1000i64,
    ) {
        let mut program = Program::new(1, rounds);
        for (phase, habit) in &habits {
            habit.act(&mut program, phase);
        }
        program.keeps(RustHeap, "finish", |_| (leak * 96, leak));
        let books = program.books();
        let mut moved = books.clone();
        for live in moved.series.iter_mut().flat_map(|series| &mut series.live) {
            *live += Amount::new(bytes, blocks);
        }
        let (a, b) = (judge(&books, &Settings::default()), judge(&moved, &Settings::default()));
        prop_assert_eq!(a.class, b.class);
        prop_assert_eq!(a.findings, b.findings);
    }

    #[test]
    fn the_order_of_series_does_not_matter(
        rounds in 6..40u32,
        habits in prop::collection::vec((phase(), habit()), 1..6),
        seed in any::<u64>(),
    ) {
        let mut program = Program::new(1, rounds);
        for (phase, habit) in &habits {
            habit.act(&mut program, phase);
        }
        program.keeps(NativeHeap, "ntt", |_| (40, 1)).keeps(RustHeap, "finish", |_| (40, 1));
        let books = program.books();
        let mut other = books.clone();
        other.series = shuffled(other.series, seed);
        other.survivors = shuffled(other.survivors, seed ^ 1);
        prop_assert_eq!(
            judge(&books, &Settings::default()),
            judge(&other, &Settings::default())
        );
    }

    #[test]
    fn twice_the_rounds_are_twice_the_evidence_of_a_leak_and_not_of_a_cache(
        rounds in 10..30u32,
        size in 16..10_000i64,
        full in 1..6u32,
    ) {
        let total = |rounds: u32, leaks: bool| {
            let mut program = Program::new(1, rounds + 1);
            program.keeps(RustHeap, "finish", |round| {
                if leaks || round <= full + 1 { (size, 1) } else { (0, 0) }
            });
            let verdict = judge(&program.books(), &Settings::default());
            let leaked = verdict.findings.first().map(|finding| finding.total);
            let cached = verdict.notes.first().map(|note| note.amount);
            (verdict.class, leaked.or(cached).unwrap_or_default())
        };
        let (class, once) = total(rounds, true);
        let (_, twice) = total(2 * rounds, true);
        prop_assert_eq!(class, Class::Leak);
        prop_assert_eq!(twice, once + once);
        let (class, once) = total(rounds, false);
        let (_, twice) = total(2 * rounds, false);
        prop_assert!(class.passes());
        prop_assert_eq!(twice, once);
    }
}

fn extreme() -> impl Strategy<Value = i64> {
    prop_oneof![
        Just(i64::MIN),
        Just(i64::MAX),
        Just(0),
        -10..10i64,
        any::<i64>()
    ]
}

fn count() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(u64::MAX), 0..20u64, any::<u64>()]
}

fn seconds() -> impl Strategy<Value = f64> {
    prop_oneof![
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just(0.0),
        any::<f64>(),
        0.0..100.0
    ]
}

fn amount() -> impl Strategy<Value = Amount> {
    (extreme(), extreme()).prop_map(|(bytes, blocks)| Amount::new(bytes, blocks))
}

fn layer() -> impl Strategy<Value = Layer> {
    prop::sample::select(vec![
        RustHeap,
        NativeHeap,
        Layer::Anon,
        Layer::Pinned,
        Layer::Fds,
        Layer::Threads,
        Layer::GpuStreams,
        Layer::Device,
        Layer::DriverHeap,
    ])
}

fn gauges() -> impl Strategy<Value = Gauges> {
    prop::collection::vec(count(), 9).prop_map(|n| Gauges {
        rss_anon: n[0],
        rss_file: n[1],
        rss_shmem: n[2],
        hugetlb: n[3],
        swap: n[4],
        rss_peak: n[5],
        threads: n[6],
        fds: n[7],
        cpu_ms: n[8],
        card: None,
    })
}

fn settle() -> impl Strategy<Value = Settle> {
    (any::<bool>(), seconds(), amount(), amount()).prop_map(|(settled, seconds, before, after)| {
        Settle {
            settled,
            seconds,
            before,
            after,
        }
    })
}

fn round() -> impl Strategy<Value = RoundBook> {
    let number = prop_oneof![0..12u32, Just(u32::MAX)];
    let first = (number, any::<bool>(), count(), settle(), seconds());
    let second = (
        any::<bool>(),
        count(),
        amount(),
        count(),
        prop::option::of(gauges()),
    );
    (first, second).prop_map(
        |(
            (round, failed, errors, settle, at_seconds),
            (late, threads, allocated, peak, gauges),
        )| {
            RoundBook {
                round,
                failed: failed.then(|| "it failed".to_owned()),
                errors,
                late,
                settle,
                at_seconds,
                threads_created: threads,
                allocated,
                peak_bytes: peak,
                gauges,
            }
        },
    )
}

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        4 => Just(Ending::Completed),
        1 => (count(), count()).prop_map(|(limit_bytes, peak_bytes)| Ending::Limit {
            limit_bytes,
            peak_bytes,
            enforced_by: crate::books::LimitKind::Watchdog,
        }),
        1 => Just(Ending::OomKilled),
        1 => (seconds(), any::<bool>())
            .prop_map(|(idle_seconds, busy)| Ending::Hang { idle_seconds, busy }),
        1 => any::<i32>().prop_map(|signal| Ending::Signal { signal }),
        1 => any::<i32>().prop_map(|code| Ending::Exited { code }),
        1 => Just(Ending::Panicked { message: "\u{0}".to_owned() }),
    ]
}

fn hostile() -> impl Strategy<Value = Books> {
    let name = || prop::sample::select(vec!["", "a", "b"]).prop_map(str::to_owned);
    let live = || prop::collection::vec(amount(), 0..12);
    let series =
        (layer(), name(), live()).prop_map(|(layer, phase, live)| Series { layer, phase, live });
    let site =
        (layer(), name(), name(), live()).prop_map(|(layer, phase, site, live)| SiteSeries {
            layer,
            phase,
            site,
            live,
        });
    let left =
        (0..12u32, layer(), name(), amount()).prop_map(|(round, layer, phase, left)| Survivors {
            round,
            layer,
            phase,
            left,
        });
    let item = (0..12u32, 0..3u32, layer(), name(), amount(), amount()).prop_map(
        |(round, item, layer, phase, allocated, released)| ItemBook {
            round,
            item,
            layer,
            phase,
            allocated,
            released,
        },
    );
    let kind = prop::sample::select(vec![
        ProbeKind::Idle,
        ProbeKind::Trim,
        ProbeKind::Replay,
        ProbeKind::Drain,
    ]);
    let gauge = || prop::option::of(gauges());
    let probe = (kind, seconds(), amount(), amount(), gauge(), gauge()).prop_map(
        |(kind, seconds, live_before, live_after, before, after)| Probe {
            kind,
            seconds,
            live_before,
            live_after,
            before,
            after,
        },
    );
    let refusal =
        (0..12u32, layer(), name(), count()).prop_map(|(round, layer, phase, count)| Refusal {
            round,
            layer,
            phase,
            call: "cuMemFree".to_owned(),
            status: "800".to_owned(),
            count,
        });
    let sample = (seconds(), 0..12u32, count(), count(), count()).prop_map(
        |(at_seconds, round, produced, consumed, live_bytes)| QueueSample {
            at_seconds,
            round,
            produced,
            consumed,
            live_bytes,
        },
    );
    let map =
        (name(), prop::collection::vec(count(), 0..12)).prop_map(|(name, resident)| MapSeries {
            name,
            kind: MapKind::Anon,
            resident,
        });
    let first = (
        prop_oneof![0..6u32, Just(u32::MAX)],
        prop::collection::vec(round(), 0..12),
        prop::collection::vec(series, 0..4),
        prop::collection::vec(site, 0..2),
        prop::collection::vec(left, 0..8),
        prop::collection::vec(item, 0..8),
    );
    let second = (
        ending(),
        prop::option::of(settle()),
        prop::collection::vec(probe, 0..3),
        prop::collection::vec(refusal, 0..4),
        prop::collection::vec(sample, 0..20),
        prop::collection::vec(map, 0..3),
        prop::option::of(count()),
        any::<bool>(),
    );
    (first, second).prop_map(
        |(
            (warmup, mut rounds, mut series, sites, survivors, items),
            (ending, final_settle, probes, refusals, queue, maps, limit_bytes, numbered),
        )| {
            if numbered {
                for (at, round) in rounds.iter_mut().enumerate() {
                    round.round = at as u32 + 1;
                }
                for series in &mut series {
                    series.live.resize(rounds.len(), Amount::ZERO);
                }
            }
            Books {
                warmup,
                rounds,
                series,
                sites,
                survivors,
                items,
                ending,
                final_settle,
                probes,
                refusals,
                queue,
                maps,
                limit_bytes,
                health: Health {
                    attached: true,
                    ..Health::default()
                },
                ..Books::default()
            }
        },
    )
}

proptest! {
    #![proptest_config(settled(2000))]

    #[test]
    fn hostile_books_are_judged_without_a_panic(books in hostile()) {
        let verdict = judge(&books, &Settings::default());
        prop_assert!(!verdict.sentence.is_empty());
        let missing = !verdict.missing.is_empty();
        prop_assert_eq!(missing, verdict.class == Class::Inconclusive);
        let _ = next_step(&books, &Settings::default());
        let _ = releases(&books);
        let stored = serde_json::to_string(&verdict);
        prop_assert!(stored.is_ok());
    }
}
