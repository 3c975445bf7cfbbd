//! Plots of series over time or rounds: one SVG for each panel, a key, a cursor that the
//! keyboard moves, and every point in a table.
//!
//! Text must keep its size where a plot is narrow, so that only the shapes are in a nested
//! `svg` that is stretched; labels are placed by percent beside it.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::table::of_points;
use super::text::{Said, Unit, place};

/// Series that have a colour and a dash of their own; what is beyond is one of the rest.
pub(super) const SERIES: usize = 6;
/// Height of the shapes, in pixels.
const HIGH: f64 = 104.0;
/// Where they begin: labels of marks are above.
const TOP: f64 = 13.0;

/// One series: a value for each place along the plot.
pub(super) struct Series {
    pub name: String,
    pub values: Vec<f64>,
}

/// One set of axes.
pub(super) struct Panel {
    pub title: String,
    pub unit: Unit,
    /// Whether the series are parts of a whole, drawn one upon the other.
    pub stacked: bool,
    pub series: Vec<Series>,
}

/// What runs from left to right, for all panels alike.
pub(super) struct Across {
    /// What it is, as a column's name.
    pub name: &'static str,
    /// The places, ascending.
    pub at: Vec<f64>,
    /// Their names.
    pub names: Vec<String>,
    /// Lines from top to bottom, and what they mark.
    pub marks: Vec<(f64, String)>,
    /// A stretch that is shaded: the warm-up.
    pub shaded: Option<(f64, f64)>,
    /// Labels below the last panel.
    pub ticks: Vec<(f64, String)>,
}

impl Across {
    fn percent(&self, at: f64) -> f64 {
        let (from, to) = self.ends();
        if to > from {
            ((at - from) / (to - from) * 100.0).clamp(0.0, 100.0)
        } else {
            50.0
        }
    }

    fn ends(&self) -> (f64, f64) {
        let marks = self.marks.iter().map(|mark| mark.0);
        let all = || {
            self.at
                .iter()
                .copied()
                .chain(marks.clone())
                .filter(|at| at.is_finite())
        };
        (
            all().fold(f64::INFINITY, f64::min),
            all().fold(f64::NEG_INFINITY, f64::max),
        )
    }
}

/// The biggest of many series, and the sum of the others as one more.
pub(super) fn biggest(all: BTreeMap<String, Vec<f64>>) -> Vec<Series> {
    let most = |values: &[f64]| {
        values
            .iter()
            .fold(0.0_f64, |most, value| most.max(value.abs()))
    };
    let mut series: Vec<Series> = all
        .into_iter()
        .map(|(name, values)| Series { name, values })
        .filter(|series| most(&series.values) > 0.0)
        .collect();
    series.sort_by(|a, b| most(&b.values).total_cmp(&most(&a.values)));
    if series.len() > SERIES + 1 {
        let rest = series.split_off(SERIES);
        let mut sum = vec![0.0; rest[0].values.len()];
        for series in &rest {
            sum.iter_mut()
                .zip(&series.values)
                .for_each(|(sum, value)| *sum += value);
        }
        series.push(Series {
            name: format!("{} others together", rest.len()),
            values: sum,
        });
    }
    series
}

/// A figure of panels over the same places, with what is said of it.
pub(super) fn figure(id: &str, caption: Markup, across: &Across, panels: &[Panel]) -> Markup {
    let panels: Vec<&Panel> = panels
        .iter()
        .filter(|panel| !panel.series.is_empty())
        .collect();
    html! {
        figure.plot id=(id) data-walk="" {
            figcaption { (caption) }
            @for (number, panel) in panels.iter().enumerate() {
                div.panel {
                    p.panel-title { (panel.title) }
                    (key(panel))
                    (drawn(&format!("{id}-{number}"), panel, across, number + 1 == panels.len()))
                }
            }
            (walk(id, across.name, across.at.len()))
            details {
                summary { "All " (across.at.len()) " points as a table" }
                (points(across, &panels))
            }
        }
    }
}

/// A slider that walks along the points, and says what is there. It needs the script, and
/// is hidden without.
pub(super) fn walk(id: &str, along: &str, points: usize) -> Markup {
    html! {
        div.walk hidden {
            label for=(format!("{id}-walk")) { "Walk along: " (along) }
            input type="range" id=(format!("{id}-walk")) min="0" max=(points.saturating_sub(1)) value="0";
            output for=(format!("{id}-walk")) {}
        }
    }
}

fn class_of(series: usize) -> String {
    format!("s{}", series.min(SERIES))
}

fn key(panel: &Panel) -> Markup {
    html! {
        ul.key {
            // As they lie upon each other.
            @for (number, series) in panel.series.iter().enumerate() {
                li {
                    svg width="22" height="12" aria-hidden="true" focusable="false" class=(class_of(number)) {
                        @if panel.stacked { rect.area y="2" width="22" height="10" {} }
                        line.edge x1="0" x2="22" y1="3" y2="3" {}
                    }
                    " " (Said(&series.name))
                }
            }
        }
    }
}

/// The lowest and the highest value that a panel has room for.
fn room(panel: &Panel, tops: &[Vec<f64>]) -> (f64, f64) {
    let all = || {
        tops.iter()
            .flatten()
            .copied()
            .filter(|value| value.is_finite())
    };
    let low = all().fold(0.0, f64::min);
    let high = all().fold(0.0, f64::max);
    let least = match panel.unit {
        Unit::Bytes => 16.0,
        Unit::Things => 1.0,
    };
    let spare = ((high - low) * 0.06).max(least * 0.06);
    let low = if low < 0.0 { low - spare } else { 0.0 };
    (low, high.max(low + least) + spare)
}

/// What each series' upper edge is: its value, or in a stack the sum up to it.
fn edges(panel: &Panel) -> Vec<Vec<f64>> {
    let mut edges: Vec<Vec<f64>> = Vec::new();
    for series in &panel.series {
        let edge = match edges.last().filter(|_| panel.stacked) {
            Some(below) => below
                .iter()
                .zip(&series.values)
                .map(|(a, b)| a + b)
                .collect(),
            None => series.values.clone(),
        };
        edges.push(edge);
    }
    edges
}

/// What runs from bottom to top.
pub(super) struct Upright {
    pub low: f64,
    pub high: f64,
    pub unit: Unit,
}

impl Upright {
    /// Pixels below the top of the shapes.
    fn down(&self, value: f64) -> f64 {
        ((self.high - value) / (self.high - self.low) * HIGH).clamp(-HIGH, 2.0 * HIGH)
    }

    /// Pixels below the top of the plot.
    pub fn y(&self, value: f64) -> f64 {
        TOP + self.down(value)
    }

    /// Lines at round values.
    pub fn grid(&self) -> Markup {
        html! { @for tick in ticks(self.low, self.high, self.unit) {
            @let y = place(self.y(tick));
            line.grid x1="0" x2="100%" y1=(y) y2=(y) {}
        } }
    }

    /// Their labels, to be drawn above all else.
    pub fn labels(&self) -> Markup {
        html! { @for tick in ticks(self.low, self.high, self.unit) {
            text.tick x="2" y=(place(self.y(tick) - 3.0)) { (self.unit.short(tick as i64)) }
        } }
    }

    /// Shapes between, in a space of 1000 by [`HIGH`] that is stretched over the plot.
    pub fn stretched(&self, shapes: Markup) -> Markup {
        html! {
            svg x="0" y=(place(TOP)) width="100%" height=(place(HIGH)) viewBox=(format!("0 0 1000 {HIGH}")) preserveAspectRatio="none" {
                (shapes)
            }
        }
    }

    /// A path through points, each a percentage from the left and a value.
    pub fn path(&self, points: impl IntoIterator<Item = (f64, f64)>) -> String {
        let points = points.into_iter();
        let points = points.map(|(percent, value)| {
            format!("{} {}", place(percent * 10.0), place(self.down(value)))
        });
        points.collect::<Vec<_>>().join("L")
    }

    /// Where labels below the plot stand, in pixels.
    pub const BELOW: f64 = TOP + HIGH + 12.0;
    /// The height of a plot with such labels, in pixels.
    pub const HEIGHT: f64 = TOP + HIGH + 16.0;
    /// Where the shapes end.
    pub const BOTTOM: f64 = TOP + HIGH;
    /// Where they begin.
    pub const TOP: f64 = TOP;
}

fn drawn(id: &str, panel: &Panel, across: &Across, is_last: bool) -> Markup {
    let edges = edges(panel);
    let (low, high) = room(panel, &edges);
    let upright = Upright {
        low,
        high,
        unit: panel.unit,
    };
    let bottom = vec![0.0; across.at.len()];
    let percents: Vec<f64> = across.at.iter().map(|at| across.percent(*at)).collect();
    let points = |values: &[f64]| {
        percents
            .iter()
            .copied()
            .zip(values.to_vec())
            .collect::<Vec<_>>()
    };
    let line = |values: &[f64]| format!("M{}", upright.path(points(values)));
    let area = |below: &[f64], above: &[f64]| {
        let back = points(below).into_iter().rev();
        format!("{}L{}Z", line(above), upright.path(back))
    };
    let height = TOP + HIGH + if is_last { 16.0 } else { 2.0 };
    html! {
        svg.panel role="img" aria-labelledby=(format!("{id}-title")) width="100%" height=(place(height)) {
            title id=(format!("{id}-title")) { (Said(&summary(panel))) }
            @if let Some((from, to)) = across.shaded {
                @let (from, to) = (across.percent(from), across.percent(to));
                rect.warmup x=(place(from) + "%") width=(place(to - from) + "%") y=(place(TOP)) height=(place(HIGH)) {}
            }
            (upright.grid())
            @for (at, _) in &across.marks {
                @let x = place(across.percent(*at)) + "%";
                line.mark x1=(x) x2=(x) y1=(place(TOP)) y2=(place(TOP + HIGH)) {}
            }
            (upright.stretched(html! {
                @for (number, edge) in edges.iter().enumerate() {
                    g class=(class_of(number)) {
                        @if panel.stacked {
                            @let below = number.checked_sub(1).map_or(&bottom, |below| &edges[below]);
                            path.area d=(area(below, edge)) {}
                        }
                        path.edge d=(line(edge)) {}
                    }
                }
            }))
            @if let [only] = across.at[..] {
                // A line needs two points.
                @for (number, edge) in edges.iter().enumerate() {
                    g class=(class_of(number)) {
                        circle.dot cx=(place(across.percent(only)) + "%") cy=(place(upright.y(edge.first().copied().unwrap_or(0.0)))) r="3" {}
                    }
                }
            }
            (upright.labels())
            @for (at, label) in thinned(&across.marks, 10) {
                (label_at(across.percent(*at), TOP - 4.0, "mark-label", label))
            }
            @if is_last {
                @for (at, label) in &across.ticks {
                    (label_at(across.percent(*at), Upright::BELOW, "tick", label))
                }
            }
            line.cursor x1="0" x2="0" y1=(place(TOP)) y2=(place(TOP + HIGH)) {}
        }
    }
}

/// A label that does not leave the plot.
pub(super) fn label_at(percent: f64, y: f64, class: &str, label: &str) -> Markup {
    let anchor = match percent {
        percent if percent < 4.0 => "start",
        percent if percent > 96.0 => "end",
        _ => "middle",
    };
    html! { text class=(class) x=(place(percent) + "%") y=(place(y)) text-anchor=(anchor) { (Said(label)) } }
}

/// Every so many of them, that there are not more than `most`.
pub(super) fn thinned<T>(all: &[T], most: usize) -> impl Iterator<Item = &T> {
    all.iter().step_by(all.len().div_ceil(most).max(1))
}

/// Round values between two, three or four of them.
pub(super) fn ticks(low: f64, high: f64, unit: Unit) -> Vec<f64> {
    const STEPS: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
    let range = high - low;
    if !(range.is_finite() && range > 0.0) {
        return Vec::new();
    }
    let base = match unit {
        Unit::Bytes => 1024_f64.powf(range.log(1024.0).floor().clamp(0.0, 6.0)),
        Unit::Things => 1000_f64.powf(range.log(1000.0).floor().clamp(0.0, 6.0)),
    };
    let fits = |step: &f64| range / step <= 4.0;
    // Halves and quarters of a unit, but of no byte.
    let parts = [0.25, 0.5].into_iter().filter(|_| base > 1.0);
    let step = parts.chain(STEPS).map(|step| step * base).find(fits);
    let step = step.unwrap_or(range / 4.0);
    let first = (low / step).ceil() as i64;
    (first..first + 6)
        .map(|n| n as f64 * step)
        .filter(|tick| *tick <= high && *tick > low)
        .collect()
}

fn summary(panel: &Panel) -> String {
    let ends = panel.series.iter().map(|series| {
        let finite = || series.values.iter().copied();
        let (first, last) = (
            finite().next().unwrap_or(0.0),
            finite().next_back().unwrap_or(0.0),
        );
        let most = finite().fold(f64::NEG_INFINITY, f64::max);
        let of = |value: f64| panel.unit.short(value as i64);
        format!(
            "{} from {} to {}, at most {}",
            series.name,
            of(first),
            of(last),
            of(most)
        )
    });
    format!("{}: {}", panel.title, ends.collect::<Vec<_>>().join("; "))
}

fn points(across: &Across, panels: &[&Panel]) -> Markup {
    let name = "Every point of the plot";
    of_points(
        name,
        html! {
            thead {
                tr {
                    th scope="col" rowspan="2" { (across.name) }
                    @for panel in panels {
                        th scope="colgroup" colspan=(panel.series.len()) { (panel.title) }
                    }
                }
                tr { @for series in panels.iter().flat_map(|panel| &panel.series) {
                    th.n scope="col" { (Said(&series.name)) }
                } }
            }
            tbody { @for (row, name) in across.names.iter().enumerate() {
                tr data-x=(place(across.percent(across.at.get(row).copied().unwrap_or(0.0)))) {
                    th scope="row" { (Said(name)) }
                    @for panel in panels { @for series in &panel.series {
                        td.n { (panel.unit.short(series.values.get(row).copied().unwrap_or(0.0) as i64)) }
                    } }
                }
            } }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let mib = 1024.0 * 1024.0;
        assert_eq!(ticks(0.0, 10.0 * mib, Unit::Bytes), [5.0 * mib, 10.0 * mib]);
        assert_eq!(ticks(0.0, 3.5, Unit::Things), [1.0, 2.0, 3.0]);
        assert_eq!(ticks(-30.0, 90.0, Unit::Bytes), [0.0, 50.0]);
        for most in [1.0, 17.0, 1023.0, 1025.0, 1e6, 3e9, 7e15] {
            let ticks = ticks(0.0, most, Unit::Bytes);
            assert!((1..=4).contains(&ticks.len()), "{most}: {ticks:?}");
        }
        for (low, high) in [(0.0, 0.0), (f64::NAN, 1.0), (0.0, f64::INFINITY)] {
            assert!(ticks(low, high, Unit::Bytes).is_empty());
        }
    }

    #[test]
    fn the_small_ones_are_summed_and_not_dropped() {
        let all = (0..20)
            .map(|n| (format!("phase {n}"), vec![f64::from(n), 1.0]))
            .collect();
        let series = biggest(all);
        assert_eq!(series.len(), SERIES + 1);
        assert_eq!(series[0].name, "phase 19");
        // Of 20 phases, one is nothing but the 1 at the end.
        assert_eq!(series[SERIES].name, "14 others together");
        assert_eq!(series[SERIES].values, [(0..14).sum::<i32>() as f64, 14.0]);
    }

    #[test]
    fn a_stack_is_as_high_as_its_parts_together() {
        let series = |values: [f64; 2]| Series {
            name: String::new(),
            values: values.to_vec(),
        };
        let panel = |stacked| Panel {
            title: String::new(),
            unit: Unit::Bytes,
            stacked,
            series: vec![series([1.0, 2.0]), series([10.0, 20.0])],
        };
        assert_eq!(edges(&panel(true)), [[1.0, 2.0], [11.0, 22.0]]);
        assert_eq!(edges(&panel(false)), [[1.0, 2.0], [10.0, 20.0]]);
    }
}
