//! The values of one metric over repeated runs, and what may still come of them.

use schemars::JsonSchema;
use serde::Serialize;

use super::value::{Metric, Value};

/// The values that several runs gave, sorted, equal ones counted once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Ascending; each with the number of runs that gave it, at least 1.
    values: Vec<(Value, u32)>,
}

impl Spread {
    /// The value of one run.
    pub fn of(value: Value) -> Self {
        Self::repeated(value, 1)
    }

    /// The same value in so many runs.
    pub(crate) fn repeated(value: Value, runs: u32) -> Self {
        Self {
            values: vec![(value, runs.max(1))],
        }
    }

    /// Adds the value of so many more runs.
    pub(crate) fn add(&mut self, value: Value, runs: u32) {
        if runs == 0 {
            return;
        }
        match self.values.binary_search_by(|(known, _)| known.cmp(&value)) {
            Ok(at) => self.values[at].1 = self.values[at].1.saturating_add(runs),
            Err(at) => self.values.insert(at, (value, runs)),
        }
    }

    /// Adds all values of another.
    pub(crate) fn add_all(&mut self, other: &Self) {
        for (value, runs) in &other.values {
            self.add(*value, *runs);
        }
    }

    /// The values, ascending, each with the number of runs that gave it.
    pub fn values(&self) -> &[(Value, u32)] {
        &self.values
    }

    /// Runs that gave a value.
    pub fn runs(&self) -> u32 {
        let runs = self.values.iter().map(|(_, runs)| *runs);
        runs.fold(0, u32::saturating_add)
    }

    /// The value, if every run gave the same.
    pub fn only(&self) -> Option<Value> {
        match self.values[..] {
            [(value, _)] => Some(value),
            _ => None,
        }
    }

    /// The smallest value.
    pub fn lowest(&self) -> Value {
        self.values.first().map_or(Value::ZERO, |(value, _)| *value)
    }

    /// The largest value.
    pub fn highest(&self) -> Value {
        self.values.last().map_or(Value::ZERO, |(value, _)| *value)
    }

    /// The value in the middle; of an even number of runs, the lower one of the two.
    pub fn median(&self) -> Value {
        let middle = u64::from(self.runs()).div_ceil(2);
        let mut seen = 0_u64;
        for (value, runs) in &self.values {
            seen += u64::from(*runs);
            if seen >= middle {
                return *value;
            }
        }
        Value::ZERO
    }

    fn mean(&self) -> f64 {
        self.weighed(Value::as_f64) / f64::from(self.runs().max(1))
    }

    /// The standard deviation of a sample (over n - 1); 0 for a single run.
    fn deviation(&self) -> f64 {
        let runs = self.runs();
        if runs < 2 {
            return 0.0;
        }
        let mean = self.mean();
        let squares = self.weighed(|value| (value.as_f64() - mean).powi(2));
        (squares / f64::from(runs - 1)).sqrt()
    }

    fn weighed(&self, of: impl Fn(Value) -> f64) -> f64 {
        let weighed = self.values.iter();
        weighed
            .map(|(value, runs)| of(*value) * f64::from(*runs))
            .sum()
    }
}

/// Where the next run's value should lie if nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Tolerance {
    /// What it rests on.
    pub basis: Basis,
    /// The lowest value that is no change, in the metric's unit.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

/// What a tolerance rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// An exact metric that never varied in several runs: any other value is a change.
    NeverVaried,
    /// The spread of several runs.
    Spread,
    /// One run says nothing of the next.
    OneRun,
}

impl Tolerance {
    /// Where the value of one more run should lie.
    ///
    /// An exact metric that never varied gets no tolerance at all. Otherwise it is
    /// a two-sided tolerance interval for a normal population: with 95 % confidence it
    /// holds 99 % of what runs of the same program give, mean ± k·s with
    /// k = z₀.₉₉₅ · √((n − 1)(1 + 1/n) / χ²₀.₀₅,ₙ₋₁) (W. G. Howe, "Two-sided tolerance
    /// limits for normal populations: some improvements", JASA 64, 1969;
    /// NIST/SEMATECH e-Handbook of Statistical Methods, 7.2.6.3). Few runs give
    /// a wide one: k is 50 for 2 runs, 6.7 for 5, 4.4 for 10. It is no
    /// narrower than what rounding and the meter itself can move a value by.
    pub fn of(metric: Metric, spread: &Spread) -> Self {
        let runs = spread.runs();
        let mean = spread.mean();
        if runs < 2 {
            return Self {
                basis: Basis::OneRun,
                low: mean,
                high: mean,
            };
        }
        if metric.is_exact() && spread.only().is_some() {
            return Self {
                basis: Basis::NeverVaried,
                low: mean,
                high: mean,
            };
        }
        let half = (factor(runs) * spread.deviation()).max(metric.resolution(mean));
        Self {
            basis: Basis::Spread,
            low: (mean - half).min(spread.lowest().as_f64()),
            high: (mean + half).max(spread.highest().as_f64()),
        }
    }
}

/// Howe's factor for so many runs.
fn factor(runs: u32) -> f64 {
    const Z_995: f64 = 2.575_829_303_549;
    let n = f64::from(runs);
    let freedom = n - 1.0;
    Z_995 * (freedom * (1.0 + 1.0 / n) / chi_square_05(runs - 1)).sqrt()
}

/// The 5 % quantile of the chi-square distribution with so many degrees of freedom.
fn chi_square_05(freedom: u32) -> f64 {
    const TABLE: [f64; 30] = [
        0.00393, 0.1026, 0.3518, 0.7107, 1.1455, 1.6354, 2.1673, 2.7326, 3.3251, 3.9403, 4.5748,
        5.2260, 5.8919, 6.5706, 7.2609, 7.9616, 8.6718, 9.3905, 10.1170, 10.8508, 11.5913, 12.3380,
        13.0905, 13.8484, 14.6114, 15.3792, 16.1514, 16.9279, 17.7084, 18.4927,
    ];
    let at = (freedom as usize).checked_sub(1);
    if let Some(value) = at.and_then(|at| TABLE.get(at)) {
        return *value;
    }
    // Wilson and Hilferty's approximation, to 0.1 % from 30 on.
    const Z_05: f64 = -1.644_853_626_951;
    let freedom = f64::from(freedom.max(1));
    let part = 2.0 / (9.0 * freedom);
    freedom * (1.0 - part + Z_05 * part.sqrt()).powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(values: &[i64]) -> Spread {
        let mut spread = Spread::of(Value::whole(values[0]));
        for value in &values[1..] {
            spread.add(Value::whole(*value), 1);
        }
        spread
    }

    #[test]
    fn a_spread_counts_its_runs_and_finds_its_middle() {
        let odd = spread(&[5, 1, 5]);
        assert_eq!((odd.runs(), odd.median()), (3, Value::whole(5)));
        assert_eq!(
            (odd.lowest(), odd.highest()),
            (Value::whole(1), Value::whole(5))
        );
        let even = spread(&[4, 1, 2, 3]);
        assert_eq!(even.median(), Value::whole(2));
        assert_eq!(spread(&[7, 7]).only(), Some(Value::whole(7)));
        assert_eq!(odd.only(), None);
        let mut many = Spread::repeated(Value::ZERO, u32::MAX);
        many.add(Value::whole(1), u32::MAX);
        assert_eq!(many.runs(), u32::MAX, "no claim overflows");
        assert!((spread(&[2, 4, 4, 4, 5, 5, 7, 9]).deviation() - 2.138).abs() < 0.001);
    }

    /// The exact factors (two-sided, 95 %, 99 %), as tables have them: D. C. Montgomery,
    /// "Introduction to Statistical Quality Control", appendix VII.
    #[test]
    fn the_factor_is_within_5_percent_of_the_exact_one() {
        for (runs, exact) in [
            (2, 48.430),
            (3, 12.861),
            (5, 6.634),
            (10, 4.433),
            (30, 3.350),
            (100, 2.934),
        ] {
            let ours = factor(runs);
            assert!(
                (ours / exact - 1.0).abs() < 0.05,
                "{runs} runs: {ours} and {exact}"
            );
        }
    }

    #[test]
    fn exact_metrics_that_never_varied_have_no_tolerance() {
        let tolerance = Tolerance::of(Metric::Blocks, &spread(&[51, 51, 51]));
        assert_eq!(tolerance.basis, Basis::NeverVaried);
        assert_eq!((tolerance.low, tolerance.high), (51.0, 51.0));
    }

    #[test]
    fn what_varied_gets_room_and_more_runs_make_it_narrower() {
        let few = Tolerance::of(Metric::Blocks, &spread(&[100, 102, 101]));
        let more = Tolerance::of(Metric::Blocks, &spread(&[100, 102, 101, 100, 102, 101]));
        assert_eq!(few.basis, Basis::Spread);
        assert!(few.low < more.low && more.low < 100.0, "{few:?} {more:?}");
        assert!(few.high > more.high && more.high > 102.0);
    }

    #[test]
    fn a_noisy_metric_that_did_not_vary_keeps_the_meters_own_error() {
        let mib = 1 << 20;
        let tolerance = Tolerance::of(Metric::Peak, &spread(&[mib, mib, mib]));
        assert_eq!(tolerance.high - mib as f64, 65_536.0);
    }

    #[test]
    fn one_run_says_nothing_of_the_next() {
        assert_eq!(
            Tolerance::of(Metric::Blocks, &spread(&[9])).basis,
            Basis::OneRun
        );
    }
}
