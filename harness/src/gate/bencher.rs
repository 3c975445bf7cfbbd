//! Bencher Metric Format: what runs took, for <https://bencher.dev> to follow over time.
//!
//! A benchmark for each scenario, which is about its heap, and one for each of its layers
//! (`proving/rust-heap`). Of several runs the median is the value, the lowest and the
//! highest are its bounds. What crashed did only part of its work and is left out.
//!
//! | measure | what it is |
//! |---|---|
//! | `peak-bytes` | the highest live bytes; of a layer, those of the phase with most |
//! | `allocated-bytes-per-round` | bytes allocated in a measured round |
//! | `surviving-bytes` | bytes of measured rounds that were left at the end |
//! | `resident-peak-bytes` | the highest resident bytes; of a scenario only |

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::Runs;
use crate::books::{Amount, Books, Layer};
use crate::diff::plain;
use crate::run::Run;
use crate::verdict::Class;

/// Characters of a benchmark's name at most, as Bencher has it less some.
const LONGEST: usize = 1000;

/// A benchmark's measures with a value of each run.
type Measures = BTreeMap<&'static str, Vec<u64>>;

/// The runs as Bencher Metric Format.
pub(super) fn of(runs: &Runs) -> Value {
    let runs: Vec<&Run> = runs
        .iter()
        .map(|(_, run)| run)
        .filter(|run| run.verdict.class != Class::Crash)
        .collect();
    let mut all = BTreeMap::<String, Measures>::new();
    for run in &runs {
        let name = name(run, &runs);
        add(all.entry(cut(&name)).or_default(), whole(&run.books));
        for (layer, values) in by_layer(&run.books) {
            let name = format!("{name}/{layer}");
            add(all.entry(cut(&name)).or_default(), values);
        }
    }
    let benchmarks = all.into_iter().map(|(name, measures)| {
        let measures = measures.into_iter();
        let measures = measures.map(|(measure, values)| (measure.to_owned(), metric(values)));
        (name, Value::Object(measures.collect()))
    });
    Value::Object(benchmarks.collect())
}

/// A run's benchmark: its scenario, and its machine where the runs are of several.
fn name(run: &Run, runs: &[&Run]) -> String {
    let scenario = &run.plan.name;
    let same = runs.iter().filter(|other| other.plan.name == *scenario);
    let machines: BTreeSet<_> = same.map(|run| run.machine.fingerprint()).collect();
    match machines.len() {
        0 | 1 => scenario.clone(),
        _ => format!("{scenario} on {}", run.machine.fingerprint().file_name()),
    }
}

fn add(measures: &mut Measures, values: impl IntoIterator<Item = (&'static str, u64)>) {
    for (measure, value) in values {
        measures.entry(measure).or_default().push(value);
    }
}

fn whole(books: &Books) -> Vec<(&'static str, u64)> {
    let measured = || {
        let rounds = books.rounds.iter();
        rounds.filter(|round| round.round > books.warmup)
    };
    let count = measured().count() as u64;
    let allocated: Amount = measured().map(|round| round.allocated).sum();
    let peak = measured().map(|round| round.peak_bytes).max();
    let resident = measured().filter_map(|round| {
        let gauges = round.gauges?;
        Some(gauges.rss_peak.max(gauges.resident()))
    });
    let mut values = Vec::new();
    values.extend(peak.map(|peak| ("peak-bytes", peak)));
    values.extend(per_round(allocated, count));
    values.push((
        "surviving-bytes",
        bytes(left(books, |layer| layer.is_heap())),
    ));
    values.extend(resident.max().map(|peak| ("resident-peak-bytes", peak)));
    values
}

fn by_layer(books: &Books) -> Vec<(Layer, Vec<(&'static str, u64)>)> {
    let layers: BTreeSet<Layer> = books
        .phases
        .iter()
        .map(|phase| phase.layer)
        .filter(|layer| !layer.is_counted())
        .collect();
    let rounds = books.rounds.len().saturating_sub(books.warmup as usize) as u64;
    let of = |layer: Layer| {
        let phases = || {
            books
                .phases
                .iter()
                .filter(move |phase| phase.layer == layer)
        };
        let allocated = phases().map(|phase| phase.allocated).sum();
        let peak = phases().map(|phase| phase.peak_bytes).max();
        let mut values = Vec::new();
        values.extend(peak.map(|peak| ("peak-bytes", peak)));
        values.extend(per_round(allocated, rounds));
        values.push(("surviving-bytes", bytes(left(books, |of| of == layer))));
        (layer, values)
    };
    layers.into_iter().map(of).collect()
}

fn per_round(allocated: Amount, rounds: u64) -> Option<(&'static str, u64)> {
    let each = bytes(allocated).checked_div(rounds)?;
    Some(("allocated-bytes-per-round", each))
}

/// What measured rounds bore and was left at the end.
fn left(books: &Books, of: impl Fn(Layer) -> bool) -> Amount {
    let survivors = books.survivors.iter();
    let measured = survivors.filter(|left| left.round > books.warmup && of(left.layer));
    measured.map(|survivors| survivors.left).sum()
}

fn bytes(amount: Amount) -> u64 {
    u64::try_from(amount.bytes).unwrap_or(0)
}

fn metric(mut values: Vec<u64>) -> Value {
    values.sort_unstable();
    let (lowest, highest) = (values.first().copied(), values.last().copied());
    let middle = values.get((values.len() - 1) / 2).copied();
    match values.len() {
        1 => json!({"value": middle}),
        _ => json!({"value": middle, "lower_value": lowest, "upper_value": highest}),
    }
}

fn cut(name: &str) -> String {
    let name: String = plain(name).chars().take(LONGEST).collect();
    match name.trim().is_empty() {
        true => "unnamed".to_owned(),
        false => name,
    }
}
