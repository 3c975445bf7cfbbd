//! What the system holds for the workload beyond what the ledger knows.

use super::Settings;
use super::finding::Confirmation;
use super::gauges::{self, Trend};
use super::ledger::Ledger;
use crate::books::{Books, Gauges, Layer, MapKind, Probe, ProbeKind};

/// Resident memory compared with live memory.
#[derive(Debug, Default)]
pub(super) struct Resident {
    /// Rounds (base and measured) whose gauges could be read, and how many there are.
    pub(super) read: usize,
    pub(super) rounds: usize,
    /// What the allocator keeps, where it is worth mentioning.
    pub(super) kept: Option<Kept>,
    /// Gauges that grow round after round without an explanation.
    pub(super) growing: Vec<Growing>,
    /// File-backed growth in bytes, worth a note and no more.
    pub(super) file_growth: i64,
}

/// Resident memory far above live memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kept {
    /// Resident minus live after the last round, in bytes.
    pub(super) bytes: i64,
    /// What a trim returned, where one was tried.
    pub(super) trim: Option<Trimmed>,
}

/// What a trim did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trimmed {
    /// Bytes that it returned.
    pub(super) returned: i64,
    /// Resident minus live before it.
    pub(super) before: i64,
    /// Whether it returned most of that.
    pub(super) most: bool,
}

/// A gauge that grows without an explanation.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Growing {
    pub(super) layer: Layer,
    pub(super) total: i64,
    pub(super) per_round: f64,
    pub(super) lower: f64,
    pub(super) upper: f64,
    /// Over so few rounds that it cannot be told from a warm-up.
    pub(super) too_few: bool,
    /// The second witness; none yet: no verdict.
    pub(super) witness: Option<Confirmation>,
    /// Names of the mappings that grew with it.
    pub(super) maps: Vec<String>,
    /// Whether it is the allocator's mappings that grew: explained, unless a trim
    /// shows that the allocator has no use for it.
    pub(super) by_allocator: bool,
}

/// Private memory that the process pays for: resident or swapped out.
pub(super) fn private(g: &Gauges) -> i64 {
    signed(g.rss_anon.saturating_add(g.swap))
}

pub(super) fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The gauge after the base round and each measured one; gaps take the value before.
pub(super) fn gauge(books: &Books, base: usize, of: impl Fn(&Gauges) -> i64) -> Option<Vec<i64>> {
    let rounds = books.rounds.get(base..)?;
    let mut last = rounds
        .iter()
        .find_map(|round| round.gauges.as_ref())
        .map(&of)?;
    Some(
        rounds
            .iter()
            .map(|round| {
                if let Some(gauges) = &round.gauges {
                    last = of(gauges);
                }
                last
            })
            .collect(),
    )
}

/// Compares resident with live memory.
pub(super) fn judge(books: &Books, ledger: &Ledger<'_>, settings: &Settings) -> Resident {
    let rounds = books.rounds.get(ledger.base..).unwrap_or_default();
    let mut out = Resident {
        read: rounds.iter().filter(|round| round.gauges.is_some()).count(),
        rounds: rounds.len(),
        ..Resident::default()
    };
    let Some(anon) = gauge(books, ledger.base, private) else {
        return out;
    };
    let peak_live = books
        .rounds
        .iter()
        .map(|round| signed(round.peak_bytes))
        .max()
        .unwrap_or(0);
    let live: Vec<i64> = ledger.heap().iter().map(|a| a.bytes.max(0)).collect();
    // A block that is live and was never touched explains what becomes resident in it.
    let gap: Vec<i64> = anon
        .iter()
        .zip(&live)
        .map(|(r, l)| r.saturating_sub(*l).max(0))
        .collect();

    out.kept = kept(books, ledger, &gap, peak_live, settings);

    // Resident memory that was live at some time is explained: the allocator keeps it.
    let explained = peak_live
        .saturating_add(peak_live / 10)
        .saturating_add(8 << 20);
    let exceeds = anon.last().is_some_and(|last| *last > explained);
    let given_back = given_back(books);
    let (maps, theirs, allocators) = grown_maps(books, ledger.base, |kind| {
        matches!(kind, MapKind::Anon | MapKind::Stack)
    });
    // So long a growth of mappings that are not malloc's is not malloc's retention.
    let others = |total: i64| {
        let long = usize::try_from(settings.gauge_rounds).unwrap_or(usize::MAX);
        theirs.saturating_mul(2) >= total && ledger.steps >= 2 * long
    };
    if let Some(mut growing) = growing(Layer::Anon, &gap, &anon, settings)
        && (exceeds || (ledger.steps >= 12 && growing.even) || others(growing.found.total))
    {
        let total = growing.found.total;
        let allocator_has_it = allocators.saturating_mul(2) >= total;
        let was_given_back = given_back.is_some_and(|bytes| bytes.saturating_mul(2) >= total);
        if theirs.saturating_mul(2) >= total {
            growing.found.maps = maps;
            growing.found.witness = Some(Confirmation::MappingsGrow);
        } else if given_back.is_some_and(|bytes| {
            // What a trim returns need not be of this growth; what it leaves is.
            total.saturating_sub(bytes) >= signed(settings.gauge_floor_bytes)
        }) {
            growing.found.witness = Some(Confirmation::OutlastsTrim);
        }
        growing.found.by_allocator = allocator_has_it && growing.found.witness.is_none();
        if !was_given_back {
            out.growing.push(growing.found);
        }
    }
    // The GPU's driver shares page-locked memory with the card, and the ledger knows it.
    let pinned = ledger.held(|layer| layer == Layer::Pinned);
    let pinned: Vec<i64> = pinned.iter().map(|held| held.bytes.max(0)).collect();
    for (layer, of) in [
        (
            Layer::Shmem,
            (|g| signed(g.rss_shmem)) as fn(&Gauges) -> i64,
        ),
        (Layer::Shmem, |g| signed(g.hugetlb)),
    ] {
        let Some(values) = gauge(books, ledger.base, of) else {
            continue;
        };
        let unexplained: Vec<i64> = (values.iter().zip(&pinned))
            .map(|(all, pinned)| all.saturating_sub(*pinned).max(0))
            .collect();
        if let Some(mut growing) = growing(layer, &unexplained, &values, settings) {
            let (maps, theirs, _) = grown_maps(books, ledger.base, |kind| kind == MapKind::Shmem);
            let stays = books.probes.iter().any(|probe| {
                matches!((&probe.before, &probe.after), (Some(before), Some(after))
                    if of(before).saturating_sub(of(after)).saturating_mul(4) < growing.found.total)
            });
            if theirs.saturating_mul(2) >= growing.found.total {
                growing.found.maps = maps;
                growing.found.witness = Some(Confirmation::MappingsGrow);
            } else if stays {
                growing.found.witness = Some(Confirmation::OutlastsSettling);
            }
            out.growing.push(growing.found);
        }
    }
    if let Some(file) = gauge(books, ledger.base, |g| signed(g.rss_file)) {
        out.file_growth = match (file.first(), file.last()) {
            (Some(first), Some(last)) => last.saturating_sub(*first),
            _ => 0,
        };
    }
    out
}

struct Candidate {
    found: Growing,
    even: bool,
}

fn growing(layer: Layer, values: &[i64], whole: &[i64], settings: &Settings) -> Option<Candidate> {
    let total = values.last()?.saturating_sub(*values.first()?);
    let floor = (*whole.first()? as f64 * settings.gauge_floor_share)
        .max(settings.gauge_floor_bytes as f64);
    if (total as f64) < floor {
        return None;
    }
    let numbers: Vec<f64> = values.iter().map(|v| *v as f64).collect();
    let wide = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    let (slope, even) = match gauges::trend(
        &numbers,
        wide(settings.gauge_even_rounds),
        wide(settings.gauge_rounds),
    ) {
        Trend::None => return None,
        Trend::TooFew => (gauges::theil_sen(&numbers)?, true),
        Trend::Even(slope) => (slope, true),
        Trend::Long(slope) => (slope, false),
    };
    Some(Candidate {
        found: Growing {
            layer,
            total,
            per_round: slope.per_round,
            lower: slope.lower,
            upper: slope.upper,
            too_few: values.len() <= wide(settings.gauge_even_rounds),
            witness: None,
            maps: Vec::new(),
            by_allocator: false,
        },
        even,
    })
}

/// Names of the mappings of these kinds that grew, by how much together, and
/// by how much the allocator's grew.
fn grown_maps(
    books: &Books,
    base: usize,
    kinds: impl Fn(MapKind) -> bool,
) -> (Vec<String>, i64, i64) {
    let (mut names, mut theirs, mut allocators) = (Vec::new(), 0i64, 0i64);
    for map in &books.maps {
        if map.resident.len() != books.rounds.len() {
            continue;
        }
        let (Some(first), Some(last)) = (map.resident.get(base), map.resident.last()) else {
            continue;
        };
        let growth = signed(*last).saturating_sub(signed(*first));
        if growth > 0 && kinds(map.kind) {
            names.push(map.name.clone());
            theirs = theirs.saturating_add(growth);
        } else if growth > 0 && map.kind == MapKind::Allocator {
            allocators = allocators.saturating_add(growth);
        }
    }
    names.sort_unstable();
    names.dedup();
    (names, theirs, allocators)
}

fn kept(
    books: &Books,
    ledger: &Ledger<'_>,
    gap: &[i64],
    peak_live: i64,
    settings: &Settings,
) -> Option<Kept> {
    // Mappings that the workload made and holds are nothing that an allocator keeps.
    let mapped = ledger.held(|layer| layer == Layer::Anon);
    let mapped = mapped.last().map_or(0, |a| a.bytes);
    let bytes = gap.last()?.saturating_sub(mapped.max(0));
    let floor = resident_floor(peak_live, settings);
    if (bytes as f64) < floor {
        return None;
    }
    Some(Kept {
        bytes,
        trim: trimmed(books),
    })
}

fn resident_floor(peak_live: i64, settings: &Settings) -> f64 {
    (peak_live as f64 * settings.resident_floor_share).max(settings.resident_floor_bytes as f64)
}

fn trimmed(books: &Books) -> Option<Trimmed> {
    let probe = books
        .probes
        .iter()
        .find(|probe| probe.kind == ProbeKind::Trim)?;
    let (before, after) = (probe.before.as_ref()?, probe.after.as_ref()?);
    let returned = private(before).saturating_sub(private(after));
    let gap = private(before).saturating_sub(probe.live_before.bytes.max(0));
    Some(Trimmed {
        returned,
        before: gap,
        most: returned.saturating_mul(2) >= gap,
    })
}

/// What the system got back in a trim and in the probes before it, beyond what was released
/// meanwhile: an allocator may give back already while it idles. `None` without a trim.
fn given_back(books: &Books) -> Option<i64> {
    trimmed(books)?;
    let of_probe = |probe: &Probe| {
        let (before, after) = (probe.before.as_ref()?, probe.after.as_ref()?);
        let returned = private(before).saturating_sub(private(after));
        let released = probe.live_before - probe.live_after;
        Some(returned.saturating_sub(released.bytes.max(0)).max(0))
    };
    let probes = books.probes.iter().filter_map(of_probe);
    Some(probes.fold(0, i64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::super::simulated::{FOR_EVER, Program, trim};
    use super::*;
    use crate::books::{Amount, MapSeries, Series};

    const MIB: u64 = 1 << 20;
    const MIB_I: i64 = 1 << 20;

    /// A run with these gauges after each round, and the first as its warm-up.
    fn books(rounds: u64, of: impl Fn(u64) -> Gauges) -> Books {
        let mut program = Program::new(1, rounds as u32);
        program.gauges = (1..=rounds).map(of).collect();
        program.books()
    }

    fn anon(bytes: u64) -> Gauges {
        Gauges {
            rss_anon: bytes,
            ..Gauges::default()
        }
    }

    /// A run whose anonymous memory grows by a mebibyte in each round, to so much.
    fn grows_to(last: u64, rounds: u64) -> Books {
        books(rounds, |round| anon(last - (rounds - round) * MIB))
    }

    fn map(kind: MapKind, rounds: u64, of: impl Fn(u64) -> u64) -> MapSeries {
        MapSeries {
            name: "a map".to_owned(),
            kind,
            resident: (1..=rounds).map(of).collect(),
        }
    }

    fn peak(books: &mut Books, bytes: u64) {
        books
            .rounds
            .iter_mut()
            .for_each(|round| round.peak_bytes = bytes);
    }

    fn judged(books: &Books) -> Resident {
        let settings = Settings::default();
        judge(books, &Ledger::read(books, &settings), &settings)
    }

    #[test]
    fn a_gap_in_a_gauge_takes_the_value_before_it() {
        let mut books = books(5, |round| anon(round * 10));
        books.rounds[0].gauges = None;
        books.rounds[1].gauges = None;
        books.rounds[3].gauges = None;
        assert_eq!(gauge(&books, 0, private), Some(vec![30, 30, 30, 30, 50]));
        let resident = judged(&books);
        assert_eq!((resident.read, resident.rounds), (2, 5));
        books
            .rounds
            .iter_mut()
            .for_each(|round| round.gauges = None);
        assert_eq!(gauge(&books, 0, private), None);
        assert_eq!(private(&Gauges { swap: 4, ..anon(3) }), 7);
    }

    #[test]
    fn what_the_allocator_keeps_is_told_from_a_quarter_of_the_peak_and_16_mebibytes_on() {
        let kept = |resident: u64, peak_live: u64| {
            let mut books = books(8, |_| anon(resident));
            peak(&mut books, peak_live);
            judged(&books).kept.map(|kept| kept.bytes)
        };
        assert_eq!(kept(25 * MIB, 100 * MIB), Some(25 * MIB_I));
        assert_eq!(kept(25 * MIB - 1, 100 * MIB), None);
        assert_eq!(kept(16 * MIB, MIB), Some(16 * MIB_I));
        assert_eq!(kept(16 * MIB - 1, MIB), None);
        // What is alive is not kept by the allocator, nor is what was mapped.
        let mut program = Program::new(1, 8);
        program.block(Layer::RustHeap, "ntt", 1, FOR_EVER, 5 * MIB_I, 1);
        program.block(Layer::Anon, "ntt", 1, FOR_EVER, 3 * MIB_I, 1);
        program.gauges = vec![anon(30 * MIB); 8];
        let kept = judged(&program.books()).kept.map(|kept| kept.bytes);
        assert_eq!(kept, Some(22 * MIB_I));
    }

    #[test]
    fn a_trim_returned_most_from_half_of_what_was_kept_on() {
        let mut books = books(8, |_| Gauges {
            swap: 10 * MIB,
            ..anon(40 * MIB)
        });
        let mut trimmed = |after: u64| {
            let mut probe = trim(&books, after);
            probe.live_before = Amount::new(10 * MIB_I, 1);
            books.probes = vec![probe];
            judged(&books).kept.and_then(|kept| kept.trim)
        };
        // Ten mebibytes stay swapped out.
        let trim = |returned, most| {
            Some(Trimmed {
                returned,
                before: 40 * MIB_I,
                most,
            })
        };
        assert_eq!(trimmed(20 * MIB), trim(20 * MIB_I, true));
        assert_eq!(trimmed(20 * MIB + 1), trim(20 * MIB_I - 1, false));
    }

    #[test]
    fn growth_within_what_was_live_once_is_explained_unless_it_is_long_and_even() {
        let grows = |last: u64, rounds: u64| {
            let mut books = grows_to(last, rounds);
            peak(&mut books, 100 * MIB);
            judged(&books).growing.len()
        };
        // A tenth above the peak, and eight mebibytes.
        assert_eq!(grows(118 * MIB, 9), 0);
        assert_eq!(grows(118 * MIB + 1, 9), 1);
        assert_eq!(grows(60 * MIB, 12), 0);
        assert_eq!(grows(60 * MIB, 13), 1);
    }

    #[test]
    fn growth_is_told_from_four_mebibytes_and_a_fiftieth_on_and_by_how_much() {
        let growing = |first: u64, step: u64, rounds: u64| {
            let books = books(rounds, |round| anon(first + (round - 1) * step));
            judged(&books).growing.first().cloned()
        };
        let found = growing(60 * MIB, MIB / 2, 9).expect("it grows");
        assert_eq!((found.layer, found.total), (Layer::Anon, 4 * MIB_I));
        let half = (MIB / 2) as f64;
        assert_eq!(
            (found.per_round, found.lower, found.upper),
            (half, half, half)
        );
        assert!(!found.too_few && !found.by_allocator && found.witness.is_none());
        assert_eq!(growing(60 * MIB, MIB / 2 - 1, 9), None);
        assert!(growing(400 * MIB, MIB, 9).is_some());
        assert!(growing(401 * MIB, MIB, 9).is_none());
        // Of seven measured rounds it cannot be told from a warm-up.
        assert!(growing(60 * MIB, MIB, 8).is_some_and(|found| found.too_few));
        assert!(growing(60 * MIB, MIB, 9).is_some_and(|found| !found.too_few));
    }

    #[test]
    fn mappings_that_grow_by_half_of_it_are_a_witness_or_an_explanation() {
        let with = |maps: Vec<MapSeries>| {
            let mut books = grows_to(80 * MIB, 13);
            books.maps = maps;
            judged(&books).growing[0].clone()
        };
        let half = |round: u64| round * MIB / 2;
        let less = |round: u64| round * (MIB / 2 - 1);
        let still = MapSeries {
            name: "another".to_owned(),
            ..map(MapKind::Anon, 13, |_| MIB)
        };
        let named = with(vec![map(MapKind::Anon, 13, half), still]);
        assert_eq!(named.witness, Some(Confirmation::MappingsGrow));
        assert_eq!(named.maps, ["a map"]);
        let stack = with(vec![map(MapKind::Stack, 13, half)]);
        assert_eq!(stack.witness, Some(Confirmation::MappingsGrow));
        let unnamed = with(vec![map(MapKind::Anon, 13, less)]);
        assert_eq!((unnamed.witness, unnamed.maps.len()), (None, 0));
        assert!(!unnamed.by_allocator);
        assert!(with(vec![map(MapKind::Allocator, 13, half)]).by_allocator);
        assert!(!with(vec![map(MapKind::Allocator, 13, less)]).by_allocator);
        let both = with(vec![
            map(MapKind::Allocator, 13, half),
            map(MapKind::Anon, 13, half),
        ]);
        assert_eq!(both.witness, Some(Confirmation::MappingsGrow));
        assert!(!both.by_allocator);
        // Maps that were not read after each round, that shrink, or of other kinds.
        let shrinks = |round: u64| (100 - round) * MIB;
        let others = with(vec![
            map(MapKind::Anon, 12, |round| round * MIB),
            map(MapKind::Anon, 13, shrinks),
            map(MapKind::Allocator, 13, shrinks),
        ]);
        assert_eq!((others.witness, others.by_allocator), (None, false));
        let shared = with(vec![map(MapKind::Shmem, 13, half)]);
        assert_eq!((shared.witness, shared.by_allocator), (None, false));
    }

    #[test]
    fn what_a_trim_leaves_is_a_witness_where_it_returned_less_than_half() {
        let trimmed = |growth: u64, after: u64| {
            let step = growth / 12;
            let mut books = books(13, |round| anon(60 * MIB + (round - 1) * step));
            books.probes = vec![trim(&books, after)];
            let growing = judged(&books).growing;
            growing.first().map(|growing| growing.witness)
        };
        let outlasts = Some(Some(Confirmation::OutlastsTrim));
        assert_eq!(trimmed(12 * MIB, 66 * MIB + 1), outlasts);
        assert_eq!(trimmed(12 * MIB, 66 * MIB), None);
        // Four mebibytes are left of six; or less.
        assert_eq!(trimmed(6 * MIB, 64 * MIB), outlasts);
        assert_eq!(trimmed(6 * MIB, 64 * MIB - 1), Some(None));
        // More is resident after the trim.
        assert_eq!(trimmed(6 * MIB, 70 * MIB), outlasts);
    }

    #[test]
    fn what_idling_gave_back_beyond_what_was_released_counts_with_the_trim() {
        let idled = |returned: u64, released: u64| {
            let mut books = books(13, |round| anon(60 * MIB + (round - 1) * MIB));
            let mut idle = trim(&books, 72 * MIB - returned);
            idle.kind = ProbeKind::Idle;
            idle.live_before = idle.live_after + Amount::new(signed(released), 1);
            let mut trim = trim(&books, 67 * MIB - returned);
            trim.before = idle.after;
            books.probes = vec![idle, trim];
            let growing = judged(&books).growing;
            growing.first().map(|growing| growing.witness)
        };
        let outlasts = Some(Some(Confirmation::OutlastsTrim));
        // The trim gives five of twelve back, and idling one more, or none.
        assert_eq!(idled(9 * MIB, 8 * MIB), None);
        assert_eq!(idled(9 * MIB, 8 * MIB + 1), outlasts);
        assert_eq!(idled(0, 0), outlasts);
        // Released blocks that were never written give nothing back.
        assert_eq!(idled(MIB, 9 * MIB), outlasts);
        // Growth of live memory meanwhile is no reason to count more.
        let mut books = books(13, |round| anon(60 * MIB + (round - 1) * MIB));
        books.probes = vec![trim(&books, 67 * MIB)];
        books.probes[0].live_after += Amount::new(50 * MIB_I, 1);
        assert!(!judged(&books).growing.is_empty());
    }

    #[test]
    fn other_mappings_that_carry_long_growth_are_no_retention_of_malloc() {
        let rss = |round: u64| (60 + round * 4 + round * 7 % 5 * 3) * MIB;
        let grows = |rounds: u64, share: u64| {
            let mut books = books(rounds, |round| anon(rss(round)));
            peak(&mut books, 1 << 30);
            books.maps = vec![map(MapKind::Anon, rounds, |round| rss(round) / share)];
            judged(&books).growing.len()
        };
        assert_eq!(grows(49, 1), 1);
        assert_eq!(grows(48, 1), 0);
        assert_eq!(grows(49, 2), 1);
        assert_eq!(grows(49, 3), 0);
    }

    #[test]
    fn shared_memory_that_grows_is_believed_by_its_mappings_or_where_it_stays() {
        let rounds = 13;
        let of = |round: u64| Gauges {
            rss_shmem: 60 * MIB + round * MIB,
            ..anon(2 * MIB)
        };
        let shared = books(rounds, of);
        let alone = judged(&shared).growing;
        assert_eq!((alone.len(), alone[0].layer), (1, Layer::Shmem));
        assert_eq!((alone[0].total, alone[0].witness), (12 * MIB_I, None));
        let mut mapped = shared.clone();
        mapped.maps = vec![map(MapKind::Shmem, rounds, |round| round * MIB / 2)];
        let found = &judged(&mapped).growing[0];
        assert_eq!(found.witness, Some(Confirmation::MappingsGrow));
        assert_eq!(found.maps, ["a map"]);
        mapped.maps[0].kind = MapKind::Anon;
        assert_eq!(judged(&mapped).growing[0].witness, None);
        // A wait returned less than a quarter of it, or a quarter.
        let mut waited = shared.clone();
        for (returned, witness) in [
            (3 * MIB - 1, Some(Confirmation::OutlastsSettling)),
            (3 * MIB, None),
        ] {
            let mut probe = trim(&waited, 2 * MIB);
            let before = of(rounds);
            probe.before = Some(before);
            probe.after = Some(Gauges {
                rss_shmem: before.rss_shmem - returned,
                ..before
            });
            waited.probes = vec![probe];
            assert_eq!(judged(&waited).growing[0].witness, witness);
        }
        // Huge pages are shared memory too; page-locked memory explains it.
        let huge = books(rounds, |round| Gauges {
            hugetlb: round * MIB,
            ..anon(2 * MIB)
        });
        assert_eq!(judged(&huge).growing[0].layer, Layer::Shmem);
        let mut pinned = shared;
        pinned.series.push(Series {
            layer: Layer::Pinned,
            phase: "msm".to_owned(),
            live: (1..=13).map(|n| Amount::new(n * MIB_I, n)).collect(),
        });
        assert!(judged(&pinned).growing.is_empty());
    }

    #[test]
    fn file_pages_grow_by_the_last_less_the_first() {
        let books = books(6, |round| Gauges {
            rss_file: 100 + round * round,
            ..anon(2 * MIB)
        });
        assert_eq!(judged(&books).file_growth, 35);
    }
}
