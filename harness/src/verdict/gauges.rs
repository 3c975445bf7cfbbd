//! Statistics for gauges: numbers that the system rounds, delays and disturbs.
//!
//! A slope alone says little: allocators warm up for tens of rounds, and a flat
//! series whose neighbours resemble each other looks like a slope one time in
//! five. So growth is believed in two shapes only: by almost the same amount in
//! each round; or over many rounds, with a slope whose bounds allow for
//! autocorrelation, better explained by a line than by one step, and not
//! slowing.

/// Points that a slope is computed from; longer series are thinned by medians.
const MOST_POINTS: usize = 160;

/// A robust slope with its 95 % bounds, in units per round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slope {
    pub(super) per_round: f64,
    pub(super) lower: f64,
    pub(super) upper: f64,
}

/// How a gauge grows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Trend {
    /// It does not, or it slows down, or it jumped once.
    None,
    /// It looks like growth, over too few rounds.
    TooFew,
    /// By almost the same amount in each round.
    Even(Slope),
    /// By a slope that holds over many rounds.
    Long(Slope),
}

/// Judges how a gauge grows that was read after each round.
///
/// - Even, over `even` rounds: each step adds something between half and one
///   and a half of the median step, half of the steps differ by less than a
///   fifth of it, and the second half adds nine tenths of the first at least.
/// - Long, over `long` rounds: the lower bound of the slope is above zero, a
///   line explains the series better than a single step, and the second half
///   adds three quarters of the first at least.
pub(super) fn trend(values: &[f64], even: usize, long: usize) -> Trend {
    let n = values.len().saturating_sub(1);
    if n < 3 || values.iter().any(|v| !v.is_finite()) {
        return Trend::None;
    }
    let Some(slope) = theil_sen(values) else {
        return Trend::None;
    };
    let is_even = steps_are_even(values) && halves(values) >= 0.9;
    if is_even {
        return if n >= even {
            Trend::Even(slope)
        } else {
            Trend::TooFew
        };
    }
    let is_long = slope.lower > 0.0 && !one_step_explains(values) && halves(values) >= 0.75;
    match (is_long, n >= long) {
        (true, true) => Trend::Long(slope),
        (true, false) if n >= even => Trend::TooFew,
        _ => Trend::None,
    }
}

/// The median of all slopes between two points (Theil and Sen), with bounds
/// from the variance of Kendall's statistic, widened by the residuals'
/// first-order autocorrelation.
pub(super) fn theil_sen(values: &[f64]) -> Option<Slope> {
    let points = thinned(values);
    let n = points.len();
    if n < 3 {
        return None;
    }
    let mut slopes: Vec<f64> = Vec::with_capacity(n * (n - 1) / 2);
    for (at, a) in points.iter().enumerate() {
        for b in &points[at + 1..] {
            slopes.push((b.1 - a.1) / (b.0 - a.0));
        }
    }
    slopes.sort_unstable_by(f64::total_cmp);
    let per_round = median_of_sorted(&slopes)?;
    let residuals: Vec<f64> = points.iter().map(|(x, y)| y - per_round * x).collect();
    let inflation = {
        let r = autocorrelation(&residuals).clamp(0.0, 0.95);
        (1.0 + r) / (1.0 - r)
    };
    let n = n as f64;
    let deviation = (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0 * inflation).sqrt();
    let reach = 1.96 * deviation;
    let pairs = slopes.len() as f64;
    let at = |rank: f64| slopes[(rank.round() as usize).min(slopes.len() - 1)];
    Some(Slope {
        per_round,
        lower: at((pairs - reach) / 2.0),
        upper: at((pairs + reach) / 2.0),
    })
}

/// (round, value), at most [`MOST_POINTS`] of them: medians of equal bins.
fn thinned(values: &[f64]) -> Vec<(f64, f64)> {
    let bin = values.len().div_ceil(MOST_POINTS).max(1);
    values
        .chunks(bin)
        .enumerate()
        .filter_map(|(at, chunk)| {
            let mut sorted = chunk.to_vec();
            sorted.sort_unstable_by(f64::total_cmp);
            let centre = (at * bin) as f64 + (chunk.len() as f64 - 1.0) / 2.0;
            Some((centre, median_of_sorted(&sorted)?))
        })
        .collect()
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let n = sorted.len();
    let upper = *sorted.get(n / 2)?;
    if n % 2 == 1 {
        return Some(upper);
    }
    Some((sorted.get((n / 2).checked_sub(1)?)? + upper) / 2.0)
}

/// The correlation of neighbours.
fn autocorrelation(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    if variance <= 0.0 {
        return 0.0;
    }
    let products: f64 = values
        .windows(2)
        .map(|pair| (pair[0] - mean) * (pair[1] - mean))
        .sum();
    products / variance
}

/// What the second half adds, as a share of what the first adds, between medians of an
/// eighth of the values each, so that a number that is high or low by chance decides nothing.
pub(super) fn halves(values: &[f64]) -> f64 {
    let wide = (values.len() / 8).max(1);
    let n = values.len().saturating_sub(wide);
    let median_from = |from: usize| {
        let mut part = values.get(from..from + wide)?.to_vec();
        part.sort_unstable_by(f64::total_cmp);
        median_of_sorted(&part)
    };
    let points = [0, n / 2, n - n / 2, n].map(median_from);
    let [Some(first), Some(middle), Some(from), Some(last)] = points else {
        return 0.0;
    };
    let (a, b) = (middle - first, last - from);
    if a <= 0.0 {
        // Nothing in the first half: late growth is no steady growth.
        return 0.0;
    }
    b / a
}

fn steps_are_even(values: &[f64]) -> bool {
    let mut steps: Vec<f64> = values.windows(2).map(|pair| pair[1] - pair[0]).collect();
    steps.sort_unstable_by(f64::total_cmp);
    let n = steps.len();
    let (Some(median), Some(first), Some(last)) =
        (median_of_sorted(&steps), steps.first(), steps.last())
    else {
        return false;
    };
    let (lower, upper) = (steps[n / 4], steps[n - 1 - n / 4]);
    median > 0.0 && *first >= 0.5 * median && *last <= 1.5 * median && upper - lower <= 0.2 * median
}

/// Whether two levels explain the series as well as a line does.
fn one_step_explains(values: &[f64]) -> bool {
    let n = values.len();
    // Prefix sums, so that every place of the step is tried in linear time.
    let mean = values.iter().sum::<f64>() / n.max(1) as f64;
    let (mut sum, mut square) = (vec![0.0], vec![0.0]);
    for value in values {
        let v = value - mean;
        sum.push(sum[sum.len() - 1] + v);
        square.push(square[square.len() - 1] + v * v);
    }
    let part = |from: usize, to: usize| {
        let s = sum[to] - sum[from];
        square[to] - square[from] - s * s / (to - from) as f64
    };
    let step = (1..n)
        .map(|at| part(0, at) + part(at, n))
        .fold(f64::INFINITY, f64::min);
    let middle = (n as f64 - 1.0) / 2.0;
    let (mut xy, mut xx) = (0.0, 0.0);
    for (at, value) in values.iter().enumerate() {
        let x = at as f64 - middle;
        xy += x * (value - mean);
        xx += x * x;
    }
    step <= square[n] - xy * xy / xx
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The healthy prover's resident memory of the design's facts, in MiB, by round.
    fn healthy_prover(rounds: usize) -> Vec<f64> {
        let known = [
            (1.0, 146.0),
            (2.0, 161.0),
            (3.0, 170.0),
            (4.0, 173.0),
            (8.0, 187.0),
            (18.0, 206.0),
            (28.0, 214.0),
            (38.0, 217.0),
            (1000.0, 217.0),
        ];
        (1..=rounds)
            .map(|round| {
                let x = round as f64;
                let pair = known.windows(2).find(|pair| x <= pair[1].0).expect("known");
                let share = (x - pair[0].0) / (pair[1].0 - pair[0].0);
                pair[0].1 + share.max(0.0) * (pair[1].1 - pair[0].1)
            })
            .collect()
    }

    #[test]
    fn the_healthy_prover_that_warms_up_for_forty_rounds_has_no_trend() {
        for rounds in 4..=120 {
            for warmup in 1..=3 {
                let values = healthy_prover(rounds);
                let trend = trend(&values[warmup - 1..], 8, 24);
                assert!(
                    matches!(trend, Trend::None | Trend::TooFew),
                    "{rounds} rounds, {warmup} warm-up: {trend:?}"
                );
            }
        }
    }

    #[test]
    fn the_same_amount_in_each_round_is_growth() {
        let values: Vec<f64> = (0..9).map(|n| 100.0 + 4.0 * f64::from(n)).collect();
        let Trend::Even(slope) = trend(&values, 8, 24) else {
            panic!("{:?}", trend(&values, 8, 24));
        };
        assert!((slope.per_round - 4.0).abs() < 1e-9);
        assert_eq!(trend(&values[..6], 8, 24), Trend::TooFew);
    }

    #[test]
    fn growth_below_an_allocator_that_gives_some_back_now_and_then_is_growth() {
        // As measured: mimalloc, 4 MiB lost in each round; in MiB. In the middle it has just
        // not given back yet.
        let measured = [
            81, 83, 101, 105, 127, 129, 129, 133, 137, 155, 155, 155, 157, 161, 173, 119, 123, 141,
            145, 150, 152, 153, 165, 177, 179, 183, 186, 188, 192, 209, 223, 172, 190, 201, 209,
            211, 219, 223, 224, 234, 240, 242, 246, 254, 259, 261, 263, 252, 268, 270, 278, 284,
            286, 289, 295, 301, 305, 307, 311, 315, 321,
        ];
        assert!(matches!(
            trend(&measured.map(f64::from), 8, 24),
            Trend::Long(_)
        ));
    }

    #[test]
    fn halves_are_told_by_medians_of_an_eighth_of_the_values() {
        let line: Vec<f64> = (0..25).map(f64::from).collect();
        assert_eq!(halves(&line), 1.0);
        // One that is high by chance in the middle, or low at the end, decides little.
        let mut bumpy = line.clone();
        bumpy[12] += 9.0;
        bumpy[24] -= 5.0;
        assert!(halves(&bumpy) > 0.7, "{}", halves(&bumpy));
        let slower: Vec<f64> = line
            .iter()
            .map(|n| n.min(12.0 + (n - 12.0) / 2.0))
            .collect();
        assert_eq!(halves(&slower), 0.5);
        assert_eq!(halves(&[0.0, 0.0, 0.0, 5.0]), 0.0);
        assert_eq!(halves(&[]), 0.0);
    }

    #[test]
    fn one_step_is_no_slope() {
        let values: Vec<f64> = (0..40).map(|n| if n < 20 { 10.0 } else { 60.0 }).collect();
        assert_eq!(trend(&values, 8, 24), Trend::None);
    }

    #[test]
    fn the_bounds_hold_the_slope() {
        let values: Vec<f64> = (0..50)
            .map(|n| 3.0 * f64::from(n) + f64::from((n * 7) % 11))
            .collect();
        let slope = theil_sen(&values).expect("fifty points");
        assert!(slope.lower <= slope.per_round && slope.per_round <= slope.upper);
        assert!(slope.lower > 2.5 && slope.upper < 3.5, "{slope:?}");
    }

    #[test]
    fn long_series_are_thinned_and_keep_their_slope() {
        let values: Vec<f64> = (0..5000).map(f64::from).collect();
        let slope = theil_sen(&values).expect("many points");
        assert!((slope.per_round - 1.0).abs() < 1e-9);
    }

    /// The slope of each pair of points, the lowest first.
    fn slopes_in_order(values: &[f64]) -> Vec<f64> {
        let mut slopes = Vec::new();
        for (at, a) in values.iter().enumerate() {
            for (later, b) in values.iter().enumerate().skip(at + 1) {
                slopes.push((b - a) / (later - at) as f64);
            }
        }
        slopes.sort_unstable_by(f64::total_cmp);
        slopes
    }

    #[test]
    fn the_bounds_are_those_of_kendalls_variance() {
        // Neighbours that differ by turns: nothing to widen the bounds for.
        let values: Vec<f64> = (0..10_i32)
            .map(|n| f64::from(n) + 0.1 * f64::from(n * n % 7) + f64::from(n % 2))
            .collect();
        let slopes = slopes_in_order(&values);
        // 45 pairs; the variance is 10 * 9 * 25 / 18 = 125, and 1.96 deviations are 21.9:
        // the bounds are the slopes of rank (45 - 21.9) / 2 and (45 + 21.9) / 2.
        let slope = theil_sen(&values).expect("ten points");
        assert_eq!((slope.per_round, slope.lower), (slopes[22], slopes[12]));
        assert_eq!(slope.upper, slopes[33]);
    }

    #[test]
    fn neighbours_that_resemble_each_other_widen_the_bounds() {
        assert!((autocorrelation(&[1.0, -1.0, 1.0, -1.0]) + 0.75).abs() < 1e-12);
        assert!((autocorrelation(&[9.0, 9.0, 7.0, 7.0]) - 0.25).abs() < 1e-12);
        assert!((autocorrelation(&[1.0, 2.0, 4.0, 5.0]) - 0.3).abs() < 1e-12);
        assert_eq!(autocorrelation(&[3.0; 5]), 0.0);
    }

    #[test]
    fn thinned_points_stand_in_the_middle_of_their_bins() {
        let values: Vec<f64> = (0..321).map(f64::from).collect();
        let points = thinned(&values);
        assert_eq!(points.len(), 107);
        assert_eq!((points[0], points[1]), ((1.0, 1.0), (4.0, 4.0)));
        assert_eq!(thinned(&[5.0, 7.0]), [(0.0, 5.0), (1.0, 7.0)]);
    }

    #[test]
    fn a_trend_needs_four_numbers_and_growth_that_is_even_or_long() {
        assert_eq!(trend(&[0.0, 1.0, 2.0], 8, 24), Trend::None);
        assert_eq!(trend(&[0.0, 1.0, 2.0, 3.0], 8, 24), Trend::TooFew);
        assert_eq!(trend(&[0.0, 1.0, 2.0, f64::NAN], 8, 24), Trend::None);
        assert_eq!(trend(&[0.0, 1.0, 2.0, f64::INFINITY], 8, 24), Trend::None);
        // Even steps that become smaller: eight of them tell too little, fewer nothing.
        let slower = [0.0, 11.0, 22.0, 33.0, 44.0, 53.5, 63.0, 72.5, 82.0];
        assert_eq!(trend(&slower, 8, 24), Trend::TooFew);
        assert_eq!(trend(&slower, 9, 24), Trend::None);
        assert!(matches!(trend(&slower, 8, 8), Trend::Long(_)));
        let bumpy = [0.0, 14.0, 16.0, 34.0, 36.0, 54.0, 56.0, 74.0, 76.0];
        assert_eq!(trend(&bumpy, 8, 24), Trend::TooFew);
    }

    #[test]
    fn a_slope_needs_three_points() {
        assert_eq!(theil_sen(&[0.0, 1.0]), None);
        assert!(theil_sen(&[0.0, 1.0, 3.0]).is_some());
    }

    #[test]
    fn bounds_are_widened_by_how_much_residuals_resemble_their_neighbours() {
        // Two levels by turns, three rounds each: the residuals' autocorrelation is 0.394.
        let values: Vec<f64> = (0..12_i32)
            .map(|n| f64::from(n) + f64::from(n / 3 % 2 * 3) + 0.1 * f64::from(n * n % 7))
            .collect();
        let slopes = slopes_in_order(&values);
        // 66 pairs; the variance is 12 * 11 * 29 / 18 * (1.394 / 0.606), and 1.96 deviations
        // are 43.4: the bounds are the slopes of rank (66 - 43.4) / 2 and (66 + 43.4) / 2.
        let slope = theil_sen(&values).expect("twelve points");
        assert_eq!((slope.lower, slope.upper), (slopes[11], slopes[55]));
        assert!(slopes[11] < slopes[19] && slopes[47] < slopes[55]);
    }

    #[test]
    fn steps_are_even_that_hardly_differ() {
        assert!(steps_are_even(&[0.0, 10.0, 20.0, 30.0, 41.0]));
        assert!(!steps_are_even(&[0.0, 10.0, 20.0, 24.0, 34.0]));
        assert!(!steps_are_even(&[0.0, 10.0, 20.0, 36.0, 46.0]));
        assert!(!steps_are_even(&[5.0; 5]));
        assert!(!steps_are_even(&[0.0, 1.0, 2.0, 3.0, 4.0, 6.0]));
        assert!(steps_are_even(&[0.0, 1.8, 3.7, 5.7, 7.7, 9.8, 12.0]));
        assert!(!steps_are_even(&[0.0, 0.8, 1.6, 2.6, 3.8, 5.0]));
    }

    #[test]
    fn one_step_explains_two_levels_and_no_line() {
        let step = [1.0, 0.0, 1.0, 0.0, 9.0, 8.0, 9.0, 8.0];
        assert!(one_step_explains(&step));
        assert!(one_step_explains(&[3.0, 0.0, 3.0, 0.0, 9.0, 6.0, 9.0, 6.0]));
        assert!(!one_step_explains(&[2.0, 2.0, 2.0, 3.0, 4.0, 6.0, 6.0]));
        let line: Vec<f64> = (0..8).map(|n| f64::from(n) + f64::from(n % 2)).collect();
        assert!(!one_step_explains(&line));
    }
}
