//! Findings from the exact books: each series that rises for good, told in full.

use std::collections::HashMap;

use super::Settings;
use super::class::Class;
use super::finding::{Confirmation, Driver, Finding, ItemLoss, SEVERAL_PHASES};
use super::fingerprint::fingerprint;
use super::ledger::{Growth, Ledger, Outcome, Row};
use super::words;
use crate::books::{Amount, Books, Layer, ProbeKind};

/// What the ledger's growing series add up to.
#[derive(Debug, Default)]
pub(super) struct Leaks {
    /// Memory that rises for good.
    pub(super) leaks: Vec<Finding>,
    /// Memory that rose from round to round and was back after a long wait.
    pub(super) late: Vec<Finding>,
}

/// Turns every series that rises for good into a finding.
///
/// A site takes the place of its phase where the sites tell nine tenths of it;
/// the sum of a layer is told only where no single phase carries it.
pub(super) fn find(books: &Books, ledger: &Ledger<'_>, settings: &Settings) -> Leaks {
    let mut found: Vec<(Finding, bool)> = Vec::new();
    let growing = |row: &&Row<'_>| matches!(row.outcome, Outcome::Leak(_));
    for row in ledger.rows.iter().filter(growing) {
        let Outcome::Leak(growth) = &row.outcome else {
            continue;
        };
        let told_by_sites = row.site.is_none() && {
            let sites: Amount = ledger
                .rows
                .iter()
                .filter(|site| site.site.is_some())
                .filter(|site| (site.layer, site.phase) == (row.layer, row.phase))
                .filter_map(|site| match &site.outcome {
                    Outcome::Leak(growth) => Some(growth.total),
                    _ => None,
                })
                .sum();
            settings.cost(growth.total) > 0
                && settings.cost(sites) * 10 >= settings.cost(growth.total) * 9
        };
        if !told_by_sites {
            found.push(finding(books, ledger, row, growth));
        }
    }
    for layer in &ledger.layers {
        let Outcome::Leak(growth) = &layer.outcome else {
            continue;
        };
        let told = found
            .iter()
            .any(|(finding, _)| finding.layer == layer.layer);
        if !told {
            found.push(finding(books, ledger, layer, growth));
        }
    }
    found.sort_by(|(a, _), (b, _)| {
        settings
            .cost(b.total)
            .cmp(&settings.cost(a.total))
            .then_with(|| a.fingerprint.cmp(&b.fingerprint))
    });
    let mut out = Leaks::default();
    for (finding, returned) in found {
        if returned {
            out.late.push(finding);
        } else {
            out.leaks.push(finding);
        }
    }
    out
}

/// One finding, and whether what it tells of came back after a long wait.
pub(super) fn finding(
    books: &Books,
    ledger: &Ledger<'_>,
    row: &Row<'_>,
    growth: &Growth,
) -> (Finding, bool) {
    let several = row.phase.is_empty() && row.site.is_none() && {
        ledger.layers.iter().any(|layer| std::ptr::eq(layer, row))
    };
    let phase = if several { SEVERAL_PHASES } else { row.phase };
    let counted = row.layer.is_counted();
    let class = if counted {
        Class::HandleLeak
    } else {
        Class::Leak
    };
    let round_of = |step: usize| {
        books
            .rounds
            .get(ledger.base + 1 + step)
            .map(|round| round.round)
    };

    let returned = growth.by_live
        && (came_back(books, row, growth.start, growth.total) || comes_back_in_order(row));

    let mut born_in: Vec<u32> = (growth.start..ledger.steps)
        .filter(|step| row.born.get(*step).is_some_and(|left| left.blocks > 0))
        .filter(|step| growth.by_live || step - growth.start < growth.steps)
        .filter(|step| adds_by_law(ledger, growth, *step))
        .filter_map(round_of)
        .collect();
    let by_survivors = born_in.len() >= 2;
    if !by_survivors {
        born_in = (growth.start..ledger.steps)
            .filter(
                |step| match (row.values.get(*step), row.values.get(step + 1)) {
                    (Some(a), Some(b)) => b.bytes > a.bytes || b.blocks > a.blocks,
                    _ => false,
                },
            )
            .filter_map(round_of)
            .collect();
    }
    // The same amount from rounds of the warm-up: it began before the measuring.
    if growth.start == 0
        && growth.driver == Driver::PerRound
        && let (Some(each), Some(base)) = (growth.per_driver, books.rounds.get(ledger.base))
    {
        let mut round = base.round;
        while row.born_before.get(&round) == Some(&each) {
            born_in.push(round);
            let Some(before) = round.checked_sub(1) else {
                break;
            };
            round = before;
        }
    }

    born_in.sort_unstable();
    born_in.dedup();

    let mut confirmed = Vec::new();
    if growth.by_live {
        confirmed.push(Confirmation::LiveRises);
    }
    if by_survivors {
        confirmed.push(Confirmation::SurvivorsOfEachRound);
    }
    if growth.constant {
        confirmed.push(Confirmation::ConstantStep);
    }
    if books.final_settle.is_some_and(|settle| settle.settled) && !returned {
        confirmed.push(Confirmation::OutlastsSettling);
    }
    for probe in &books.probes {
        let added = probe.live_after - probe.live_before;
        match probe.kind {
            ProbeKind::Idle if added.bytes > 0 => confirmed.push(Confirmation::IdleAdds),
            ProbeKind::Idle => confirmed.push(Confirmation::IdleAddsNothing),
            ProbeKind::Replay if added.bytes > 0 => confirmed.push(Confirmation::ReplayAdds),
            _ => {}
        }
    }
    confirmed.sort_unstable();
    confirmed.dedup();

    let per_item = item_loss(books, row, &born_in);
    let mut finding = Finding {
        class,
        layer: row.layer,
        phase: phase.to_owned(),
        site: row.site.map(str::to_owned),
        driver: growth.driver,
        per_driver: growth.per_driver,
        also_fits: growth.also_fits.clone(),
        since_round: born_in.first().copied(),
        born_in,
        over_rounds: u32::try_from(growth.steps).unwrap_or(u32::MAX),
        total: growth.total,
        per_item,
        cause: None,
        confirmed,
        fingerprint: fingerprint(row.layer, phase, row.site),
        sentence: String::new(),
    };
    finding.sentence = sentence(&finding, returned);
    (finding, returned)
}

/// Whether a step belongs to the law: for errors, the rounds that had some.
fn adds_by_law(ledger: &Ledger<'_>, growth: &Growth, step: usize) -> bool {
    let happened = |events: &[i64]| events.get(step).is_some_and(|e| *e > 0);
    match growth.driver {
        Driver::PerError => happened(&ledger.happened.errors),
        Driver::PerThread => happened(&ledger.happened.threads),
        _ => true,
    }
}

/// Whether growth at the ends of the rounds was gone after the long wait: less
/// than half of it is left by the rounds that bore it, and that wait returned as
/// much.
///
/// What a round keeps in a block that only became larger has no birth in that
/// round either; but nothing came back of it.
pub(super) fn came_back(books: &Books, row: &Row<'_>, start: usize, total: Amount) -> bool {
    let left: Amount = row.born.iter().skip(start).copied().sum();
    !row.layer.is_counted()
        && total.bytes > 0
        && i128::from(left.bytes) * 2 < i128::from(total.bytes)
        && i128::from(returned_late(books).bytes) * 2 >= i128::from(total.bytes)
}

/// Whether what grows is a queue of things that wait for their release: live
/// memory rises from the first sixth of the rounds on and still does, hardly a byte
/// of what those first rounds bore is left, and the rounds after them bore what it
/// grew by. (A window of the last rounds rises at first, and then no more.)
///
/// A structure that each round builds anew and larger has blocks of the last round
/// alone.
fn comes_back_in_order(row: &Row<'_>) -> bool {
    let (born, n) = (&row.born, row.born.len());
    let early = n / 6;
    if row.layer.is_counted() || early < 2 || row.values.len() != n + 1 {
        return false;
    }
    let total = row.values[n] - row.values[0];
    let bytes = |part: &[Amount]| part.iter().map(|left| i128::from(left.bytes)).sum::<i128>();
    let (gone, rest) = born.split_at(early);
    let (left, last) = (bytes(rest), bytes(&rest[rest.len() - 1..]));
    let rose_early = i128::from((row.values[early] - row.values[0]).bytes);
    let rose_late = i128::from((row.values[n] - row.values[n / 2]).bytes);
    total.blocks > 0
        && total.bytes > 0
        && rose_early * 2 * (n as i128) >= i128::from(total.bytes) * (early as i128)
        && rose_late * 3 >= i128::from(total.bytes)
        && bytes(gone) * 50 <= left
        && left * 2 >= i128::from(total.bytes)
        && last * 2 < left
}

/// What came back in the long waits after the last round.
fn returned_late(books: &Books) -> Amount {
    let settle = books
        .final_settle
        .map_or(Amount::ZERO, |settle| settle.before - settle.after);
    books
        .probes
        .iter()
        .filter(|probe| matches!(probe.kind, ProbeKind::Idle | ProbeKind::Drain))
        .map(|probe| probe.live_before - probe.live_after)
        .fold(settle, |a, b| a + b)
}

/// What single items of these rounds lost, the last round left out.
fn item_loss(books: &Books, row: &Row<'_>, born_in: &[u32]) -> Option<ItemLoss> {
    let last = books.rounds.last()?.round;
    let first = *born_in.first()?;
    let mut items: HashMap<(u32, u32), Amount> = HashMap::new();
    for book in &books.items {
        let here = book.layer == row.layer && (row.phase.is_empty() || book.phase == row.phase);
        if here && (first..last).contains(&book.round) {
            *items.entry((book.round, book.item)).or_default() += book.allocated - book.released;
        }
    }
    let mut lost = items.values().filter(|missing| !missing.is_zero());
    let each = *lost.next()?;
    let same = lost.clone().all(|missing| *missing == each);
    Some(ItemLoss {
        each: same.then_some(each),
        losing: 1 + lost.count() as u64,
        items: items.len() as u64,
    })
}

/// What is counted in a layer, in words.
pub(super) fn thing(layer: Layer) -> &'static str {
    match layer {
        Layer::Threads => "thread",
        Layer::Fds => "file descriptor",
        Layer::GpuContexts => "GPU context",
        Layer::GpuStreams => "GPU stream",
        Layer::GpuEvents => "GPU event",
        Layer::GpuModules => "GPU module",
        Layer::GpuGraphs => "GPU graph",
        Layer::GpuPools => "GPU pool",
        Layer::GpuImports => "GPU import",
        _ => "block",
    }
}

/// An amount of a layer: bytes in blocks, or a count of things.
pub(crate) fn amount(layer: Layer, a: Amount) -> String {
    if layer.is_counted() {
        words::count(a.blocks, thing(layer))
    } else {
        words::amount(a)
    }
}

fn sentence(finding: &Finding, returned: bool) -> String {
    let Finding {
        layer,
        driver,
        total,
        ..
    } = finding;
    let place = match (&finding.site, finding.phase.as_str()) {
        (Some(site), phase) => format!(" born in phase {phase} at {site}"),
        (None, SEVERAL_PHASES) => " born in several phases".to_owned(),
        (None, "") => String::new(),
        (None, phase) => format!(" born in phase {phase}"),
    };
    let what = if layer.is_counted() {
        format!("{}s{place}", thing(*layer))
    } else {
        format!("{layer} memory{place}")
    };
    let how = match finding.per_driver {
        Some(each) => format!("{} {}", amount(*layer, each), driver.words()),
        None => {
            let rounds = i64::from(finding.over_rounds.max(1));
            let average = Amount::new(total.bytes / rounds, total.blocks / rounds);
            let per = if layer.is_counted() || average.bytes == 0 {
                format!(
                    "{} in {}",
                    amount(*layer, *total),
                    words::count(rounds, "round")
                )
            } else {
                format!("about {} per round", words::count(average.bytes, "byte"))
            };
            match driver {
                Driver::PerRound => format!("{per}, more in each round"),
                Driver::Unknown => format!("{per}, {}", driver.words()),
                _ => format!("{per}, growing {}", driver.words()),
            }
        }
    };
    let since = finding
        .since_round
        .map_or(String::new(), |round| format!(", since round {round}"));
    let sum = format!(
        "{} in {}",
        if layer.is_counted() {
            amount(*layer, *total)
        } else {
            words::count(total.bytes, "byte")
        },
        words::count(i64::from(finding.over_rounds), "round")
    );
    let verb = if returned {
        "is released more slowly than it is allocated"
    } else if layer.is_gpu_handle() {
        "are never destroyed"
    } else if layer.is_counted() {
        "are never closed"
    } else {
        "is never released"
    };
    let items = match finding.per_item {
        Some(ItemLoss {
            each: Some(each),
            losing,
            items,
        }) if !returned => format!(
            "; {} of {} lost {} each",
            words::grouped(i64::try_from(losing).unwrap_or(i64::MAX)),
            words::count(i64::try_from(items).unwrap_or(i64::MAX), "item"),
            amount(*layer, each)
        ),
        _ => String::new(),
    };
    format!("{what} {verb}: {how}{since} ({sum}{items})")
}
