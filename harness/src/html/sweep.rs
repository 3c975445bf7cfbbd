//! The peak over a parameter: points, the line, where it expects runs, and the budget.

use maud::{Markup, html};

use super::plot::{Upright, label_at, thinned, walk};
use super::run::{machine, section};
use super::table::{lacking, of_points, of_terminal};
use super::text::{Said, Unit, place, shell};
use super::verdict::{Outcome, badge};
use crate::compare::report::{budget_in_words, contradictions, line_in_words, values};
use crate::compare::{Checked, Forecast, Line, Sweep};
use crate::verdict::words::size;

/// Points at most; a sweep with more is no sweep.
const POINTS: usize = 400;

pub(super) fn outcome(sweep: &Sweep) -> (Outcome, &'static str) {
    let contradicted = sweep.forecast.values.iter().any(|value| value.contradicts);
    match (sweep.is_conclusive(), contradicted) {
        (true, _) => (Outcome::Good, "the line holds"),
        (false, true) => (Outcome::Bad, "the line is contradicted"),
        (false, false) => (Outcome::Unclear, "not conclusive"),
    }
}

/// The answer in a sentence.
pub(super) fn sentence(sweep: &Sweep) -> String {
    let name = &sweep.plan.parameter;
    match (
        contradictions(&sweep.forecast, name),
        &sweep.forecast.budget,
    ) {
        (Some((first, _)), _) => first,
        (None, Some(budget)) => budget_in_words(budget, name),
        (None, None) => line_in_words(sweep),
    }
}

/// The sections of a sweep, after its heading.
pub(super) fn sections(id: &str, sweep: &Sweep) -> Markup {
    let (outcome, word) = outcome(sweep);
    let name = &sweep.plan.parameter;
    let missing = || sweep.missing.iter().chain(&sweep.forecast.missing);
    html! {
        p.meta { "tidegate " (Said(&sweep.tidegate)) }
        div class=(format!("verdict {}", outcome.class())) {
            p.class { (badge(outcome, word)) }
            p.sentence { (Said(&sentence(sweep))) }
            p { (Said(&line_in_words(sweep))) }
        }
        @if missing().next().is_some() {
            ul.notes { @for missing in missing() { li { b { "missing: " } (Said(missing)) } } }
        }
        @if let Some((_, more)) = contradictions(&sweep.forecast, name) {
            ul.notes { @for line in more { li { (Said(&line)) } } }
        }
        (section(id, "plot", "The peak over the parameter", plot(&format!("{id}-peaks"), sweep)))
        (section(id, "values", "Value by value", of_terminal(&values(&sweep.forecast, name), "Each value: measured, predicted, and how far off", 0)))
        (section(id, "machine", "Machine", html! {
            @if sweep.parts.is_empty() { (lacking("These are published peaks: nothing says on which machine they were measured.")) }
            @if sweep.is_of_different_machines() { p { b { "The parts were measured on machines that differ." } } }
            @if let Some(part) = sweep.parts.first() { (machine(&part.machine)) }
        }))
        (section(id, "again", "Again", html! {
            @if sweep.plan.command.is_empty() { (lacking("Nothing was run.")) }
            @else {
                p { "What was run, with each value in the place of " code { "{" (Said(name)) "}" } ":" }
                pre tabindex="0" { code { (Said(&shell(sweep.plan.command.iter().map(String::as_str)))) } }
            }
        }))
    }
}

/// Where values lie from left to right.
struct Places {
    from: f64,
    to: f64,
}

impl Places {
    fn percent(&self, value: f64) -> f64 {
        match self.to > self.from {
            // Room for marks at both ends.
            true => 4.0 + (value - self.from) / (self.to - self.from) * 92.0,
            false => 50.0,
        }
    }
}

fn plot(id: &str, sweep: &Sweep) -> Markup {
    let forecast = &sweep.forecast;
    let usable = |value: &&Checked| {
        value.value.is_finite() && value.low.is_finite() && value.high.is_finite()
    };
    let shown: Vec<&Checked> = forecast.values.iter().filter(usable).take(POINTS).collect();
    let left_out = forecast.values.len() - shown.len();
    let (Some(first), Some(last)) = (shown.first(), shown.last()) else {
        return lacking("No value says how high its peak was, so that there is nothing to draw.");
    };
    let places = Places {
        from: first.value,
        to: last.value,
    };
    let budget = forecast.budget.map(|budget| budget.bytes as f64);
    let upper = |value: &Checked| {
        let line = forecast.line.as_ref()?;
        Some(line.at(value.value) + line.reach(value.value).unwrap_or(0.0))
    };
    let tops = shown
        .iter()
        .flat_map(|value| [Some(value.high), upper(value)])
        .flatten();
    let most = tops.filter(|top| top.is_finite()).fold(1.0, f64::max);
    let budget_fits = budget.is_none_or(|budget| budget <= 2.5 * most);
    let upright = Upright {
        low: 0.0,
        high: 1.08
            * budget
                .filter(|_| budget_fits)
                .map_or(most, |budget| budget.max(most)),
        unit: Unit::Bytes,
    };
    let name = &sweep.plan.parameter;
    html! {
        figure.plot id=(id) data-walk="" {
            figcaption {
                "The peak of the runs of each value. "
                @if forecast.line.is_some() { "The line is drawn through the filled points; within the shaded band it expects 95 % of runs. " }
                @else { "There is no line. " }
                @if !budget_fits { "The budget of " (budget.map(|budget| size(budget as i64)).unwrap_or_default()) " lies above the plot. " }
                @if left_out > 0 { (left_out) " values are left out: they are no numbers, or too many." }
            }
            div.panel {
                (key(&shown, forecast))
                svg.panel role="img" aria-labelledby=(format!("{id}-title")) width="100%" height=(place(Upright::HEIGHT)) {
                    title id=(format!("{id}-title")) { (Said(&sentence(sweep))) }
                    (upright.grid())
                    @if let Some(line) = &forecast.line { (line_of(line, &places, &upright)) }
                    @if let Some(budget) = budget.filter(|_| budget_fits) {
                        @let y = place(upright.y(budget));
                        line.budget x1="0" x2="100%" y1=(y) y2=(y) {}
                        (label_at(99.0, upright.y(budget) - 3.0, "tick", &format!("budget {}", size(budget as i64))))
                    }
                    @for value in &shown { (point(value, &places, &upright)) }
                    (upright.labels())
                    @for value in thinned(&shown, 8) { (label_at(places.percent(value.value), Upright::BELOW, "tick", &value.value.to_string())) }
                    line.cursor x1="0" x2="0" y1=(place(Upright::TOP)) y2=(place(Upright::BOTTOM)) {}
                }
            }
            (walk(id, "value", shown.len()))
            details {
                summary { "All " (shown.len()) " values as a table" }
                (table(name, &shown, &places))
            }
        }
    }
}

fn line_of(line: &Line, places: &Places, upright: &Upright) -> Markup {
    const STEPS: u32 = 40;
    let step =
        |step: u32| places.from + (places.to - places.from) * f64::from(step) / f64::from(STEPS);
    let values: Vec<f64> = (0..=STEPS).map(step).collect();
    let edge = |sign: f64| {
        let at = |value: &f64| {
            (
                places.percent(*value),
                line.at(*value) + sign * line.reach(*value).unwrap_or(0.0),
            )
        };
        values.iter().map(at).collect::<Vec<_>>()
    };
    upright.stretched(html! {
        g.s0 {
            @if line.scatter.is_some() {
                path.area d=(format!("M{}L{}Z", upright.path(edge(1.0)), upright.path(edge(-1.0).into_iter().rev()))) {}
            }
            path.edge d=(format!("M{}", upright.path(edge(0.0)))) {}
        }
    })
}

/// How a value is marked.
fn mark(value: &Checked) -> &'static str {
    match (value.contradicts, value.runs, value.drawn_through) {
        (true, ..) => "contradicts",
        (false, 0, _) => "killed",
        (false, _, true) => "through",
        (false, _, false) => "beside",
    }
}

fn shape(mark: &str) -> Markup {
    html! {
        @match mark {
            "contradicts" => { path.contradicts d="M0-7L7 0L0 7L-7 0Z" {} path.contradicts d="M0-3V1M0 3V4" {} }
            "killed" => { path.killed d="M0-6L5 4H-5Z" {} }
            "through" => { circle.through r="4.5" {} }
            _ => { circle.beside r="4.5" {} }
        }
    }
}

fn key(shown: &[&Checked], forecast: &Forecast) -> Markup {
    let names = [
        ("through", "the line is drawn through it"),
        ("beside", "held against the line"),
        ("contradicts", "contradicts the line"),
        ("killed", "killed there: at least so much"),
    ];
    html! {
        ul.key {
            @for (of, name) in names.into_iter().filter(|(of, _)| shown.iter().any(|value| mark(value) == *of)) {
                li { svg width="16" height="16" viewBox="-8 -8 16 16" aria-hidden="true" focusable="false" { (shape(of)) } " " (name) }
            }
            @if forecast.line.is_some() {
                li { svg.s0 width="22" height="12" aria-hidden="true" focusable="false" { rect.area y="2" width="22" height="10" {} line.edge x1="0" x2="22" y1="6" y2="6" {} } " the line, and where it expects runs" }
            }
        }
    }
}

fn point(value: &Checked, places: &Places, upright: &Upright) -> Markup {
    let x = place(places.percent(value.value)) + "%";
    html! {
        @if value.low < value.high {
            line.range x1=(x) x2=(x) y1=(place(upright.y(value.low))) y2=(place(upright.y(value.high))) {}
        }
        svg.mark-box x=(x) y=(place(upright.y(value.high))) { (shape(mark(value))) }
    }
}

fn table(name: &str, shown: &[&Checked], places: &Places) -> Markup {
    let size = |bytes: f64| Unit::Bytes.short(bytes as i64);
    let measured = |value: &Checked| match value.runs {
        0 => format!("≥{}", size(value.low)),
        _ if value.low < value.high => format!("{} to {}", size(value.low), size(value.high)),
        _ => size(value.high),
    };
    let said = |value: &Checked| match mark(value) {
        "contradicts" => "contradicts the line",
        "killed" => "killed there",
        "through" => "the line is drawn through it",
        _ => "held against the line",
    };
    let caption = "Every value of the plot";
    of_points(
        caption,
        html! {
            thead { tr {
                th scope="col" { (Said(name)) }
                th.n scope="col" { "measured" }
                th.n scope="col" { "predicted" }
                th scope="col" { "what it is" }
            } }
            tbody { @for value in shown { tr data-x=(place(places.percent(value.value))) {
                th scope="row" { (Said(name)) " = " (value.value) }
                td.n { (measured(value)) }
                td.n { (value.predicted.map(size).unwrap_or_default()) }
                td { (said(value)) }
            } } }
        },
    )
}
