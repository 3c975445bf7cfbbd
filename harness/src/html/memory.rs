//! Memory by layer and phase: over time, as the samples saw it, and after each round.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::moments::{Moments, resident, waiting};
use super::plot::{Across, Panel, Series, biggest, figure, ticks};
use super::table::lacking;
use super::text::{Unit, moment};
use crate::books::{Books, Gauges};
use crate::sampler::Sample;
use crate::verdict::words::{count, grouped};

/// Rounds that are shown one by one; of more, neighbours share a place.
const ROUNDS: usize = 200;

/// Memory over time. Where there are no samples, `why` says so.
pub(super) fn over_time(id: &str, books: &Books, moments: Result<&Moments, &str>) -> Markup {
    let moments = match moments {
        Ok(moments) if !moments.shown.is_empty() => moments,
        Ok(_) => return lacking("There is no sample, so that nothing is known between rounds."),
        Err(why) => return lacking(why),
    };
    let samples = &moments.shown;
    let warm = books.rounds.get((books.warmup as usize).saturating_sub(1));
    let at: Vec<f64> = samples.iter().map(|sample| sample.t).collect();
    let last = at.last().copied().unwrap_or(0.0);
    let across = Across {
        name: "moment",
        names: samples
            .iter()
            .map(|sample| {
                // Two that were taken in a hurry differ in nothing but their number.
                let (at, round) = (precisely(sample.t), in_round(sample.round));
                format!("{at}, {round}, sample {}", sample.n)
            })
            .collect(),
        marks: books
            .rounds
            .iter()
            .filter(|round| round.at_seconds.is_finite())
            .map(|round| (round.at_seconds, round.round.to_string()))
            .collect(),
        shaded: warm
            .filter(|_| books.warmup > 0)
            .map(|round| (at.first().copied().unwrap_or(0.0), round.at_seconds)),
        ticks: seconds(at.first().copied().unwrap_or(0.0), last),
        at,
    };
    let panels = [
        live(samples),
        phases(samples),
        gauges(samples),
        card(samples),
        queue(samples),
    ];
    let unread = samples
        .iter()
        .filter(|sample| resident(sample).is_none())
        .count();
    let caption = html! {
        "Lines stand where a round had settled"
        @if across.shaded.is_some() { "; the warm-up is shaded" }
        ". " (thinned_in_words(moments))
        @if samples.iter().all(|sample| sample.layers.is_empty()) {
            " These samples are of a tidegate that did not keep layers and phases: all of the \
             heap is one layer."
        }
        @if unread > 0 {
            " At " (count(unread as i64, "sample")) " the gauges could not be read, as at the end \
             of a program: resident memory is drawn as 0 there."
        }
        @if moments.torn {
            " The file of samples breaks off: what came after is not known."
        }
    };
    figure(
        id,
        caption,
        &across,
        &panels.into_iter().flatten().collect::<Vec<_>>(),
    )
}

/// A moment to the millisecond, for samples are some of these apart.
fn precisely(seconds: f64) -> String {
    match seconds.is_finite() {
        true => format!("{seconds:.3} s"),
        false => moment(seconds),
    }
}

/// The round of a sample. A program that we did not build is in its first one, or before it,
/// until that has ended.
pub(super) fn in_round(round: u32) -> String {
    match round {
        0 => "before round 1 had ended".to_owned(),
        round => format!("round {round}"),
    }
}

fn thinned_in_words(moments: &Moments) -> String {
    let exist = count(i64::try_from(moments.exist).unwrap_or(i64::MAX), "sample");
    if moments.in_one_place <= 1 {
        return match moments.exist {
            1 => "Its one sample is drawn.".to_owned(),
            _ => format!("All {exist} are drawn."),
        };
    }
    format!(
        "Of {exist}, {} are drawn: of each {} neighbours those at which live, resident or card \
         memory or the queue was lowest or highest, so that peaks are kept.",
        grouped(moments.shown.len() as i64),
        grouped(moments.in_one_place as i64),
    )
}

/// Labels of a time axis.
fn seconds(from: f64, to: f64) -> Vec<(f64, String)> {
    let mut ticks: Vec<(f64, String)> = ticks(from * 1000.0, to * 1000.0, Unit::Things)
        .into_iter()
        .map(|tick| (tick / 1000.0, moment(tick / 1000.0)))
        .collect();
    if ticks
        .first()
        .is_none_or(|first| first.0 - from > 0.1 * (to - from))
    {
        ticks.insert(0, (from, moment(from)));
    }
    ticks
}

/// One value of each sample.
fn of_each(samples: &[Sample], of: impl Fn(&Sample) -> i64) -> Vec<f64> {
    samples
        .iter()
        .map(|sample| of(sample).max(0) as f64)
        .collect()
}

fn panel(title: &str, series: Vec<Series>) -> Option<Panel> {
    (!series.is_empty()).then(|| Panel {
        title: title.to_owned(),
        unit: Unit::Bytes,
        stacked: true,
        series,
    })
}

fn live(samples: &[Sample]) -> Option<Panel> {
    let mut all = BTreeMap::new();
    for layer in samples.iter().flat_map(|sample| sample.layers.keys()) {
        all.entry(layer.name().to_owned()).or_insert_with(|| {
            of_each(samples, |sample| {
                sample.layers.get(layer).copied().unwrap_or(0)
            })
        });
    }
    if all.is_empty() {
        all.insert("heap".to_owned(), of_each(samples, |sample| sample.live));
    }
    panel("Live by layer, from the ledger", biggest(all))
}

fn phases(samples: &[Sample]) -> Option<Panel> {
    let mut all = BTreeMap::new();
    for phase in samples.iter().flat_map(|sample| sample.phases.keys()) {
        if !all.contains_key(phase) {
            let values = of_each(samples, |sample| {
                sample.phases.get(phase).copied().unwrap_or(0)
            });
            all.insert(phase.clone(), values);
        }
    }
    panel("Live by the phase that allocated it", biggest(all))
}

/// One number of the gauges, in bytes.
type Gauge = fn(&Gauges) -> u64;

/// What the system says is resident.
pub(super) const RESIDENT: [(&str, Gauge); 5] = [
    ("anonymous", |gauges| gauges.rss_anon),
    ("files", |gauges| gauges.rss_file),
    ("shared", |gauges| gauges.rss_shmem),
    ("huge pages", |gauges| gauges.hugetlb),
    ("swapped out", |gauges| gauges.swap),
];

fn gauges(samples: &[Sample]) -> Option<Panel> {
    let series = RESIDENT.into_iter().map(|(name, read)| Series {
        name: name.to_owned(),
        values: of_each(samples, |sample| {
            let value = sample.gauges.as_ref().map_or(0, read);
            i64::try_from(value).unwrap_or(i64::MAX)
        }),
    });
    let series = series.filter(|series| series.values.iter().any(|value| *value > 0.0));
    panel("Resident, from the system's gauges", series.collect())
}

fn card(samples: &[Sample]) -> Option<Panel> {
    let values = of_each(samples, |sample| sample.card_live);
    let any = values.iter().any(|value| *value > 0.0);
    panel(
        "Live on the card, from the ledger",
        vec![Series {
            name: "card".to_owned(),
            values,
        }],
    )
    .filter(|_| any)
}

fn queue(samples: &[Sample]) -> Option<Panel> {
    let values = of_each(samples, waiting);
    let any = values.iter().any(|value| *value > 0.0);
    let panel = panel(
        "Items produced and not yet consumed",
        vec![Series {
            name: "waiting".to_owned(),
            values,
        }],
    );
    panel.filter(|_| any).map(|panel| Panel {
        unit: Unit::Things,
        ..panel
    })
}

/// What was alive after each round, and how it moved since the warm-up.
pub(super) fn by_round(id: &str, books: &Books) -> Markup {
    if books.rounds.is_empty() {
        return lacking("No round ended, so that there are no books of rounds.");
    }
    if books.gauges_only {
        return gauges_by_round(id, books);
    }
    if books.series.is_empty() {
        return lacking("The books hold no series: nothing was ever alive after a round.");
    }
    let first = (books.warmup as usize)
        .saturating_sub(1)
        .min(books.rounds.len() - 1);
    let mut levels = BTreeMap::new();
    let mut moved = BTreeMap::new();
    let mut things = BTreeMap::new();
    for series in &books.series {
        let at = |round: usize| series.live.get(round).copied().unwrap_or_default();
        let name = format!("{} · {}", series.phase, series.layer);
        let rounds = 0..books.rounds.len();
        if series.layer.is_counted() {
            things.insert(
                name,
                rounds
                    .map(|round| at(round).blocks.saturating_sub(at(first).blocks) as f64)
                    .collect(),
            );
        } else {
            levels.insert(
                name.clone(),
                rounds.clone().map(|round| at(round).bytes as f64).collect(),
            );
            moved.insert(
                name,
                rounds
                    .map(|round| at(round).bytes.saturating_sub(at(first).bytes) as f64)
                    .collect(),
            );
        }
    }
    let since = match books.warmup {
        0 => "since round 1".to_owned(),
        _ => format!(
            "since round {}, the last of the warm-up",
            books.rounds[first].round
        ),
    };
    let panels = [
        Panel {
            title: format!("Change {since}"),
            unit: Unit::Bytes,
            stacked: false,
            series: biggest(moved),
        },
        Panel {
            title: format!("Change of what is counted, {since}"),
            unit: Unit::Things,
            stacked: false,
            series: biggest(things),
        },
        Panel {
            title: "Alive".to_owned(),
            unit: Unit::Bytes,
            stacked: true,
            series: biggest(levels),
        },
    ];
    rounds_figure(
        id,
        books,
        panels.into(),
        "After each round had settled, by phase and layer.",
    )
}

fn gauges_by_round(id: &str, books: &Books) -> Markup {
    let of = |read: fn(&Gauges) -> u64| -> Vec<f64> {
        let rounds = books.rounds.iter();
        rounds
            .map(|round| round.gauges.as_ref().map_or(0, read) as f64)
            .collect()
    };
    let bytes = RESIDENT.map(|(name, read)| (name.to_owned(), of(read)));
    let panels = vec![Panel {
        title: "Resident, from the system's gauges".to_owned(),
        unit: Unit::Bytes,
        stacked: true,
        series: biggest(bytes.into_iter().collect()),
    }];
    rounds_figure(
        id,
        books,
        panels,
        "At each reading. There was no ledger, so that layers and phases are not known.",
    )
}

fn rounds_figure(id: &str, books: &Books, mut panels: Vec<Panel>, caption: &str) -> Markup {
    let shown = thinned(&panels, books.rounds.len());
    for series in panels.iter_mut().flat_map(|panel| &mut panel.series) {
        series.values = shown
            .iter()
            .map(|at| series.values.get(*at).copied().unwrap_or(0.0))
            .collect();
    }
    panels.retain(|panel| {
        panel
            .series
            .iter()
            .any(|series| series.values.iter().any(|value| *value != 0.0))
    });
    let at: Vec<f64> = shown
        .iter()
        .map(|at| f64::from(books.rounds[*at].round))
        .collect();
    let (from, to) = (
        at.first().copied().unwrap_or(0.0),
        at.last().copied().unwrap_or(0.0),
    );
    let whole = |tick: &f64| tick.fract() == 0.0 && *tick > from;
    let mut labels: Vec<(f64, String)> = vec![(from, format!("round {from}"))];
    labels.extend(
        ticks(from, to, Unit::Things)
            .into_iter()
            .filter(whole)
            .map(|tick| (tick, tick.to_string())),
    );
    labels.dedup_by(|a, b| (a.0 - b.0).abs() < 0.08 * (to - from));
    let across = Across {
        name: "round",
        names: at.iter().map(|round| format!("round {round}")).collect(),
        marks: Vec::new(),
        shaded: (books.warmup > 0 && to > from).then(|| (from, f64::from(books.warmup).min(to))),
        ticks: labels,
        at,
    };
    let left_out = books.rounds.len() - shown.len();
    let caption = html! {
        (caption)
        @if across.shaded.is_some() { " The warm-up is shaded." }
        @if left_out > 0 {
            " Of " (count(books.rounds.len() as i64, "round")) ", " (grouped(shown.len() as i64))
            " are drawn: of neighbours those at which all together was lowest or highest."
        }
        @if panels.is_empty() { " All of it was 0." }
    };
    figure(id, caption, &across, &panels)
}

/// The rounds that are drawn: all, or of each few neighbours the lowest and the highest.
fn thinned(panels: &[Panel], rounds: usize) -> Vec<usize> {
    if rounds <= ROUNDS {
        return (0..rounds).collect();
    }
    let total = |at: &usize| -> f64 {
        let series = panels.iter().flat_map(|panel| &panel.series);
        series.filter_map(|series| series.values.get(*at)).sum()
    };
    let each = rounds.div_ceil(ROUNDS / 2);
    let mut shown = vec![0, rounds - 1];
    for from in (0..rounds).step_by(each) {
        let here = || from..(from + each).min(rounds);
        shown.extend(here().min_by(|a, b| total(a).total_cmp(&total(b))));
        shown.extend(here().max_by(|a, b| total(a).total_cmp(&total(b))));
    }
    shown.sort_unstable();
    shown.dedup();
    shown
}
