//! A sweep's runs, as they are stored: a whole one, or a part that another machine adds to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::measures::Measures;
use super::sweep::{Forecast, Peak, Seen};
use crate::machine::Machine;
use crate::verdict::Class;

/// Name and version of the format of a stored sweep.
pub const SWEEP_SCHEMA: &str = "tidegate.sweep/1";

/// A sweep, or the parts of one that are there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sweep {
    /// Name and version of this format: `tidegate.sweep/1`.
    pub schema: String,
    /// The version of tidegate that made it.
    pub tidegate: String,
    /// What was asked, of all parts alike.
    pub plan: SweepPlan,
    /// The parts that are in here.
    pub parts: Vec<Part>,
    /// The runs that were made, in the order of the plan.
    pub runs: Vec<SweepRun>,
    /// What they say.
    pub forecast: Forecast,
    /// What stands in the way of a judgement of the whole.
    pub missing: Vec<String>,
}

/// What a sweep was asked to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepPlan {
    /// The parameter's name.
    pub parameter: String,
    /// Its values, as they were written.
    pub values: Vec<String>,
    /// Runs of each value.
    pub repeat: u32,
    /// The program and its arguments, with `{parameter}` where the value belongs; empty
    /// where published peaks were read.
    pub command: Vec<String>,
    /// The environment variable that is the value, if it is given by one.
    pub environment: Option<String>,
    /// Rounds before the measured ones.
    pub warmup: u32,
    /// The memory limit of each run, in bytes.
    pub limit_bytes: Option<u64>,
    /// Which peak is looked at.
    pub of: PeakOf,
    /// Only through these values the line is drawn.
    pub fit_on: Option<Vec<f64>>,
    /// The budget in bytes.
    pub budget_bytes: Option<u64>,
}

/// Which peak of a run a sweep looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PeakOf {
    /// Resident memory, which a limit counts.
    #[default]
    Resident,
    /// Live memory of the ledger.
    Live,
    /// Live memory of the card.
    Card,
}

/// One share of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Part {
    /// Its number, from 1.
    pub number: u32,
    /// Of so many.
    pub of: u32,
    /// The machine it was made on.
    pub machine: Machine,
}

/// One run of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepRun {
    /// The parameter's value, as a number.
    pub value: f64,
    /// Which run of that value, from 1.
    pub run: u32,
    /// The peak; `None` where the run says nothing of it.
    pub peak: Option<Peak>,
    /// What the run was judged as; `None` for a published peak.
    pub class: Option<Class>,
    /// Why it says nothing of its peak, where it does not.
    pub problem: Option<String>,
    /// All that it says; `None` for a published peak.
    pub measures: Option<Measures>,
}

/// Why parts cannot be put together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// There is nothing.
    #[error("there are no parts")]
    None,
    /// The parts are of different sweeps.
    #[error("part {number} is of another sweep than part {first}: its {what} is different")]
    Different {
        /// The part.
        number: u32,
        /// The part that it differs from.
        first: u32,
        /// In what.
        what: &'static str,
    },
    /// The same part is there twice.
    #[error("part {number} of {of} is there twice")]
    Twice {
        /// The part.
        number: u32,
        /// Of so many.
        of: u32,
    },
}

impl PeakOf {
    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resident => "resident",
            Self::Live => "live",
            Self::Card => "card",
        }
    }

    /// This peak of a run.
    pub fn of(self, run: &Measures) -> Option<Peak> {
        let bytes = match self {
            Self::Resident => run.peak_resident,
            Self::Live => run.peak_live,
            Self::Card => run.peak_card,
        };
        bytes.map(|bytes| match run.killed_at {
            Some(_) => Peak::AtLeast(bytes),
            None => Peak::Exactly(bytes),
        })
    }
}

impl SweepPlan {
    /// Every run that belongs to the sweep: which value and which run of it, in the order
    /// in which they are made. All values are run once before any is run again, so that what
    /// the machine does meanwhile is not taken for the parameter's doing.
    pub fn orders(&self) -> Vec<(usize, u32)> {
        let values = 0..self.values.len();
        (1..=self.repeat)
            .flat_map(|run| values.clone().map(move |value| (value, run)))
            .collect()
    }

    /// The runs of one share: each `of`-th, as cargo-nextest's `count:K/N` has it.
    pub fn share(&self, number: u32, of: u32) -> Vec<(usize, u32)> {
        let (skip, step) = (number.max(1) as usize - 1, of.max(1) as usize);
        self.orders().into_iter().skip(skip).step_by(step).collect()
    }

    /// What differs between two plans; the budget and what is done with the peaks may not
    /// either.
    fn differs(&self, other: &Self) -> Option<&'static str> {
        let fields = [
            ("parameter", self.parameter == other.parameter),
            ("list of values", self.values == other.values),
            ("number of runs a value", self.repeat == other.repeat),
            ("command", self.command == other.command),
            (
                "environment variable",
                self.environment == other.environment,
            ),
            ("warm-up", self.warmup == other.warmup),
            ("memory limit", self.limit_bytes == other.limit_bytes),
            ("kind of peak", self.of == other.of),
            (
                "values to draw the line through",
                self.fit_on == other.fit_on,
            ),
            ("budget", self.budget_bytes == other.budget_bytes),
        ];
        let different = fields.into_iter().find(|(_, same)| !same);
        different.map(|(what, _)| what)
    }
}

impl Sweep {
    /// A sweep of these runs, judged.
    pub fn of(plan: SweepPlan, parts: Vec<Part>, runs: Vec<SweepRun>) -> Self {
        let seen: Vec<Seen> = runs
            .iter()
            .filter_map(|run| {
                let value = run.value;
                run.peak.map(|peak| Seen { value, peak })
            })
            .collect();
        let forecast = Forecast::of(&seen, plan.fit_on.as_deref(), plan.budget_bytes);
        let missing = missing(&parts, &runs, &plan);
        Self {
            schema: SWEEP_SCHEMA.to_owned(),
            tidegate: env!("CARGO_PKG_VERSION").to_owned(),
            plan,
            parts,
            runs,
            forecast,
            missing,
        }
    }

    /// Puts the parts of a sweep together and judges the whole. A part that is not there is
    /// [`missing`](Self::missing).
    ///
    /// # Errors
    /// If there is no part, one is there twice, or they are of different sweeps.
    pub fn merge(parts: Vec<Self>) -> Result<Self, MergeError> {
        let first = parts.first().ok_or(MergeError::None)?;
        let plan = first.plan.clone();
        let number = |sweep: &Self| sweep.parts.first().map_or(0, |part| part.number);
        let of = |sweep: &Self| sweep.parts.first().map(|part| part.of);
        for other in &parts[1..] {
            let different = plan.differs(&other.plan);
            let different = different.or((of(other) != of(first)).then_some("number of parts"));
            if let Some(what) = different {
                return Err(MergeError::Different {
                    number: number(other),
                    first: number(first),
                    what,
                });
            }
        }
        let mut all: Vec<Part> = Vec::new();
        let mut runs: Vec<SweepRun> = Vec::new();
        for sweep in parts {
            for part in sweep.parts {
                if all.iter().any(|known| known.number == part.number) {
                    return Err(MergeError::Twice {
                        number: part.number,
                        of: part.of,
                    });
                }
                all.push(part);
            }
            runs.extend(sweep.runs);
        }
        all.sort_by_key(|part| part.number);
        runs.sort_by(|a, b| {
            (a.run, a.value)
                .partial_cmp(&(b.run, b.value))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        Ok(Self::of(plan, all, runs))
    }

    /// Whether all is there, and the line holds.
    pub fn is_conclusive(&self) -> bool {
        self.missing.is_empty() && self.forecast.holds()
    }

    /// Whether the parts were made on machines that differ.
    pub fn is_of_different_machines(&self) -> bool {
        let mut pairs = self.parts.windows(2);
        pairs.any(|pair| pair[0].machine != pair[1].machine)
    }
}

fn missing(parts: &[Part], runs: &[SweepRun], plan: &SweepPlan) -> Vec<String> {
    let of = parts.first().map_or(0, |part| part.of);
    let is_there = |number: u32| parts.iter().any(|part| part.number == number);
    let mut missing: Vec<String> = (1..=of)
        .filter(|number| !is_there(*number))
        .map(|number| format!("part {number} of {of}"))
        .collect();
    let is_made = |value: &str, run: u32| {
        let value = value.parse::<f64>();
        let mut made = runs.iter().filter(|made| made.run == run);
        value.is_ok_and(|value| made.any(|made| made.value == value))
    };
    for (value, run) in parts
        .iter()
        .flat_map(|part| plan.share(part.number, part.of))
    {
        let value = &plan.values[value];
        if !is_made(value, run) {
            missing.push(format!(
                "run {run} with {} = {value}: it was not made",
                plan.parameter
            ));
        }
    }
    for run in runs.iter().filter(|run| run.peak.is_none()) {
        let problem = run.problem.as_deref().unwrap_or("it says nothing");
        missing.push(format!(
            "the {} peak of run {} with {} = {}: {problem}",
            plan.of.name(),
            run.run,
            plan.parameter,
            run.value
        ));
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> SweepPlan {
        SweepPlan {
            parameter: "workers".into(),
            values: ["1", "2", "4", "8"].map(String::from).to_vec(),
            repeat: 2,
            command: vec!["prove".into(), "{workers}".into()],
            environment: None,
            warmup: 1,
            limit_bytes: None,
            of: PeakOf::Resident,
            fit_on: None,
            budget_bytes: Some(100 << 20),
        }
    }

    fn part(number: u32, of: u32) -> Sweep {
        let plan = plan();
        let runs = plan.share(number, of).into_iter().map(|(value, run)| {
            let value: f64 = plan.values[value].parse().unwrap();
            SweepRun {
                value,
                run,
                peak: Some(Peak::Exactly(
                    (8.0 * value) as u64 * (1 << 20) + u64::from(run),
                )),
                class: Some(Class::Clean),
                problem: None,
                measures: None,
            }
        });
        let runs = runs.collect();
        let parts = vec![Part {
            number,
            of,
            machine: Machine::default(),
        }];
        Sweep::of(plan, parts, runs)
    }

    #[test]
    fn the_shares_of_all_parts_are_every_run_once() {
        for of in 1..=10 {
            let mut all: Vec<(usize, u32)> = (1..=of)
                .flat_map(|number| plan().share(number, of))
                .collect();
            all.sort_unstable();
            let mut orders = plan().orders();
            orders.sort_unstable();
            assert_eq!(all, orders, "{of} parts");
        }
    }

    #[test]
    fn parts_in_any_order_make_the_same_whole_as_one_run_of_all() {
        let whole = part(1, 1);
        let merged = Sweep::merge(vec![part(3, 3), part(1, 3), part(2, 3)]).unwrap();
        assert_eq!(merged.forecast, whole.forecast);
        assert_eq!(merged.runs, whole.runs);
        assert!(merged.is_conclusive(), "{:?}", merged.missing);
    }

    #[test]
    fn a_part_that_is_not_there_is_named() {
        let merged = Sweep::merge(vec![part(1, 3), part(3, 3)]).unwrap();
        assert_eq!(merged.missing, ["part 2 of 3"]);
        assert!(!merged.is_conclusive());
        assert!(!part(2, 3).is_conclusive(), "a part is no whole");
    }

    #[test]
    fn parts_of_different_sweeps_are_not_put_together() {
        let mut other = part(2, 2);
        other.plan.repeat = 3;
        let error = Sweep::merge(vec![part(1, 2), other]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "part 2 is of another sweep than part 1: its number of runs a value is different"
        );
        let error = Sweep::merge(vec![part(1, 2), part(2, 3)]).unwrap_err();
        assert!(
            error.to_string().ends_with("number of parts is different"),
            "{error}"
        );
        let error = Sweep::merge(vec![part(1, 2), part(1, 2)]).unwrap_err();
        assert_eq!(error.to_string(), "part 1 of 2 is there twice");
        assert_eq!(Sweep::merge(Vec::new()), Err(MergeError::None));
    }

    #[test]
    fn a_run_that_was_not_made_is_missing() {
        let mut sweep = part(2, 3);
        sweep.runs.pop();
        let missing = Sweep::of(sweep.plan, sweep.parts, sweep.runs).missing;
        let expected = [
            "part 1 of 3",
            "part 3 of 3",
            "run 2 with workers = 8: it was not made",
        ];
        assert_eq!(missing, expected);
    }

    #[test]
    fn a_run_that_says_nothing_of_its_peak_is_missing() {
        let mut sweep = part(1, 1);
        sweep.runs[0].peak = None;
        sweep.runs[0].problem = Some("it crashed".into());
        let sweep = Sweep::of(sweep.plan, sweep.parts, sweep.runs);
        assert_eq!(
            sweep.missing,
            ["the resident peak of run 1 with workers = 1: it crashed"]
        );
        assert!(!sweep.is_conclusive());
    }
}
