//! What the system holds for the workload beyond what the ledger knows.

use super::Settings;
use super::finding::Confirmation;
use super::gauges::{self, Trend};
use super::ledger::Ledger;
use crate::books::{Books, Gauges, Layer, MapKind, ProbeKind};

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
    let trims = out
        .kept
        .and_then(|kept| kept.trim)
        .or_else(|| trimmed(books));
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
        let trim_returned_it = trims.is_some_and(|trim| trim.returned.saturating_mul(2) >= total);
        if theirs.saturating_mul(2) >= total {
            growing.found.maps = maps;
            growing.found.witness = Some(Confirmation::MappingsGrow);
        } else if trims.is_some_and(|trim| {
            // What a trim returns need not be of this growth; what it leaves is.
            let left = total.saturating_sub(trim.returned.max(0));
            trim.returned.saturating_mul(2) < total && left >= signed(settings.gauge_floor_bytes)
        }) {
            growing.found.witness = Some(Confirmation::OutlastsTrim);
        }
        growing.found.by_allocator = allocator_has_it && growing.found.witness.is_none();
        if !trim_returned_it {
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
