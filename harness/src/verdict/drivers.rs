//! What growth goes with: rounds, threads, errors or the clock.

use super::growth::{Repeating, View};
use crate::books::{Amount, Books, RoundBook};

/// What happened between two measured rounds, step by step as the series'.
#[derive(Clone, Debug, Default)]
pub(super) struct Happened {
    /// Threads that came and were gone again; empty where there were none in any
    /// round. What a thread keeps while it lives is no loss.
    pub(super) threads: Vec<i64>,
    /// Errors reported, a failed round counting as one at least; empty where there
    /// were none in any round.
    pub(super) errors: Vec<i64>,
    /// Seconds of wall clock; 0 where the clock cannot be read.
    pub(super) seconds: Vec<f64>,
}

impl Happened {
    /// Between the round at index `base` and the last one.
    pub(super) fn from(books: &Books, base: usize) -> Self {
        let mut out = Self::default();
        for pair in books.rounds.get(base..).unwrap_or_default().windows(2) {
            let created = pair[1]
                .threads_created
                .saturating_sub(pair[0].threads_created);
            let alive = |round: &RoundBook| {
                let gauges = round.gauges.as_ref()?;
                i64::try_from(gauges.threads).ok()
            };
            let stayed = match (alive(&pair[0]), alive(&pair[1])) {
                (Some(before), Some(after)) => after.saturating_sub(before),
                _ => 0,
            };
            let created = i64::try_from(created).unwrap_or(i64::MAX);
            out.threads.push(created.saturating_sub(stayed).max(0));
            let errors = pair[1].errors.max(u64::from(pair[1].failed.is_some()));
            out.errors.push(i64::try_from(errors).unwrap_or(i64::MAX));
            let seconds = pair[1].at_seconds - pair[0].at_seconds;
            out.seconds.push(if seconds.is_finite() {
                seconds.max(0.0)
            } else {
                0.0
            });
        }
        // Without events there is nothing to explain by them.
        for events in [&mut out.threads, &mut out.errors] {
            if events.iter().all(|n| *n == 0) {
                events.clear();
            }
        }
        out
    }
}

/// The step from which `steps` is exactly so much per event, and how much.
///
/// Holds only where the events tell it from a constant per round: they differ
/// from round to round within that span, with two rounds that have some at
/// least, and either four rounds without any or three with different numbers
/// or a third round with some.
pub(super) fn per_event(steps: &[Amount], events: &[i64], view: View) -> Option<(usize, Amount)> {
    let last = events.iter().take(steps.len()).rposition(|e| *e > 0)?;
    let each = divided(view.of(*steps.get(last)?), events[last])?;
    if each.bytes < 0 || each.blocks < 0 || each.is_zero() {
        return None;
    }
    let n = steps.len().min(events.len());
    let mut start = n;
    while start > 0 && times(each, events[start - 1]) == Some(view.of(steps[start - 1])) {
        start -= 1;
    }
    let span = &events[start..n];
    let with = span.iter().filter(|e| **e > 0).count();
    let without = span.len() - with;
    let highest = span.iter().copied().max().unwrap_or(0);
    let lowest = span.iter().copied().min().unwrap_or(0);
    let enough = match view {
        View::Both => with >= 3 || (with >= 2 && without >= 4),
        View::Blocks | View::Bytes => with >= 4,
    };
    // In a span without a pause, the numbers themselves must tell: at least five of them.
    let separates = highest != lowest && (without >= 2 || span.len() >= 5);
    (enough && separates).then_some((start, each))
}

/// An amount divided without a rest.
fn divided(a: Amount, by: i64) -> Option<Amount> {
    (by > 0 && a.bytes % by == 0 && a.blocks % by == 0)
        .then(|| Amount::new(a.bytes / by, a.blocks / by))
}

fn times(a: Amount, n: i64) -> Option<Amount> {
    Some(Amount::new(
        a.bytes.checked_mul(n)?,
        a.blocks.checked_mul(n)?,
    ))
}

/// Whether a constant number of events per round explains a constant step as
/// well: in every step of the pattern as many, and the amount divides.
pub(super) fn also_explains(pattern: &Repeating, events: &[i64]) -> bool {
    let Some(span) = events.get(pattern.start..) else {
        return false;
    };
    pattern.period == 1
        && span.first().is_some_and(|first| {
            span.iter().all(|e| e == first) && divided(pattern.per_period, *first).is_some()
        })
}

/// How much per second, if the clock explains the steps far better than rounds do.
///
/// The times must differ (by a fifth of their mean), and what the clock leaves
/// unexplained must be less than a quarter of what a constant leaves, or under
/// one unit (the smallest step) in each round.
pub(super) fn per_second(steps: &[i64], seconds: &[f64]) -> Option<f64> {
    let n = steps.len().min(seconds.len());
    if n < 6 {
        return None;
    }
    let steps: Vec<f64> = steps[..n].iter().map(|s| *s as f64).collect();
    let seconds = &seconds[..n];
    let mean = |v: &[f64]| v.iter().sum::<f64>() / n as f64;
    let (mean_step, mean_time) = (mean(&steps), mean(seconds));
    if mean_step <= 0.0 || mean_time <= 0.0 {
        return None;
    }
    let spread = mean(
        &seconds
            .iter()
            .map(|t| (t - mean_time) * (t - mean_time))
            .collect::<Vec<_>>(),
    )
    .sqrt();
    if spread < 0.2 * mean_time {
        return None;
    }
    let products: f64 = steps.iter().zip(seconds).map(|(s, t)| s * t).sum();
    let squares: f64 = seconds.iter().map(|t| t * t).sum();
    let rate = products / squares;
    let by_clock: f64 = steps
        .iter()
        .zip(seconds)
        .map(|(s, t)| (s - rate * t) * (s - rate * t))
        .sum();
    let by_round: f64 = steps
        .iter()
        .map(|s| (s - mean_step) * (s - mean_step))
        .sum();
    (rate > 0.0 && by_clock < 0.25 * by_round).then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(blocks: &[i64]) -> Vec<Amount> {
        blocks.iter().map(|n| Amount::new(n * 40, *n)).collect()
    }

    #[test]
    fn growth_per_error_is_told_from_growth_per_round() {
        let errors = [0, 1, 0, 0, 2, 0, 1, 0];
        let grown = amounts(&[9, 1, 0, 0, 2, 0, 1, 0]);
        assert_eq!(
            per_event(&grown, &errors, View::Both),
            Some((1, Amount::new(40, 1)))
        );
        assert_eq!(per_event(&amounts(&[1; 8]), &errors, View::Both), None);
        assert_eq!(per_event(&amounts(&[1; 8]), &[1; 8], View::Both), None);
        assert_eq!(per_event(&grown, &[0; 8], View::Both), None);
    }

    #[test]
    fn growth_per_event_needs_three_rounds_with_events_or_four_without() {
        let of = |events: &[i64], view| {
            let found = per_event(&amounts(events), events, view);
            assert!(found.is_none_or(|(_, each)| each == view.of(Amount::new(40, 1))));
            found.is_some()
        };
        let both = |events: &[i64]| of(events, View::Both);
        assert!(!both(&[1, 0, 1]));
        assert!(!both(&[1, 0, 0, 0, 1]));
        assert!(both(&[1, 0, 0, 0, 0, 1]));
        assert!(!both(&[1, 0, 0, 0, 0, 0]), "one round with events");
        assert!(both(&[1, 0, 1, 0, 1]));
        assert!(!both(&[1, 0, 2, 1]), "one round without, of four");
        // Where each round has some, their numbers differ over five rounds.
        assert!(!both(&[1, 2, 1, 2]));
        assert!(both(&[1, 2, 1, 2, 3]));
        assert!(!both(&[2, 2, 2, 2, 2]));
        // Blocks or bytes alone need four rounds with events.
        assert!(!of(&[1, 0, 1, 0, 1, 0], View::Blocks));
        assert!(of(&[1, 0, 1, 0, 1, 0, 1], View::Blocks));
        assert!(of(&[1, 0, 1, 0, 1, 0, 1], View::Bytes));
    }

    #[test]
    fn growth_per_event_is_exact_and_adds() {
        let events = [2, 0, 4, 0, 2, 0];
        let found = |steps: &[(i64, i64)]| {
            let steps: Vec<Amount> = steps.iter().map(|(a, b)| Amount::new(*a, *b)).collect();
            per_event(&steps, &events, View::Both)
        };
        let (two, none) = ((80, 2), (0, 0));
        let each = Some((0, Amount::new(40, 1)));
        assert_eq!(found(&[two, none, (160, 4), none, two, none]), each);
        assert_eq!(found(&[two, none, (160, 4), none, (81, 2), none]), None);
        assert_eq!(found(&[two, none, (160, 4), none, (80, 3), none]), None);
        assert_eq!(found(&[two, none, (160, 4), none, two, (1, 0)]), None);
        let less = (-80, 2);
        assert_eq!(found(&[less, none, (-160, 4), none, less, none]), None);
        let fewer = (80, -2);
        assert_eq!(found(&[fewer, none, (160, -4), none, fewer, none]), None);
        assert_eq!(found(&[none; 6]), None);
    }

    #[test]
    fn a_constant_step_fits_as_many_events_in_each_of_its_rounds() {
        let fits = |start, period, bytes, events: &[i64]| {
            let pattern = Repeating {
                start,
                period,
                per_period: Amount::new(bytes, 2),
                single: true,
                proven: true,
            };
            also_explains(&pattern, events)
        };
        assert!(fits(1, 1, 80, &[9, 2, 2, 2]));
        assert!(!fits(0, 1, 80, &[9, 2, 2, 2]));
        assert!(!fits(1, 1, 81, &[9, 2, 2, 2]));
        assert!(!fits(1, 2, 80, &[9, 2, 2, 2]));
        assert!(!fits(1, 1, 80, &[9, 0, 0, 0]));
        assert!(!fits(4, 1, 80, &[9, 2, 2, 2]));
        assert!(!fits(5, 1, 80, &[9, 2, 2, 2]));
    }

    #[test]
    fn the_clock_explains_six_rounds_whose_lengths_differ_by_a_fifth() {
        let per_second = |ticks: [i64; 8], seconds: [f64; 8], n: usize| {
            per_second(&ticks[..n], &seconds[..n]).map(|rate| (rate * 1e6).round() / 1e6)
        };
        let seconds = [3.0, 5.0, 3.0, 5.0, 3.0, 5.0, 3.0, 5.0];
        let ticks = [6, 10, 6, 10, 6, 10, 6, 10];
        assert_eq!(per_second(ticks, seconds, 8), Some(2.0));
        assert_eq!(per_second(ticks, seconds, 6), Some(2.0));
        assert_eq!(per_second(ticks, seconds, 5), None);
        let alike = [9.0, 11.0, 9.0, 11.0, 9.0, 11.0, 9.0, 11.0];
        assert_eq!(per_second([18, 22, 18, 22, 18, 22, 18, 22], alike, 8), None);
        // What the clock leaves unexplained is a quarter of what rounds leave, nearly.
        let off = |by: i64| [60 - by, 100 - by, 60 + by, 100 + by];
        let twice = |four: [i64; 4]| std::array::from_fn(|at| four[at % 4]);
        assert_eq!(per_second(twice(off(11)), seconds, 8), Some(20.0));
        assert_eq!(per_second(twice(off(12)), seconds, 8), None);
        // The same where short rounds have too many ticks and long ones too few.
        let uneven = |by: i64| std::array::from_fn(|at| [600 + 5 * by, 1000 - 3 * by][at % 2]);
        assert_eq!(per_second(uneven(16), seconds, 8), Some(200.0));
        assert_eq!(per_second(uneven(17), seconds, 8), None);
        let half = [4.0, 6.0, 4.0, 6.0, 4.0, 6.0, 4.0, 6.0];
        assert_eq!(per_second([8, 12, 8, 12, 8, 12, 8, 12], half, 8), Some(2.0));
        let twice_as_long = seconds.map(|length| 2.0 * length);
        assert_eq!(per_second(ticks, twice_as_long, 8), Some(1.0));
        // It goes down in all rounds but one.
        let once = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8.0];
        assert_eq!(per_second([-1, -1, -1, -1, -1, -1, -1, 7], once, 8), None);
        let falls = ticks.map(|n| -n);
        assert_eq!(per_second(falls, seconds, 8), None);
        assert_eq!(per_second(ticks, [0.0; 8], 8), None);
    }

    #[test]
    fn what_happened_in_a_round_is_counted_between_its_ends() {
        let round = |created, alive: Option<u64>, errors, failed: bool, at_seconds| RoundBook {
            threads_created: created,
            gauges: alive.map(|threads| crate::books::Gauges {
                threads,
                ..Default::default()
            }),
            errors,
            failed: failed.then(|| "it failed".to_owned()),
            at_seconds,
            ..RoundBook::default()
        };
        let books = Books {
            rounds: vec![
                round(0, Some(1), 9, false, 0.0),
                round(2, Some(3), 9, false, 1.0),
                round(5, Some(5), 0, true, 3.5),
                round(9, Some(6), 3, true, 3.0),
                round(9, Some(4), 0, false, f64::NAN),
                round(11, None, 0, false, 5.0),
            ],
            ..Books::default()
        };
        let happened = Happened::from(&books, 1);
        assert_eq!(happened.threads, [1, 3, 2, 2]);
        assert_eq!(happened.errors, [1, 3, 0, 0]);
        assert_eq!(happened.seconds, [2.5, 0.0, 0.0, 0.0]);
        let nothing = Happened::from(&books, 4);
        assert_eq!((nothing.threads, nothing.errors), (vec![2], vec![]));
    }

    #[test]
    fn growth_per_second_needs_rounds_of_different_length() {
        let seconds = [1.0, 2.0, 4.0, 1.0, 3.0, 2.0, 1.0];
        let ticks = [10, 20, 40, 10, 30, 20, 10];
        assert!(per_second(&ticks, &seconds).is_some_and(|rate| (rate - 10.0).abs() < 0.5));
        assert_eq!(per_second(&[10; 7], &seconds), None);
        assert_eq!(per_second(&ticks, &[1.0; 7]), None);
    }
}
