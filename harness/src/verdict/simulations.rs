//! How often gauges' statistics call growth where there is none, and where there is.
//!
//! Series are drawn with fixed seeds, so that the tables of `docs/gauge-statistics.md`
//! come out the same each time:
//! `TIDEGATE_SIMULATIONS=1000 cargo test -p tidegate --lib simulations -- --nocapture`
//! prints them, with so many series for each number.

use std::fmt::Write as _;

use super::Settings;
use super::gauges::{Trend, trend};

/// Rounds that are judged; a series has one value more, that of the round before them.
const ROUNDS: [usize; 7] = [8, 12, 24, 40, 60, 120, 240];

/// Random numbers (xorshift64*), without a crate so that the tables outlive its versions.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Even between 0 and 1.
    fn even(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Normal with mean 0 and deviation 1, nearly: the sum of twelve.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.even()).sum::<f64>() - 6.0
    }
}

/// Noise with deviation 1 whose neighbours are correlated by so much.
fn correlated(rng: &mut Rng, n: usize, by: f64) -> Vec<f64> {
    let mut last = rng.normal();
    (0..n)
        .map(|_| {
            let value = last;
            last = by * last + (1.0 - by * by).sqrt() * rng.normal();
            value
        })
        .collect()
}

/// Draws a series of so many values.
type Draw = fn(&mut Rng, usize) -> Vec<f64>;

/// `of(round)` and noise of deviation 1.
fn noisy(rng: &mut Rng, n: usize, of: impl Fn(f64) -> f64) -> Vec<f64> {
    (0..n).map(|at| of(at as f64) + rng.normal()).collect()
}

/// What grows not at all, or not for good.
const HEALTHY: [(&str, Draw); 12] = [
    ("flat", |rng, n| correlated(rng, n, 0.0)),
    ("AR(1) 0.3", |rng, n| correlated(rng, n, 0.3)),
    ("AR(1) 0.6", |rng, n| correlated(rng, n, 0.6)),
    ("AR(1) 0.9", |rng, n| correlated(rng, n, 0.9)),
    ("warm-up, 40 in 10 rounds", |rng, n| {
        noisy(rng, n, |x| 40.0 * (1.0 - (-x / 10.0).exp()))
    }),
    ("warm-up, 40 in 30 rounds", |rng, n| {
        noisy(rng, n, |x| 40.0 * (1.0 - (-x / 30.0).exp()))
    }),
    ("one step of 10", |rng, n| {
        let at = rng.even() * n as f64;
        noisy(rng, n, |x| if x < at { 0.0 } else { 10.0 })
    }),
    ("three steps of 10", |rng, n| {
        let at: Vec<f64> = (0..3).map(|_| rng.even() * n as f64).collect();
        noisy(rng, n, |x| {
            10.0 * at.iter().filter(|at| x >= **at).count() as f64
        })
    }),
    ("logarithm, 10 ln(1 + n)", |rng, n| {
        noisy(rng, n, |x| 10.0 * (1.0 + x).ln())
    }),
    ("ties (rounded to 4)", |rng, n| {
        let noise = noisy(rng, n, |_| 0.0);
        noise.iter().map(|v| 4.0 * (v / 4.0).round()).collect()
    }),
    ("sawtooth of 10", |rng, n| {
        let period = 4.0 + (rng.even() * 8.0).floor();
        let shift = rng.even() * period;
        noisy(rng, n, |x| 10.0 * ((x + shift) % period) / period)
    }),
    ("random walk", |rng, n| {
        let mut at = 0.0;
        (0..n)
            .map(|_| {
                at += rng.normal();
                at
            })
            .collect()
    }),
];

/// What grows in every round for good, by so many deviations of its noise.
const GROWING: [(&str, Draw); 8] = [
    ("0.1 a round", |rng, n| noisy(rng, n, |x| 0.1 * x)),
    ("0.3 a round", |rng, n| noisy(rng, n, |x| 0.3 * x)),
    ("1 a round", |rng, n| noisy(rng, n, |x| x)),
    ("3 a round", |rng, n| noisy(rng, n, |x| 3.0 * x)),
    ("30 a round", |rng, n| noisy(rng, n, |x| 30.0 * x)),
    ("1 a round, AR(1) 0.6", |rng, n| {
        let noise = correlated(rng, n, 0.6);
        (0..n).map(|at| at as f64 + noise[at]).collect()
    }),
    ("1 a round, rounded to 8", |rng, n| {
        let grows = noisy(rng, n, |x| x);
        grows.iter().map(|v| 8.0 * (v / 8.0).round()).collect()
    }),
    ("1 a round, sawtooth of 10", |rng, n| {
        let period = 4.0 + (rng.even() * 8.0).floor();
        noisy(rng, n, |x| x + 10.0 * (x % period) / period)
    }),
];

/// Whether the engine's statistics call it growth.
fn engine(values: &[f64]) -> bool {
    let settings = Settings::default();
    let (even, long) = (settings.gauge_even_rounds, settings.gauge_rounds);
    matches!(
        trend(values, even as usize, long as usize),
        Trend::Even(_) | Trend::Long(_)
    )
}

/// Whether a Mann–Kendall test at 5 % (two-sided) does, as gates in the field run it.
fn mann_kendall(values: &[f64]) -> bool {
    let mut s = 0.0;
    for (at, a) in values.iter().enumerate() {
        for b in &values[at + 1..] {
            s += (b - a)
                .partial_cmp(&0.0)
                .map_or(0.0, |order| f64::from(order as i8));
        }
    }
    let n = values.len() as f64;
    s - 1.0 > 1.96 * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt()
}

/// How many of so many series are called growth.
fn called(draw: Draw, rounds: usize, series: usize, is_growth: fn(&[f64]) -> bool) -> usize {
    (0..series)
        .filter(|seed| {
            let mut rng =
                Rng(0x9E37_79B9_7F4A_7C15 ^ (*seed as u64 + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93));
            // The first numbers of neighbouring seeds resemble each other.
            (0..8).for_each(|_| _ = rng.next());
            is_growth(&draw(&mut rng, rounds + 1))
        })
        .count()
}

fn table(kinds: &[(&str, Draw)], series: usize, is_growth: fn(&[f64]) -> bool) -> String {
    let mut out = String::from("| series |");
    for rounds in ROUNDS {
        let _ = write!(out, " {rounds} |");
    }
    out.push_str("\n|---|");
    out.push_str(&"--:|".repeat(ROUNDS.len()));
    out.push('\n');
    for (name, draw) in kinds {
        let _ = write!(out, "| {name} |");
        for rounds in ROUNDS {
            let share = 100.0 * called(*draw, rounds, series, is_growth) as f64 / series as f64;
            let _ = write!(out, " {share:.1} |");
        }
        out.push('\n');
    }
    out
}

#[test]
fn the_tables_of_the_gauges_statistics_are_printed_when_asked_for() {
    let Some(series) = std::env::var("TIDEGATE_SIMULATIONS")
        .ok()
        .and_then(|n| n.parse().ok())
    else {
        return;
    };
    println!(
        "False alarms of the engine's statistics, in percent of {series} series, by rounds:\n"
    );
    println!("{}", table(&HEALTHY, series, engine));
    println!("False alarms of a Mann-Kendall test at 5 % on the same series:\n");
    println!("{}", table(&HEALTHY, series, mann_kendall));
    println!("Growth that the engine's statistics see:\n");
    println!("{}", table(&GROWING, series, engine));
}

#[test]
fn noise_and_saturation_are_not_called_growth_and_clear_growth_is() {
    const SERIES: usize = 50;
    let called = |kinds: &[(&str, Draw)], name: &str| {
        let (_, draw) = kinds.iter().find(|(of, _)| *of == name).expect("a kind");
        called(*draw, 24, SERIES, engine)
    };
    for name in [
        "flat",
        "AR(1) 0.3",
        "warm-up, 40 in 10 rounds",
        "one step of 10",
        "logarithm, 10 ln(1 + n)",
        "ties (rounded to 4)",
        "sawtooth of 10",
    ] {
        assert_eq!(called(&HEALTHY, name), 0, "{name}");
    }
    for name in ["3 a round", "30 a round"] {
        assert_eq!(called(&GROWING, name), SERIES, "{name}");
    }
}
