//! The peak, taken apart by what the run has.

use maud::{Markup, html};

use super::memory::{RESIDENT, in_round};
use super::moments::{Moments, resident};
use super::table::{bar, lacking, scrolling};
use super::text::{Said, Unit, moment, share};
use crate::books::{Books, PhaseBook};
use crate::sampler::Sample;
use crate::verdict::words::{count, grouped, size_u64};

/// Rows at most; the others are summed.
const ROWS: usize = 12;

/// The highest moments, by layer, phase and kind, and each phase's own peak.
pub(super) fn taken_apart(books: &Books, moments: Result<&Moments, &str>) -> Markup {
    html! {
        p { (by_the_ledger(books)) }
        @match moments {
            Ok(moments) => {
                (highest(moments))
            }
            Err(why) => { (lacking(&format!("What was alive at the highest moment is not known. {why}"))) }
        }
        (phases(books))
        (lacking("Call sites do not keep peaks of their own, so that the peak is not told by line."))
    }
}

/// What the ledger, which misses no moment, says.
fn by_the_ledger(books: &Books) -> String {
    let highest = books
        .rounds
        .iter()
        .rev()
        .max_by_key(|round| round.peak_bytes);
    let error = match books.health.peak_error_bytes {
        0 => String::new(),
        error => format!(" (exact to {})", size_u64(error)),
    };
    match (books.peak_bytes, highest) {
        _ if books.gauges_only || !books.health.attached => {
            "There is no ledger of this run, so that its exact peak is not known.".to_owned()
        }
        (Some(peak), Some(round)) if peak > round.peak_bytes => {
            format!(
                "Highest live heap, by the ledger: {}{error}, outside of the rounds that ended.",
                size_u64(peak)
            )
        }
        (_, Some(round)) => {
            format!(
                "Highest live heap, by the ledger: {}{error}, in round {}.",
                size_u64(round.peak_bytes),
                round.round
            )
        }
        (Some(peak), None) => format!(
            "Highest live heap, by the ledger: {}{error}. No round ended.",
            size_u64(peak)
        ),
        (None, None) => "No round ended, and the ledger keeps no peak of this run.".to_owned(),
    }
}

fn highest(moments: &Moments) -> Markup {
    let live = moments.highest(|sample| Some(sample.live));
    let held = moments.highest(resident);
    let of_gauges = |sample: &Sample| -> Vec<(String, i64)> {
        let Some(gauges) = &sample.gauges else {
            return Vec::new();
        };
        let kinds = RESIDENT.iter().map(|(name, read)| {
            (
                (*name).to_owned(),
                i64::try_from(read(gauges)).unwrap_or(i64::MAX),
            )
        });
        kinds.filter(|(_, bytes)| *bytes > 0).collect()
    };
    html! {
        @match live {
            Some(sample) if sample.layers.is_empty() => {
                (lacking("These samples do not tell layers and phases apart."))
            }
            Some(sample) => {
                div.side {
                    (parts("Highest live moment, by layer", sample, sample.layers.iter().map(|(layer, bytes)| (layer.name().to_owned(), *bytes)).collect()))
                    (parts("Highest live moment, by phase (heap)", sample, sample.phases.iter().map(|(phase, bytes)| (phase.clone(), *bytes)).collect()))
                }
            }
            None => { (lacking("There is no sample, so that the highest moment is not known.")) }
        }
        @if let Some(sample) = held {
            div.side { (parts("Highest resident moment, by kind", sample, of_gauges(sample))) }
        } @else {
            (lacking("Resident memory could not be read."))
        }
    }
}

/// The parts of one moment, which add up to what is below them.
fn parts(what: &str, sample: &Sample, mut parts: Vec<(String, i64)>) -> Markup {
    parts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let all = parts.iter().map(|part| part.1).fold(0, i64::saturating_add);
    let rest = parts.split_off(parts.len().min(ROWS));
    if !rest.is_empty() {
        let sum = rest.iter().map(|part| part.1).fold(0, i64::saturating_add);
        parts.push((
            format!("{} others together", grouped(rest.len() as i64)),
            sum,
        ));
    }
    let when = format!("at {}, {}", moment(sample.t), in_round(sample.round));
    scrolling(
        what,
        html! {
            table.parts {
                caption { span { (what) ", " (when) } }
                thead { tr {
                    th scope="col" { "part" }
                    th.n scope="col" { "bytes" }
                    th.n scope="col" { "share" }
                    td {}
                } }
                tbody { @for (name, bytes) in &parts { tr {
                    th scope="row" { (Said(name)) }
                    td.n { (Unit::Bytes.short(*bytes)) }
                    td.n { (share(*bytes as f64, all as f64)) }
                    td.wide { (bar(0.0, *bytes as f64 / all.max(1) as f64 * 100.0, "part")) }
                } } }
                tfoot { tr { th scope="row" { "all" } td.n { (Unit::Bytes.short(all)) } td.n {} td {} } }
            }
        },
    )
}

fn phases(books: &Books) -> Markup {
    let mut phases: Vec<&PhaseBook> = books
        .phases
        .iter()
        .filter(|phase| !phase.layer.is_counted() && phase.peak_bytes > 0)
        .collect();
    if phases.is_empty() {
        return lacking(
            "No phase has a peak of its own: a thread tells the counters of 64 KiB at a time, and none reached that.",
        );
    }
    phases.sort_by(|a, b| b.peak_bytes.cmp(&a.peak_bytes).then(a.phase.cmp(&b.phase)));
    let most = phases[0].peak_bytes.max(1) as f64;
    let others = phases.split_off(phases.len().min(ROWS)).len();
    let name = "Each phase's own peak";
    scrolling(
        name,
        html! {
            table.parts {
                caption { span {
                    (name) ", at its own moment: they do not add up"
                    @if others > 0 { ". " (count(others as i64, "smaller one")) " left out" }
                } }
                thead { tr { th scope="col" { "phase" } th scope="col" { "layer" } th.n scope="col" { "peak" } td {} } }
                tbody { @for phase in phases { tr {
                    th scope="row" { (Said(&phase.phase)) }
                    td { (phase.layer.name()) }
                    td.n { (size_u64(phase.peak_bytes)) }
                    td.wide { (bar(0.0, phase.peak_bytes as f64 / most * 100.0, "part")) }
                } } }
            }
        },
    )
}
