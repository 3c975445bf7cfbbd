//! What is not what the baseline's runs gave.

use schemars::JsonSchema;
use serde::Serialize;

use super::Budgeted;
use crate::books::{Amount, Layer};
use crate::diff::{self, Change, Entry, Options, Outcome, plain, shown};
use crate::policy::Policy;
use crate::profile::{Basis, Metric, Profile, Value};
use crate::verdict::Settings;

/// One metric of a place that lies outside of what the baseline's runs gave.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Drift {
    /// The phase; `None` for the whole scenario.
    pub phase: Option<String>,
    /// The layer; `None` for the whole scenario.
    pub layer: Option<Layer>,
    /// The metric with its values and tolerance.
    pub change: Change,
    /// Whether it stops the change.
    pub fails: bool,
    /// All of it in words.
    pub sentence: String,
}

/// What a comparison came to.
pub(super) struct Compared {
    pub drift: Vec<Drift>,
    /// Metrics of places whose tolerance is known.
    pub judged: u64,
    /// Metrics of places.
    pub exist: u64,
    /// What a reader must know of the comparison.
    pub notes: Vec<String>,
}

/// Compares runs with the baseline's.
pub(super) fn of(
    baseline: &Profile,
    now: &Profile,
    policy: &Policy,
    budgets: &[Budgeted],
) -> Compared {
    let options = Options { top: 0, by: None };
    let body = diff::of_profiles(baseline, now, &options);
    let settings = policy.settings(Settings::default()).unwrap_or_default();
    let whole = Entry {
        phase: None,
        layer: None,
        frames: Vec::new(),
        standing: diff::Standing::Changed,
        changes: body.whole,
    };
    let mut drift = Vec::new();
    for entry in std::iter::once(&whole).chain(&body.phases) {
        for change in entry.changes.iter().filter(|change| change.is_change()) {
            let is_above = change.outcome == Outcome::Above;
            let budgeted = budgets.iter().any(|budget| {
                budget.relative
                    && budget.metric == change.metric
                    && covers(budget.phase.as_ref(), entry.phase.as_ref())
                    && covers(budget.layer.as_ref(), entry.layer.as_ref())
            });
            let fails = is_above
                && policy.baselines.fails_on.contains(&change.metric)
                && !budgeted
                && !is_below_floor(entry, change, now.rounds.fewest, &settings);
            drift.push(Drift {
                phase: entry.phase.clone(),
                layer: entry.layer,
                change: change.clone(),
                fails,
                sentence: sentence(entry, change),
            });
        }
    }
    drift.sort_by_key(|drift| !drift.fails);
    let (judged, exist) = counted(baseline, now);
    Compared {
        drift,
        judged,
        exist,
        notes: body.notes,
    }
}

/// Whether what a budget is about holds this, `None` being all.
fn covers<T: PartialEq>(budget: Option<&T>, of: Option<&T>) -> bool {
    budget.is_none() || budget == of
}

/// Whether what is left more is too little for the engine to call a leak: a block that each
/// round replaces may be there when one run ends, and not when another does.
fn is_below_floor(entry: &Entry, change: &Change, rounds: u32, settings: &Settings) -> bool {
    if !matches!(change.metric, Metric::LeftBlocks | Metric::LeftBytes) {
        return false;
    }
    let more = |metric| {
        let change = entry.changes.iter().find(|change| change.metric == metric);
        change.map_or(0, |change| change.amount() as i64)
    };
    let amount = Amount::new(more(Metric::LeftBytes), more(Metric::LeftBlocks));
    !settings.matters(amount, rounds as usize)
}

fn sentence(entry: &Entry, change: &Change) -> String {
    let place = match (&entry.phase, entry.layer) {
        (Some(phase), Some(layer)) => format!("{layer} of phase {}", plain(phase)),
        _ => "the whole scenario".to_owned(),
    };
    let value =
        |value: Option<Value>| value.map_or("?".to_owned(), |value| shown(change.metric, value));
    let basis = change.tolerance.map(|tolerance| match tolerance.basis {
        Basis::NeverVaried => "never varied".to_owned(),
        Basis::OneRun => "one run".to_owned(),
        Basis::Spread => format!(
            "{} to {} expected",
            diff::shown_f64(change.metric, tolerance.low.max(0.0)),
            diff::shown_f64(change.metric, tolerance.high)
        ),
    });
    format!(
        "{place}: {} {}, was {} ({})",
        change.metric.words(),
        value(change.new),
        value(change.old),
        basis.unwrap_or_default()
    )
}

/// Metrics of places that have a tolerance, and all.
fn counted(baseline: &Profile, now: &Profile) -> (u64, u64) {
    let of_phases = |profile: &Profile| {
        let rows = profile
            .rows
            .iter()
            .filter(|(place, _)| place.site.is_none());
        rows.flat_map(|(place, row)| {
            row.keys()
                .map(move |metric| (Some((place.phase.clone(), place.layer)), *metric))
        })
        .chain(profile.whole.keys().map(|metric| (None, *metric)))
        .collect::<std::collections::BTreeSet<_>>()
    };
    let (before, after) = (of_phases(baseline), of_phases(now));
    // How long something is held that was not there before has no tolerance.
    let judged = before
        .union(&after)
        .filter(|key| before.contains(key) || key.1 != Metric::Dwell);
    let judged = judged
        .filter(|key| after.contains(key) || key.1 != Metric::Dwell)
        .count();
    (judged as u64, before.union(&after).count() as u64)
}
