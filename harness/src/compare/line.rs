//! A straight line through measured points, and how sure it is of the next one.
//!
//! Least squares through the means of each value, with the prediction interval of Student's
//! t for one more run; beside it the line of Theil and Sen, the median of all slopes, which
//! points that contradict the others do not move (Draper and Smith, Applied Regression
//! Analysis, chapter 1; Sen, JASA 63, 1968).
//!
//! Values count, not runs: ten runs at each of three values say how much runs scatter, and
//! no more than three runs do of whether the peak follows a line.

use distrs::StudentsT;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ranks::median;

/// How sure an interval is.
const SURE: f64 = 0.95;

/// `base + slope × value`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Line {
    /// At the value 0, in bytes.
    pub base: f64,
    /// Bytes for each 1 of the value.
    pub slope: f64,
    /// Different values that it was drawn through.
    pub values: usize,
    /// The standard deviation of one run about it, in bytes; `None` of two values, which any
    /// line goes through.
    pub scatter: Option<f64>,
    /// The mean of the values.
    middle: f64,
    /// The sum of the squares of their distances from it.
    width: f64,
}

impl Line {
    /// The line of least squares; `None` of points that have not two different values.
    pub(super) fn through(points: &[(f64, f64)]) -> Option<Self> {
        let groups = by_value(points)?;
        let n = groups.len() as f64;
        let sum = |of: &dyn Fn(&Group) -> f64| groups.iter().map(of).sum::<f64>();
        let (middle, height) = (sum(&|group| group.value) / n, sum(&|group| group.mean) / n);
        let width = sum(&|group| (group.value - middle).powi(2));
        if groups.len() < 2 || !width.is_finite() {
            return None;
        }
        let slope = sum(&|group| (group.value - middle) * (group.mean - height)) / width;
        let base = height - slope * middle;
        let squares = sum(&|group| (group.mean - base - slope * group.value).powi(2));
        let scatter = |free: usize| {
            // The means scatter less than runs do: what they hide of that is added.
            let again = points.len() - groups.len();
            let within = sum(&|group| group.squares) / again.max(1) as f64;
            let hidden = within * sum(&|group| 1.0 - 1.0 / group.runs) / n;
            (squares / free as f64 + hidden).sqrt()
        };
        Some(Self {
            base,
            slope,
            values: groups.len(),
            scatter: Some(groups.len() - 2).filter(|free| *free > 0).map(scatter),
            middle,
            width,
        })
    }

    /// The same line through the points' medians of slopes (Theil and Sen); it has no
    /// prediction interval.
    pub(super) fn robust(points: &[(f64, f64)]) -> Option<Self> {
        let mut slopes: Vec<f64> = Vec::new();
        for (at, a) in points.iter().enumerate() {
            let others = points[at + 1..].iter().filter(|b| b.0 != a.0);
            slopes.extend(others.map(|b| (b.1 - a.1) / (b.0 - a.0)));
        }
        slopes.sort_unstable_by(f64::total_cmp);
        let slope = median(&slopes)?;
        let mut bases: Vec<f64> = points.iter().map(|(x, y)| y - slope * x).collect();
        bases.sort_unstable_by(f64::total_cmp);
        Some(Self {
            base: median(&bases)?,
            slope,
            scatter: None,
            ..Self::through(points)?
        })
    }

    /// What it says of a value, in bytes.
    pub fn at(&self, value: f64) -> f64 {
        self.base + self.slope * value
    }

    /// Within how many bytes of [`at`](Self::at) one more run at this value lies, with a
    /// probability of 95 %; `None` where the line cannot say.
    pub fn reach(&self, value: f64) -> Option<f64> {
        self.reach_of(value, SURE)
    }

    /// The same with another probability.
    pub(super) fn reach_of(&self, value: f64, sure: f64) -> Option<f64> {
        let scatter = self.scatter?;
        let free = self.values.checked_sub(2)? as f64;
        let quantile = StudentsT::ppf((1.0 + sure) / 2.0, free);
        let share = 1.0 + 1.0 / self.values as f64 + (value - self.middle).powi(2) / self.width;
        Some(quantile * scatter * share.sqrt())
    }

    /// The largest whole value from 0 up at which the line, `above` reaches above it, is at
    /// most so many bytes.
    pub(super) fn largest_within(&self, bytes: f64, above: f64) -> Largest {
        const MOST: f64 = 1e9;
        let over = |value: f64| {
            let reach = match above {
                0.0 => 0.0,
                above => above * self.reach(value).unwrap_or(f64::INFINITY),
            };
            self.at(value) + reach > bytes
        };
        // Up from the last value that fits. Where a line's upper bound first falls (it is
        // narrowest in the middle of the points), that need not be at 0.
        let middle = self.middle.max(0.0).floor();
        let Some(mut fits) = [middle, 0.0].into_iter().find(|value| !over(*value)) else {
            return Largest::None;
        };
        if !over(MOST) {
            return Largest::Unbounded;
        }
        let mut too_much = MOST;
        while too_much - fits > 1.0 {
            let between = ((fits + too_much) / 2.0).floor();
            if over(between) {
                too_much = between;
            } else {
                fits = between;
            }
        }
        Largest::At(fits as u64)
    }
}

/// The points of one value.
struct Group {
    value: f64,
    runs: f64,
    mean: f64,
    /// The squares of their distances from the mean, summed.
    squares: f64,
}

/// The points by value, in ascending order; `None` if some are no numbers.
fn by_value(points: &[(f64, f64)]) -> Option<Vec<Group>> {
    if points.iter().any(|(x, y)| !x.is_finite() || !y.is_finite()) {
        return None;
    }
    let mut sorted = points.to_vec();
    sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let groups = sorted.chunk_by(|a, b| a.0 == b.0).map(|group| {
        let runs = group.len() as f64;
        let mean = group.iter().map(|point| point.1).sum::<f64>() / runs;
        Group {
            value: group[0].0,
            runs,
            mean,
            squares: group.iter().map(|point| (point.1 - mean).powi(2)).sum(),
        }
    });
    Some(groups.collect())
}

/// The largest value that fits a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Largest {
    /// Not even the smallest does.
    None,
    /// This one.
    At(u64),
    /// All do: the peak does not grow with the value, or may not.
    Unbounded,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Published peaks of a prover in GiB, by its partition workers.
    const CUZK: [(f64, f64); 4] = [(1.0, 104.0), (2.0, 110.0), (5.0, 170.0), (7.0, 208.0)];

    fn close(value: f64, expected: f64) {
        assert!((value - expected).abs() < 5e-4, "{value} is not {expected}");
    }

    #[test]
    fn the_line_and_its_bounds_are_those_of_least_squares_and_students_t() {
        let line = Line::through(&CUZK).unwrap();
        close(line.slope, 410.0 / 22.75);
        close(line.base, 148.0 - 3.75 * 410.0 / 22.75);
        // Σ(y - 148)² is 44² + 38² + 22² + 60² = 7,464.
        let squares = 7464.0 - 410.0_f64.powi(2) / 22.75;
        close(line.scatter.unwrap(), (squares / 2.0).sqrt());
        // The 97.5 % point of Student's t with 2 degrees of freedom is 4.30265.
        let at_10 = 4.302_65 * (squares / 2.0).sqrt() * (1.25 + 6.25_f64.powi(2) / 22.75).sqrt();
        assert!((line.reach(10.0).unwrap() - at_10).abs() < 0.01);
    }

    #[test]
    fn students_t_has_the_quantiles_of_the_tables() {
        for (free, quantile) in [
            (1.0, 12.7062),
            (2.0, 4.3027),
            (3.0, 3.1824),
            (10.0, 2.2281),
            (30.0, 2.0423),
        ] {
            close(StudentsT::ppf(0.975, free), quantile);
        }
    }

    #[test]
    fn two_points_make_a_line_that_is_sure_of_nothing_and_one_value_none() {
        let line = Line::through(&CUZK[..2]).unwrap();
        assert_eq!((line.at(3.0), line.reach(3.0)), (116.0, None));
        assert_eq!(Line::through(&[(1.0, 2.0), (1.0, 3.0)]), None);
        assert_eq!(Line::through(&[]), None);
        assert_eq!(Line::through(&[(1.0, 2.0), (f64::NAN, 3.0)]), None);
    }

    #[test]
    fn the_largest_value_that_fits_is_where_the_line_meets_the_budget() {
        let line = Line::through(&CUZK).unwrap();
        let largest = |above| line.largest_within(755.0, above);
        assert_eq!(largest(0.0), Largest::At(37));
        let (Largest::At(sure), Largest::At(at_best)) = (largest(1.0), largest(-1.0)) else {
            panic!("{:?} {:?}", largest(1.0), largest(-1.0));
        };
        assert!(sure < 37 && at_best > 37, "{sure} {at_best}");
        let upper = |value: u64| line.at(value as f64) + line.reach(value as f64).unwrap();
        assert!(upper(sure) <= 755.0 && upper(sure + 1) > 755.0);
        assert_eq!(line.largest_within(50.0, 0.0), Largest::None);
    }

    #[test]
    fn more_runs_at_the_same_values_make_the_line_no_surer_than_the_values_do() {
        let once = Line::through(&CUZK).unwrap();
        let again: Vec<(f64, f64)> = CUZK.iter().cycle().take(40).copied().collect();
        let often = Line::through(&again).unwrap();
        close(often.slope, once.slope);
        close(often.scatter.unwrap(), once.scatter.unwrap());
        close(often.reach(12.0).unwrap(), once.reach(12.0).unwrap());
    }

    #[test]
    fn runs_that_scatter_about_a_line_leave_one_more_run_as_unsure_as_they_are() {
        let points: Vec<(f64, f64)> = (1..=4)
            .flat_map(|x| [-3.0, 3.0].map(|off| (f64::from(x), 10.0 * f64::from(x) + off)))
            .collect();
        // Two runs a value, 3 above and 3 below: a variance of 18, half of it in the means.
        close(Line::through(&points).unwrap().scatter.unwrap(), 3.0);
    }

    #[test]
    fn a_peak_that_does_not_grow_has_no_largest_value() {
        let flat = Line::through(&[(1.0, 5.0), (2.0, 5.0), (3.0, 5.0)]).unwrap();
        assert_eq!(flat.largest_within(6.0, 0.0), Largest::Unbounded);
        assert_eq!(flat.largest_within(6.0, 1.0), Largest::Unbounded);
        assert_eq!(flat.largest_within(4.0, 0.0), Largest::None);
    }

    #[test]
    fn one_wild_point_moves_the_robust_line_little() {
        let mut points: Vec<(f64, f64)> = (1..=9)
            .map(|x| (f64::from(x), 10.0 * f64::from(x)))
            .collect();
        points[8].1 = 500.0;
        let robust = Line::robust(&points).unwrap();
        close(robust.slope, 10.0);
        assert!(Line::through(&points).unwrap().slope > 20.0);
    }

    proptest! {
        #[test]
        fn a_line_through_exact_points_is_that_line(
            base in -1e3..1e3_f64,
            slope in -1e3..1e3_f64,
            values in prop::collection::btree_set(0..100_u32, 3..8),
        ) {
            let points: Vec<(f64, f64)> = values
                .iter()
                .map(|value| (f64::from(*value), base + slope * f64::from(*value)))
                .collect();
            for line in [Line::through(&points).unwrap(), Line::robust(&points).unwrap()] {
                prop_assert!((line.slope - slope).abs() < 1e-6, "{:?}", line);
                prop_assert!((line.base - base).abs() < 1e-4, "{:?}", line);
            }
        }

        #[test]
        fn scaling_bytes_scales_the_line_and_its_bounds(
            peaks in prop::collection::vec(0.0..1e3_f64, 3..8),
            by in 0.5..100.0_f64,
        ) {
            let points = |by: f64| -> Vec<(f64, f64)> {
                peaks.iter().enumerate().map(|(x, y)| (x as f64, y * by)).collect()
            };
            let (one, other) = (Line::through(&points(1.0)).unwrap(), Line::through(&points(by)).unwrap());
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * (1.0 + a.abs());
            prop_assert!(near(one.slope * by, other.slope));
            prop_assert!(near(one.reach(20.0).unwrap() * by, other.reach(20.0).unwrap()));
        }
    }
}
