//! From a run to its profile.

use std::collections::BTreeMap;

use super::value::Metric;
use super::{Place, Profile, Rounds, Row, Sites, Spread, Value, is_empty};
use crate::books::{Amount, Books, Card, Gauges, PhaseBook};
use crate::explain::Explanation;
use crate::run::Run;

impl Run {
    /// The profile of this run, with sites where it was run again for them.
    pub fn profile(&self) -> Profile {
        let rounds = measured(self.books.rounds.len(), self.books.warmup);
        let mut rows = by_phase(&self.books, rounds);
        let sites = match &self.explanation {
            Some(explanation) => by_site(explanation, &mut rows),
            None => Sites::None,
        };
        rows.retain(|_, row| !is_empty(row));
        Profile {
            scenario: self.plan.name.clone(),
            runs: 1,
            rounds: Rounds::of(rounds),
            sites,
            whole: whole(&self.books),
            rows,
        }
    }
}

fn measured(rounds: usize, warmup: u32) -> u32 {
    let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
    rounds.saturating_sub(warmup)
}

/// What is added up for one place.
#[derive(Default)]
struct Sum {
    allocated: Amount,
    left: Amount,
}

impl Sum {
    /// The exact part of a row.
    fn row(&self, rounds: u32) -> Row {
        let Self { allocated, left } = self;
        Row::from(
            [
                (Metric::Blocks, Value::per_round(allocated.blocks, rounds)),
                (Metric::Bytes, Value::per_round(allocated.bytes, rounds)),
                (Metric::LeftBlocks, Value::whole(left.blocks)),
                (Metric::LeftBytes, Value::whole(left.bytes)),
            ]
            .map(|(metric, value)| (metric, Spread::of(value))),
        )
    }
}

fn by_phase(books: &Books, rounds: u32) -> BTreeMap<Place, Row> {
    let mut sums = BTreeMap::<Place, (Sum, u64, f64)>::new();
    let place = |phase: &str, layer| Place {
        phase: phase.to_owned(),
        layer,
        site: None,
    };
    for book in &books.phases {
        let PhaseBook {
            layer,
            phase,
            allocated,
            peak_bytes,
            byte_seconds,
            ..
        } = book;
        let (sum, peak, held) = sums.entry(place(phase, *layer)).or_default();
        sum.allocated += *allocated;
        *peak = peak.saturating_add(*peak_bytes);
        *held += byte_seconds;
    }
    for survivors in books
        .survivors
        .iter()
        .filter(|left| left.round > books.warmup)
    {
        let (sum, ..) = sums
            .entry(place(&survivors.phase, survivors.layer))
            .or_default();
        sum.left += survivors.left;
    }
    let all_rounds = books.rounds.len().max(1) as f64;
    let rows = sums.into_iter().map(|(place, (sum, peak, held))| {
        let mut row = sum.row(rounds);
        if !place.layer.is_counted() {
            let peak = Metric::Peak.kept(peak as f64);
            row.insert(Metric::Peak, Spread::of(peak));
            // Of less, the sampler sees nothing that could be relied on.
            if peak != Value::ZERO {
                let each = held / all_rounds;
                row.insert(Metric::Held, Spread::of(Metric::Held.kept(each)));
                let bytes = sum.allocated.bytes as f64 / f64::from(rounds.max(1));
                if bytes > 0.0 {
                    let microseconds = each / bytes * 1e6;
                    row.insert(Metric::Dwell, Spread::of(Metric::Dwell.kept(microseconds)));
                }
            }
        }
        (place, row)
    });
    rows.collect()
}

fn by_site(explanation: &Explanation, rows: &mut BTreeMap<Place, Row>) -> Sites {
    let rounds = explanation.rounds.saturating_sub(explanation.warmup);
    if rounds == 0 {
        // The second run failed.
        return Sites::None;
    }
    let mut sums = BTreeMap::<Place, Sum>::new();
    for site in &explanation.sites {
        let place = Place {
            phase: site.phase.clone(),
            layer: site.layer,
            site: Some(site.site.clone()),
        };
        let sum = sums.entry(place).or_default();
        sum.allocated += site.allocated;
        sum.left += site.left_of_rounds(explanation.warmup);
    }
    rows.extend(
        sums.into_iter()
            .map(|(place, sum)| (place, sum.row(rounds))),
    );
    match explanation.every_site {
        true => Sites::Every,
        false => Sites::Leaking,
    }
}

/// Peaks of all layers together.
fn whole(books: &Books) -> Row {
    let measured = || {
        books
            .rounds
            .iter()
            .filter(|round| round.round > books.warmup)
    };
    let gauge = |read: fn(&Gauges) -> Option<u64>| {
        let values = measured().filter_map(|round| read(round.gauges.as_ref()?));
        values.max()
    };
    let peaks = [
        (Metric::Peak, measured().map(|round| round.peak_bytes).max()),
        (
            Metric::Resident,
            gauge(|gauges| Some(gauges.rss_peak.max(gauges.resident()))),
        ),
        (
            Metric::Card,
            gauge(|gauges| gauges.card.map(|Card { process, .. }| process)),
        ),
    ];
    let peaks = peaks.into_iter().filter_map(|(metric, bytes)| {
        let value = metric.kept(bytes? as f64);
        Some((metric, Spread::of(value)))
    });
    peaks.collect()
}
