//! How long the engine takes to judge a long run: 1,000 rounds, 64 phases, 10 layers.
//!
//! - `flat`: 640 series that never move.
//! - `survivors`: the same, and a block of every round is left in each of them, which
//!   is 640,000 survivors.
//!
//! The aim is less than 50 ms for each: `cargo bench -p tidegate --bench judge`. The
//! processor's time is measured, which other work on the machine changes little.

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{Criterion, criterion_group, criterion_main};
use rustix::time::{ClockId, clock_gettime};
use tidegate::books::{Amount, Books, Gauges, Health, Layer, RoundBook, Series, Settle, Survivors};
use tidegate::verdict::{Settings, judge};

const ROUNDS: u32 = 1_000;
const PHASES: u32 = 64;
const LAYERS: usize = 10;

fn books(each: Amount) -> Books {
    let settle = Settle {
        settled: true,
        ..Settle::default()
    };
    let rounds = (1..=ROUNDS).map(|round| RoundBook {
        round,
        settle,
        at_seconds: f64::from(round),
        threads_created: 8,
        peak_bytes: 1 << 30,
        gauges: Some(Gauges {
            rss_anon: 1 << 30,
            threads: 8,
            fds: 16,
            ..Gauges::default()
        }),
        ..RoundBook::default()
    });
    let layers = || Layer::ALL.into_iter().take(LAYERS);
    let phases = || (0..PHASES).map(|phase| format!("phase {phase}"));
    let of = |round: u32| {
        let n = i64::from(round);
        Amount::new(1_000_000 + n * each.bytes, 1_000 + n * each.blocks)
    };
    let mut series = Vec::new();
    for layer in layers() {
        series.extend(phases().map(|phase| Series {
            layer,
            phase,
            live: (1..=ROUNDS).map(of).collect(),
        }));
    }
    let mut survivors = Vec::new();
    // In the order of the ledger's own books: by round, then by layer and phase.
    for round in (1..=ROUNDS).filter(|_| !each.is_zero()) {
        for layer in layers() {
            survivors.extend(phases().map(|phase| Survivors {
                round,
                layer,
                phase,
                left: each,
            }));
        }
    }
    Books {
        warmup: 2,
        rounds: rounds.collect(),
        series,
        survivors,
        final_settle: Some(settle),
        health: Health {
            attached: true,
            ..Health::default()
        },
        ..Books::default()
    }
}

/// The processor's time of the thread that measures.
struct CpuTime;

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    fn end(&self, begun: Duration) -> Duration {
        self.start() - begun
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

fn judging(criterion: &mut Criterion<CpuTime>) {
    let settings = Settings::default();
    let mut group = criterion.benchmark_group("judge 1,000 rounds x 64 phases x 10 layers");
    group.sample_size(50);
    for (name, each) in [("flat", Amount::ZERO), ("survivors", Amount::new(96, 1))] {
        let books = books(each);
        assert_eq!(
            judge(&books, &settings).class.passes(),
            each.is_zero(),
            "{name}"
        );
        group.bench_function(name, |bencher| {
            bencher.iter(|| judge(black_box(&books), &settings));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(CpuTime);
    targets = judging
}
criterion_main!(benches);
