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
