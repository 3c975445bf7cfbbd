//! How the peak follows a parameter, and the largest value of it that fits a budget.
//!
//! `peak = base + slope × value`, drawn through what was measured. A value contradicts the
//! line if it lies outside of what the line through all other values predicts for it (its
//! deletion residual, studentised, is beyond Student's t: Cook and Weisberg, Residuals and
//! Influence in Regression, 1982, with Bonferroni's correction for trying each of them);
//! a value that the line was not drawn through, if it lies outside of the line's
//! 95 % prediction interval. What is off by less than 2 % contradicts nothing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::line::{Largest, Line};

/// The peak at one value of the parameter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Seen {
    /// The value.
    pub value: f64,
    /// The peak.
    pub peak: Peak,
}

/// A peak, as well as it is known; in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Peak {
    /// One run's.
    Exactly(u64),
    /// The lowest and the highest of several runs.
    Between(u64, u64),
    /// A run that was killed when it had taken so much. No line is drawn through it.
    AtLeast(u64),
}

/// What a sweep says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Forecast {
    /// The line; `None` where fewer than two values were measured.
    pub line: Option<Line>,
    /// The values that it was drawn through.
    pub drawn_through: Vec<f64>,
    /// Every value, measured beside predicted, in ascending order.
    pub values: Vec<Checked>,
    /// What the line says of the budget.
    pub budget: Option<Budget>,
    /// What else could be drawn, where a value contradicts the line.
    pub instead: Option<Instead>,
    /// What stands in the way of a prediction.
    pub missing: Vec<String>,
}

/// One value of the parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Checked {
    /// The value.
    pub value: f64,
    /// Peaks that were measured at it, those of killed runs not among them.
    pub runs: usize,
    /// Runs that were killed at it.
    pub killed: usize,
    /// The lowest peak, in bytes. Of runs that were all killed: what they had taken.
    pub low: f64,
    /// The highest peak, in bytes.
    pub high: f64,
    /// Whether the line was drawn through it.
    pub drawn_through: bool,
    /// What the line says of it, in bytes; `None` where there is no line.
    pub predicted: Option<f64>,
    /// What it was held against; `None` where there was nothing.
    pub expected: Option<Expected>,
    /// Whether it lies outside of that.
    pub contradicts: bool,
}

/// Where a value's peaks were expected to lie: by the line, or where that was drawn through
/// the value too, by the line through all the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Expected {
    /// In the middle, in bytes.
    pub middle: f64,
    /// Up to so many bytes from there.
    pub reach: f64,
}

/// What a line says of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Budget {
    /// The budget in bytes.
    pub bytes: u64,
    /// The largest whole value whose peak the line expects to fit.
    pub expected: Largest,
    /// The largest whose peak fits even at the upper bound; `None` where the line has no bounds.
    pub sure: Option<Largest>,
    /// The largest whose peak would fit at the lower bound.
    pub at_best: Option<Largest>,
    /// Whether the expected value is beyond all that was measured.
    pub beyond_measured: bool,
}

/// What else to hold on to, where a value contradicts the line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Instead {
    /// The line through all values, where that is another one.
    pub all: Option<Drawn>,
    /// The line of Theil and Sen through all values, which single ones do not move.
    pub robust: Option<Drawn>,
    /// The steepest step between two neighbouring values, carried on from the last one.
    pub steepest: Option<Steepest>,
}

/// Another line, and what it says of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Drawn {
    /// The line.
    pub line: Line,
    /// What it says of the budget.
    pub budget: Option<Budget>,
}

/// The steepest step between two neighbouring values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Steepest {
    /// From this value.
    pub from: f64,
    /// To this one.
    pub to: f64,
    /// Bytes for each 1 of the value.
    pub slope: f64,
    /// The largest value that fits the budget if it goes on like that from the last one measured.
    pub largest: Option<Largest>,
}

impl Forecast {
    /// Draws the line through what was seen, or through the values `only` of it.
    pub fn of(seen: &[Seen], only: Option<&[f64]>, budget_bytes: Option<u64>) -> Self {
        let is_meant = |value: f64| only.is_none_or(|only| only.contains(&value));
        let mut values = checked(seen, &is_meant);
        let drawn: Vec<(f64, f64)> = points(seen).filter(|point| is_meant(point.0)).collect();
        let line = Line::through(&drawn);
        let inside = values.iter().filter(|value| value.drawn_through).count();
        for value in &mut values {
            check(value, line.as_ref(), &drawn, inside);
        }
        let drawn_through: Vec<f64> = values
            .iter()
            .filter(|value| value.drawn_through)
            .map(|value| value.value)
            .collect();
        let measured = values.iter().map(|value| value.value);
        let most = measured.fold(f64::NEG_INFINITY, f64::max);
        let of_budget = |line: &Line| {
            let bytes = budget_bytes?;
            Some(budget(line, bytes, most))
        };
        let contradicted = values.iter().any(|value| value.contradicts);
        let all: Vec<(f64, f64)> = points(seen).collect();
        let draw = |line: Option<Line>| {
            line.map(|line| Drawn {
                line,
                budget: of_budget(&line),
            })
        };
        let instead = contradicted.then(|| Instead {
            all: draw(Line::through(&all)).filter(|_| all.len() > drawn.len()),
            robust: draw(Line::robust(&all)),
            steepest: steepest(&values, budget_bytes),
        });
        Self {
            missing: missing(line.as_ref(), &drawn_through),
            budget: line.as_ref().and_then(of_budget),
            line,
            drawn_through,
            values,
            instead,
        }
    }

    /// Whether there is a line with bounds, and no value contradicts it.
    pub fn holds(&self) -> bool {
        self.missing.is_empty() && !self.values.iter().any(|value| value.contradicts)
    }
}

/// Points for a line. Of several runs of which the lowest and the highest are known, those two.
fn points(seen: &[Seen]) -> impl Iterator<Item = (f64, f64)> {
    let of_one = |seen: &Seen| {
        let value = seen.value;
        let peaks = match seen.peak {
            Peak::Exactly(bytes) => [Some(bytes), None],
            Peak::Between(low, high) => [Some(low), Some(high)],
            Peak::AtLeast(_) => [None, None],
        };
        let peaks = peaks.into_iter().flatten();
        peaks.map(move |bytes| (value, bytes as f64))
    };
    seen.iter().flat_map(of_one)
}

/// Each value with what was measured at it.
fn checked(seen: &[Seen], is_meant: &dyn Fn(f64) -> bool) -> Vec<Checked> {
    let mut values: Vec<f64> = seen.iter().map(|seen| seen.value).collect();
    values.sort_unstable_by(f64::total_cmp);
    values.dedup();
    let of_value = |value: f64| {
        let peaks: Vec<f64> = points(seen)
            .filter(|point| point.0 == value)
            .map(|point| point.1)
            .collect();
        let killed: Vec<f64> = seen
            .iter()
            .filter(|seen| seen.value == value)
            .filter_map(|seen| match seen.peak {
                Peak::AtLeast(bytes) => Some(bytes as f64),
                _ => None,
            })
            .collect();
        let known = if peaks.is_empty() { &killed } else { &peaks };
        Checked {
            value,
            runs: peaks.len(),
            killed: killed.len(),
            low: known.iter().copied().fold(f64::INFINITY, f64::min),
            high: known.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            drawn_through: !peaks.is_empty() && is_meant(value),
            predicted: None,
            expected: None,
            contradicts: false,
        }
    };
    values.into_iter().map(of_value).collect()
}

/// Says what is predicted of a value, and whether it lies outside.
fn check(value: &mut Checked, line: Option<&Line>, drawn: &[(f64, f64)], values: usize) {
    /// The share of values that are wrongly said to contradict a line.
    const WRONG: f64 = 0.05;
    /// The share of a peak that nobody minds.
    const OFF: f64 = 0.02;
    value.predicted = line.map(|line| line.at(value.value));
    let (line, wrong) = if value.drawn_through {
        let others = drawn.iter().filter(|point| point.0 != value.value);
        let others = Line::through(&others.copied().collect::<Vec<_>>());
        // Each value of them is tried.
        (others, WRONG / values.max(1) as f64)
    } else {
        (line.copied(), WRONG)
    };
    value.expected = line.and_then(|line| {
        Some(Expected {
            middle: line.at(value.value),
            reach: line.reach_of(value.value, 1.0 - wrong)?,
        })
    });
    // All runs of the value have to lie outside.
    value.contradicts = value.expected.is_some_and(|Expected { middle, reach }| {
        let reach = reach.max(OFF * value.high.abs());
        let is_above = value.low > middle + reach;
        let is_below = value.high < middle - reach && value.runs > 0;
        is_above || is_below
    });
}

fn budget(line: &Line, bytes: u64, most_measured: f64) -> Budget {
    let largest = |above| line.largest_within(bytes as f64, above);
    let has_bounds = line.scatter.is_some();
    let expected = largest(0.0);
    Budget {
        bytes,
        expected,
        sure: has_bounds.then(|| largest(1.0)),
        at_best: has_bounds.then(|| largest(-1.0)),
        beyond_measured: match expected {
            Largest::At(value) => value as f64 > most_measured,
            Largest::Unbounded => true,
            Largest::None => false,
        },
    }
}

fn steepest(values: &[Checked], budget_bytes: Option<u64>) -> Option<Steepest> {
    let measured: Vec<&Checked> = values.iter().filter(|value| value.runs > 0).collect();
    let middle = |value: &Checked| value.low + (value.high - value.low) / 2.0;
    let slope =
        |pair: &[&Checked]| (middle(pair[1]) - middle(pair[0])) / (pair[1].value - pair[0].value);
    let pair = measured
        .windows(2)
        .max_by(|a, b| slope(a).total_cmp(&slope(b)))?;
    let slope = slope(pair);
    let last = measured.last()?;
    let largest = budget_bytes.map(|bytes| {
        let more = ((bytes as f64 - last.high) / slope).floor() + last.value;
        if slope <= 0.0 {
            Largest::Unbounded
        } else if more < last.value {
            Largest::None
        } else {
            Largest::At(more as u64)
        }
    });
    Some(Steepest {
        from: pair[0].value,
        to: pair[1].value,
        slope,
        largest,
    })
}

fn missing(line: Option<&Line>, drawn_through: &[f64]) -> Vec<String> {
    let values = drawn_through.len();
    let lacks = match line {
        None => Some(format!(
            "a line: peaks of {values} different values were measured, and it takes 3"
        )),
        Some(line) if line.scatter.is_none() || values < 3 => Some(format!(
            "how sure the line is: it is drawn through {values} values, and it takes 3 to \
             contradict one"
        )),
        Some(_) => None,
    };
    lacks.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// The published peaks of cuzk, by partition workers.
    fn cuzk() -> Vec<Seen> {
        let exactly = |value, gib| Seen {
            value,
            peak: Peak::Exactly(gib * GIB),
        };
        let between = |value, low, high| Seen {
            value,
            peak: Peak::Between(low * GIB, high * GIB),
        };
        vec![
            exactly(1.0, 104),
            exactly(2.0, 110),
            exactly(5.0, 170),
            exactly(7.0, 208),
            between(10.0, 271, 310),
            between(12.0, 373, 400),
            exactly(14.0, 457),
            exactly(16.0, 510),
        ]
    }

    fn of(forecast: &Forecast, value: f64) -> &Checked {
        let mut values = forecast.values.iter();
        values.find(|checked| checked.value == value).unwrap()
    }

    #[test]
    fn what_few_workers_say_of_cuzk_is_contradicted_by_what_many_take() {
        let few = [1.0, 2.0, 5.0, 7.0];
        let forecast = Forecast::of(&cuzk(), Some(&few), Some(755 * GIB));
        let line = forecast.line.unwrap();
        let gib = |bytes: f64| (bytes / GIB as f64 * 100.0).round() / 100.0;
        assert_eq!((gib(line.base), gib(line.slope)), (80.42, 18.02));
        assert_eq!(gib(line.scatter.unwrap()), 6.12);
        assert_eq!(forecast.drawn_through, few);
        let measured = [10.0, 12.0, 14.0, 16.0].map(|value| of(&forecast, value));
        let predicted = measured.map(|value| gib(value.predicted.unwrap()));
        assert_eq!(predicted, [260.64, 296.68, 332.73, 368.77]);
        let contradicts = measured.map(|value| value.contradicts);
        assert_eq!(contradicts, [false, true, true, true]);
        assert!(few.iter().all(|value| !of(&forecast, *value).contradicts));
        let budget = forecast.budget.unwrap();
        assert_eq!(budget.expected, Largest::At(37));
        assert_eq!(budget.sure, Some(Largest::At(29)));
        assert!(budget.beyond_measured && !forecast.holds());
    }

    #[test]
    fn what_is_shown_instead_rests_on_all_that_was_measured() {
        let few = [1.0, 2.0, 5.0, 7.0];
        let forecast = Forecast::of(&cuzk(), Some(&few), Some(755 * GIB));
        let instead = forecast.instead.unwrap();
        let all = instead.all.unwrap();
        assert_eq!(all.line.values, 8);
        assert_eq!(all.budget.unwrap().expected, Largest::At(25));
        let steepest = instead.steepest.unwrap();
        assert_eq!((steepest.from, steepest.to), (10.0, 12.0));
        assert_eq!(steepest.slope, 48.0 * GIB as f64);
        assert_eq!(steepest.largest, Some(Largest::At(21)));
        assert!(instead.robust.unwrap().line.slope > 20.0 * GIB as f64);
    }

    /// `base + slope × value` in MiB, off by `off` bytes at each value in turn.
    fn along(base: u64, slope: u64, off: [i64; 6]) -> Vec<Seen> {
        let seen = [1, 2, 3, 4, 6, 8].into_iter().zip(off);
        seen.map(|(value, off)| Seen {
            value: value as f64,
            peak: Peak::Exactly((((base + slope * value) << 20) as i64 + off) as u64),
        })
        .collect()
    }

    #[test]
    fn a_line_is_found_and_said_to_hold() {
        let noise = [4096, -8192, 0, 12288, -4096, 0];
        let forecast = Forecast::of(&along(20, 8, noise), None, Some(100 << 20));
        assert!(forecast.holds(), "{forecast:?}");
        let budget = forecast.budget.unwrap();
        assert_eq!(budget.expected, Largest::At(10), "20 + 8 × 10 is 100 MiB");
        assert!(budget.beyond_measured);
        assert_eq!(forecast.instead, None);
    }

    #[test]
    fn one_value_that_contradicts_the_line_is_named_and_no_other() {
        let mut seen = along(20, 8, [4096, -8192, 0, 12288, -4096, 0]);
        seen[3].peak = Peak::Exactly(90 << 20); // 20 + 8 × 4 is 52.
        let forecast = Forecast::of(&seen, None, Some(100 << 20));
        let named: Vec<f64> = forecast
            .values
            .iter()
            .filter(|value| value.contradicts)
            .map(|value| value.value)
            .collect();
        assert_eq!(named, [4.0]);
        let robust = forecast.instead.unwrap().robust.unwrap();
        assert!((robust.line.slope / (1 << 20) as f64 - 8.0).abs() < 0.1);
    }

    #[test]
    fn a_run_that_was_killed_is_at_least_its_limit_and_no_point() {
        let mut seen = along(20, 8, [4096, -8192, 0, 12288, -4096, 0]);
        seen[5].peak = Peak::AtLeast(80 << 20); // 20 + 8 × 8 is 84: no contradiction.
        let forecast = Forecast::of(&seen, None, None);
        assert_eq!(forecast.drawn_through, [1.0, 2.0, 3.0, 4.0, 6.0]);
        let last = of(&forecast, 8.0);
        assert_eq!((last.runs, last.killed, last.contradicts), (0, 1, false));
        seen[5].peak = Peak::AtLeast(120 << 20);
        let forecast = Forecast::of(&seen, None, None);
        assert!(of(&forecast, 8.0).contradicts && !forecast.holds());
    }

    #[test]
    fn what_nobody_minds_contradicts_nothing() {
        // Off by half a MiB at one value, where runs repeat to the byte.
        let seen = along(20, 8, [0, 0, 0, 1 << 19, 0, 0]);
        assert!(Forecast::of(&seen, None, None).holds());
    }

    #[test]
    fn too_few_values_say_what_they_lack() {
        let seen = along(20, 8, [0; 6]);
        let one = Forecast::of(&seen[..1], None, Some(GIB));
        assert_eq!((one.line, one.budget), (None, None));
        assert!(one.missing[0].starts_with("a line"), "{:?}", one.missing);
        let two = Forecast::of(&seen[..2], None, Some(GIB));
        assert!(two.budget.unwrap().sure.is_none() && !two.holds());
        assert!(Forecast::of(&[], None, None).values.is_empty());
    }
}
