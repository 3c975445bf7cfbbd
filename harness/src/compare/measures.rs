//! What one run says of memory and time, in numbers that two versions can be compared by.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::books::{Books, Ending, Gauges};
use crate::sampler::Sample;

/// What one run took. What could not be had is `None`, with the reason in
/// [`missing`](Self::missing).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Measures {
    /// Where the run was killed for want of memory, in bytes: its peaks are lower bounds
    /// then, and what whole rounds would say is missing.
    pub killed_at: Option<u64>,
    /// Highest live bytes of the heap layers, from the ledger, over the whole run.
    pub peak_live: Option<u64>,
    /// Highest bytes that a memory limit counts (resident anonymous and shared memory, huge
    /// pages, swap), from the samples, over the whole run.
    pub peak_resident: Option<u64>,
    /// Highest live bytes of the card's layers, from the samples; `None` where no card was used.
    pub peak_card: Option<u64>,
    /// Live bytes of the heap layers after the last round had settled.
    pub floor: Option<u64>,
    /// Resident less live bytes at that moment. Below zero where memory was never touched.
    pub retention: Option<i64>,
    /// Bytes allocated in the measured rounds (heap layers).
    pub allocated: Option<u64>,
    /// Bytes times seconds held in the measured rounds (∫ live dt, from the samples).
    pub byte_seconds: Option<f64>,
    /// Seconds that the measured rounds took, settling included.
    pub seconds: Option<f64>,
    /// Seconds of the whole run, start and end of the program included.
    pub wall_seconds: f64,
    /// Rounds that were measured.
    pub rounds: u64,
    /// Items that the measured rounds bore; `None` where the workload names none.
    pub items: Option<u64>,
    /// Items handed over by producers in the measured rounds; `None` where none are counted.
    pub handed_over: Option<u64>,
    /// Live bytes on average, by the phase that bore them (heap layers, over the whole run).
    pub phases: BTreeMap<String, f64>,
    /// What could not be had, and why.
    pub missing: Vec<String>,
}

/// What a workload's throughput is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Items, as the workload names them (for a prover: partitions).
    Item,
    /// Items that producers handed over.
    HandedOver,
    /// Rounds, where a workload says nothing of its items.
    Round,
}

impl Unit {
    /// The unit in the singular, for a person.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Item | Self::HandedOver => "item",
            Self::Round => "round",
        }
    }

    /// The finest unit that all these runs can be counted in.
    pub fn common<'a>(runs: impl IntoIterator<Item = &'a Measures> + Clone) -> Self {
        let all = |of: fn(&Measures) -> Option<u64>| {
            // A run that was broken off counts nothing, and says nothing against it.
            let mut whole = runs.clone().into_iter().filter(|run| run.seconds.is_some());
            let mut some = false;
            whole.all(|run| {
                some = true;
                of(run).is_some_and(|count| count > 0)
            }) && some
        };
        if all(|run| run.items) {
            Self::Item
        } else if all(|run| run.handed_over) {
            Self::HandedOver
        } else {
            Self::Round
        }
    }
}

impl Measures {
    /// Takes them from a run's books and its samples (see
    /// [`read_samples`](crate::read_samples)), which may be none.
    pub fn of(books: &Books, samples: &[Sample]) -> Self {
        let mut measures = Self {
            killed_at: killed_at(books, samples),
            wall_seconds: wall_seconds(books, samples),
            ..Self::default()
        };
        measures.take_peaks(books, samples);
        measures.take_phases(books);
        let warmup = usize::try_from(books.warmup).unwrap_or(usize::MAX);
        let (warm, measured) = books.rounds.split_at(warmup.min(books.rounds.len()));
        measures.rounds = measured.len() as u64;
        match measured.last() {
            _ if measures.killed_at.is_some() => {
                measures.lacks("whole rounds: the run was killed for want of memory");
            }
            None => measures.lacks("whole rounds: none ended after the warm-up"),
            Some(last) => {
                let begin = warm.last().map_or(0.0, |round| round.at_seconds);
                measures.take_rounds(books, begin);
                measures.take_window(samples, begin, last.at_seconds);
            }
        }
        measures
    }

    /// How many units of work the measured rounds did.
    pub fn count(&self, unit: Unit) -> Option<u64> {
        let count = match unit {
            Unit::Item => self.items,
            Unit::HandedOver => self.handed_over,
            Unit::Round => Some(self.rounds),
        };
        count.filter(|count| *count > 0 && self.seconds.is_some())
    }

    /// Units of work per second of the measured rounds.
    pub fn per_second(&self, unit: Unit) -> Option<f64> {
        Some(self.count(unit)? as f64 / self.seconds?)
    }

    fn lacks(&mut self, what: &str) {
        self.missing.push(what.to_owned());
    }

    fn take_peaks(&mut self, books: &Books, samples: &[Sample]) {
        if books.health.attached {
            let sampled = samples.iter().map(|sample| unsigned(sample.live));
            let rounds = books.rounds.iter().map(|round| round.peak_bytes);
            self.peak_live = rounds.chain(sampled).chain(books.peak_bytes).max();
        } else {
            self.lacks("live memory: the program never reported to the ledger");
        }
        let sampled = samples.iter().filter_map(|sample| sample.gauges.as_ref());
        let after_rounds = books
            .rounds
            .iter()
            .filter_map(|round| round.gauges.as_ref());
        self.peak_resident = sampled.chain(after_rounds).map(charged).max();
        if let (Some(peak), Some(killed_at)) = (&mut self.peak_resident, self.killed_at) {
            *peak = killed_at.max(*peak);
        }
        if samples.is_empty() {
            self.lacks("all that samples say: there are none");
        } else if self.peak_resident.is_none() {
            self.lacks("resident memory: it could not be read");
        }
        let card = samples.iter().map(|sample| unsigned(sample.card_live));
        self.peak_card = card.max().filter(|peak| *peak > 0);
    }

    fn take_phases(&mut self, books: &Books) {
        if self.wall_seconds > 0.0 {
            for phase in books.phases.iter().filter(|phase| phase.layer.is_heap()) {
                let mean = phase.byte_seconds / self.wall_seconds;
                *self.phases.entry(phase.phase.clone()).or_default() += mean;
            }
        }
    }

    fn take_rounds(&mut self, books: &Books, begin: f64) {
        let measured = || {
            let warmup = usize::try_from(books.warmup).unwrap_or(usize::MAX);
            books.rounds.iter().skip(warmup)
        };
        let Some(last) = books.rounds.last() else {
            return;
        };
        self.seconds = Some(last.at_seconds - begin).filter(|seconds| *seconds > 0.0);
        if books.health.attached {
            let series = books.series.iter().filter(|series| series.layer.is_heap());
            let at_end = series.filter_map(|series| series.live.get(books.rounds.len() - 1));
            let floor: i64 = at_end.fold(0, |sum, live| sum.saturating_add(live.bytes));
            self.floor = Some(unsigned(floor));
            let allocated = measured().map(|round| unsigned(round.allocated.bytes));
            self.allocated = Some(allocated.fold(0, u64::saturating_add));
            self.retention = last.gauges.as_ref().map(|gauges| {
                let resident = i64::try_from(charged(gauges)).unwrap_or(i64::MAX);
                resident.saturating_sub(floor)
            });
        }
        let first = measured().next().map_or(0, |round| round.round);
        let is_measured = |round: u32| (first..=last.round).contains(&round);
        let mut items: Vec<(u32, u32)> = books
            .items
            .iter()
            .filter(|item| is_measured(item.round))
            .map(|item| (item.round, item.item))
            .collect();
        items.sort_unstable();
        items.dedup();
        self.items = Some(items.len() as u64).filter(|items| *items > 0);
    }

    /// Takes what the samples between two moments say.
    fn take_window(&mut self, samples: &[Sample], begin: f64, end: f64) {
        let until = |moment: f64| samples.iter().take_while(move |sample| sample.t <= moment);
        let produced = |moment| until(moment).last().map_or(0, |sample| sample.produced);
        let handed_over = produced(end).saturating_sub(produced(begin));
        self.handed_over = Some(handed_over).filter(|items| *items > 0);
        if self.peak_live.is_none() {
            return;
        }
        // Samples may end a little before the last round's books are read.
        let reach = samples.last().map_or(0.0, |sample| sample.t) - begin;
        if reach < 0.9 * (end - begin) {
            self.lacks("byte-seconds: the samples do not reach the last round's end");
            return;
        }
        self.byte_seconds = Some(integral(samples, begin, end));
    }
}

/// What a memory limit counts, in bytes.
pub(super) fn charged(gauges: &Gauges) -> u64 {
    gauges
        .rss_anon
        .saturating_add(gauges.rss_shmem)
        .saturating_add(gauges.hugetlb)
        .saturating_add(gauges.swap)
}

fn killed_at(books: &Books, samples: &[Sample]) -> Option<u64> {
    match books.ending {
        Ending::Limit { limit_bytes, .. } => Some(limit_bytes),
        Ending::OomKilled => {
            let gauges = samples.iter().filter_map(|sample| sample.gauges.as_ref());
            Some(gauges.map(charged).max().unwrap_or(0))
        }
        _ => None,
    }
}

fn wall_seconds(books: &Books, samples: &[Sample]) -> f64 {
    let sampled = samples.last().map_or(0.0, |sample| sample.t);
    let booked = books.rounds.last().map_or(0.0, |round| round.at_seconds);
    sampled.max(booked)
}

/// ∫ live dt between two moments: a line from sample to sample, level before the first
/// and after the last.
fn integral(samples: &[Sample], begin: f64, end: f64) -> f64 {
    let point = |sample: &Sample| (sample.t, unsigned(sample.live) as f64);
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else {
        return 0.0;
    };
    let (first, last) = (point(first), point(last));
    let points = std::iter::once((begin.min(first.0), first.1))
        .chain(samples.iter().map(point))
        .chain(std::iter::once((end.max(last.0), last.1)));
    let mut sum = 0.0;
    let mut before = None::<(f64, f64)>;
    for (t, live) in points {
        if let Some((t0, live0)) = before
            && t > t0
        {
            let at = |moment: f64| live0 + (live - live0) * (moment - t0) / (t - t0);
            let (from, to) = (t0.clamp(begin, end), t.clamp(begin, end));
            sum += (to - from) * (at(from) + at(to)) / 2.0;
        }
        before = Some((t, live));
    }
    sum
}

fn unsigned(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::{Amount, Health, ItemBook, Layer, LimitKind, PhaseBook, RoundBook, Series};

    const MIB: i64 = 1 << 20;

    fn sample(n: u64, t: f64, live: i64, resident: u64) -> Sample {
        Sample {
            n,
            t,
            round: 1,
            live,
            card_live: 0,
            gauges: Some(Gauges {
                rss_anon: resident,
                ..Gauges::default()
            }),
            produced: 2 * n,
            consumed: n,
            layers: BTreeMap::new(),
            phases: BTreeMap::new(),
        }
    }

    fn round(round: u32, at_seconds: f64) -> RoundBook {
        RoundBook {
            round,
            at_seconds,
            allocated: Amount::new(10 * MIB, 10),
            peak_bytes: 5 << 20,
            gauges: Some(Gauges {
                rss_anon: 4 << 20,
                ..Gauges::default()
            }),
            ..RoundBook::default()
        }
    }

    fn item(round: u32, item: u32) -> ItemBook {
        ItemBook {
            round,
            item,
            layer: Layer::RustHeap,
            phase: "p".into(),
            allocated: Amount::new(1, 1),
            released: Amount::new(1, 1),
        }
    }

    /// A warm-up round of one second, and two rounds of one second each.
    fn books() -> Books {
        let series = |layer, live: &[i64]| Series {
            layer,
            phase: "p".into(),
            live: live.iter().map(|bytes| Amount::new(*bytes, 1)).collect(),
        };
        Books {
            warmup: 1,
            rounds: vec![round(1, 1.0), round(2, 2.0), round(3, 3.0)],
            series: vec![
                series(Layer::RustHeap, &[MIB, MIB, 2 * MIB]),
                series(Layer::NativeHeap, &[MIB, MIB, MIB]),
                series(Layer::Device, &[9 * MIB, 9 * MIB, 9 * MIB]),
            ],
            health: Health {
                attached: true,
                ..Health::default()
            },
            ..Books::default()
        }
    }

    #[test]
    fn measures_are_of_the_rounds_after_the_warm_up_and_peaks_of_the_whole_run() {
        let mut books = books();
        books.items = vec![item(1, 0), item(2, 0), item(2, 1), item(3, 0), item(3, 0)];
        let samples: Vec<Sample> = (0..=30)
            .map(|n| {
                sample(
                    n,
                    n as f64 / 10.0,
                    if n < 10 { 6 * MIB } else { 4 * MIB },
                    7 << 20,
                )
            })
            .collect();
        let measures = Measures::of(&books, &samples);
        assert_eq!(measures.peak_live, Some(6 << 20));
        assert_eq!(measures.peak_resident, Some(7 << 20));
        assert_eq!(measures.peak_card, None);
        assert_eq!(
            measures.floor,
            Some(3 << 20),
            "the card's memory is not the heap's"
        );
        assert_eq!(measures.retention, Some(MIB));
        assert_eq!(measures.allocated, Some(20 << 20));
        assert_eq!((measures.seconds, measures.rounds), (Some(2.0), 2));
        assert_eq!(measures.items, Some(3));
        assert_eq!(measures.handed_over, Some(40));
        let expected = 8.0 * MIB as f64;
        let byte_seconds = measures.byte_seconds.unwrap();
        assert!(
            (byte_seconds - expected).abs() < 1e-6 * expected,
            "{byte_seconds}"
        );
        assert_eq!(measures.per_second(Unit::Round), Some(1.0));
        assert_eq!(measures.missing, Vec::<String>::new());
        books.phases = [Layer::RustHeap, Layer::NativeHeap, Layer::Device]
            .map(|layer| PhaseBook {
                layer,
                phase: "msm".into(),
                allocated: Amount::ZERO,
                released: Amount::ZERO,
                peak_bytes: 0,
                byte_seconds: 6.0,
            })
            .to_vec();
        let phases = Measures::of(&books, &samples).phases;
        assert_eq!(
            phases,
            BTreeMap::from([("msm".to_owned(), 4.0)]),
            "over three seconds"
        );
        books.peak_bytes = Some(8 << 20);
        let between_samples = Measures::of(&books, &samples);
        assert_eq!(between_samples.peak_live, Some(8 << 20));
    }

    #[test]
    fn a_run_that_was_killed_says_at_least_its_limit_and_nothing_of_rounds() {
        let mut books = books();
        books.ending = Ending::Limit {
            limit_bytes: 64 << 20,
            peak_bytes: 64 << 20,
            enforced_by: LimitKind::Watchdog,
        };
        let measures = Measures::of(&books, &[sample(0, 0.0, MIB, 7 << 20)]);
        assert_eq!(measures.killed_at, Some(64 << 20));
        assert_eq!(measures.peak_resident, Some(64 << 20));
        assert_eq!((measures.floor, measures.seconds), (None, None));
        assert!(
            measures.missing[0].contains("killed"),
            "{:?}",
            measures.missing
        );
    }

    #[test]
    fn what_cannot_be_had_is_missing_and_not_zero() {
        let mut books = books();
        let without_samples = Measures::of(&books, &[]);
        assert_eq!(without_samples.byte_seconds, None);
        assert_eq!(
            without_samples.missing.len(),
            2,
            "{:?}",
            without_samples.missing
        );
        let cut_off = [sample(0, 0.0, MIB, 1), sample(1, 1.5, MIB, 1)];
        assert_eq!(Measures::of(&books, &cut_off).byte_seconds, None);
        books.health.attached = false;
        let unattached = Measures::of(&books, &[sample(0, 3.0, 0, 1)]);
        assert_eq!((unattached.peak_live, unattached.floor), (None, None));
        books.rounds.truncate(1);
        assert_eq!(Measures::of(&books, &[]).seconds, None);
        assert_eq!(Measures::of(&Books::default(), &[]).rounds, 0);
    }

    #[test]
    fn byte_seconds_are_clipped_to_the_measured_rounds() {
        let samples = [sample(0, 0.0, 0, 0), sample(1, 4.0, 4 * MIB, 0)];
        let area = |begin, end| integral(&samples, begin, end) / MIB as f64;
        assert!((area(0.0, 4.0) - 8.0).abs() < 1e-9);
        assert!((area(1.0, 3.0) - 4.0).abs() < 1e-9);
        assert!(
            (area(4.0, 5.0) - 4.0).abs() < 1e-9,
            "level after the last sample"
        );
        assert_eq!(area(2.0, 2.0), 0.0);
    }

    #[test]
    fn runs_are_counted_in_the_finest_unit_that_all_of_them_have() {
        let run = |items, handed_over| Measures {
            items,
            handed_over,
            rounds: 2,
            seconds: Some(1.0),
            ..Measures::default()
        };
        let named = run(Some(4), Some(3));
        let counted = run(None, Some(3));
        let killed = Measures::default();
        assert_eq!(Unit::common([&named, &named, &killed]), Unit::Item);
        assert_eq!(Unit::common([&named, &counted]), Unit::HandedOver);
        assert_eq!(Unit::common([&named, &run(None, None)]), Unit::Round);
        assert_eq!(Unit::common([&killed]), Unit::Round);
    }
}
