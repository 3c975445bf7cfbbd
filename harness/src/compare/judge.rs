//! Whether a candidate takes more than its baseline: one verdict per metric, and one for all.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::looks::{self, Look};
use super::measures::{Measures, Unit};
use super::ranks::{Bounded, Observed, median};
use super::why::Why;

/// What is compared.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Highest resident memory, in bytes: what a memory limit counts.
    Peak,
    /// Highest live memory of the heap layers, in bytes.
    LivePeak,
    /// Highest live memory of the card, in bytes.
    CardPeak,
    /// Live memory after the last round had settled, in bytes.
    Floor,
    /// Bytes times seconds held in the measured rounds.
    ByteSeconds,
    /// Items (or rounds) per second of the measured rounds.
    Throughput,
}

impl Metric {
    /// Every metric, in the order of reports.
    pub const ALL: [Self; 6] = [
        Self::Peak,
        Self::LivePeak,
        Self::CardPeak,
        Self::Floor,
        Self::ByteSeconds,
        Self::Throughput,
    ];

    /// The metric's name, as in reports and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Peak => "peak",
            Self::LivePeak => "live-peak",
            Self::CardPeak => "card-peak",
            Self::Floor => "floor",
            Self::ByteSeconds => "byte-seconds",
            Self::Throughput => "throughput",
        }
    }

    /// Whether a run says of it how long something took.
    pub const fn is_of_time(self) -> bool {
        matches!(self, Self::ByteSeconds | Self::Throughput)
    }

    /// The change that makes a candidate worse.
    pub const fn worse(self) -> Change {
        match self {
            Self::Throughput => Change::Less,
            _ => Change::More,
        }
    }

    /// Whether a run that was killed says at least how large it would have been.
    const fn is_peak(self) -> bool {
        matches!(self, Self::Peak | Self::LivePeak | Self::CardPeak)
    }

    /// What of it matters to nobody, however small the baseline is; in its own unit.
    /// A thread tells the ledger's counters of 64 KiB at a time, and resident memory comes
    /// and goes by what the allocator and the loader happen to touch.
    fn least(self, seconds: f64) -> f64 {
        const TOLD_AT_ONCE: f64 = (64 << 10) as f64;
        match self {
            Self::Peak => (1 << 20) as f64,
            Self::LivePeak | Self::CardPeak | Self::Floor => TOLD_AT_ONCE,
            Self::ByteSeconds => TOLD_AT_ONCE * seconds,
            Self::Throughput => 0.0,
        }
    }

    fn of(self, run: &Measures, unit: Unit) -> Option<f64> {
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        let value = match self {
            Self::Peak => bytes(run.peak_resident),
            Self::LivePeak => bytes(run.peak_live),
            // A run that uses no card takes none of it.
            Self::CardPeak => Some(run.peak_card.unwrap_or(0) as f64),
            Self::Floor => bytes(run.floor),
            Self::ByteSeconds => run.byte_seconds,
            Self::Throughput => run.per_second(unit),
        };
        value.filter(|value| value.is_finite())
    }
}

/// What was decided of one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// The candidate has less, beyond the tolerance.
    Less,
    /// The candidate has more, beyond the tolerance.
    More,
    /// Both have the same, within the tolerance.
    Same,
    /// It cannot be told yet.
    Undecided,
}

impl Change {
    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Less => "less",
            Self::More => "more",
            Self::Same => "same",
            Self::Undecided => "undecided",
        }
    }
}

/// What was decided of the candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// No judged metric is worse beyond its tolerance.
    NotWorse,
    /// At least one is.
    Worse,
    /// It cannot be told yet.
    Undecided,
}

/// How versions are compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Terms {
    /// The probability that a metric's verdict is wrong, at most.
    pub error: f64,
    /// Differences of bytes up to this share of the baseline are none.
    pub tolerance: f64,
    /// The same for metrics in which there is time.
    pub time_tolerance: f64,
    /// Pairs of runs at most.
    pub pairs_at_most: usize,
    /// The metrics that decide; the others are told.
    pub judged: Vec<Metric>,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            error: 0.05,
            tolerance: 0.02,
            time_tolerance: 0.10,
            pairs_at_most: 20,
            judged: Metric::ALL.to_vec(),
        }
    }
}

/// The runs of both versions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Runs {
    /// The baseline's, in the order in which they were made.
    pub baseline: Vec<Measures>,
    /// The candidate's.
    pub candidate: Vec<Measures>,
    /// Whether the runs of the same place were made one after the other, as a pair.
    pub paired: bool,
}

impl Runs {
    /// Whole pairs.
    fn pairs(&self) -> usize {
        self.baseline.len().min(self.candidate.len())
    }
}

/// Two versions compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// How they were compared.
    pub terms: Terms,
    /// What items are here.
    pub unit: Unit,
    /// What was decided.
    pub decision: Decision,
    /// Each metric that a run had anything of.
    pub metrics: Vec<Compared>,
    /// Why the peak moved; `None` where no whole run with a ledger is on both sides.
    pub why: Option<Why>,
}

/// One metric compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Compared {
    /// The metric.
    pub metric: Metric,
    /// Whether it takes part in the decision.
    pub judged: bool,
    /// The baseline's runs.
    pub baseline: Spread,
    /// The candidate's runs.
    pub candidate: Spread,
    /// Candidate less baseline; `None` where no two runs could be compared.
    pub shift: Option<Shift>,
    /// A difference up to this is none, in the metric's unit.
    pub tolerance: f64,
    /// What was decided.
    pub change: Change,
    /// Pairs (or runs of each) that would decide, as far as these runs tell; only where undecided.
    pub would_decide: Option<usize>,
    /// What stands in the way of a decision.
    pub missing: Vec<String>,
}

/// The values of one version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spread {
    /// Runs that have a value.
    pub runs: usize,
    /// Of these, runs that were killed, whose value is a lower bound.
    pub killed: usize,
    /// The median; 0 without a value.
    pub median: f64,
    /// The lowest value.
    pub low: f64,
    /// The highest value.
    pub high: f64,
}

/// A shift, in the metric's unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Shift {
    /// The estimate of Hodges and Lehmann.
    pub estimate: f64,
    /// The lower bound; `None` where there are too few runs for one.
    pub lower: Option<f64>,
    /// The upper bound.
    pub upper: Option<f64>,
    /// The probability of a difference as clear as this one, or clearer, at any look, if
    /// nothing differed.
    pub p: f64,
}

impl Comparison {
    /// Compares two versions by their runs.
    ///
    /// Paired runs are looked at when as many pairs are there as the plan of looks says
    /// (see [`next_look`](Self::next_look)), those beyond the last look are not. Runs that
    /// are not paired are looked at once.
    pub fn judge(runs: &Runs, terms: &Terms) -> Self {
        let unit = Unit::common(runs.baseline.iter().chain(&runs.candidate));
        let metrics: Vec<Compared> = Metric::ALL
            .into_iter()
            .filter_map(|metric| compare(metric, runs, unit, terms))
            .collect();
        Self {
            terms: terms.clone(),
            unit,
            decision: decide(&metrics),
            metrics,
            why: Why::between(&runs.baseline, &runs.candidate),
        }
    }

    /// The number of pairs after which to look next; `None` when so many pairs are the
    /// most that are made.
    pub fn next_look(pairs: usize, terms: &Terms) -> Option<usize> {
        let looks = looks::looks(terms.pairs_at_most, terms.error);
        let next = looks.into_iter().find(|look| look.pairs > pairs);
        next.map(|look| look.pairs)
    }

    /// A metric's comparison.
    pub fn of(&self, metric: Metric) -> Option<&Compared> {
        self.metrics
            .iter()
            .find(|compared| compared.metric == metric)
    }
}

fn decide(metrics: &[Compared]) -> Decision {
    let judged = || metrics.iter().filter(|compared| compared.judged);
    if judged().any(|compared| compared.change == compared.metric.worse()) {
        Decision::Worse
    } else if judged().next().is_none()
        || judged().any(|compared| compared.change == Change::Undecided)
    {
        Decision::Undecided
    } else {
        Decision::NotWorse
    }
}

/// The values of one metric on both sides, pair by pair where they are paired.
struct Values {
    baseline: Vec<Option<f64>>,
    candidate: Vec<Option<f64>>,
    paired: bool,
}

fn compare(metric: Metric, runs: &Runs, unit: Unit, terms: &Terms) -> Option<Compared> {
    let values = |runs: &[Measures]| -> Vec<Option<f64>> {
        runs.iter().map(|run| metric.of(run, unit)).collect()
    };
    let values = Values {
        baseline: values(&runs.baseline),
        candidate: values(&runs.candidate),
        paired: runs.paired,
    };
    let of_nothing = |values: &[Option<f64>]| values.iter().flatten().all(|value| *value == 0.0);
    if metric == Metric::CardPeak && of_nothing(&values.baseline) && of_nothing(&values.candidate) {
        return None;
    }
    let baseline = spread(metric, &runs.baseline, &values.baseline);
    let candidate = spread(metric, &runs.candidate, &values.candidate);
    let seconds = mean(runs.baseline.iter().chain(&runs.candidate));
    let share = match metric.is_of_time() {
        true => terms.time_tolerance,
        false => terms.tolerance,
    };
    let tolerance = (share * baseline.median.abs()).max(metric.least(seconds));
    let mut compared = Compared {
        metric,
        judged: terms.judged.contains(&metric),
        baseline,
        candidate,
        shift: None,
        tolerance,
        change: Change::Undecided,
        would_decide: None,
        missing: Vec::new(),
    };
    let (bounded, p, looked_at) = values.look(runs.pairs(), terms);
    if let Some(bounded) = bounded {
        compared.decide(bounded, p);
        compared.doubt_what_was_killed();
    }
    compared.say_what_is_missing(runs, looked_at, terms);
    Some(compared)
}

impl Values {
    /// What all looks so far say together: the bounds that none of them refutes, the
    /// smallest p of all, at the price of its look, and how many pairs the last look had.
    fn look(&self, pairs: usize, terms: &Terms) -> (Option<Bounded>, f64, usize) {
        if !self.paired {
            let [a, b] = [&self.baseline, &self.candidate]
                .map(|values| values.iter().flatten().copied().collect::<Vec<f64>>());
            let observed = Observed::Groups(&a, &b);
            return (
                observed.shift(terms.error),
                observed.p(),
                a.len().min(b.len()),
            );
        }
        let both = |pairs: usize| -> Vec<f64> {
            let both = self.candidate.iter().zip(&self.baseline).take(pairs);
            both.filter_map(|(b, a)| Some((*b)? - (*a)?)).collect()
        };
        let done = |look: &Look| look.pairs <= pairs;
        let looks = looks::looks(terms.pairs_at_most, terms.error);
        let (mut together, mut p, mut spent, mut last) = (None, 1.0_f64, 0.0, 0);
        for look in looks.into_iter().filter(done) {
            let differences = both(look.pairs);
            last = differences.len();
            let observed = Observed::Pairs(&differences);
            let Some(bounded) = observed.shift(look.budget - spent) else {
                continue;
            };
            let available = look.budget - spent;
            p = p.min(observed.p() * terms.error / available);
            spent += bounded.size;
            together = Some(narrowed(together, bounded));
        }
        if together.is_none() {
            // Before the first look: an estimate, and no bounds.
            let differences = both(pairs);
            last = differences.len();
            together = Observed::Pairs(&differences).shift(0.0);
        }
        (together, p.min(1.0), last)
    }
}

/// The bounds of a look within those of the looks before; alone, should they contradict
/// each other, which happens no more often than an error does.
fn narrowed(before: Option<Bounded>, now: Bounded) -> Bounded {
    let Some(before) = before else { return now };
    let (lower, upper) = (before.lower.max(now.lower), before.upper.min(now.upper));
    match lower <= upper {
        true => Bounded {
            lower,
            upper,
            ..now
        },
        false => now,
    }
}

impl Compared {
    fn decide(&mut self, bounded: Bounded, p: f64) {
        let Bounded {
            estimate,
            lower,
            upper,
            ..
        } = bounded;
        self.shift = Some(Shift {
            estimate,
            lower: Some(lower).filter(|lower| lower.is_finite()),
            upper: Some(upper).filter(|upper| upper.is_finite()),
            p,
        });
        let tolerance = self.tolerance;
        self.change = if lower > tolerance {
            Change::More
        } else if upper < -tolerance {
            Change::Less
        } else if lower >= -tolerance && upper <= tolerance {
            Change::Same
        } else {
            Change::Undecided
        };
    }

    /// A run that was killed would have taken more than it did: its version may be said to
    /// take more, and not to take less or the same.
    fn doubt_what_was_killed(&mut self) {
        if !self.metric.is_peak() {
            return;
        }
        let holds = match self.change {
            Change::More => self.baseline.killed == 0,
            Change::Less => self.candidate.killed == 0,
            Change::Same => self.baseline.killed == 0 && self.candidate.killed == 0,
            Change::Undecided => true,
        };
        if !holds {
            self.change = Change::Undecided;
            self.missing.push(
                "runs that were killed, whose peaks are higher than they were seen".to_owned(),
            );
        }
    }

    fn say_what_is_missing(&mut self, runs: &Runs, looked_at: usize, terms: &Terms) {
        if self.change != Change::Undecided {
            return;
        }
        for (side, spread, runs) in [
            ("baseline", self.baseline, &runs.baseline),
            ("candidate", self.candidate, &runs.candidate),
        ] {
            if spread.runs < runs.len() {
                let why = runs.iter().flat_map(|run| &run.missing).next();
                let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
                self.missing.push(format!(
                    "the {} of {} of {} runs of the {side}{why}",
                    self.metric.name(),
                    runs.len() - spread.runs,
                    runs.len(),
                ));
            }
        }
        let has_bounds = self.shift.is_some_and(|shift| shift.lower.is_some());
        if has_bounds {
            self.would_decide = self.pairs_that_would_decide(looked_at);
        } else if self.shift.is_some() {
            let fewest = fewest_runs(runs.paired, terms.error);
            self.would_decide = Some(fewest);
            self.missing.push(match runs.paired {
                true => format!(
                    "pairs: {looked_at} are there, and {fewest} are the fewest that can decide"
                ),
                false => format!(
                    "runs: {looked_at} of each version are there, and {fewest} of each are the \
                     fewest that can decide"
                ),
            });
        }
    }

    /// Bounds narrow with the root of the number of pairs; they have to become as narrow
    /// as the estimate is far from the nearest end of the tolerance.
    fn pairs_that_would_decide(&self, pairs: usize) -> Option<usize> {
        const SENSIBLE: f64 = 10_000.0;
        let shift = self.shift?;
        let (lower, upper) = (shift.lower?, shift.upper?);
        let reach = (upper - shift.estimate).max(shift.estimate - lower);
        let room = (shift.estimate.abs() - self.tolerance).abs();
        let needed = pairs as f64 * (reach / room).powi(2);
        (needed <= SENSIBLE).then(|| (needed.ceil() as usize).max(pairs + 1))
    }
}

/// The fewest runs (of each version, or pairs) with which bounds can be had.
fn fewest_runs(paired: bool, error: f64) -> usize {
    if paired {
        return looks::fewest(error).max(looks::FIRST);
    }
    // All runs of one version above all of the other: one way of many to deal them.
    let smallest = |runs: u32| {
        (0..runs).fold(2.0, |p, at| {
            p * f64::from(runs - at) / f64::from(2 * runs - at)
        })
    };
    let fewest = (1..=32).find(|runs| smallest(*runs) <= error);
    fewest.unwrap_or(32) as usize
}

fn spread(metric: Metric, runs: &[Measures], values: &[Option<f64>]) -> Spread {
    let mut sorted: Vec<f64> = values.iter().flatten().copied().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let killed = runs.iter().zip(values);
    let killed = killed.filter(|(run, value)| run.killed_at.is_some() && value.is_some());
    Spread {
        runs: sorted.len(),
        killed: if metric.is_peak() { killed.count() } else { 0 },
        median: median(&sorted).unwrap_or(0.0),
        low: sorted.first().copied().unwrap_or(0.0),
        high: sorted.last().copied().unwrap_or(0.0),
    }
}

/// Mean seconds of the measured rounds.
fn mean<'a>(runs: impl Iterator<Item = &'a Measures>) -> f64 {
    let seconds: Vec<f64> = runs.filter_map(|run| run.seconds).collect();
    seconds.iter().sum::<f64>() / seconds.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A run of a second and ten rounds; sizes in MiB.
    fn run(peak: f64, floor: f64, seconds: f64) -> Measures {
        let bytes = |mib: f64| (mib * MIB as f64) as u64;
        Measures {
            peak_live: Some(bytes(peak)),
            peak_resident: Some(bytes(peak + 10.0)),
            floor: Some(bytes(floor)),
            allocated: Some(bytes(100.0)),
            byte_seconds: Some(bytes((peak + floor) / 2.0) as f64 * seconds),
            seconds: Some(seconds),
            rounds: 10,
            ..Measures::default()
        }
    }

    fn killed(at: f64) -> Measures {
        let bytes = (at * MIB as f64) as u64;
        Measures {
            killed_at: Some(bytes),
            peak_live: Some(bytes),
            peak_resident: Some(bytes),
            missing: vec!["whole rounds: the run was killed for want of memory".into()],
            ..Measures::default()
        }
    }

    fn pairs(baseline: Vec<Measures>, candidate: Vec<Measures>) -> Runs {
        Runs {
            baseline,
            candidate,
            paired: true,
        }
    }

    /// So many runs, each with a little more than the one before.
    fn runs(count: usize, peak: f64, floor: f64, seconds: f64) -> Vec<Measures> {
        let runs = (0..count).map(|at| {
            let off = 1.0 + 0.001 * (at * 7 % 5) as f64;
            run(peak * off, floor, seconds * off)
        });
        runs.collect()
    }

    fn change(comparison: &Comparison, metric: Metric) -> Change {
        comparison.of(metric).unwrap().change
    }

    #[test]
    fn the_same_program_twice_is_the_same() {
        let same = pairs(runs(6, 50.0, 5.0, 1.0), runs(6, 50.0, 5.0, 1.0));
        let comparison = Comparison::judge(&same, &Terms::default());
        assert_eq!(comparison.decision, Decision::NotWorse);
        for compared in &comparison.metrics {
            assert_eq!(compared.change, Change::Same, "{compared:?}");
        }
        assert_eq!(comparison.of(Metric::CardPeak), None, "no card was used");
    }

    #[test]
    fn a_higher_peak_is_more_and_what_did_not_change_is_the_same() {
        let worse = pairs(runs(6, 50.0, 5.0, 1.0), runs(6, 60.0, 5.0, 1.0));
        let comparison = Comparison::judge(&worse, &Terms::default());
        assert_eq!(comparison.decision, Decision::Worse);
        assert_eq!(change(&comparison, Metric::Peak), Change::More);
        assert_eq!(change(&comparison, Metric::Floor), Change::Same);
        let shift = comparison.of(Metric::LivePeak).unwrap().shift.unwrap();
        assert!(
            (shift.estimate / MIB as f64 - 10.02).abs() < 0.03,
            "{shift:?}"
        );
        assert!(
            (shift.p - 0.05).abs() < 1e-9,
            "six pairs at the price of the first look: {shift:?}"
        );
        let better = pairs(worse.candidate, worse.baseline);
        let comparison = Comparison::judge(&better, &Terms::default());
        assert_eq!(comparison.decision, Decision::NotWorse);
        assert_eq!(change(&comparison, Metric::Peak), Change::Less);
    }

    #[test]
    fn less_throughput_is_worse_and_more_is_not() {
        let slower = pairs(runs(6, 50.0, 5.0, 1.0), runs(6, 50.0, 5.0, 1.5));
        let comparison = Comparison::judge(&slower, &Terms::default());
        assert_eq!(change(&comparison, Metric::Throughput), Change::Less);
        assert_eq!(comparison.decision, Decision::Worse);
        let faster = pairs(slower.candidate, slower.baseline);
        let comparison = Comparison::judge(&faster, &Terms::default());
        assert_eq!(change(&comparison, Metric::Throughput), Change::More);
        assert_eq!(comparison.decision, Decision::NotWorse);
        let only_peaks = Terms {
            judged: vec![Metric::Peak],
            ..Terms::default()
        };
        let slower = pairs(faster.candidate, faster.baseline);
        let comparison = Comparison::judge(&slower, &only_peaks);
        assert_eq!(
            comparison.decision,
            Decision::NotWorse,
            "time was not asked for"
        );
    }

    #[test]
    fn what_matters_to_nobody_is_the_same() {
        // 12 of 1 KiB more of a floor of 10 KiB.
        let small = pairs(runs(6, 1.0, 0.01, 1.0), runs(6, 1.0, 0.02, 1.0));
        let comparison = Comparison::judge(&small, &Terms::default());
        assert_eq!(change(&comparison, Metric::Floor), Change::Same);
    }

    #[test]
    fn too_few_pairs_decide_nothing_and_say_how_many_would() {
        let few = pairs(runs(5, 50.0, 5.0, 1.0), runs(5, 90.0, 5.0, 1.0));
        let comparison = Comparison::judge(&few, &Terms::default());
        assert_eq!(comparison.decision, Decision::Undecided);
        let peak = comparison.of(Metric::Peak).unwrap();
        assert_eq!(
            (peak.change, peak.would_decide),
            (Change::Undecided, Some(6))
        );
        assert!((peak.shift.unwrap().estimate / MIB as f64 - 40.0).abs() < 0.2);
        let at_most_three = Terms {
            pairs_at_most: 3,
            ..Terms::default()
        };
        let comparison = Comparison::judge(&few, &at_most_three);
        assert_eq!(comparison.of(Metric::Peak).unwrap().would_decide, Some(6));
    }

    #[test]
    fn noise_beyond_the_tolerance_is_undecided_and_says_how_many_pairs_would_do() {
        let noisy = |seed: usize| -> Vec<Measures> {
            let peaks = (0..6).map(|at| 50.0 + ((at + seed) * 13 % 7) as f64);
            peaks.map(|peak| run(peak, 5.0, 1.0)).collect()
        };
        let comparison = Comparison::judge(&pairs(noisy(0), noisy(3)), &Terms::default());
        let peak = comparison.of(Metric::LivePeak).unwrap();
        assert_eq!(peak.change, Change::Undecided);
        assert!(peak.would_decide.is_some_and(|pairs| pairs > 6), "{peak:?}");
        assert_eq!(comparison.decision, Decision::Undecided);
    }

    #[test]
    fn pairs_beyond_a_look_wait_for_the_next() {
        let terms = Terms::default();
        let looks: Vec<Option<usize>> = [0, 5, 6, 8, 9, 19, 20]
            .map(|pairs| Comparison::next_look(pairs, &terms))
            .to_vec();
        assert_eq!(
            looks,
            [Some(6), Some(6), Some(9), Some(9), Some(14), Some(20), None]
        );
        let mut runs = pairs(runs(8, 50.0, 5.0, 1.0), runs(8, 60.0, 5.0, 1.0));
        let at_8 = Comparison::judge(&runs, &terms);
        runs.baseline.truncate(6);
        runs.candidate.truncate(6);
        let at_6 = Comparison::judge(&runs, &terms);
        assert_eq!(
            at_8.of(Metric::Peak).unwrap().shift,
            at_6.of(Metric::Peak).unwrap().shift
        );
    }

    #[test]
    fn a_candidate_that_is_killed_at_its_limit_is_worse() {
        let dying = pairs(runs(6, 50.0, 5.0, 1.0), vec![killed(100.0); 6]);
        let comparison = Comparison::judge(&dying, &Terms::default());
        assert_eq!(change(&comparison, Metric::Peak), Change::More);
        assert_eq!(comparison.decision, Decision::Worse);
        let floor = comparison.of(Metric::Floor).unwrap();
        assert_eq!(floor.change, Change::Undecided);
        assert!(
            floor.missing[0].contains("6 of 6 runs of the candidate"),
            "{floor:?}"
        );
        assert_eq!(comparison.why, None);
    }

    #[test]
    fn runs_that_were_killed_are_never_said_to_be_the_same_or_less() {
        let terms = Terms::default();
        let both = pairs(vec![killed(100.0); 6], vec![killed(100.0); 6]);
        assert_eq!(
            change(&Comparison::judge(&both, &terms), Metric::Peak),
            Change::Undecided
        );
        let lower_limit = pairs(runs(6, 150.0, 5.0, 1.0), vec![killed(100.0); 6]);
        let comparison = Comparison::judge(&lower_limit, &terms);
        assert_eq!(change(&comparison, Metric::Peak), Change::Undecided);
        assert_ne!(comparison.decision, Decision::NotWorse);
    }

    #[test]
    fn stored_runs_of_any_number_are_dealt_anew() {
        let stored = Runs {
            baseline: runs(5, 50.0, 5.0, 1.0),
            candidate: runs(4, 60.0, 5.0, 1.0),
            paired: false,
        };
        let comparison = Comparison::judge(&stored, &Terms::default());
        assert_eq!(change(&comparison, Metric::Peak), Change::More);
        let one_each = Runs {
            baseline: runs(1, 50.0, 5.0, 1.0),
            candidate: runs(1, 60.0, 5.0, 1.0),
            paired: false,
        };
        let comparison = Comparison::judge(&one_each, &Terms::default());
        let peak = comparison.of(Metric::Peak).unwrap();
        assert_eq!(
            (peak.change, peak.would_decide),
            (Change::Undecided, Some(4))
        );
        assert!(
            comparison.why.is_some(),
            "why the peak moved can be said of one run each"
        );
    }

    #[test]
    fn nothing_at_all_is_undecided() {
        let comparison = Comparison::judge(&Runs::default(), &Terms::default());
        assert_eq!(comparison.decision, Decision::Undecided);
    }

    /// Numbers that look random and are the same each time (SplitMix64), in (0, 1).
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
        }

        /// About as a normal distribution has it: the sum of twelve.
        fn normal(&mut self) -> f64 {
            (0..12).map(|_| self.next()).sum::<f64>() - 6.0
        }
    }

    /// How often two versions with so much noise and shift (shares of the peak) are said
    /// to differ, or to be the same, in 1,000 comparisons, looked at as they are run.
    fn simulated(noise: f64, shift: f64, tolerance: f64) -> (u32, u32) {
        let terms = Terms {
            tolerance,
            judged: vec![Metric::LivePeak],
            ..Terms::default()
        };
        let mut random = Noise(1);
        let (mut differ, mut same) = (0, 0);
        for _ in 0..1_000 {
            let mut runs = pairs(Vec::new(), Vec::new());
            while let Some(next) = Comparison::next_look(runs.pairs(), &terms) {
                while runs.pairs() < next {
                    let mut peak = |shift: f64| 500.0 * (1.0 + shift + noise * random.normal());
                    runs.baseline.push(run(peak(0.0), 5.0, 1.0));
                    runs.candidate.push(run(peak(shift), 5.0, 1.0));
                }
                match change(&Comparison::judge(&runs, &terms), Metric::LivePeak) {
                    Change::Undecided => continue,
                    Change::Same => same += 1,
                    Change::More | Change::Less => differ += 1,
                }
                break;
            }
        }
        (differ, same)
    }

    #[test]
    fn looking_again_and_again_errs_in_no_more_than_one_of_twenty() {
        // No tolerance: whoever says that there is a difference errs.
        let (differ, _) = simulated(0.05, 0.0, 0.0);
        eprintln!("nothing differs, no tolerance: {differ} of 1,000 are said to differ");
        assert!(differ <= 50, "{differ} of 1,000");
        // A shift at the very end of the tolerance: to say `more` is an error, and `same` too.
        let (differ, same) = simulated(0.01, 0.02, 0.02);
        eprintln!("a shift as large as the tolerance: {differ} differ, {same} are the same");
        assert!(differ + same <= 50, "{differ} and {same} of 1,000");
    }

    #[test]
    fn what_differs_is_found_and_what_does_not_is_said_to_be_the_same() {
        let (differ, same) = simulated(0.01, 0.06, 0.02);
        eprintln!("three times the tolerance: {differ} differ, {same} are the same");
        assert!(differ > 950 && same == 0, "{differ} and {same} of 1,000");
        let (differ, same) = simulated(0.005, 0.0, 0.02);
        eprintln!("a quarter of the tolerance as noise: {differ} differ, {same} are the same");
        assert!(same > 950 && differ == 0, "{differ} and {same} of 1,000");
    }
}
