//! The shape of an exact series: whether it rises for good, when, and by what step.
//!
//! Two views of the same numbers are used. A *step* is the difference between
//! two rounds. A *rise* is a step after which the series never again falls to
//! where it had been before: everything earlier is lower than everything later.
//! Blocks that come and go make steps in plenty and hardly ever a rise, however
//! they vary: among n values in random order, one is expected at each end and
//! none between. A leak makes a rise each time.

use crate::books::Amount;

/// The longest pattern of rounds that is looked for.
pub(super) const LONGEST_PERIOD: usize = 16;

/// What of an amount must repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// Bytes and blocks.
    Both,
    /// Blocks alone, where sizes vary.
    Blocks,
    /// Bytes alone, where one block becomes larger.
    Bytes,
}

impl View {
    /// The part of an amount that this view looks at.
    pub(super) fn of(self, a: Amount) -> Amount {
        match self {
            Self::Both => a,
            Self::Blocks => Amount::new(0, a.blocks),
            Self::Bytes => Amount::new(a.bytes, 0),
        }
    }
}

/// Steps that repeat until the end of the series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Repeating {
    /// The first step of the pattern.
    pub(super) start: usize,
    /// Steps after which it repeats; 1 is the same step each time.
    pub(super) period: usize,
    /// The sum of one period.
    pub(super) per_period: Amount,
    /// Whether only one step of a period differs from zero.
    pub(super) single: bool,
    /// Whether there is enough of it to be no coincidence.
    pub(super) proven: bool,
}

/// The differences between neighbours.
pub(super) fn steps(values: &[Amount]) -> Vec<Amount> {
    values.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// Where the series rises for good, and by how much: (index of the step, amount).
pub(super) fn rises(values: &[i64]) -> Vec<(usize, i64)> {
    let mut lowest_later = vec![i64::MAX; values.len()];
    let mut lowest = i64::MAX;
    for (at, value) in values.iter().enumerate().rev() {
        lowest = lowest.min(*value);
        lowest_later[at] = lowest;
    }
    let mut out = Vec::new();
    let mut highest = i64::MIN;
    for at in 1..values.len() {
        highest = highest.max(values[at - 1]);
        if lowest_later[at] > highest {
            out.push((at - 1, lowest_later[at].saturating_sub(highest)));
        }
    }
    out
}

/// The pattern with the shortest period that repeats until the end and adds something.
///
/// Proven is: the same step four times where that is every step, else five
/// times; a pattern whose every step adds, twice and over six steps; else four
/// additions of the same amount at the same distance. A pattern that covers less
/// than half of the steps needs eight steps, four periods or six additions. One
/// with a constant step three times, or three additions, is returned and not
/// proven.
pub(super) fn repeating(steps: &[Amount], view: View) -> Option<Repeating> {
    let n = steps.len();
    let mut weak = None;
    for period in 1..=LONGEST_PERIOD.min(n) {
        let mut start = n - period;
        while start > 0 && view.of(steps[start - 1]) == view.of(steps[start - 1 + period]) {
            start -= 1;
        }
        let cycle = &steps[n - period..];
        let sum: Amount = cycle.iter().copied().map(|a| view.of(a)).sum();
        if !adds(sum) {
            continue;
        }
        let length = n - start;
        let nonzero = cycle.iter().filter(|a| !view.of(**a).is_zero()).count();
        let every_step_adds = cycle.iter().all(|a| adds(view.of(*a)));
        let events = steps[start..]
            .iter()
            .filter(|a| !view.of(**a).is_zero())
            .count()
            / nonzero.max(1);
        let covers = 2 * length >= n;
        let proven = if period == 1 {
            (start == 0 && length >= 4) || (length >= 5 && covers) || length >= 8
        } else if every_step_adds {
            length >= (2 * period).max(6) && (covers || length >= 4 * period)
        } else {
            events >= 4 && (covers || events >= 6)
        };
        let found = Repeating {
            start,
            period,
            per_period: cycle.iter().copied().sum(),
            single: nonzero == 1,
            proven,
        };
        if proven {
            return Some(found);
        }
        if events >= 3 && weak.is_none() {
            weak = Some(found);
        }
    }
    weak
}

fn adds(a: Amount) -> bool {
    a.bytes >= 0 && a.blocks >= 0 && !a.is_zero()
}

/// How a series that rises goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// It does not rise.
    Flat,
    /// It rose, and then stopped for long enough.
    Stopped,
    /// It rises still, less and less.
    Slowing,
    /// It rises still, too seldom or over too few rounds to tell.
    Unclear,
    /// It rises still, as fast as in the beginning.
    Steady,
}

/// Judges the course of rises over so many steps.
///
/// - Stopped: no rise in the last third (three steps at least), or none for
///   twice the longest gap so far, or a single late one, or rises too few to
///   speak of (fewer than four, or than half the steps and than eight).
/// - Slowing: the second half adds less than half of what the first half adds,
///   or less than 85 % and by more than three standard errors; and so it is
///   without the first quarter. Unclear, where it may be so by chance: without
///   the first quarter, the second half adds less than 90 % of the first.
/// - Steady: over `enough` steps, a rise in three of four steps; or eight rises
///   with some in each quarter, which grows by a third of its share at least; and the last third rises as often and as
///   much as half of the whole's rate at least. A random walk has one rise on average however
///   long it is.
pub(super) fn course(values: &[i64], rises: &[(usize, i64)], enough: usize) -> Course {
    let n = values.len().saturating_sub(1);
    let Some(&(last, _)) = rises.last() else {
        return Course::Flat;
    };
    let count = rises.len();
    let tail = (n / 3).max(3);
    let late = rises.iter().filter(|(at, _)| at + tail >= n).count();
    let longest_gap = rises
        .windows(2)
        .map(|pair| pair[1].0 - pair[0].0)
        .max()
        .unwrap_or(1);
    let quiet = (n - 1).saturating_sub(last);
    let dense = count * 4 >= n * 3;
    let spread = count >= 8 && quarters(rises, n) == 4 && every_quarter_grows(values);
    if quiet >= 3 && quiet >= 2 * longest_gap || late < 2 {
        return Course::Stopped;
    }
    if count < 4 || (count < n.div_ceil(2) && count < 8) {
        return Course::Stopped;
    }
    if slowing(values) {
        let later = &values[n / 4..];
        if slowing(later) {
            return Course::Slowing;
        }
        // A large cache slows down so little in its later rounds that chance hides it.
        if halves(later).is_none_or(|(first, second)| second < 0.9 * first) {
            return Course::Unclear;
        }
    }
    if n >= enough
        && (dense || spread)
        && !fades(values, tail)
        && late * 2 * n > count * tail
        && (spread || quiet < 2)
    {
        Course::Steady
    } else {
        Course::Unclear
    }
}

/// Whether a series goes up in the long run that goes up and down in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Climb {
    /// It does not.
    No,
    /// Its last third is above its first one.
    Perhaps,
    /// Each eighth is above the one before it.
    Steady,
}

/// Judges a series whose noise hides every single rise.
///
/// - Steady, over 24 steps at least: of eight parts, each has a higher lowest
///   and a higher highest value than the one before, and both halves add two
///   thirds of what the other adds at least. Of values in random order, one
///   series in 40,000 does that.
/// - Perhaps: every value of the last third is above every one of the first
///   third, and the last third still moves.
pub(super) fn climb(values: &[i64]) -> Climb {
    let n = values.len();
    if n < 12 {
        return Climb::No;
    }
    let part = |k: usize, of: usize| &values[k * n / of..(k + 1) * n / of];
    let lowest = |part: &[i64]| part.iter().copied().min().unwrap_or(0);
    let highest = |part: &[i64]| part.iter().copied().max().unwrap_or(0);
    let mean = |part: &[i64]| part.iter().map(|v| *v as f64).sum::<f64>() / part.len() as f64;
    let last = part(2, 3);
    if lowest(last) <= highest(part(0, 3)) || lowest(last) == highest(last) {
        return Climb::No;
    }
    let ordered = (1..8).all(|k| {
        let (before, after) = (part(k - 1, 8), part(k, 8));
        lowest(after) > lowest(before) && highest(after) > highest(before)
    });
    let middle = mean(&values[n * 7 / 16..n * 9 / 16]);
    let (a, b) = (middle - mean(part(0, 8)), mean(part(7, 8)) - middle);
    if n > 24 && ordered && a * 3.0 >= b * 2.0 && b * 3.0 >= a * 2.0 {
        Climb::Steady
    } else {
        Climb::Perhaps
    }
}

/// Whether the last steps rise at less than half of the whole's rate.
fn fades(values: &[i64], tail: usize) -> bool {
    let n = values.len().saturating_sub(1);
    let (Some(first), Some(middle), Some(last)) = (
        values.first(),
        values.get(n.saturating_sub(tail)),
        values.last(),
    ) else {
        return true;
    };
    let whole = i128::from(*last) - i128::from(*first);
    let late = i128::from(*last) - i128::from(*middle);
    late * 2 * (n as i128) < whole * (tail as i128)
}

/// Whether each quarter grows by a third of its share at least.
fn every_quarter_grows(values: &[i64]) -> bool {
    let n = values.len().saturating_sub(1);
    let at = |quarter: usize| values.get(quarter * n / 4).copied().map_or(0, i128::from);
    let whole = at(4) - at(0);
    (0..4).all(|quarter| (at(quarter + 1) - at(quarter)) * 12 >= whole)
}

fn quarters(rises: &[(usize, i64)], n: usize) -> usize {
    let mut seen = [false; 4];
    for (at, _) in rises {
        if let Some(quarter) = seen.get_mut(at * 4 / n.max(1)) {
            *quarter = true;
        }
    }
    seen.iter().filter(|seen| **seen).count()
}

/// The mean steps of the first and of the second half of a series.
fn halves(values: &[i64]) -> Option<(f64, f64)> {
    let steps = values.len().checked_sub(1)?;
    let half = steps / 2;
    let step = |from: usize| (values[from + half] as f64 - values[from] as f64) / half as f64;
    (half > 0).then(|| (step(0), step(steps - half)))
}

/// Whether the second half of a series rises clearly less than the first.
pub(super) fn slowing(values: &[i64]) -> bool {
    let steps: Vec<f64> = values
        .windows(2)
        .map(|pair| pair[1] as f64 - pair[0] as f64)
        .collect();
    let half = steps.len() / 2;
    if half == 0 {
        return false;
    }
    // The middle step of an odd number belongs to neither half.
    let (first, second) = (&steps[..half], &steps[steps.len() - half..]);
    let (a, b) = (mean(first), mean(second));
    if a <= 0.0 {
        return false;
    }
    if half >= 2 && b < 0.5 * a {
        return true;
    }
    let error = ((variance(first, a) + variance(second, b)) / half as f64).sqrt();
    half >= 3 && b < 0.85 * a && a - b > 3.0 * error
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn variance(values: &[f64], mean: f64) -> f64 {
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    squares / values.len().saturating_sub(1).max(1) as f64
}

/// Whether the rises are those of a container that doubles its room each time
/// it is full: four rises or more, each twice the one before and after twice
/// the time, the next one not overdue.
///
/// What such a container holds grows by the same amount in each round.
pub(super) fn doubling(rises: &[(usize, i64)], n: usize) -> bool {
    let Some(tail) = rises.len().checked_sub(4).map(|from| &rises[from..]) else {
        return false;
    };
    let about_twice = |a: i64, b: i64| {
        let ratio = b as f64 / a as f64;
        (1.6..=2.5).contains(&ratio)
    };
    let gaps: Vec<i64> = tail
        .windows(2)
        .map(|pair| i64::try_from(pair[1].0 - pair[0].0).unwrap_or(i64::MAX))
        .collect();
    let quiet = n.saturating_sub(tail[3].0 + 1);
    tail.windows(2)
        .all(|pair| about_twice(pair[0].1, pair[1].1))
        && gaps.windows(2).all(|pair| about_twice(pair[0], pair[1]))
        && quiet as f64 <= 2.5 * gaps[2] as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(steps: &[i64]) -> Vec<i64> {
        let mut at = 1000;
        std::iter::once(at)
            .chain(steps.iter().map(|step| {
                at += step;
                at
            }))
            .collect()
    }

    fn blocks(steps: &[i64]) -> Vec<Amount> {
        steps.iter().map(|n| Amount::new(n * 96, *n)).collect()
    }

    #[test]
    fn a_rise_is_above_everything_before_and_below_everything_after() {
        assert_eq!(rises(&[5, 9, 4, 6, 10, 11]), vec![(3, 1), (4, 1)]);
        assert_eq!(rises(&[3, 3, 3]), vec![]);
        assert_eq!(rises(&[]), vec![]);
        assert_eq!(rises(&[i64::MIN, i64::MAX]), vec![(0, i64::MAX)]);
    }

    #[test]
    fn the_shortest_repeating_pattern_is_found() {
        let found = repeating(&blocks(&[7, 3, 1, 1, 1, 1, 1]), View::Both).expect("it repeats");
        assert_eq!((found.start, found.period, found.proven), (2, 1, true));
        assert_eq!(found.per_period, Amount::new(96, 1));
        let found = repeating(&blocks(&[5, 0, 0, 2, 0, 0, 2, 0, 0, 2]), View::Both);
        assert!(
            found.is_some_and(|found| !found.proven),
            "three may be chance"
        );
        let found = repeating(&blocks(&[2, 0, 0, 2, 0, 0, 2, 0, 0, 2]), View::Both);
        let found = found.expect("it repeats");
        assert_eq!((found.period, found.single, found.proven), (3, true, true));
        assert_eq!(repeating(&blocks(&[4, 0, 0, 0, 0]), View::Both), None);
    }

    #[test]
    fn growth_that_stopped_is_told_from_growth_that_goes_on() {
        let of = |steps: &[i64]| {
            let values = walk(steps);
            course(&values, &rises(&values), 12)
        };
        assert_eq!(of(&[43, 28, 14, 0, 0, 0, 0]), Course::Stopped);
        assert_eq!(of(&[0, 0, 0, 0, 0, 0, 9]), Course::Stopped);
        assert_eq!(of(&[1; 14]), Course::Steady);
        assert_eq!(of(&[5, 7, 6, 5, 8, 6]), Course::Unclear);
        assert_eq!(of(&[64, 32, 16, 8, 4, 2, 1]), Course::Slowing);
        assert_eq!(of(&[3, -3, 3, -3, 3, -3]), Course::Flat);
        // A loss with a chance of one in three in each round, after a pause by chance.
        let mut by_chance = [0; 54];
        for at in [2, 3, 7, 8, 13, 16, 19, 20, 22, 27, 39, 45, 49] {
            by_chance[at] = 1;
        }
        assert!(of(&by_chance) != Course::Stopped);
    }

    /// Steps in runs: so many of each.
    fn runs(runs: &[(usize, i64)]) -> Vec<i64> {
        let run = |(times, step): &(usize, i64)| vec![*step; *times];
        runs.iter().flat_map(run).collect()
    }

    fn course_of(steps: &[i64]) -> Course {
        let values = walk(steps);
        course(&values, &rises(&values), 12)
    }

    #[test]
    fn a_pattern_is_proven_from_four_equal_steps_on_or_five_after_others() {
        let proven = |steps: &[i64]| {
            repeating(&blocks(steps), View::Both).map(|found| (found.period, found.proven))
        };
        assert_eq!(proven(&[1; 2]), None);
        assert_eq!(proven(&[1; 3]), Some((1, false)));
        assert_eq!(proven(&[1; 4]), Some((1, true)));
        assert_eq!(proven(&[7, 1, 1, 1, 1]), Some((1, false)));
        assert_eq!(proven(&[7, 1, 1, 1, 1, 1]), Some((1, true)));
        // Of less than half of the steps, eight.
        let after = |others: &[i64], times| [others, &[1].repeat(times)].concat();
        assert_eq!(proven(&after(&[7, 3, 8, 2, 9, 4], 6)), Some((1, true)));
        assert_eq!(proven(&after(&[7, 3, 8, 2, 9, 4], 5)), Some((1, false)));
        let others = [7, 3, 8, 2, 9, 4, 7, 2, 8, 3];
        assert_eq!(proven(&after(&others, 7)), Some((1, false)));
        assert_eq!(proven(&after(&others, 8)), Some((1, true)));
    }

    #[test]
    fn a_pattern_whose_every_step_adds_is_proven_from_six_steps_and_two_periods_on() {
        let proven = |others: &[i64], pattern: &[i64], steps: usize| {
            let pattern = pattern.iter().copied().cycle().take(steps);
            let steps: Vec<i64> = others.iter().copied().chain(pattern).collect();
            let found = repeating(&blocks(&steps), View::Both);
            found.is_some_and(|found| found.proven)
        };
        assert!(!proven(&[], &[1, 2], 5));
        assert!(proven(&[], &[1, 2], 6));
        assert!(!proven(&[], &[1, 2, 3, 4], 7));
        assert!(proven(&[], &[1, 2, 3, 4], 8));
        // Of less than half of the steps, four periods.
        let others = [7, 3, 8, 4, 9, 5, 7, 6, 8, 3];
        assert!(!proven(&others, &[2, 1], 7));
        assert!(proven(&others, &[2, 1], 8));
    }

    #[test]
    fn a_pattern_with_pauses_is_proven_by_four_additions_or_by_six_of_few_steps() {
        let proven = |others: &[i64], pattern: &[i64], times: usize| {
            let steps = [others, &pattern.repeat(times)].concat();
            let found = repeating(&blocks(&steps), View::Both);
            found.is_some_and(|found| found.proven)
        };
        assert!(!proven(&[], &[0, 0, 1], 3));
        assert!(proven(&[], &[0, 0, 1], 4));
        // Two additions of a period are one of it.
        assert!(!proven(&[], &[2, 1, 0], 3));
        assert!(proven(&[], &[2, 1, 0], 4));
        let others = [7, 3, 8, 4, 9, 5, 7, 6, 8, 3, 9, 4, 6];
        assert!(!proven(&others, &[0, 1], 5));
        assert!(proven(&others, &[0, 1], 6));
    }

    #[test]
    fn rises_speak_from_four_on_in_half_of_the_steps_or_from_eight_on() {
        for (zeros, ones, expected) in [
            (0, 2, Course::Stopped),
            (0, 4, Course::Unclear),
            (3, 4, Course::Unclear),
            (5, 4, Course::Stopped),
            (9, 7, Course::Stopped),
            (9, 8, Course::Unclear),
        ] {
            let course = course_of(&runs(&[(zeros, 0), (ones, 1)]));
            assert_eq!(course, expected, "{zeros} pauses, {ones} rises");
        }
    }

    #[test]
    fn growth_has_stopped_after_twice_the_longest_pause_or_with_one_late_rise() {
        assert_eq!(course_of(&runs(&[(4, 1), (1, 0)])), Course::Unclear);
        assert_eq!(course_of(&runs(&[(4, 1), (2, 0)])), Course::Stopped);
        assert_eq!(course_of(&runs(&[(10, 1), (2, 0)])), Course::Steady);
        assert_eq!(course_of(&runs(&[(10, 1), (3, 0)])), Course::Stopped);
        // Every third step rises; the last two have none.
        let third = [1, 0, 0].repeat(8);
        assert_eq!(course_of(&[&third[..], &[0; 3]].concat()), Course::Steady);
        assert_eq!(course_of(&[&third[..], &[0; 4]].concat()), Course::Stopped);
    }

    #[test]
    fn growth_is_steady_in_three_of_four_steps_or_in_each_quarter() {
        assert_eq!(course_of(&runs(&[(3, 0), (9, 1)])), Course::Steady);
        assert_eq!(course_of(&runs(&[(4, 0), (8, 1)])), Course::Unclear);
        assert_eq!(course_of(&[1, 0].repeat(6)), Course::Unclear);
        assert_eq!(course_of(&[1, 0].repeat(8)), Course::Steady);
        // Two pauses at the end of what hardly grows in its last quarter.
        let faded = runs(&[(13, 12), (1, 1), (2, 0)]);
        assert_eq!(course_of(&faded), Course::Unclear);
        // The first two steps are a third of all of it.
        let first_use = [&[5, 3][..], &[1, 0].repeat(7)].concat();
        assert_eq!(course_of(&first_use), Course::Unclear);
        // As much, and less often.
        let seldom = [&[1; 7][..], &[0, 0, 1].repeat(5), &[0, 0]].concat();
        assert_eq!(course_of(&seldom), Course::Unclear);
    }

    #[test]
    fn growth_that_slows_down_at_first_only_is_unclear_until_it_is_even() {
        assert_eq!(course_of(&runs(&[(4, 2), (3, 1)])), Course::Slowing);
        assert_eq!(course_of(&runs(&[(4, 2), (4, 1)])), Course::Unclear);
        assert_eq!(course_of(&runs(&[(4, 2), (8, 1)])), Course::Unclear);
        assert_eq!(course_of(&runs(&[(6, 2), (17, 1)])), Course::Steady);
    }

    #[test]
    fn growth_slows_below_half_or_below_85_percent_beyond_chance() {
        let slows = |steps: &[i64]| slowing(&walk(steps));
        assert!(slows(&[3, 3, 1, 1]));
        assert!(!slows(&[2, 2, 1, 1]));
        assert!(slows(&[20, 20, 20, 16, 16, 16]));
        assert!(!slows(&[20, 20, 20, 17, 17, 17]));
        // As much less, by chance.
        assert!(!slows(&[27, 3, 24, 9, 18, 12]));
    }

    #[test]
    fn the_last_third_fades_below_half_of_the_rate_of_the_whole() {
        assert!(fades(&[0, 8, 16, 18, 20], 2));
        assert!(!fades(&[0, 6, 12, 14, 16], 2));
        assert!(every_quarter_grows(&[0, 2, 4, 12, 19, 27, 34, 41, 48]));
        assert!(!every_quarter_grows(&[0, 2, 3, 12, 19, 27, 34, 41, 48]));
        assert!(!every_quarter_grows(&[0, 8, 15, 22, 30, 38, 45, 47, 48]));
    }

    #[test]
    fn a_large_cache_that_slows_down_by_chance_only_at_first_is_not_steady() {
        // 480 entries, filled by 40 random accesses a round.
        let values = walk(&[
            34, 28, 31, 23, 21, 27, 21, 18, 16, 19, 18, 13, 13, 8, 10, 5, 9, 16, 7, 8, 7, 7, 10, 4,
            10,
        ]);
        for n in 12..=values.len() {
            let course = course(&values[..n], &rises(&values[..n]), 12);
            assert!(course != Course::Steady, "{n} values");
        }
    }

    #[test]
    fn a_climb_is_seen_below_noise_and_noise_is_no_climb() {
        let noise = |at: u64| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as i64 % 7;
        let noisy = |n: u64, slope: i64| -> Vec<i64> {
            (0..n).map(|at| slope * at as i64 + noise(at)).collect()
        };
        assert_eq!(climb(&noisy(60, 1)), Climb::Steady);
        assert_eq!(climb(&noisy(16, 1)), Climb::Perhaps);
        assert_eq!(climb(&noisy(60, 0)), Climb::No);
        // Once, and then no more.
        let step: Vec<i64> = (0..60)
            .map(|at| noise(at) + if at < 20 { 0 } else { 30 })
            .collect();
        assert!(climb(&step) != Climb::Steady);
    }

    #[test]
    fn a_climb_is_steady_over_24_steps_where_each_eighth_is_above_the_one_before() {
        let line = |n: i64| -> Vec<i64> { (0..n).collect() };
        assert_eq!(climb(&line(11)), Climb::No);
        assert_eq!(climb(&line(12)), Climb::Perhaps);
        assert_eq!(climb(&line(24)), Climb::Perhaps);
        assert_eq!(climb(&line(25)), Climb::Steady);
        // One eighth goes as low as the one before it, or not higher.
        let mut low = line(32);
        low[12] = 8;
        assert_eq!(climb(&low), Climb::Perhaps);
        let mut high = line(32);
        high[12..16].copy_from_slice(&[9, 10, 11, 11]);
        assert_eq!(climb(&high), Climb::Perhaps);
        // One half adds less than two thirds of what the other adds.
        let bent = |first, second| climb(&walk(&runs(&[(16, first), (16, second)])));
        assert_eq!(bent(10, 18), Climb::Perhaps);
        assert_eq!(bent(18, 10), Climb::Perhaps);
        assert_eq!(bent(10, 13), Climb::Steady);
        assert_eq!(bent(13, 10), Climb::Steady);
    }

    #[test]
    fn a_container_that_doubles_is_known_by_four_of_its_rises() {
        assert!(doubling(&[(3, 64), (7, 128), (15, 256), (31, 512)], 40));
        assert!(!doubling(&[(3, 64), (7, 64), (15, 64), (31, 64)], 40));
        // The next one would have come after two and a half times the last wait.
        assert!(doubling(&[(3, 64), (7, 128), (15, 256), (31, 512)], 72));
        assert!(!doubling(&[(3, 64), (7, 128), (15, 256), (31, 512)], 73));
        // It waits three times as long each time.
        assert!(!doubling(&[(1, 64), (2, 128), (5, 256), (12, 512)], 13));
    }

    #[test]
    fn quarters_and_halves_are_those_of_the_rounds() {
        assert_eq!(quarters(&[(0, 1), (2, 1), (4, 1), (6, 1)], 8), 4);
        assert_eq!(quarters(&[(0, 1), (1, 1), (7, 1)], 8), 2);
        assert_eq!(halves(&[0, 2, 4, 5, 6]), Some((2.0, 1.0)));
        // The middle step of an odd number belongs to neither half.
        assert_eq!(halves(&[0, 2, 9, 10]), Some((2.0, 1.0)));
        assert_eq!(halves(&[7]), None);
    }
}
