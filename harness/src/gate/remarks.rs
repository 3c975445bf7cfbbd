//! What a report has to say of the code, each thing once: what SARIF and GitHub's
//! annotations are made of.

use super::{AgainstBaseline, Line, Report, Scenario, Stands, Status};
use crate::verdict::Class;

/// The rule of what is over a budget.
pub(super) const BUDGET: &str = "budget";
/// The rule of what is above the spread of a baseline.
pub(super) const BASELINE: &str = "above-baseline";

/// One thing that a report says.
pub(super) struct Remark<'a> {
    /// What it is: the name of a class, [`BUDGET`] or [`BASELINE`].
    pub rule: &'static str,
    /// Whether it stops the change.
    pub weight: Weight,
    pub scenario: &'a str,
    /// In a sentence.
    pub sentence: String,
    /// What it is one with in other runs and builds, its scenario aside.
    pub identity: String,
    /// Where it is in the code, as far as that is known.
    pub lines: &'a [Line],
    /// The phase and the layer, as far as it is of one.
    pub place: [Option<&'a str>; 2],
    /// Whether it was there before, where that is asked.
    pub status: Option<Status>,
    /// Why it is let through, if it is.
    pub because: Option<&'a str>,
}

/// How much a remark matters to a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// It stops the change.
    Stops,
    /// It would, were it not known.
    Known,
    /// It is let through.
    LetThrough,
}

/// All that a report says, scenario by scenario, what stops the change first.
pub(super) fn of(report: &Report) -> Vec<Remark<'_>> {
    let mut all: Vec<Remark<'_>> = report.scenarios.iter().flat_map(of_scenario).collect();
    all.sort_by_key(|remark| remark.weight != Weight::Stops);
    all
}

fn of_scenario(scenario: &Scenario) -> Vec<Remark<'_>> {
    let mut all = Vec::new();
    for finding in &scenario.findings {
        all.push(Remark {
            rule: finding.class.name(),
            weight: match finding.status {
                _ if finding.fails => Weight::Stops,
                Status::Known => Weight::Known,
                _ => Weight::LetThrough,
            },
            scenario: &scenario.name,
            sentence: finding.sentence.clone(),
            identity: finding.identity.clone(),
            lines: &finding.lines,
            place: [
                finding.phase.as_deref(),
                finding.layer.map(|layer| layer.name()),
            ],
            status: Some(finding.status),
            because: finding.because.as_deref(),
        });
    }
    let of_place = |rule, phase: &'_ Option<String>, layer: Option<_>, metric: &str| {
        let place = [phase.clone(), layer].map(|part| part.unwrap_or_default());
        format!("{rule}/{}/{metric}", place.join("/"))
    };
    let over = |stands| stands == Stands::Over;
    for budget in scenario.budgets.iter().filter(|budget| over(budget.stands)) {
        let layer = budget.layer.map(|layer| layer.name());
        let metric = budget.metric.words();
        all.push(Remark {
            rule: BUDGET,
            weight: Weight::Stops,
            scenario: &scenario.name,
            sentence: budget.sentence.clone(),
            identity: of_place(BUDGET, &budget.phase, layer.map(str::to_owned), metric),
            lines: &[],
            place: [budget.phase.as_deref(), layer],
            status: None,
            because: None,
        });
    }
    let AgainstBaseline::Compared { drift, .. } = &scenario.baseline else {
        return all;
    };
    for drift in drift.iter().filter(|drift| drift.fails) {
        let layer = drift.layer.map(|layer| layer.name());
        let metric = drift.change.metric.words();
        all.push(Remark {
            rule: BASELINE,
            weight: Weight::Stops,
            scenario: &scenario.name,
            sentence: drift.sentence.clone(),
            identity: of_place(BASELINE, &drift.phase, layer.map(str::to_owned), metric),
            lines: &[],
            place: [drift.phase.as_deref(), layer],
            status: None,
            because: None,
        });
    }
    all
}

/// Every rule there is, with what it means and what a reader can look up.
pub(super) fn rules() -> impl Iterator<Item = Rule> {
    // What passes and what decides nothing is never a result.
    let without = [Class::Clean, Class::Crash, Class::Inconclusive];
    let classes = Class::ALL
        .into_iter()
        .filter(move |class| !without.contains(class));
    let classes = classes.map(|class| Rule {
        name: class.name(),
        means: class.meaning(),
        page: format!("verdicts/{}.md", class.name()),
        stops: !class.passes(),
    });
    classes.chain([
        Rule {
            name: BUDGET,
            means: "more was taken than the policy's budget allows",
            page: "policy.md".to_owned(),
            stops: true,
        },
        Rule {
            name: BASELINE,
            means: "more was taken than the runs of the baseline ever took",
            page: "policy.md".to_owned(),
            stops: true,
        },
    ])
}

/// A kind of remark.
pub(super) struct Rule {
    pub name: &'static str,
    pub means: &'static str,
    /// The page of the book.
    pub page: String,
    /// Whether it stops a change unless the policy says otherwise.
    pub stops: bool,
}
