//! What an adaptive run should do next.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Settings;
use super::backlog::Queue;
use super::evidence::Evidence;
use super::ledger::{self, Outcome};
use super::words;
use crate::books::{Books, Ending, ProbeKind};

/// What to do next in a run whose number of rounds is not fixed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// It is decided, or nothing left to try can change it.
    Stop,
    /// Run so many rounds more, and forget what was tried so far.
    MoreRounds {
        /// How many.
        rounds: u32,
        /// Why, in words.
        because: String,
    },
    /// Try this, record it in [`Books::probes`] (also if it could not be read), and ask again.
    Probe(ProbeKind),
}

/// Says what a run should do next, given its books so far.
///
/// Rounds come before probes, because a probe disturbs the rounds after it;
/// among probes, the order is from the least disturbing: idling, draining,
/// trimming, replaying. After idling, which disturbs nothing, more rounds may be
/// asked for: what was tried before them is to be forgotten. A probe is asked for
/// only where it can change the verdict, only if [`Settings::probes`] has it, and
/// once; so the answer is [`Step::Stop`] in the end, after `max_rounds` rounds at most.
pub fn next_step(books: &Books, settings: &Settings) -> Step {
    if books.ending != Ending::Completed || !books.health.attached || books.health.lost > 0 {
        return Step::Stop;
    }
    let evidence = Evidence::gather(books, settings);
    // Idling disturbs no later round; it can show that more of them are needed.
    if books.probes.iter().all(|p| p.kind == ProbeKind::Idle)
        && let Some((wanted, because)) = more_rounds(&evidence)
    {
        let ended = u32::try_from(books.rounds.len()).unwrap_or(u32::MAX);
        let rounds = wanted.min(settings.max_rounds.saturating_sub(ended));
        if rounds > 0 {
            return Step::MoreRounds { rounds, because };
        }
    }
    let tried = |kind| books.probes.iter().any(|probe| probe.kind == kind);
    [
        ProbeKind::Idle,
        ProbeKind::Drain,
        ProbeKind::Trim,
        ProbeKind::Replay,
    ]
    .into_iter()
    .find(|kind| settings.can(*kind) && !tried(*kind) && would_change(&evidence, *kind))
    .map_or(Step::Stop, Step::Probe)
}

/// How many rounds more, and why.
fn more_rounds(evidence: &Evidence<'_>) -> Option<(u32, String)> {
    let settings = evidence.settings;
    let steps = u32::try_from(evidence.ledger.steps).unwrap_or(u32::MAX);
    if steps < settings.min_rounds {
        let because = format!(
            "{} were measured so far",
            words::count(i64::from(steps), "round")
        );
        return Some((settings.min_rounds - steps, because));
    }
    let unclear = evidence.ledger.rows.iter().filter(|row| row.site.is_none()).find_map(|row| {
        match &row.outcome {
            Outcome::Unclear { more, .. } => Some((
                (*more).clamp(1, steps),
                format!(
                    "{} memory of phase {} still grows, and a cache that fills looks the same so far",
                    row.layer, row.phase
                ),
            )),
            _ => None,
        }
    });
    let handles = || {
        evidence.unclear_handles.first().map(|(layer, more)| {
            (
                (*more).clamp(1, steps),
                format!("the number of {layer} still grows"),
            )
        })
    };
    let found = || {
        let leak = evidence.leaks.leaks.first().or(evidence.handles.first())?;
        (steps < settings.confirm_rounds).then(|| {
            (
                steps.min(settings.confirm_rounds - steps),
                format!(
                    "to tell a leak in {} from a cache that fills evenly",
                    leak.layer
                ),
            )
        })
    };
    let late = || {
        evidence
            .ledger
            .rows
            .iter()
            .filter(|row| row.site.is_none())
            .find_map(|row| {
                let Outcome::Stopped { last, .. } = &row.outcome else {
                    return None;
                };
                let quiet = evidence.ledger.steps.saturating_sub(last + 1);
                let repeats = row.rise_count() >= 2;
                (quiet < 3 && repeats).then(|| {
                    (
                        4.min(steps),
                        format!(
                            "{} memory of phase {} grew in one of the last rounds",
                            row.layer, row.phase
                        ),
                    )
                })
            })
    };
    let gauge = || {
        evidence
            .resident
            .growing
            .iter()
            .find(|growing| {
                !growing.by_allocator && (growing.too_few || steps < settings.confirm_rounds)
            })
            .map(|growing| {
                (
                    steps
                        .min(settings.confirm_rounds.saturating_sub(steps))
                        .max(2),
                    format!(
                        "{} memory grows and no ledger explains it so far",
                        growing.layer
                    ),
                )
            })
    };
    unclear
        .or_else(handles)
        .or_else(found)
        .or_else(late)
        .or_else(gauge)
}

/// Whether measured rounds left enough behind that it would be dwell if it came
/// back: a cache until then, or a leak.
fn may_come_back(evidence: &Evidence<'_>) -> bool {
    let left: i64 = evidence
        .ledger
        .layers
        .iter()
        .filter(|layer| !layer.layer.is_counted())
        .flat_map(|layer| &layer.born)
        .fold(0, |sum, born| sum.saturating_add(born.bytes));
    u64::try_from(left).is_ok_and(|left| left >= evidence.settings.dwell_floor_bytes)
}

/// Whether a probe can change the verdict.
fn would_change(evidence: &Evidence<'_>, probe: ProbeKind) -> bool {
    let leaks = &evidence.leaks.leaks;
    let unsettled = ledger::mostly_unsettled(
        evidence.books,
        usize::try_from(evidence.books.warmup)
            .unwrap_or(usize::MAX)
            .min(evidence.books.rounds.len()),
    );
    let unclear = || {
        let mut rows = evidence.ledger.rows.iter();
        rows.any(|row| matches!(row.outcome, Outcome::Unclear { .. }))
    };
    match probe {
        // Late releases, of memory and of handles, and growth by the clock.
        ProbeKind::Idle => {
            unsettled
                || unclear()
                || !leaks.is_empty()
                || !evidence.handles.is_empty()
                || !evidence.unclear_handles.is_empty()
                || may_come_back(evidence)
        }
        ProbeKind::Drain => matches!(&evidence.queue, Queue::Backlog(queue) if !queue.drained),
        // Only where nothing worse decides.
        ProbeKind::Trim => {
            leaks.is_empty()
                && evidence.handles.is_empty()
                && (evidence.resident.kept.is_some()
                    || evidence
                        .resident
                        .growing
                        .iter()
                        .any(|growing| growing.witness.is_none()))
        }
        ProbeKind::Replay => !leaks.is_empty() || unclear(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulated::{FOR_EVER, Program};
    use super::*;
    use crate::books::{Amount, Gauges, Layer, Probe, QueueSample};

    const HEAP: Layer = Layer::RustHeap;

    fn next(books: &Books) -> Step {
        next_step(books, &Settings::default())
    }

    fn more(rounds: u32, because: &str) -> Step {
        Step::MoreRounds {
            rounds,
            because: because.to_owned(),
        }
    }

    fn leak(rounds: u32) -> Books {
        let mut program = Program::new(1, rounds);
        program.keeps(HEAP, "ntt", |_| (96, 1));
        program.books()
    }

    fn tried(kind: ProbeKind) -> Probe {
        Probe {
            kind,
            seconds: 1.0,
            live_before: Amount::ZERO,
            live_after: Amount::ZERO,
            before: None,
            after: None,
        }
    }

    /// Every probe, and no more rounds than there are.
    fn probing(books: &Books) -> Settings {
        Settings {
            max_rounds: books.rounds.len() as u32,
            probes: vec![
                ProbeKind::Replay,
                ProbeKind::Trim,
                ProbeKind::Drain,
                ProbeKind::Idle,
            ],
            ..Settings::default()
        }
    }

    #[test]
    fn a_run_that_died_or_whose_ledger_is_worthless_is_not_continued() {
        let mut books = leak(8);
        assert_ne!(next(&books), Step::Stop);
        books.ending = Ending::OomKilled;
        assert_eq!(next(&books), Step::Stop);
        let mut books = leak(8);
        books.health.attached = false;
        assert_eq!(next(&books), Step::Stop);
        let mut books = leak(8);
        books.health.lost = 1;
        assert_eq!(next(&books), Step::Stop);
    }

    #[test]
    fn too_few_rounds_are_made_enough_and_never_more_than_the_most() {
        let few = Program::new(1, 3).books();
        let so_far = "2 rounds were measured so far";
        assert_eq!(next(&few), more(2, so_far));
        let at_most = |max_rounds| {
            let settings = Settings {
                max_rounds,
                ..Settings::default()
            };
            next_step(&few, &settings)
        };
        assert_eq!(at_most(4), more(1, so_far));
        assert_eq!(at_most(3), Step::Stop);
        assert_eq!(next(&Program::new(1, 5).books()), Step::Stop);
    }

    #[test]
    fn a_leak_is_watched_for_twice_its_rounds_and_24_at_most() {
        let because = "to tell a leak in rust-heap from a cache that fills evenly";
        assert_eq!(next(&leak(8)), more(7, because));
        assert_eq!(next(&leak(20)), more(5, because));
        assert_eq!(next(&leak(5)), more(4, because));
        assert_eq!(next(&leak(25)), Step::Probe(ProbeKind::Idle));
        // Then what else grows is asked for.
        let mut program = Program::new(1, 25);
        program
            .keeps(HEAP, "ntt", |_| (96, 1))
            .block(HEAP, "finish", 3, FOR_EVER, 500, 1)
            .block(HEAP, "finish", 24, FOR_EVER, 700, 1);
        let late = "rust-heap memory of phase finish grew in one of the last rounds";
        assert_eq!(next(&program.books()), more(4, late));
    }

    #[test]
    fn what_is_unclear_gets_the_rounds_that_would_decide_and_no_more_than_it_had() {
        let uneven = |rounds| {
            let sizes = [3, 5, 4, 7, 2, 6, 3, 5, 8];
            let mut program = Program::new(1, rounds);
            program.keeps(HEAP, "ntt", |round| {
                let n = sizes[round as usize - 1];
                (n * 48, n)
            });
            program.books()
        };
        let because = "rust-heap memory of phase ntt still grows, and a cache that fills looks the same \
             so far";
        assert_eq!(next(&uneven(9)), more(4, because));
        assert_eq!(next(&uneven(6)), more(5, because));
        // Descriptors that may climb.
        let mut program = Program::new(1, 17);
        program.gauges = (0..17)
            .map(|round: u64| Gauges {
                rss_anon: 2 << 20,
                threads: 3,
                fds: 5 + round + (round.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) % 7,
                ..Gauges::default()
            })
            .collect();
        let climbs = next(&program.books());
        assert_eq!(climbs, more(16, "the number of fds still grows"));
    }

    #[test]
    fn growth_in_one_of_the_last_rounds_is_watched_where_it_was_not_the_first() {
        let grew_in = |first: u32, last: u32| {
            let mut program = Program::new(1, 12);
            program
                .block(HEAP, "ntt", first, FOR_EVER, 500, 1)
                .block(HEAP, "ntt", last, FOR_EVER, 700, 1);
            next(&program.books())
        };
        let watched = more(
            4,
            "rust-heap memory of phase ntt grew in one of the last rounds",
        );
        assert_eq!(grew_in(3, 12), watched);
        assert_eq!(grew_in(3, 10), watched);
        assert_eq!(grew_in(3, 9), Step::Stop);
        assert_eq!(
            grew_in(1, 12),
            Step::Stop,
            "the first is before the measuring"
        );
    }

    #[test]
    fn a_gauge_is_watched_for_24_rounds_unless_the_allocator_has_it() {
        let resident = |rounds: u64| {
            let mut program = Program::new(1, rounds as u32);
            program.gauges = (0..rounds)
                .map(|round| Gauges {
                    rss_anon: (60 << 20) + (round << 20),
                    threads: 3,
                    fds: 5,
                    ..Gauges::default()
                })
                .collect();
            program.books()
        };
        let because = "anon memory grows and no ledger explains it so far";
        assert_eq!(next(&resident(9)), more(8, because));
        assert_eq!(next(&resident(20)), more(5, because));
        assert_eq!(next(&resident(24)), more(2, because));
        assert_eq!(next(&resident(25)), Step::Probe(ProbeKind::Trim));
        let mut by_malloc = resident(9);
        by_malloc.maps.push(crate::books::MapSeries {
            name: "[heap]".to_owned(),
            kind: crate::books::MapKind::Allocator,
            resident: (0..9).map(|round| round << 20).collect(),
        });
        assert_eq!(next(&by_malloc), Step::Probe(ProbeKind::Trim));
    }

    #[test]
    fn each_probe_is_asked_for_once_and_where_it_can_change_the_verdict() {
        let mut books = leak(8);
        let asked = |books: &Books| next_step(books, &probing(books));
        assert_eq!(asked(&books), Step::Probe(ProbeKind::Idle));
        books.probes.push(tried(ProbeKind::Idle));
        assert_eq!(asked(&books), Step::Probe(ProbeKind::Replay));
        books.probes.push(tried(ProbeKind::Replay));
        assert_eq!(asked(&books), Step::Stop);
        // Where rounds did not settle, or left much, idling tells.
        let mut books = Program::new(1, 8).books();
        assert_eq!(asked(&books), Step::Stop);
        books
            .rounds
            .iter_mut()
            .for_each(|round| round.settle.settled = false);
        assert_eq!(asked(&books), Step::Probe(ProbeKind::Idle));
        let left = |bytes| {
            let mut program = Program::new(1, 8);
            program.block(HEAP, "ntt", 3, FOR_EVER, bytes, 1);
            asked(&program.books())
        };
        assert_eq!(left(64 << 10), Step::Probe(ProbeKind::Idle));
        assert_eq!(left((64 << 10) - 1), Step::Stop);
        let counted = {
            let mut program = Program::new(1, 8);
            program.block(Layer::GpuStreams, "ntt", 3, FOR_EVER, 64 << 10, 1);
            asked(&program.books())
        };
        assert_eq!(counted, Step::Stop);
    }

    #[test]
    fn lost_handles_are_left_alone_for_a_while_and_not_trimmed() {
        let mut program = Program::new(1, 8);
        program.gauges = (0..8)
            .map(|round| Gauges {
                rss_anon: 60 << 20,
                threads: 3 + round,
                fds: 5,
                ..Gauges::default()
            })
            .collect();
        let mut books = program.books();
        let asked = |books: &Books| next_step(books, &probing(books));
        assert_eq!(asked(&books), Step::Probe(ProbeKind::Idle));
        books.probes.push(tried(ProbeKind::Idle));
        assert_eq!(asked(&books), Step::Stop);
        // The same resident memory without a loss.
        for round in &mut books.rounds {
            round.gauges.as_mut().expect("gauges").threads = 3;
        }
        assert_eq!(asked(&books), Step::Probe(ProbeKind::Trim));
        books.series = leak(8).series;
        books.survivors = leak(8).survivors;
        assert_eq!(asked(&books), Step::Probe(ProbeKind::Replay));
    }

    #[test]
    fn a_queue_that_did_not_drain_is_drained() {
        let mut books = Program::new(1, 6).books();
        let sample = |(at, waiting): (usize, u64)| QueueSample {
            at_seconds: at as f64,
            round: 4,
            produced: waiting,
            consumed: 0,
            live_bytes: waiting << 20,
        };
        books.queue = (0..12).enumerate().map(sample).collect();
        let asked = |books: &Books| next_step(books, &probing(books));
        assert_eq!(asked(&books), Step::Probe(ProbeKind::Drain));
        books.queue.push(QueueSample {
            consumed: 11,
            ..sample((12, 11))
        });
        books.queue[12].live_bytes = 0;
        assert_eq!(asked(&books), Step::Stop);
    }
}
