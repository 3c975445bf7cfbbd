//! Comparisons and sweeps on a terminal: plain text of 80 columns.

use std::fmt::{self, Write as _};

use super::judge::{Change, Compared, Comparison, Decision, Metric};
use super::line::{Largest, Line};
use super::measures::Unit;
use super::parts::{PeakOf, Sweep};
use super::sweep::{Budget, Checked, Forecast};
use super::why::{PeakKind, PhaseShift, Term, TermPart, Why};
use crate::report::{bullet, new_table, paragraph, table};
use crate::verdict::words::{list, many};

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        paragraph(&mut out, "", &headline(self));
        for changed in changes(self) {
            bullet(&mut out, &changed);
        }
        table(&mut out, &metrics(self));
        if let Some(why) = &self.why {
            out.push('\n');
            show_why(&mut out, why, self.terms.tolerance);
        }
        f.write_str(&out)
    }
}

/// What was decided of the judged metrics that are not the same, in sentences.
pub(crate) fn changes(comparison: &Comparison) -> Vec<String> {
    let said = comparison.metrics.iter().filter(|compared| compared.judged);
    let said = said.filter(|compared| compared.change != Change::Same);
    let said: Vec<(&str, String)> = said
        .map(|compared| (compared.metric.name(), sentence(compared)))
        .collect();
    // What holds for several is said once.
    let groups = said.chunk_by(|a, b| a.1 == b.1);
    groups
        .map(|group| {
            let names: Vec<String> = group.iter().map(|(name, _)| (*name).to_owned()).collect();
            format!("{}: {}", list(&names), group[0].1)
        })
        .collect()
}

pub(crate) fn headline(comparison: &Comparison) -> String {
    let tolerance = |time: bool| {
        let terms = &comparison.terms;
        percent(if time {
            terms.time_tolerance
        } else {
            terms.tolerance
        })
    };
    let what = match comparison.decision {
        Decision::Worse => "worse",
        Decision::NotWorse => "not worse",
        Decision::Undecided => "undecided",
    };
    let first = comparison.metrics.first();
    let (a, b) = first.map_or((0, 0), |metric| {
        (metric.baseline.runs, metric.candidate.runs)
    });
    format!(
        "{what} · {a} and {b} runs · tolerance {} ({} for what takes time)",
        tolerance(false),
        tolerance(true)
    )
}

/// What was decided of a metric, after its name.
fn sentence(compared: &Compared) -> String {
    let shift = compared.shift.map_or(0.0, |shift| shift.estimate);
    let unit = Scale::of(compared.metric, &[shift]);
    let by = unit.text(shift.abs());
    let share = match share_of(shift, compared.baseline.median) {
        Some(share) => format!(" ({})", signed_percent(share)),
        None => String::new(),
    };
    match compared.change {
        Change::More => format!("more by {by}{share}"),
        Change::Less => format!("less by {by}{share}"),
        Change::Same => "the same".to_owned(),
        Change::Undecided => {
            let mut text = "undecided".to_owned();
            if let Some(bounds) = bounds(compared) {
                let _ = write!(text, ", between {} and {}", bounds.0, bounds.1);
            }
            match compared.would_decide {
                Some(runs) => {
                    let _ = write!(text, "; about {runs} runs of each would decide");
                }
                None if compared.missing.is_empty() => {
                    text.push_str("; it lies so near the tolerance that no number of runs helps");
                }
                None => {}
            }
            for missing in &compared.missing {
                let _ = write!(text, "; missing: {missing}");
            }
            text
        }
    }
}

/// Both bounds as shares of the baseline, or in the metric's unit where that is 0.
fn bounds(compared: &Compared) -> Option<(String, String)> {
    let shift = compared.shift?;
    let (lower, upper) = (shift.lower?, shift.upper?);
    let median = compared.baseline.median;
    let both = (share_of(lower, median), share_of(upper, median));
    Some(match both {
        (Some(lower), Some(upper)) => (signed_percent(lower), signed_percent(upper)),
        _ => {
            let unit = Scale::of(compared.metric, &[lower, upper]);
            (unit.text(lower), unit.text(upper))
        }
    })
}

pub(crate) fn metrics(comparison: &Comparison) -> comfy_table::Table {
    let header = ["", "baseline", "candidate", "change", "bounds", "p", ""];
    let mut rows = new_table(&header, 1);
    for compared in &comparison.metrics {
        let unit = Scale::of(
            compared.metric,
            &[compared.baseline.median, compared.candidate.median],
        );
        let value = |spread: &super::judge::Spread| match (spread.runs, spread.killed) {
            (0, _) => "missing".to_owned(),
            (_, 0) => unit.text(spread.median),
            _ => format!("≥{}", unit.text(spread.median)),
        };
        let median = compared.baseline.median;
        let share = compared
            .shift
            .and_then(|shift| share_of(shift.estimate, median));
        let bounds = bounds(compared)
            .map(|(lower, upper)| format!("{} to {}", lower.trim_end_matches(" %"), upper));
        let p = compared.shift.map_or(String::new(), |shift| match shift.p {
            p if p < 0.0005 => "<.001".to_owned(),
            p => format!("{p:.3}"),
        });
        let change = if compared.judged {
            compared.change.name().to_owned()
        } else {
            format!("({})", compared.change.name())
        };
        rows.add_row([
            compared.metric.name().to_owned(),
            value(&compared.baseline),
            value(&compared.candidate),
            share.map(signed_percent).unwrap_or_default(),
            bounds.unwrap_or_default(),
            p,
            change,
        ]);
    }
    rows
}

/// Why the peak moved: in words, then term by term, so that what is shown adds up.
fn show_why(out: &mut String, why: &Why, tolerance: f64) {
    let (first, more) = why_in_words(why, tolerance);
    paragraph(out, "", &first);
    for line in more {
        bullet(out, &line);
    }
    if has_moved(why, tolerance) {
        let mut rows = new_table(&["", "baseline", "candidate", "adds"], 1);
        for term in terms(why) {
            rows.add_row([term.name, term.baseline, term.candidate, term.adds]);
        }
        table(out, &rows);
    }
}

/// Whether the mean peak moved beyond the tolerance.
pub(crate) fn has_moved(why: &Why, tolerance: f64) -> bool {
    why.difference().unsigned_abs() as f64 > tolerance * why.baseline.unsigned_abs() as f64
}

/// Why the peak moved, in a sentence, and what there is to add.
pub(crate) fn why_in_words(why: &Why, tolerance: f64) -> (String, Vec<String>) {
    let unit = Scale::bytes(&[why.baseline as f64, why.candidate as f64]);
    let what = match why.of {
        PeakKind::Resident => "resident",
        PeakKind::Live => "live",
    };
    let (from, to) = (
        unit.text(why.baseline as f64),
        unit.text(why.candidate as f64),
    );
    if !has_moved(why, tolerance) {
        let text =
            format!("The mean {what} peak did not move beyond the tolerance: {from} and {to}.");
        return (text, Vec::new());
    }
    let causes = causes(why);
    let because = match causes.is_empty() {
        true => String::new(),
        false => format!(": {}", list(&causes)),
    };
    let moved = if why.difference() > 0 { "rose" } else { "fell" };
    let mut more = Vec::new();
    if let Some((before, after)) = why.in_flight() {
        let name = why.unit.name();
        more.push(format!(
            "held at once, on average: what {before:.2} and {after:.2} {name}s allocate in all \
             ({name}s per second, times the time that a byte is held)"
        ));
    }
    more.extend(phases(why));
    let missing = why.missing.iter();
    more.extend(missing.map(|missing| format!("missing: {missing}")));
    let first =
        format!("Why the peak moved. The mean {what} peak {moved} from {from} to {to}{because}.");
    (first, more)
}

/// One term of why the peak moved, as it is shown.
pub(crate) struct TermShown {
    pub name: String,
    pub baseline: String,
    pub candidate: String,
    pub adds: String,
    /// The part in bytes, which a page draws and a terminal does not.
    #[cfg_attr(not(feature = "html"), expect(dead_code))]
    pub bytes: i64,
}

/// Every term, the remainder, and last the peak, which they add up to.
pub(crate) fn terms(why: &Why) -> Vec<TermShown> {
    let unit = Scale::bytes(&[why.baseline as f64, why.candidate as f64]);
    let adds = Adding::new(why);
    let shown = |(name, baseline, candidate), adds, bytes| TermShown {
        name,
        baseline,
        candidate,
        adds,
        bytes,
    };
    let mut terms: Vec<TermShown> = why
        .parts
        .iter()
        .map(|part| shown(term_row(part, why.unit), adds.part(part.bytes), part.bytes))
        .collect();
    let (name, from, to) = term_row(&why.remainder, why.unit);
    let remainder = (format!("remainder: {name}"), from, to);
    terms.push(shown(remainder, adds.remainder(why), why.remainder.bytes));
    let peaks = (
        "peak".to_owned(),
        unit.text(why.baseline as f64),
        unit.text(why.candidate as f64),
    );
    terms.push(shown(peaks, adds.part(why.difference()), why.difference()));
    terms
}

/// The phases whose live memory moved most, where there are several.
fn phases(why: &Why) -> Option<String> {
    const MOST: usize = 3;
    let moved: f64 = why
        .phases
        .iter()
        .map(|shift| shift.difference().abs())
        .sum();
    let much = |shift: &&PhaseShift| shift.difference().abs() >= 0.1 * moved;
    let named: Vec<String> = why
        .phases
        .iter()
        .take(MOST)
        .filter(much)
        .map(|shift| {
            let unit = Scale::bytes(&[shift.baseline, shift.candidate]);
            let (from, to) = (unit.text(shift.baseline), unit.text(shift.candidate));
            format!("{} {from}, then {to}", shift.phase)
        })
        .collect();
    (why.phases.len() > 1 && moved > 0.0)
        .then(|| format!("live on average, by phase of birth: {}", named.join("; ")))
}

/// A term's name and its two values.
fn term_row(part: &TermPart, unit: Unit) -> (String, String, String) {
    let item = unit.name();
    let (from, to) = (part.baseline, part.candidate);
    let bytes = || {
        let unit = Scale::bytes(&[from, to]);
        (unit.text(from), unit.text(to))
    };
    let plain = |digits: usize, unit: &str| {
        (
            format!("{from:.digits$}{unit}"),
            format!("{to:.digits$}{unit}"),
        )
    };
    let (name, (from, to)) = match part.term {
        Term::BytesPerItem => (format!("bytes allocated per {item}"), bytes()),
        Term::ItemsPerSecond => (format!("{item}s per second"), plain(2, "")),
        Term::SecondsHeld => (
            "time that a byte is held".to_owned(),
            milliseconds(from, to),
        ),
        Term::Floor => ("floor: live between rounds".to_owned(), bytes()),
        Term::Retention => ("retention: resident above live".to_owned(), bytes()),
        Term::Bunching => ("bunching, peak over mean".to_owned(), plain(2, " x")),
        Term::AboveFloor => ("live above the floor".to_owned(), bytes()),
    };
    (name, from, to)
}

fn milliseconds(from: f64, to: f64) -> (String, String) {
    let text = |seconds: f64| match seconds {
        seconds if seconds < 10.0 => format!("{:.1} ms", seconds * 1000.0),
        seconds => format!("{seconds:.1} s"),
    };
    (text(from), text(to))
}

/// What moved the peak most, in words: each at least a quarter of the difference.
fn causes(why: &Why) -> Vec<String> {
    let difference = why.difference();
    if difference == 0 {
        return Vec::new();
    }
    let share = |part: &TermPart| part.bytes as f64 / difference as f64;
    let mut parts: Vec<&TermPart> = why.parts.iter().chain([&why.remainder]).collect();
    parts.retain(|part| share(part) >= 0.25);
    parts.sort_by(|a, b| share(b).total_cmp(&share(a)));
    let adds = Adding::new(why);
    let item = why.unit.name();
    let words = parts.iter().map(|part| {
        let times = format!("{:.2} times", part.candidate / part.baseline);
        let moved = if part.candidate > part.baseline {
            "rose"
        } else {
            "fell"
        };
        let cause = match part.term {
            Term::BytesPerItem => format!("each {item} allocates {times} as much"),
            Term::ItemsPerSecond => format!("{times} as many {item}s are done in a second"),
            Term::SecondsHeld => format!("each byte is held {times} as long"),
            Term::Floor => format!("what is live between rounds {moved}"),
            Term::Retention => format!("what is resident beyond live memory {moved}"),
            Term::Bunching if part.candidate > part.baseline => {
                "more of it is live at once than on average".to_owned()
            }
            Term::Bunching => "what is live at once is nearer to the average".to_owned(),
            Term::AboveFloor => format!("what is live above the floor at the peak {moved}"),
        };
        format!("{cause} ({})", adds.part(part.bytes))
    });
    words.collect()
}

/// Parts in one unit, rounded so that those that are shown add up: the remainder takes
/// what rounding leaves.
struct Adding(Scale);

impl Adding {
    fn new(why: &Why) -> Self {
        let parts = why.parts.iter().chain([&why.remainder]);
        let mut bytes: Vec<f64> = parts.map(|part| part.bytes as f64).collect();
        bytes.push(why.difference() as f64);
        Self(Scale::bytes(&bytes))
    }

    fn tenths(&self, bytes: i64) -> i64 {
        (bytes as f64 / self.0.divisor * 10.0).round() as i64
    }

    fn show(&self, tenths: i64) -> String {
        let value = tenths as f64 / 10.0;
        match tenths {
            0 => format!("0.0{}", self.0.suffix),
            _ => format!("{value:+.1}{}", self.0.suffix),
        }
    }

    fn part(&self, bytes: i64) -> String {
        self.show(self.tenths(bytes))
    }

    fn remainder(&self, why: &Why) -> String {
        let shown: i64 = why.parts.iter().map(|part| self.tenths(part.bytes)).sum();
        self.show(self.tenths(why.difference()) - shown)
    }
}

/// A unit that several numbers are shown in.
#[derive(Clone, Copy, Debug)]
struct Scale {
    divisor: f64,
    suffix: &'static str,
}

impl Scale {
    fn bytes(values: &[f64]) -> Self {
        const UNITS: [&str; 5] = [" KiB", " MiB", " GiB", " TiB", " PiB"];
        let most = values
            .iter()
            .fold(0.0_f64, |most, value| most.max(value.abs()));
        let mut unit = 0;
        let mut divisor = 1024.0;
        while most / divisor >= 1023.95 && unit + 1 < UNITS.len() {
            divisor *= 1024.0;
            unit += 1;
        }
        Self {
            divisor,
            suffix: UNITS[unit],
        }
    }

    fn of(metric: Metric, values: &[f64]) -> Self {
        let bytes = Self::bytes(values);
        let suffix = match (metric, bytes.suffix) {
            (Metric::Throughput, _) => {
                return Self {
                    divisor: 1.0,
                    suffix: " /s",
                };
            }
            (Metric::ByteSeconds, " KiB") => " KiB s",
            (Metric::ByteSeconds, " MiB") => " MiB s",
            (Metric::ByteSeconds, " GiB") => " GiB s",
            (Metric::ByteSeconds, " TiB") => " TiB s",
            (Metric::ByteSeconds, _) => " PiB s",
            (_, suffix) => suffix,
        };
        Self { suffix, ..bytes }
    }

    fn text(self, value: f64) -> String {
        format!("{:.1}{}", value / self.divisor, self.suffix)
    }
}

fn share_of(value: f64, of: f64) -> Option<f64> {
    (of.abs() > 0.0).then(|| value / of.abs())
}

fn percent(share: f64) -> String {
    let text = format!("{:.1}", share * 100.0);
    format!("{} %", text.trim_end_matches(".0"))
}

fn signed_percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent.abs() < 0.05 => "0.0 %".to_owned(),
        percent if percent.abs() >= 1000.0 => format!("{percent:+.0} %"),
        percent => format!("{percent:+.1} %"),
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        let name = &self.plan.parameter;
        paragraph(&mut out, "", &line_in_words(self));
        table(&mut out, &values(&self.forecast, name));
        plot(&mut out, &self.forecast, name);
        if let Some(budget) = &self.forecast.budget {
            out.push('\n');
            paragraph(&mut out, "", &budget_in_words(budget, name));
        }
        if let Some((first, more)) = contradictions(&self.forecast, name) {
            out.push('\n');
            paragraph(&mut out, "", &first);
            for line in more {
                bullet(&mut out, &line);
            }
        }
        let missing = self.missing.iter().chain(&self.forecast.missing);
        for missing in missing {
            bullet(&mut out, &format!("missing: {missing}"));
        }
        if self.is_of_different_machines() {
            bullet(
                &mut out,
                "note: the parts were measured on machines that differ",
            );
        }
        f.write_str(&out)
    }
}

/// The line in a sentence.
pub(crate) fn line_in_words(sweep: &Sweep) -> String {
    let forecast = &sweep.forecast;
    let Some(line) = &forecast.line else {
        return "There is no line.".to_owned();
    };
    let peak = match (sweep.plan.of, sweep.plan.command.is_empty()) {
        (_, true) => "peak",
        (PeakOf::Resident, _) => "resident peak",
        (PeakOf::Live, _) => "live peak",
        (PeakOf::Card, _) => "peak on the card",
    };
    let mut text = format!("{peak} = {}", in_words(line, &sweep.plan.parameter));
    let values: Vec<String> = forecast.drawn_through.iter().map(f64::to_string).collect();
    let _ = write!(text, ", through {}", list(&values));
    if let Some(scatter) = line.scatter {
        let unit = Scale::bytes(&[scatter]);
        let _ = write!(text, "; values scatter by {} about it", unit.text(scatter));
    }
    text
}

fn in_words(line: &Line, name: &str) -> String {
    let unit = Scale::bytes(&[line.base, line.slope]);
    let sign = if line.slope < 0.0 { '-' } else { '+' };
    format!(
        "{} {sign} {} × {name}",
        unit.text(line.base),
        unit.text(line.slope.abs())
    )
}

/// Every value, measured beside predicted.
pub(crate) fn values(forecast: &Forecast, name: &str) -> comfy_table::Table {
    let mut rows = new_table(&[name, "measured", "predicted", "off", ""], 0);
    let unit = scale(forecast);
    for value in &forecast.values {
        let within = value.expected.filter(|_| !value.drawn_through);
        let predicted = value.predicted.map(|predicted| match within {
            Some(within) => format!(
                "{:.1} ± {:.1}{}",
                predicted / unit.divisor,
                within.reach / unit.divisor,
                unit.suffix
            ),
            None => unit.text(predicted),
        });
        let note = match (value.contradicts, value.drawn_through) {
            (true, _) => "contradicts",
            (false, true) => "",
            (false, false) => "not in it",
        };
        rows.add_row([
            value.value.to_string(),
            measured(value, unit),
            predicted.unwrap_or_default(),
            error(value).map(signed_percent).unwrap_or_default(),
            note.to_owned(),
        ]);
    }
    rows
}

fn measured(value: &Checked, unit: Scale) -> String {
    let (low, high) = (unit.text(value.low), unit.text(value.high));
    match value.runs {
        0 => format!("≥{low}"),
        _ if low == high => high,
        _ => format!("{:.1} to {high}", value.low / unit.divisor),
    }
}

/// What is predicted too much or too little, as a share of the middle of what was measured.
fn error(value: &Checked) -> Option<f64> {
    let middle = value.low + (value.high - value.low) / 2.0;
    let predicted = value.predicted.filter(|_| value.runs > 0)?;
    share_of(predicted - middle, middle)
}

fn scale(forecast: &Forecast) -> Scale {
    let highs: Vec<f64> = forecast.values.iter().map(|value| value.high).collect();
    Scale::bytes(&highs)
}

/// Values from top to bottom, bytes from left to right.
fn plot(out: &mut String, forecast: &Forecast, name: &str) {
    const WIDTH: usize = 60;
    let Some(line) = &forecast.line else { return };
    let budget = forecast.budget.map(|budget| budget.bytes as f64);
    let reach = |value: &Checked| line.reach(value.value).unwrap_or(0.0);
    let highest = forecast.values.iter().map(|value| {
        let upper = line.at(value.value) + reach(value);
        value.high.max(upper)
    });
    let most = highest.fold(budget.unwrap_or(0.0), f64::max);
    if !(most > 0.0 && most.is_finite()) {
        return;
    }
    let column = |bytes: f64| {
        let share = (bytes / most).clamp(0.0, 1.0);
        (share * (WIDTH - 1) as f64).round() as usize
    };
    let wide = forecast
        .values
        .iter()
        .map(|value| value.value.to_string().len());
    let wide = wide.chain([name.len()]).max().unwrap_or(0);
    let unit = Scale::bytes(&[most]);
    let (left, right) = (unit.text(0.0), unit.text(most));
    let gap = WIDTH.saturating_sub(left.len() + right.len());
    let _ = writeln!(out, "\n  {name:>wide$}  {left}{:gap$}{right}", "");
    for value in &forecast.values {
        let mut cells = vec![' '; WIDTH];
        let mut fill = |from: f64, to: f64, mark: char| {
            cells[column(from)..=column(to)].fill(mark);
        };
        let (at, reach) = (line.at(value.value), reach(value));
        fill(at - reach, at + reach, '-');
        fill(at, at, '+');
        if let Some(budget) = budget {
            fill(budget, budget, '|');
        }
        match value.runs {
            0 => fill(value.low, value.low, '>'),
            _ => fill(value.low, value.high, 'o'),
        }
        let cells: String = cells.into_iter().collect();
        let _ = writeln!(out, "  {:>wide$}  {}", value.value, cells.trim_end());
    }
    let mut key = "o measured, + the line, - where it expects 95 % of runs".to_owned();
    if forecast.values.iter().any(|value| value.runs == 0) {
        key.push_str(", > killed there");
    }
    if budget.is_some() {
        key.push_str(", | the budget");
    }
    out.push('\n');
    paragraph(out, "  ", &key);
}

pub(crate) fn budget_in_words(budget: &Budget, name: &str) -> String {
    let unit = Scale::bytes(&[budget.bytes as f64]);
    let fits = |largest: Largest| match largest {
        Largest::None => format!("no {name}"),
        Largest::At(value) => format!("{name} = {value}"),
        Largest::Unbounded => format!("any {name}"),
    };
    let bytes = unit.text(budget.bytes as f64);
    let mut text = match budget.expected {
        Largest::At(value) => format!("The largest {name} that fits {bytes} is {value}"),
        Largest::None => format!("No {name} fits {bytes}"),
        Largest::Unbounded => format!("Any {name} fits {bytes}: the peak does not grow with it"),
    };
    if let (Some(sure), Some(at_best)) = (budget.sure, budget.at_best) {
        let _ = write!(
            text,
            "; to be sure of it (the line's upper bound, 97.5 %): {}; at the very best: {}",
            fits(sure),
            fits(at_best)
        );
    }
    if budget.beyond_measured {
        text.push_str("; that is beyond all that was measured");
    }
    text.push('.');
    text
}

/// Which values contradict the line, and what else can be held on to.
pub(crate) fn contradictions(forecast: &Forecast, name: &str) -> Option<(String, Vec<String>)> {
    let named: Vec<String> = forecast
        .values
        .iter()
        .filter(|value| value.contradicts)
        .map(|value| value.value.to_string())
        .collect();
    let instead = forecast.instead.as_ref().filter(|_| !named.is_empty())?;
    let verb = if named.len() == 1 {
        "contradicts"
    } else {
        "contradict"
    };
    let first = format!(
        "{name} = {} {verb} the line, so do not trust it.",
        list(&named)
    );
    let fits = |budget: Option<Budget>| match budget.map(|budget| budget.expected) {
        Some(Largest::At(value)) => format!(": {name} = {value} fits the budget"),
        Some(Largest::None) => format!(": no {name} fits the budget"),
        Some(Largest::Unbounded) => format!(": any {name} fits the budget"),
        None => String::new(),
    };
    let mut more = Vec::new();
    if let Some(all) = &instead.all {
        more.push(format!(
            "through all {}: {}{}",
            many(all.line.values, "value"),
            in_words(&all.line, name),
            fits(all.budget)
        ));
    }
    if let Some(robust) = &instead.robust {
        more.push(format!(
            "the median of all slopes (Theil and Sen): {}{}",
            in_words(&robust.line, name),
            fits(robust.budget)
        ));
    }
    if let Some(steepest) = &instead.steepest {
        let unit = Scale::bytes(&[steepest.slope]);
        let largest = match steepest.largest {
            Some(Largest::At(value)) => {
                format!("; going on like that from the last one, {name} = {value} fits the budget")
            }
            Some(Largest::None) => "; the last one is over the budget already".to_owned(),
            _ => String::new(),
        };
        more.push(format!(
            "the steepest step, from {} to {}: {} for each{largest}",
            steepest.from,
            steepest.to,
            unit.text(steepest.slope)
        ));
    }
    Some((first, more))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{Measures, Peak, Runs, Seen, SweepPlan, SweepRun, Terms};

    const MIB: u64 = 1 << 20;

    /// A run of ten seconds and as many rounds, which hold 8 MiB each for so long.
    fn run(held: f64, off: u64) -> Measures {
        let above = 8.0 * MIB as f64 * held;
        Measures {
            peak_live: Some(5 * MIB + 2 * above as u64 + off),
            peak_resident: Some(7 * MIB + 2 * above as u64 + off),
            floor: Some(5 * MIB),
            allocated: Some(80 * MIB),
            byte_seconds: Some((5.0 * MIB as f64 + above) * 10.0),
            seconds: Some(10.0),
            rounds: 10,
            ..Measures::default()
        }
    }

    fn compared(before: f64, after: f64) -> String {
        let runs = |held: f64| (0..6).map(|at| run(held, at * 1024)).collect();
        let runs = Runs {
            baseline: runs(before),
            candidate: runs(after),
            paired: true,
        };
        Comparison::judge(&runs, &Terms::default()).to_string()
    }

    fn fits(text: &str) {
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn a_comparison_says_what_changed_and_why_the_peak_moved() {
        let text = compared(1.0, 2.0);
        fits(&text);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(
            lines[..3],
            [
                "worse · 6 and 6 runs · tolerance 2 % (10 % for what takes time)",
                "  - peak: more by 16.0 MiB (+69.6 %)",
                "  - live-peak: more by 16.0 MiB (+76.2 %)",
            ]
        );
        let row = |name: &str| {
            let row = lines
                .iter()
                .find(|line| line.trim_start().starts_with(name));
            row.unwrap()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            row("floor "),
            "floor 5.0 MiB 5.0 MiB 0.0 % 0.0 to 0.0 % 1.000 same"
        );
        assert_eq!(
            row("time that"),
            "time that a byte is held 1000.0 ms 2000.0 ms +16.0 MiB"
        );
        assert_eq!(
            row("remainder"),
            "remainder: bunching, peak over mean 2.00 x 2.00 x 0.0 MiB"
        );
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let said = "The mean resident peak rose from 23.0 MiB to 39.0 MiB: each byte is held 2.00 \
                    times as long (+16.0 MiB).";
        assert!(words.contains(said), "{text}");
    }

    #[test]
    fn what_holds_for_several_metrics_is_said_once() {
        let runs = Runs {
            baseline: vec![run(1.0, 0)],
            candidate: vec![run(2.0, 0)],
            paired: false,
        };
        let text = Comparison::judge(&runs, &Terms::default()).to_string();
        fits(&text);
        let said = "- peak, live-peak, floor, byte-seconds and throughput: undecided; about 4 runs";
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(said), "{text}");
        assert_eq!(words.matches("fewest that can decide").count(), 1, "{text}");
    }

    #[test]
    fn a_peak_that_did_not_move_needs_no_reason() {
        let text = compared(1.0, 1.0);
        fits(&text);
        assert!(text.starts_with("not worse ·"), "{text}");
        assert!(!text.contains("remainder"), "{text}");
        assert!(
            text.contains("did not move beyond the tolerance: 23.0 MiB and 23.0 MiB"),
            "{text}"
        );
    }

    #[test]
    fn the_parts_that_are_shown_add_up_whatever_rounding_leaves() {
        for after in [1.013, 1.37, 2.9, 7.1] {
            let runs = (vec![run(1.0, 0)], vec![run(after, 77_777)]);
            let why = Why::between(&runs.0, &runs.1).unwrap();
            let adds = Adding::new(&why);
            let tenths = |text: String| -> i64 {
                let number = text.split_whitespace().next().unwrap().replace('.', "");
                number.parse().unwrap()
            };
            let parts = why.parts.iter().map(|part| tenths(adds.part(part.bytes)));
            let sum = parts.sum::<i64>() + tenths(adds.remainder(&why));
            assert_eq!(sum, tenths(adds.part(why.difference())), "{after}");
        }
    }

    fn swept(peaks: &[(f64, Peak)], budget: Option<u64>) -> String {
        let plan = SweepPlan {
            parameter: "workers".into(),
            values: Vec::new(),
            repeat: 1,
            command: vec!["prove".into()],
            environment: None,
            warmup: 1,
            limit_bytes: None,
            of: PeakOf::Resident,
            fit_on: None,
            budget_bytes: budget,
        };
        let runs = peaks.iter().map(|(value, peak)| SweepRun {
            value: *value,
            run: 1,
            peak: Some(*peak),
            class: None,
            problem: None,
            measures: None,
        });
        Sweep::of(plan, Vec::new(), runs.collect()).to_string()
    }

    #[test]
    fn a_sweep_is_a_line_a_table_and_a_plot() {
        let peaks = [1, 2, 4].map(|value| (value as f64, Peak::Exactly((20 + 8 * value) * MIB)));
        let killed = (8.0, Peak::AtLeast(80 * MIB));
        let text = swept(&[&peaks[..], &[killed]].concat(), Some(100 * MIB));
        fits(&text);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert!(
            lines[0]
                .starts_with("resident peak = 20.0 MiB + 8.0 MiB × workers, through 1, 2 and 4")
        );
        assert!(text.contains("≥80.0 MiB"), "{text}");
        let plotted = |value: &str| {
            let is_of = |line: &&&str| {
                let mut words = line.split_whitespace();
                words.next() == Some(value) && !line.contains("MiB")
            };
            *lines.iter().find(is_of).unwrap()
        };
        let column =
            |value: &str, mark: char| plotted(value).chars().position(|c| c == mark).unwrap();
        // 59 columns are 100 MiB.
        assert_eq!(column("2", 'o') - column("1", 'o'), 4, "{text}");
        assert_eq!(column("4", '|') - column("4", 'o'), 59 - 31, "{text}");
        assert!(plotted("8").contains('>'), "{text}");
        assert!(
            text.contains("The largest workers that fits 100.0 MiB is 10"),
            "{text}"
        );
    }

    #[test]
    fn a_line_that_is_contradicted_is_not_to_be_trusted() {
        let mut peaks: Vec<(f64, Peak)> = (1..=6)
            .map(|value| {
                (
                    value as f64,
                    Peak::Exactly((20 + 8 * value) * MIB + value % 2),
                )
            })
            .collect();
        peaks[4].1 = Peak::Exactly(100 * MIB);
        let text = swept(&peaks, Some(200 * MIB));
        fits(&text);
        assert!(
            text.contains("workers = 5 contradicts the line, so do not trust it."),
            "{text}"
        );
        assert!(text.contains("Theil and Sen"), "{text}");
    }

    #[test]
    fn nothing_is_shown_as_nothing() {
        let seen: [Seen; 0] = [];
        assert!(swept(&[], None).contains("There is no line."));
        assert!(Forecast::of(&seen, None, None).values.is_empty());
        fits(&swept(&[(1.0, Peak::Exactly(MIB))], Some(MIB)));
        let nothing = Comparison::judge(&Runs::default(), &Terms::default()).to_string();
        fits(&nothing);
        assert!(nothing.starts_with("undecided"), "{nothing}");
    }
}
