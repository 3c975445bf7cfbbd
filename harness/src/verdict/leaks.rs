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
            let average = total.bytes / rounds;
            let per = if layer.is_counted() || average == 0 {
                format!(
                    "{} in {}",
                    amount(*layer, *total),
                    words::count(rounds, "round")
                )
            } else {
                format!("about {} per round", words::count(average, "byte"))
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

#[cfg(test)]
mod tests {
    use super::super::simulated::Program;
    use super::*;
    use crate::books::{ItemBook, Probe, Settle};

    /// What is alive after each round and what is left of each, in bytes; one block
    /// more in each round.
    fn row(values: &[i64], left: &[i64]) -> Row<'static> {
        let amount = |(at, bytes): (usize, &i64)| Amount::new(*bytes, at as i64 + 1);
        let values: Vec<Amount> = values.iter().enumerate().map(amount).collect();
        Row {
            layer: Layer::RustHeap,
            phase: "ntt",
            site: None,
            values: values.into(),
            born: left.iter().map(|bytes| Amount::new(*bytes, 1)).collect(),
            born_before: Default::default(),
            outcome: Outcome::Flat,
        }
    }

    fn probe(kind: ProbeKind, before: i64, after: i64) -> Probe {
        Probe {
            kind,
            seconds: 1.0,
            live_before: Amount::new(before, 1),
            live_after: Amount::new(after, 1),
            before: None,
            after: None,
        }
    }

    fn settle(settled: bool, before: i64, after: i64) -> Settle {
        Settle {
            settled,
            seconds: 1.0,
            before: Amount::new(before, 1),
            after: Amount::new(after, 1),
        }
    }

    #[test]
    fn growth_came_back_where_less_than_half_is_left_and_half_was_returned() {
        let mut books = Program::new(1, 4).books();
        let came_back = |books: &Books, left: i64| {
            came_back(books, &row(&[], &[999, left]), 1, Amount::new(100, 1))
        };
        books.final_settle = Some(settle(true, 500, 450));
        assert!(came_back(&books, 49));
        assert!(!came_back(&books, 50));
        books.final_settle = Some(settle(true, 500, 451));
        assert!(!came_back(&books, 49));
        // What each of the waits returned counts; a trim is none.
        books.probes = vec![probe(ProbeKind::Trim, 9, 1), probe(ProbeKind::Replay, 9, 1)];
        assert!(!came_back(&books, 49));
        books.probes.push(probe(ProbeKind::Drain, 451, 450));
        assert!(came_back(&books, 49));
        books.final_settle = None;
        assert!(!came_back(&books, 49));
        books.probes.push(probe(ProbeKind::Idle, 450, 401));
        assert!(came_back(&books, 49));
        let mut threads = row(&[], &[0, 0]);
        threads.layer = Layer::Threads;
        assert!(!super::came_back(&books, &threads, 1, Amount::new(100, 1)));
    }

    #[test]
    fn a_queue_of_releases_grows_from_first_to_last_and_holds_nothing_of_the_first_rounds() {
        let line: Vec<i64> = (0..=12).map(|round| 1000 * round).collect();
        let held = [
            0, 0, 1200, 1200, 1200, 1200, 1200, 1200, 1200, 1200, 1200, 1200,
        ];
        let with = |at: usize, bytes: i64| {
            let mut values = line.clone();
            values[at] = bytes;
            comes_back_in_order(&row(&values, &held))
        };
        let held_with = |at: &[(usize, i64)]| {
            let mut held = held;
            for (at, bytes) in at {
                held[*at] = *bytes;
            }
            comes_back_in_order(&row(&line, &held))
        };
        assert!(comes_back_in_order(&row(&line, &held)));
        // In the first sixth it rises by half of its share at least.
        assert!(with(2, 1000) && !with(2, 999));
        // In the second half by a third of all.
        assert!(with(6, 8000) && !with(6, 8001));
        // Hardly a byte of the first rounds is left, and half of it of the later ones.
        assert!(held_with(&[(0, 240)]) && !held_with(&[(1, 241)]));
        let half = |first: i64| held_with(&[(2, first), (3, 0), (4, 0), (5, 0), (6, 0)]);
        assert!(half(0) && !half(-1));
        // More than half of it of those before the last.
        assert!(held_with(&[(11, 10_799)]) && !held_with(&[(11, 10_800)]));
        let mut short = row(&line, &held);
        short.values = short.values[1..].to_vec().into();
        assert!(!comes_back_in_order(&short));
        let few: Vec<i64> = (0..=11).map(|round| 1000 * round).collect();
        assert!(!comes_back_in_order(&row(&few, &held[..11])));
        let mut threads = row(&line, &held);
        threads.layer = Layer::Threads;
        assert!(!comes_back_in_order(&threads));
        let mut larger = row(&line, &held);
        for value in larger.values.to_mut() {
            value.blocks = 1;
        }
        assert!(!comes_back_in_order(&larger), "as many blocks as before");
    }

    #[test]
    fn a_step_adds_by_its_law_where_the_event_happened() {
        let mut ledger = Ledger::default();
        ledger.happened.errors = vec![0, 1];
        ledger.happened.threads = vec![2, 0];
        let adds = |driver| {
            let growth = Growth {
                driver,
                per_driver: None,
                also_fits: Vec::new(),
                start: 0,
                steps: 2,
                total: Amount::ZERO,
                constant: true,
                by_live: true,
            };
            [0, 1].map(|step| adds_by_law(&ledger, &growth, step))
        };
        assert_eq!(adds(Driver::PerError), [false, true]);
        assert_eq!(adds(Driver::PerThread), [true, false]);
        assert_eq!(adds(Driver::PerRound), [true, true]);
    }

    #[test]
    fn items_lost_what_those_of_the_layer_and_phase_lost_before_the_last_round() {
        let mut books = Program::new(1, 4).books();
        let item = |round, item, layer, phase: &str, lost: i64| ItemBook {
            round,
            item,
            layer,
            phase: phase.to_owned(),
            allocated: Amount::new(500, 5),
            released: Amount::new(500 - lost, 4),
        };
        let whole = |round| ItemBook {
            released: Amount::new(500, 5),
            ..item(round, 2, Layer::RustHeap, "ntt", 0)
        };
        let row = row(&[], &[]);
        assert_eq!(item_loss(&books, &row, &[2, 3]), None);
        books.items = vec![
            item(1, 1, Layer::RustHeap, "ntt", 1),
            item(2, 1, Layer::RustHeap, "ntt", 96),
            whole(2),
            item(3, 1, Layer::RustHeap, "ntt", 96),
            item(3, 3, Layer::Pinned, "ntt", 7),
            item(3, 4, Layer::RustHeap, "finish", 8),
            item(4, 1, Layer::RustHeap, "ntt", 9),
        ];
        let loss = |each, losing, items| {
            Some(ItemLoss {
                each,
                losing,
                items,
            })
        };
        let each = Amount::new(96, 1);
        assert_eq!(item_loss(&books, &row, &[2, 3]), loss(Some(each), 2, 3));
        assert_eq!(item_loss(&books, &row, &[1]), loss(None, 3, 4));
        assert_eq!(item_loss(&books, &row, &[]), None);
        let several = Row { phase: "", ..row };
        assert_eq!(item_loss(&books, &several, &[2, 3]), loss(None, 3, 4));
    }

    /// A finding of 120 bytes in 12 blocks over 4 rounds, told in a sentence.
    fn told(layer: Layer, change: impl Fn(&mut Finding), returned: bool) -> String {
        let mut finding = Finding {
            class: Class::Leak,
            layer,
            phase: "ntt".to_owned(),
            site: None,
            driver: Driver::PerRound,
            per_driver: None,
            also_fits: Vec::new(),
            born_in: Vec::new(),
            since_round: Some(3),
            over_rounds: 4,
            total: Amount::new(120, 12),
            per_item: None,
            cause: None,
            confirmed: Vec::new(),
            fingerprint: String::new(),
            sentence: String::new(),
        };
        change(&mut finding);
        sentence(&finding, returned)
    }

    #[test]
    fn a_finding_is_told_with_its_place_its_law_and_its_sum() {
        assert_eq!(
            told(Layer::RustHeap, |_| {}, false),
            "rust-heap memory born in phase ntt is never released: about 30 bytes per round, \
             more in each round, since round 3 (120 bytes in 4 rounds)"
        );
        let unknown = |finding: &mut Finding| {
            finding.driver = Driver::Unknown;
            finding.site = Some("a::b".to_owned());
            finding.since_round = None;
        };
        assert_eq!(
            told(Layer::Pinned, unknown, true),
            "pinned memory born in phase ntt at a::b is released more slowly than it is \
             allocated: about 30 bytes per round, at no fixed step (120 bytes in 4 rounds)"
        );
        let small = |finding: &mut Finding| {
            finding.driver = Driver::PerSecond;
            finding.total = Amount::new(3, 12);
            finding.phase = SEVERAL_PHASES.to_owned();
        };
        assert_eq!(
            told(Layer::RustHeap, small, false),
            "rust-heap memory born in several phases is never released: 3 bytes in 12 blocks \
             in 4 rounds, growing per second, since round 3 (3 bytes in 4 rounds)"
        );
    }

    #[test]
    fn a_finding_of_handles_counts_them_and_says_what_becomes_of_them() {
        let place = |finding: &mut Finding| finding.phase = String::new();
        assert_eq!(
            told(Layer::Fds, place, false),
            "file descriptors are never closed: 12 file descriptors in 4 rounds, more in each \
             round, since round 3 (12 file descriptors in 4 rounds)"
        );
        let each = |finding: &mut Finding| {
            finding.per_driver = Some(Amount::new(0, 1));
            finding.per_item = Some(ItemLoss {
                each: Some(Amount::new(0, 1)),
                losing: 3,
                items: 4,
            });
        };
        assert_eq!(
            told(Layer::GpuStreams, each, false),
            "GPU streams born in phase ntt are never destroyed: 1 GPU stream per round, since \
             round 3 (12 GPU streams in 4 rounds; 3 of 4 items lost 1 GPU stream each)"
        );
        assert!(told(Layer::GpuStreams, each, true).ends_with("(12 GPU streams in 4 rounds)"));
        let things = [
            Layer::Threads,
            Layer::Fds,
            Layer::GpuContexts,
            Layer::GpuStreams,
            Layer::GpuEvents,
            Layer::GpuModules,
            Layer::GpuGraphs,
            Layer::GpuPools,
            Layer::GpuImports,
            Layer::RustHeap,
        ]
        .map(thing);
        let gpu = [
            "context", "stream", "event", "module", "graph", "pool", "import",
        ];
        assert_eq!(things[..2], ["thread", "file descriptor"]);
        assert_eq!(things[2..9], gpu.map(|name| format!("GPU {name}")));
        assert_eq!(things[9], "block");
    }

    #[test]
    fn a_finding_is_confirmed_by_what_the_probes_showed() {
        let mut program = Program::new(1, 8);
        program.keeps(Layer::RustHeap, "ntt", |_| (96, 1));
        let mut books = program.books();
        let settings = Settings::default();
        let confirmed = |books: &Books| {
            let ledger = Ledger::read(books, &settings);
            find(books, &ledger, &settings).leaks[0].confirmed.clone()
        };
        let by_the_books = [
            Confirmation::LiveRises,
            Confirmation::SurvivorsOfEachRound,
            Confirmation::ConstantStep,
        ];
        let and = |more: &[Confirmation]| [&by_the_books, more].concat();
        assert_eq!(confirmed(&books), and(&[Confirmation::OutlastsSettling]));
        books.final_settle = Some(settle(false, 0, 0));
        books.probes = vec![
            probe(ProbeKind::Idle, 7, 7),
            probe(ProbeKind::Replay, 7, 7),
            probe(ProbeKind::Trim, 7, 9),
        ];
        assert_eq!(confirmed(&books), and(&[Confirmation::IdleAddsNothing]));
        books.probes = vec![probe(ProbeKind::Idle, 7, 8), probe(ProbeKind::Replay, 7, 8)];
        assert_eq!(
            confirmed(&books),
            and(&[Confirmation::IdleAdds, Confirmation::ReplayAdds])
        );
    }
}
