//! Two versions compared: what changed, run by run, and why the peak moved.

use maud::{Markup, html};

use super::plot::{Upright, label_at, thinned, walk};
use super::run::{machine, section};
use super::table::{bar, lacking, of_points, of_terminal, scrolling};
use super::text::{Said, Unit, place, shell};
use super::verdict::{Outcome, badge};
use crate::compare::report::{changes, has_moved, headline, metrics, terms, why_in_words};
use crate::compare::{Decision, Measures, StoredComparison, Version, Why};

pub(super) fn outcome(decision: Decision) -> (Outcome, &'static str) {
    match decision {
        Decision::NotWorse => (Outcome::Good, "not worse"),
        Decision::Worse => (Outcome::Bad, "worse"),
        Decision::Undecided => (Outcome::Unclear, "undecided"),
    }
}

/// The answer in a sentence.
pub(super) fn sentence(stored: &StoredComparison) -> String {
    let changes = changes(&stored.comparison);
    match changes.is_empty() {
        true => "No metric changed beyond the tolerance".to_owned(),
        false => changes.join("; "),
    }
}

/// The sections of a comparison, after its heading.
pub(super) fn sections(id: &str, stored: &StoredComparison) -> Markup {
    let comparison = &stored.comparison;
    let (outcome, word) = outcome(comparison.decision);
    html! {
        p.meta { "tidegate " (Said(&stored.tidegate)) " · " (Said(&headline(comparison))) }
        div class=(format!("verdict {}", outcome.class())) {
            p.class { (badge(outcome, word)) }
            @let changes = changes(comparison);
            @if changes.is_empty() { p.sentence { "No metric changed beyond the tolerance." } }
            @for change in changes { p.sentence { (Said(&change)) } }
        }
        (section(id, "metrics", "What changed", of_terminal(&metrics(comparison), "Each metric: medians, the change, and what bounds it", 1)))
        (section(id, "runs", "Run by run", runs(&format!("{id}-runs-plot"), stored)))
        (section(id, "why", "Why the peak moved", match &comparison.why {
            Some(why) => self::why(why, comparison.terms.tolerance),
            None => lacking("One version has no whole run with a ledger, so that the peaks cannot be taken apart."),
        }))
        (section(id, "machine", "Machine", machine(&stored.machine)))
        (section(id, "again", "Again", html! {
            (again("baseline", &stored.baseline))
            (again("candidate", &stored.candidate))
        }))
    }
}

fn again(name: &str, version: &Version) -> Markup {
    html! {
        p { "The " (name) ", judged each run by itself: " (Said(&version.judged_as())) ". "
            @if version.command.is_empty() { "Its runs were stored:" } @else { "Its command:" } }
        @if version.command.is_empty() {
            ul { @for run in &version.stored { li { code { (Said(&run.display().to_string())) } } } }
        } @else {
            pre tabindex="0" { code { (Said(&shell(version.command.iter().map(String::as_str)))) } }
        }
    }
}

/// The peak of a run, and whether it is a lower bound.
fn peak(run: &Measures) -> Option<(f64, bool)> {
    let peak = run.peak_resident.or(run.peak_live)?;
    Some((peak as f64, run.killed_at.is_some()))
}

fn runs(id: &str, stored: &StoredComparison) -> Markup {
    let (baseline, candidate) = (&stored.runs.baseline, &stored.runs.candidate);
    let most = baseline.len().max(candidate.len());
    let at = |runs: &[Measures], number: usize| runs.get(number).and_then(peak);
    let all = || {
        baseline
            .iter()
            .chain(candidate)
            .filter_map(peak)
            .map(|peak| peak.0)
    };
    if all().next().is_none() {
        return lacking("No run says how high its peak was.");
    }
    let (low, high) = (
        all().fold(f64::INFINITY, f64::min),
        all().fold(0.0, f64::max),
    );
    // From 0 unless that hides the difference.
    let from_zero = low < 0.6 * high;
    let spare = ((high - low) * 0.15).max(high * 0.01).max(1.0);
    let upright = Upright {
        low: if from_zero { 0.0 } else { low - spare },
        high: high + spare,
        unit: Unit::Bytes,
    };
    let percent = |number: usize| (number as f64 + 0.5) / most as f64 * 100.0;
    let numbers: Vec<usize> = (0..most).collect();
    let what = if stored.runs.paired { "pair" } else { "run" };
    let said = |peak: Option<(f64, bool)>| match peak {
        Some((bytes, false)) => Unit::Bytes.short(bytes as i64),
        Some((bytes, true)) => format!("≥{}", Unit::Bytes.short(bytes as i64)),
        None => "missing".to_owned(),
    };
    html! {
        figure.plot id=(id) data-walk="" {
            figcaption {
                "The peak of each run (resident memory; live memory where that could not be read). "
                @if stored.runs.paired { "Runs of one pair were made one after the other and are joined by a line." }
                @else { "The runs were stored ones and are no pairs." }
                @if !from_zero { " The scale does not begin at 0." }
            }
            div.panel {
                ul.key {
                    li { svg width="14" height="12" aria-hidden="true" focusable="false" { circle.baseline cx="6" cy="6" r="4.5" {} } " baseline" }
                    li { svg width="14" height="12" aria-hidden="true" focusable="false" { rect.candidate x="2" y="2" width="9" height="9" {} } " candidate" }
                }
                svg.panel role="img" aria-labelledby=(format!("{id}-title")) width="100%" height=(place(Upright::HEIGHT)) {
                    title id=(format!("{id}-title")) { "The peak of each run, from " (Unit::Bytes.short(low as i64)) " to " (Unit::Bytes.short(high as i64)) }
                    (upright.grid())
                    @for number in &numbers {
                        @let x = place(percent(*number)) + "%";
                        @let (a, b) = (at(baseline, *number), at(candidate, *number));
                        @if let (Some(a), Some(b), true) = (a, b, stored.runs.paired) {
                            line.pair x1=(x) x2=(x) y1=(place(upright.y(a.0))) y2=(place(upright.y(b.0))) {}
                        }
                        @if let Some(a) = a { circle.baseline cx=(x) cy=(place(upright.y(a.0))) r="4.5" {} }
                        @if let Some(b) = b {
                            svg.mark-box x=(x) y=(place(upright.y(b.0))) { rect.candidate x="-4.5" y="-4.5" width="9" height="9" {} }
                        }
                    }
                    (upright.labels())
                    @for number in thinned(&numbers, 10) { (label_at(percent(*number), Upright::BELOW, "tick", &(number + 1).to_string())) }
                    line.cursor x1="0" x2="0" y1=(place(Upright::TOP)) y2=(place(Upright::BOTTOM)) {}
                }
            }
            (walk(id, what, most))
            details {
                summary { "All " (most) " " (what) "s as a table" }
                (of_points("The peak of each run", html! {
                        thead { tr { th scope="col" { (what) } th.n scope="col" { "baseline" } th.n scope="col" { "candidate" } } }
                        tbody { @for number in &numbers { tr data-x=(place(percent(*number))) {
                            th scope="row" { (what) " " (number + 1) }
                            td.n { (said(at(baseline, *number))) }
                            td.n { (said(at(candidate, *number))) }
                        } } }
                    }))
            }
        }
    }
}

fn why(why: &Why, tolerance: f64) -> Markup {
    let (first, more) = why_in_words(why, tolerance);
    html! {
        p { (Said(&first)) }
        ul.notes { @for line in more { li { (Said(&line)) } } }
        @if has_moved(why, tolerance) { (waterfall(why)) }
    }
}

/// Term by term, each beginning where the one before it ended.
fn waterfall(why: &Why) -> Markup {
    let terms = terms(why);
    let mut level = 0_i64;
    let mut steps = Vec::new();
    for (number, term) in terms.iter().enumerate() {
        let from = if number + 1 == terms.len() { 0 } else { level };
        level = from.saturating_add(term.bytes);
        steps.push((from as f64, level as f64));
    }
    let all = || steps.iter().flat_map(|step| [step.0, step.1]);
    let (low, high) = (all().fold(0.0, f64::min), all().fold(0.0, f64::max));
    let percent = |value: f64| (value - low) / (high - low).max(1.0) * 100.0;
    let class = |bytes: i64| if bytes < 0 { "less" } else { "more" };
    let name = "The parts of the difference, which add up to it";
    scrolling(
        name,
        html! {
            table.parts {
                caption { span { (name) } }
                thead { tr {
                    th scope="col" { "term" }
                    th.n scope="col" { "baseline" }
                    th.n scope="col" { "candidate" }
                    th.n scope="col" { "adds" }
                    td {}
                } }
                tbody { @for (term, step) in terms.iter().zip(&steps) { tr {
                    th scope="row" { (Said(&term.name)) }
                    td.n { (Said(&term.baseline)) }
                    td.n { (Said(&term.candidate)) }
                    td.n { (Said(&term.adds)) }
                    td.wide { (bar(percent(step.0), percent(step.1), class(term.bytes))) }
                } } }
            }
        },
    )
}
