//! Why the peak moved: a decomposition that adds up.
//!
//! The highest resident memory is, term by term,
//!
//! ```text
//! peak = floor + bytes per item × items per second × seconds held × bunching + retention
//! ```
//!
//! where the floor is what is live between rounds, the first three factors are the mean of
//! what is live above it (Little's law: ∫ live dt over the time, with items per second ×
//! seconds held being the items in flight), bunching is how much more than that mean was
//! live at the peak, and retention is the highest resident memory less the highest live.
//!
//! The difference of two such peaks is split among the terms exactly: floor and retention
//! as they are, and the product by the logarithmic mean Divisia index (B. W. Ang, "The LMDI
//! approach to decomposition analysis: a practical guide", Energy Policy 33, 2005), where
//! each factor's part is `L × ln(candidate / baseline)` with `L` the logarithmic mean of
//! the two products. It leaves no residue, swapping the two versions negates every part,
//! and no order of the factors has to be chosen. Bunching is no cause that a change of
//! code has by itself, so its part is shown as the remainder.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::measures::{Measures, Unit};

/// Why the peak moved from one version to the other. All parts and the remainder together
/// are the difference, to the byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Why {
    /// Which peak this is of.
    pub of: PeakKind,
    /// What items are here.
    pub unit: Unit,
    /// The mean peak of the baseline's runs, in bytes.
    pub baseline: i64,
    /// The mean peak of the candidate's runs, in bytes.
    pub candidate: i64,
    /// The parts, in the order of the formula.
    pub parts: Vec<TermPart>,
    /// What is left of the difference: bunching, or all that is above the floor where the
    /// factors could not be had.
    pub remainder: TermPart,
    /// Where mean live memory moved, by the phase that bore it, the largest move first.
    pub phases: Vec<PhaseShift>,
    /// What of the formula could not be had, and why; empty where nothing is missing.
    pub missing: Vec<String>,
}

/// What is live on average of the blocks that one phase bore, in bytes, over whole runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PhaseShift {
    /// The phase.
    pub phase: String,
    /// In the baseline.
    pub baseline: f64,
    /// In the candidate.
    pub candidate: f64,
}

impl PhaseShift {
    /// Candidate less baseline, in bytes.
    pub fn difference(&self) -> f64 {
        self.candidate - self.baseline
    }
}

/// The peak that is explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PeakKind {
    /// The highest resident memory.
    Resident,
    /// The highest live memory of the ledger, where no gauge was read.
    Live,
}

/// A term of the formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Term {
    /// Bytes allocated per item.
    BytesPerItem,
    /// Items per second.
    ItemsPerSecond,
    /// Seconds that a byte is held, on average.
    SecondsHeld,
    /// Live between rounds.
    Floor,
    /// Highest resident less highest live memory.
    Retention,
    /// Highest over mean live memory above the floor.
    Bunching,
    /// All that was live above the floor at the peak.
    AboveFloor,
}

/// One term's part of the difference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TermPart {
    /// The term.
    pub term: Term,
    /// Its value in the baseline: bytes, items per second, seconds, or a factor.
    pub baseline: f64,
    /// Its value in the candidate.
    pub candidate: f64,
    /// What its change adds to the peak, in bytes.
    pub bytes: i64,
}

/// Means over one version's whole runs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mean {
    peak_live: f64,
    peak_resident: Option<f64>,
    floor: f64,
    factors: Option<Factors>,
}

/// What the mean of live memory above the floor is the product of.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Factors {
    bytes_per_item: f64,
    items_per_second: f64,
    seconds_held: f64,
}

impl Factors {
    fn product(&self) -> f64 {
        self.bytes_per_item * self.items_per_second * self.seconds_held
    }
}

impl Why {
    /// Explains the difference of the mean peaks; `None` where a side has no whole run
    /// with a ledger. Runs that were killed are left out: nobody knows their peak.
    pub fn between(baseline: &[Measures], candidate: &[Measures]) -> Option<Self> {
        let unit = Unit::common(baseline.iter().chain(candidate));
        let (a, b) = (mean(baseline, unit)?, mean(candidate, unit)?);
        let mut why = Self {
            of: PeakKind::Live,
            unit,
            baseline: whole(a.peak_live),
            candidate: whole(b.peak_live),
            parts: Vec::new(),
            remainder: TermPart {
                term: Term::AboveFloor,
                baseline: a.peak_live - a.floor,
                candidate: b.peak_live - b.floor,
                bytes: 0,
            },
            phases: phases(baseline, candidate),
            missing: Vec::new(),
        };
        let above = (why.remainder.baseline, why.remainder.candidate);
        match (a.factors, b.factors) {
            (Some(f), Some(g)) if above.0 > 0.0 && above.1 > 0.0 => why.split(f, g, above),
            (Some(_), Some(_)) => why.missing.push(
                "what is live above the floor: a peak is not above it, so that there is nothing to \
                 take apart"
                    .to_owned(),
            ),
            _ => why.missing.push(
                "bytes per item, items per second and seconds held: a version allocates nothing \
                 in its measured rounds, holds nothing above its floor, or its samples are missing"
                    .to_owned(),
            ),
        }
        why.add(Term::Floor, a.floor, b.floor, b.floor - a.floor);
        if let (Some(resident_a), Some(resident_b)) = (a.peak_resident, b.peak_resident) {
            why.of = PeakKind::Resident;
            (why.baseline, why.candidate) = (whole(resident_a), whole(resident_b));
            let (kept_a, kept_b) = (resident_a - a.peak_live, resident_b - b.peak_live);
            why.add(Term::Retention, kept_a, kept_b, kept_b - kept_a);
        } else {
            why.missing
                .push("retention: resident memory could not be read".to_owned());
        }
        let parts = why.parts.iter().map(|part| part.bytes);
        why.remainder.bytes = parts.fold(why.difference(), i64::saturating_sub);
        Some(why)
    }

    /// Candidate less baseline, in bytes.
    pub const fn difference(&self) -> i64 {
        self.candidate.saturating_sub(self.baseline)
    }

    /// The part of a term, the remainder included.
    pub fn part(&self, term: Term) -> Option<&TermPart> {
        let all = self.parts.iter().chain(std::iter::once(&self.remainder));
        all.into_iter().find(|part| part.term == term)
    }

    /// Items whose bytes are held at once on average, by Little's law: items per second times
    /// seconds held. Of items that allocate much that they soon release, that is less than the
    /// items that are worked on at once.
    pub fn in_flight(&self) -> Option<(f64, f64)> {
        let rate = self.part(Term::ItemsPerSecond)?;
        let held = self.part(Term::SecondsHeld)?;
        Some((
            rate.baseline * held.baseline,
            rate.candidate * held.candidate,
        ))
    }

    fn split(&mut self, a: Factors, b: Factors, above: (f64, f64)) {
        let weight = logarithmic_mean(above.0, above.1);
        let factors = [
            (Term::BytesPerItem, a.bytes_per_item, b.bytes_per_item),
            (Term::ItemsPerSecond, a.items_per_second, b.items_per_second),
            (Term::SecondsHeld, a.seconds_held, b.seconds_held),
        ];
        for (term, from, to) in factors {
            self.add(term, from, to, weight * (to / from).ln());
        }
        self.remainder.term = Term::Bunching;
        self.remainder.baseline = above.0 / a.product();
        self.remainder.candidate = above.1 / b.product();
    }

    fn add(&mut self, term: Term, baseline: f64, candidate: f64, bytes: f64) {
        self.parts.push(TermPart {
            term,
            baseline,
            candidate,
            bytes: whole(bytes),
        });
    }
}

fn phases(baseline: &[Measures], candidate: &[Measures]) -> Vec<PhaseShift> {
    let all = baseline.iter().chain(candidate);
    let names: BTreeSet<&String> = all.flat_map(|run| run.phases.keys()).collect();
    let mean = |runs: &[Measures], phase: &String| {
        let ended: Vec<&Measures> = runs.iter().filter(|run| run.killed_at.is_none()).collect();
        let sum: f64 = ended.iter().filter_map(|run| run.phases.get(phase)).sum();
        sum / ended.len().max(1) as f64
    };
    let mut phases: Vec<PhaseShift> = names
        .into_iter()
        .map(|phase| PhaseShift {
            phase: phase.clone(),
            baseline: mean(baseline, phase),
            candidate: mean(candidate, phase),
        })
        .collect();
    phases.sort_by(|a, b| b.difference().abs().total_cmp(&a.difference().abs()));
    phases
}

/// Means over the runs that went to their end and have a ledger; ratios are those of sums.
fn mean(runs: &[Measures], unit: Unit) -> Option<Mean> {
    let ended: Vec<&Measures> = runs
        .iter()
        .filter(|run| run.killed_at.is_none() && run.floor.is_some() && run.peak_live.is_some())
        .collect();
    let of = |read: &dyn Fn(&Measures) -> Option<f64>| -> Option<f64> {
        let values: Option<Vec<f64>> = ended.iter().map(|run| read(run)).collect();
        let values = values.filter(|values| !values.is_empty())?;
        Some(values.iter().sum::<f64>() / values.len() as f64)
    };
    let floor = of(&|run| Some(run.floor? as f64))?;
    let factors = || {
        let allocated = of(&|run| Some(run.allocated? as f64))?;
        let items = of(&|run| Some(run.count(unit)? as f64))?;
        let seconds = of(&|run| run.seconds)?;
        let held = of(&|run| Some(run.byte_seconds? - run.floor? as f64 * run.seconds?))?;
        let factors = Factors {
            bytes_per_item: allocated / items,
            items_per_second: items / seconds,
            seconds_held: held / allocated,
        };
        let all = [allocated, items, seconds, held];
        all.iter().all(|value| *value > 0.0).then_some(factors)
    };
    Some(Mean {
        peak_live: of(&|run| Some(run.peak_live? as f64))?,
        peak_resident: of(&|run| Some(run.peak_resident? as f64)),
        floor,
        factors: factors(),
    })
}

/// The mean of two positive numbers whose logarithms' difference it is the slope of;
/// theirs where they are equal.
fn logarithmic_mean(a: f64, b: f64) -> f64 {
    let change = (b - a) / a;
    if change == 0.0 {
        a
    } else {
        (b - a) / change.ln_1p()
    }
}

/// To the nearest byte. (A cast saturates, and takes what is no number for 0.)
fn whole(bytes: f64) -> i64 {
    bytes.round() as i64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: f64 = (1 << 20) as f64;

    /// A run whose terms are these; `held` is seconds.
    fn run(floor: f64, bytes: f64, rate: f64, held: f64, bunching: f64, kept: f64) -> Measures {
        let seconds = 10.0;
        let items = (rate * seconds).round().max(1.0);
        let allocated = bytes * items;
        let above = allocated * held / seconds;
        let peak = floor + above * bunching;
        Measures {
            peak_live: Some(peak as u64),
            peak_resident: Some((peak + kept).max(0.0) as u64),
            floor: Some(floor as u64),
            allocated: Some(allocated as u64),
            byte_seconds: Some(floor.trunc() * seconds + above * seconds),
            seconds: Some(seconds),
            rounds: 5,
            items: Some(items as u64),
            ..Measures::default()
        }
    }

    fn bytes_of(why: &Why, term: Term) -> i64 {
        why.part(term).unwrap().bytes
    }

    #[test]
    fn memory_that_is_held_twice_as_long_is_said_to_be() {
        let before = run(MIB, 8.0 * MIB, 10.0, 0.2, 1.5, 2.0 * MIB);
        let after = run(MIB, 8.0 * MIB, 10.0, 0.4, 1.5, 2.0 * MIB);
        let why = Why::between(&[before], &[after]).unwrap();
        assert_eq!(why.of, PeakKind::Resident);
        assert_eq!(why.unit, Unit::Item);
        assert_eq!(why.difference(), 24 << 20, "16 MiB on average, times 1.5");
        assert!((bytes_of(&why, Term::SecondsHeld) - (24 << 20)).abs() <= 1);
        for term in [
            Term::BytesPerItem,
            Term::ItemsPerSecond,
            Term::Floor,
            Term::Retention,
        ] {
            assert_eq!(bytes_of(&why, term), 0, "{term:?}");
        }
        assert!(why.remainder.bytes.abs() <= 1, "{:?}", why.remainder);
        let (from, to) = why.in_flight().unwrap();
        assert!(
            (from - 2.0).abs() < 1e-6 && (to - 4.0).abs() < 1e-6,
            "{from} {to}"
        );
    }

    #[test]
    fn each_cause_gets_its_own_part() {
        let before = run(MIB, 8.0 * MIB, 10.0, 0.2, 1.0, 0.0);
        let floor = run(3.0 * MIB, 8.0 * MIB, 10.0, 0.2, 1.0, 0.0);
        let kept = run(MIB, 8.0 * MIB, 10.0, 0.2, 1.0, 5.0 * MIB);
        let larger = run(MIB, 12.0 * MIB, 10.0, 0.2, 1.0, 0.0);
        let bunched = run(MIB, 8.0 * MIB, 10.0, 0.2, 2.0, 0.0);
        let to = |after: Measures, term| {
            let why = Why::between(std::slice::from_ref(&before), &[after]).unwrap();
            (bytes_of(&why, term), why.difference())
        };
        assert_eq!(to(floor, Term::Floor), (2 << 20, 2 << 20));
        assert_eq!(to(kept, Term::Retention), (5 << 20, 5 << 20));
        let (part, difference) = to(larger, Term::BytesPerItem);
        assert!((part - difference).abs() <= 1 && difference == 8 << 20);
        assert_eq!(to(bunched, Term::Bunching), (16 << 20, 16 << 20));
    }

    #[test]
    fn what_cannot_be_taken_apart_is_the_remainder_and_said_to_be() {
        let flat = Measures {
            byte_seconds: None,
            ..run(MIB, MIB, 1.0, 1.0, 2.0, 0.0)
        };
        let other = run(2.0 * MIB, MIB, 1.0, 1.0, 4.0, 0.0);
        let why = Why::between(&[flat], &[other]).unwrap();
        assert_eq!(why.remainder.term, Term::AboveFloor);
        assert_eq!(bytes_of(&why, Term::Floor), 1 << 20);
        assert_eq!(why.remainder.bytes, 2 << 20);
        assert_eq!(why.missing.len(), 1, "{:?}", why.missing);
        assert_eq!(why.in_flight(), None);
    }

    #[test]
    fn the_phase_whose_memory_moved_most_is_named_first() {
        let with = |phases: &[(&str, f64)]| Measures {
            phases: phases
                .iter()
                .map(|(name, mean)| ((*name).to_owned(), *mean))
                .collect(),
            ..run(MIB, MIB, 1.0, 1.0, 2.0, 0.0)
        };
        let before = with(&[("synthesis", 10.0), ("msm", 4.0), ("ntt", 1.0)]);
        let after = with(&[("synthesis", 11.0), ("msm", 9.0), ("finish", 3.0)]);
        let why = Why::between(&[before], &[after]).unwrap();
        let moved: Vec<(&str, f64)> = why
            .phases
            .iter()
            .map(|shift| (shift.phase.as_str(), shift.difference()))
            .collect();
        assert_eq!(
            moved,
            [
                ("msm", 5.0),
                ("finish", 3.0),
                ("ntt", -1.0),
                ("synthesis", 1.0)
            ]
        );
    }

    #[test]
    fn runs_that_were_killed_explain_nothing() {
        let killed = Measures {
            killed_at: Some(1),
            ..Measures::default()
        };
        let whole = run(MIB, MIB, 1.0, 1.0, 2.0, 0.0);
        assert_eq!(
            Why::between(std::slice::from_ref(&killed), std::slice::from_ref(&whole)),
            None
        );
        let why = Why::between(&[killed, whole.clone()], std::slice::from_ref(&whole)).unwrap();
        assert_eq!(why.difference(), 0);
    }

    fn any_run() -> impl Strategy<Value = Measures> {
        let up_to = |mib: f64| 0.0..mib * MIB;
        let rate = 0.1..50.0_f64;
        let held = prop_oneof![Just(0.0), 0.001..5.0_f64];
        let kept = -2.0 * MIB..100.0 * MIB;
        (
            up_to(100.0),
            up_to(64.0),
            rate,
            held,
            0.5..5.0_f64,
            kept,
            any::<bool>(),
        )
            .prop_map(|(floor, bytes, rate, held, bunching, kept, has_gauges)| {
                let mut run = run(floor, bytes, rate, held, bunching, kept);
                run.peak_resident = run.peak_resident.filter(|_| has_gauges);
                run
            })
    }

    /// The same run with all its memory so many times as large.
    fn scaled(run: &Measures, by: u64) -> Measures {
        let times = |bytes: Option<u64>| bytes.map(|bytes| bytes * by);
        Measures {
            peak_live: times(run.peak_live),
            peak_resident: times(run.peak_resident),
            floor: times(run.floor),
            allocated: times(run.allocated),
            byte_seconds: run.byte_seconds.map(|area| area * by as f64),
            ..run.clone()
        }
    }

    proptest! {
        #[test]
        fn the_parts_add_up_to_the_difference(
            a in prop::collection::vec(any_run(), 1..4),
            b in prop::collection::vec(any_run(), 1..4),
        ) {
            let why = Why::between(&a, &b).unwrap();
            let sum: i64 = why.parts.iter().map(|part| part.bytes).sum();
            prop_assert_eq!(sum + why.remainder.bytes, why.difference());
        }

        #[test]
        fn swapping_the_versions_negates_every_part(a in any_run(), b in any_run()) {
            let there = Why::between(std::slice::from_ref(&a), std::slice::from_ref(&b)).unwrap();
            let back = Why::between(&[b], &[a]).unwrap();
            prop_assert_eq!(there.difference(), -back.difference());
            prop_assert_eq!(there.parts.len(), back.parts.len());
            for (one, other) in there.parts.iter().zip(&back.parts) {
                prop_assert!((one.bytes + other.bytes).abs() <= 1, "{:?} {:?}", one, other);
            }
            // Each part is rounded for itself; what that leaves is in the remainder.
            prop_assert!((there.remainder.bytes + back.remainder.bytes).abs() <= 5);
        }

        #[test]
        fn scaling_all_bytes_scales_every_part(a in any_run(), b in any_run(), by in 2..10_u64) {
            let small = Why::between(std::slice::from_ref(&a), std::slice::from_ref(&b)).unwrap();
            let large = Why::between(&[scaled(&a, by)], &[scaled(&b, by)]).unwrap();
            for (one, other) in small.parts.iter().zip(&large.parts) {
                let off = (one.bytes * by as i64 - other.bytes).abs();
                prop_assert!(off <= 1 + by as i64 + other.bytes.abs() / 1_000_000_000, "{:?} {:?}", one, other);
            }
        }

        #[test]
        fn a_version_differs_in_nothing_from_itself(a in any_run()) {
            let why = Why::between(std::slice::from_ref(&a), std::slice::from_ref(&a)).unwrap();
            prop_assert_eq!(why.difference(), 0);
            prop_assert!(why.parts.iter().all(|part| part.bytes == 0));
        }
    }
}
