//! The samples of a run, as many of them as a plot can show.
//!
//! A long run has a million samples, a plot some hundred places. Of the samples that fall on
//! one place those are kept at which something was lowest or highest, so that each point that
//! is drawn was measured, and no peak is lost.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::sampler::{Sample, Samples};

/// Places at most; twice as many are gathered before they are joined in pairs.
const PLACES: usize = 100;

/// What is looked at.
type Measure = fn(&Sample) -> i64;
const MEASURES: [Measure; 4] = [
    |sample| sample.live,
    |sample| resident(sample).unwrap_or(0),
    |sample| sample.card_live,
    waiting,
];

/// Samples of a run in their order, thinned.
#[derive(Debug, Default)]
pub(super) struct Moments {
    /// Those that are shown.
    pub shown: Vec<Sample>,
    /// How many there are.
    pub exist: u64,
    /// How many neighbours at most share one place.
    pub in_one_place: u64,
    /// Whether the file ends within a line, or has one that is none.
    pub torn: bool,
}

/// Resident bytes at a sample, if they could be read.
pub(super) fn resident(sample: &Sample) -> Option<i64> {
    let gauges = sample.gauges.as_ref()?;
    Some(i64::try_from(gauges.resident()).unwrap_or(i64::MAX))
}

/// Items produced and not yet consumed.
pub(super) fn waiting(sample: &Sample) -> i64 {
    let waiting = sample.produced.saturating_sub(sample.consumed);
    i64::try_from(waiting).unwrap_or(i64::MAX)
}

/// The lowest and the highest sample of each measure among neighbours.
struct Place(Vec<(Sample, Sample)>);

impl Place {
    fn new(sample: &Sample) -> Self {
        Self(vec![(sample.clone(), sample.clone()); MEASURES.len()])
    }

    fn add(&mut self, sample: &Sample) {
        for (measure, (low, high)) in MEASURES.iter().zip(&mut self.0) {
            if measure(sample) < measure(low) {
                *low = sample.clone();
            }
            if measure(sample) > measure(high) {
                *high = sample.clone();
            }
        }
    }

    fn join(&mut self, other: &Self) {
        for (low, high) in &other.0 {
            self.add(low);
            self.add(high);
        }
    }
}

impl Moments {
    /// Reads the samples in a run's folder, one at a time.
    ///
    /// # Errors
    /// If there is no such file, or it cannot be read.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let mut samples = Samples::open(folder)?;
        let mut thinning = Thinning::default();
        for sample in samples.by_ref() {
            thinning.add(&sample?);
        }
        Ok(Self {
            torn: samples.is_torn(),
            ..thinning.done()
        })
    }

    /// The sample at which something was highest.
    pub fn highest(&self, of: impl Fn(&Sample) -> Option<i64>) -> Option<&Sample> {
        let known = self.shown.iter().filter(|sample| of(sample).is_some());
        // The first of equals.
        known.rev().max_by_key(|sample| of(sample))
    }
}

/// Samples that are being thinned. None is thinned while all of them have a place.
#[derive(Default)]
struct Thinning {
    places: Vec<Place>,
    /// Samples in each place but the last.
    each: u64,
    in_last: u64,
    exist: u64,
}

impl Thinning {
    fn add(&mut self, sample: &Sample) {
        self.exist += 1;
        self.each = self.each.max(1);
        match self.places.last_mut() {
            Some(last) if self.in_last < self.each => {
                last.add(sample);
                self.in_last += 1;
            }
            _ => {
                if self.places.len() == 2 * PLACES {
                    self.halve();
                }
                self.places.push(Place::new(sample));
                self.in_last = 1;
            }
        }
    }

    /// Joins each two neighbours; all places are full then.
    fn halve(&mut self) {
        let mut joined = Vec::with_capacity(2 * PLACES);
        let mut places = std::mem::take(&mut self.places).into_iter();
        while let Some(mut place) = places.next() {
            if let Some(next) = places.next() {
                place.join(&next);
            }
            joined.push(place);
        }
        self.places = joined;
        self.each *= 2;
    }

    fn done(self) -> Moments {
        let mut shown = BTreeMap::new();
        for (low, high) in self.places.into_iter().flat_map(|place| place.0) {
            shown.insert(low.n, low);
            shown.insert(high.n, high);
        }
        Moments {
            shown: shown.into_values().collect(),
            exist: self.exist,
            in_one_place: self.each,
            torn: false,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::books::Gauges;

    /// A sample a hundredth of a second after the one before.
    pub fn sample(n: u64, live: i64) -> Sample {
        Sample {
            n,
            t: n as f64 / 100.0,
            round: (n / 20 + 1) as u32,
            live,
            card_live: 0,
            gauges: Some(Gauges {
                rss_anon: live.unsigned_abs() + 1000,
                ..Gauges::default()
            }),
            produced: n,
            consumed: n,
            layers: BTreeMap::new(),
            phases: BTreeMap::new(),
        }
    }

    pub fn thinned(samples: impl Iterator<Item = Sample>) -> Moments {
        let mut thinning = Thinning::default();
        samples.for_each(|sample| thinning.add(&sample));
        thinning.done()
    }

    #[test]
    fn few_samples_are_all_shown() {
        let moments = thinned((0..200).map(|n| sample(n, n as i64 % 7)));
        assert_eq!(
            (moments.shown.len(), moments.exist, moments.in_one_place),
            (200, 200, 1)
        );
        assert_eq!(thinned(std::iter::empty()).shown.len(), 0);
        assert_eq!(thinned(std::iter::once(sample(0, 5))).shown.len(), 1);
    }

    #[test]
    fn a_million_samples_keep_their_one_peak_and_their_one_trough() {
        let live = |n: u64| match n {
            654_321 => 1_000_000,
            123_456 => -5,
            n => 500 + (n % 10) as i64,
        };
        let moments = thinned((0..1_000_000).map(|n| sample(n, live(n))));
        assert!(moments.shown.len() <= 2 * PLACES * 2 * MEASURES.len());
        assert_eq!(moments.exist, 1_000_000);
        let lives = || moments.shown.iter().map(|sample| sample.live);
        assert_eq!((lives().max(), lives().min()), (Some(1_000_000), Some(-5)));
        let peak = moments.highest(|sample| Some(sample.live)).unwrap();
        assert_eq!(peak.n, 654_321);
        assert!(moments.shown.windows(2).all(|pair| pair[0].n < pair[1].n));
        let places = 1_000_000_u64.div_ceil(moments.in_one_place);
        assert!((100..=200).contains(&places), "{places}");
    }
}
