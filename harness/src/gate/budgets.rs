//! Budgets: what may be taken at most, and what was.

use schemars::JsonSchema;
use serde::Serialize;

use super::Group;
use crate::baseline::Baseline;
use crate::books::Layer;
use crate::diff::{plain, shown_f64};
use crate::policy::{Budget, Most};
use crate::profile::{Metric, Place, Profile, Tolerance};

/// One limit of a budget, and what the runs came to.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Budgeted {
    /// The phase; all together where none is given.
    pub phase: Option<String>,
    /// The layer; all together where none is given.
    pub layer: Option<Layer>,
    /// The metric.
    pub metric: Metric,
    /// The most that it may be, in the metric's unit.
    pub most: f64,
    /// Whether that is relative to the baseline.
    pub relative: bool,
    /// What it was: the highest of the runs, or for what is relative the one in the middle.
    /// Peaks of several phases and layers lie between the highest of them and their sum.
    pub was_at_least: f64,
    /// The same, at most.
    pub was_at_most: f64,
    /// Where it stands.
    pub stands: Stands,
    /// All of it in words.
    pub sentence: String,
}

/// Where a value stands to its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stands {
    /// Within it.
    Within,
    /// Above what is relative, and within what runs of the same program give.
    WithinSpread,
    /// Above it.
    Over,
    /// It cannot be told.
    Unknown,
}

/// What is known of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Between {
    least: f64,
    most: f64,
}

/// What the runs come to by the policy's budgets.
pub(super) fn of(
    group: &Group<'_>,
    runner: Option<&str>,
    missing: &mut Vec<String>,
) -> Vec<Budgeted> {
    let profiles = &group.profiles;
    if profiles.is_empty() {
        return Vec::new();
    }
    let budgets = group.policy.budgets();
    let mut all = Vec::new();
    for budget in budgets.filter(|budget| budget.is_about(group.name, runner)) {
        if let Some(problem) = unknown_phase(budget, profiles) {
            missing.push(problem);
            continue;
        }
        for (metric, most) in budget.limits() {
            match one(budget, metric, most, profiles, group.baseline()) {
                Ok(budgeted) => {
                    if budgeted.stands == Stands::Unknown {
                        missing.push(budgeted.sentence.clone());
                    }
                    all.push(budgeted);
                }
                Err(problem) => missing.push(problem),
            }
        }
    }
    all
}

/// A phase that no run has is misspelt, or gone.
fn unknown_phase(budget: &Budget, profiles: &[Profile]) -> Option<String> {
    let phase = budget.phase.as_ref()?;
    let mut phases: Vec<&str> = profiles
        .iter()
        .flat_map(|profile| profile.rows.keys())
        .map(|place| place.phase.as_str())
        .collect();
    if phases.contains(&phase.as_str()) {
        return None;
    }
    phases.sort_unstable();
    phases.dedup();
    Some(format!(
        "a budget names the phase `{}`, which no run has; there are {}",
        plain(phase),
        plain(&phases.join(", "))
    ))
}

fn one(
    budget: &Budget,
    metric: Metric,
    most: Most,
    profiles: &[Profile],
    baseline: Option<&Baseline>,
) -> Result<Budgeted, String> {
    let place = format!("{} of {}", metric.words(), plain(&budget.place()));
    let unknown = || format!("{place}: no run says what it was, so its budget cannot be kept");
    let mut values: Vec<Between> = Vec::with_capacity(profiles.len());
    for profile in profiles {
        values.push(value(profile, budget, metric, Profile::median_of).ok_or_else(unknown)?);
    }
    values.sort_by(|one, other| one.most.total_cmp(&other.most));
    let highest = values.last().copied().ok_or_else(unknown)?;
    let middle = values
        .get((values.len() - 1) / 2)
        .copied()
        .unwrap_or(highest);
    let (limit, was, slack) = match most {
        Most::Absolute(limit) => (limit, highest, None),
        Most::Relative(share) => {
            let needs = || {
                format!(
                    "{place}: a budget of +{}% needs a baseline of this machine to be compared with",
                    share * 100.0
                )
            };
            let profile = &baseline.ok_or_else(needs)?.profile;
            let before = value(profile, budget, metric, Profile::median_of).ok_or_else(needs)?;
            let spread = value(profile, budget, metric, Profile::high_of).ok_or_else(needs)?;
            (before.least * (1.0 + share), middle, Some(spread.most))
        }
    };
    let (stands, but) = if was.most <= limit {
        (Stands::Within, "")
    } else if slack.is_some_and(|slack| was.most <= slack) {
        (
            Stands::WithinSpread,
            ", above its budget and within the baseline's spread",
        )
    } else if was.least > limit {
        (Stands::Over, ", over its budget")
    } else {
        (
            Stands::Unknown,
            ", which may be within its budget or over it: peaks of several phases and layers do \
             not add up; give each a budget",
        )
    };
    let was_words = match was.least < was.most {
        true => format!(
            "between {} and {}",
            shown_f64(metric, was.least),
            shown_f64(metric, was.most)
        ),
        false => shown_f64(metric, was.most),
    };
    let sentence = format!("{place}: {was_words} of {}{but}", shown_f64(metric, limit));
    Ok(Budgeted {
        phase: budget.phase.clone(),
        layer: budget.layer,
        metric,
        most: limit,
        relative: matches!(most, Most::Relative(_)),
        was_at_least: was.least,
        was_at_most: was.most,
        stands,
        sentence,
    })
}

impl Profile {
    fn median_of(&self, place: Option<&Place>, metric: Metric) -> Option<f64> {
        self.spread(place, metric)
            .map(|spread| spread.median().as_f64())
    }

    /// The highest value that is no change.
    fn high_of(&self, place: Option<&Place>, metric: Metric) -> Option<f64> {
        self.spread(place, metric)
            .map(|spread| Tolerance::of(metric, spread).high)
    }

    fn spread(&self, place: Option<&Place>, metric: Metric) -> Option<&crate::profile::Spread> {
        let row = match place {
            Some(place) => self.rows.get(place)?,
            None => &self.whole,
        };
        row.get(&metric)
    }
}

type Read = fn(&Profile, Option<&Place>, Metric) -> Option<f64>;

/// The value of a metric over all places that a budget is about.
fn value(profile: &Profile, budget: &Budget, metric: Metric, read: Read) -> Option<Between> {
    let exactly = |value: f64| Between {
        least: value,
        most: value,
    };
    let whole = budget.phase.is_none() && budget.layer.is_none();
    if whole && matches!(metric, Metric::Peak | Metric::Resident | Metric::Card) {
        return read(profile, None, metric).map(exactly);
    }
    let places = || {
        profile.rows.keys().filter(|place| {
            place.site.is_none()
                && budget
                    .phase
                    .as_ref()
                    .is_none_or(|phase| *phase == place.phase)
                && budget.layer.is_none_or(|layer| layer == place.layer)
        })
    };
    let values = |metric| places().filter_map(move |place| read(profile, Some(place), metric));
    match metric {
        Metric::Peak => Some(Between {
            least: values(metric).fold(0.0, f64::max),
            most: values(metric).sum(),
        }),
        Metric::Dwell => {
            // The mean over all bytes: times what each was held for, by bytes.
            let weighed = places().filter_map(|place| {
                let dwell = read(profile, Some(place), Metric::Dwell)?;
                Some((dwell, profile.median_of(Some(place), Metric::Bytes)?))
            });
            let (sum, bytes) = weighed.fold((0.0, 0.0), |(sum, all), (dwell, bytes)| {
                (sum + dwell * bytes, all + bytes)
            });
            (bytes > 0.0).then(|| exactly(sum / bytes))
        }
        _ => Some(exactly(values(metric).sum())),
    }
}
