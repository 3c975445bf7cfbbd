//! Whether memory piles up in items that nobody has consumed yet.
//!
//! A queue is allowed to hold what it was made for. What fails is a queue that
//! nothing holds back:
//!
//! - The scenario declares the design ([`QueueDesign`](crate::books::QueueDesign)):
//!   more items wait than `capacity + producers`, and one more for the moment
//!   between two counters. A permit that is held through the send keeps that
//!   bound; one that is given back before the send does not.
//! - Nothing is declared: more than half of the items of one round wait at
//!   once, in a round of at least eight.
//!
//! And in both cases the memory must be theirs: live memory goes up and down
//! with the number that waits (correlation of 0.6 at least), and the waiting
//! items hold a quarter of what moves, and more than the floor.

use super::Settings;
use crate::books::{Books, Ending};

/// A queue that nothing holds back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Backlog {
    /// The most items that waited at once.
    pub(super) most: u64,
    /// The round in which they did.
    pub(super) round: u32,
    /// How many may wait by design, where declared.
    pub(super) allowed: Option<u64>,
    /// Bytes that each waiting item holds, from the regression of live on waiting.
    pub(super) bytes_each: f64,
    /// The correlation of live with waiting.
    pub(super) correlation: f64,
    /// Whether nothing waited and memory was back in the last sample.
    pub(super) drained: bool,
}

/// What was made of the queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Queue {
    /// Nothing was sampled.
    None,
    /// It stayed within bounds, or its items hold nothing worth mentioning; so
    /// many waited at most.
    Bounded(u64),
    /// It did not.
    Backlog(Backlog),
}

/// Judges the queue's samples.
pub(super) fn judge(books: &Books, settings: &Settings) -> Queue {
    let killed = matches!(books.ending, Ending::Limit { .. } | Ending::OomKilled);
    let last_warmup = usize::try_from(books.warmup)
        .ok()
        .and_then(|n| n.checked_sub(1))
        .and_then(|at| books.rounds.get(at))
        .map_or(0, |round| round.round);
    let samples: Vec<_> = books
        .queue
        .iter()
        .filter(|s| killed || s.round > last_warmup)
        .collect();
    let waiting = |s: &crate::books::QueueSample| s.produced.saturating_sub(s.consumed);
    let Some(fullest) = samples
        .iter()
        .max_by_key(|s| (waiting(s), std::cmp::Reverse(s.round)))
    else {
        return Queue::None;
    };
    let most = waiting(fullest);
    let allowed = books
        .queue_design
        .map(|design| design.capacity.saturating_add(design.producers));
    let too_many = match allowed {
        Some(allowed) => most > allowed.saturating_add(1),
        None => {
            let in_round = samples.iter().filter(|s| s.round == fullest.round);
            let produced = in_round.clone().map(|s| s.produced).max().unwrap_or(0);
            let before = in_round
                .map(|s| s.produced.min(s.consumed))
                .min()
                .unwrap_or(0);
            let items = produced.saturating_sub(before);
            items >= if killed { 4 } else { 8 } && most.saturating_mul(2) > items
        }
    };
    if !too_many {
        return Queue::Bounded(most);
    }
    let pairs: Vec<(f64, f64)> = samples
        .iter()
        .map(|s| (waiting(s) as f64, s.live_bytes as f64))
        .collect();
    let Some((slope, correlation)) = regression(&pairs) else {
        return Queue::Bounded(most);
    };
    let lowest = samples.iter().map(|s| s.live_bytes).min().unwrap_or(0);
    let highest = samples.iter().map(|s| s.live_bytes).max().unwrap_or(0);
    let held = slope * most as f64;
    let theirs = correlation >= 0.6
        && held >= settings.backlog_floor_bytes as f64
        && held >= 0.25 * highest.saturating_sub(lowest) as f64;
    if !theirs {
        return Queue::Bounded(most);
    }
    let drained = samples.last().is_some_and(|last| {
        waiting(last) == 0
            && (last.live_bytes.saturating_sub(lowest) as f64)
                < 0.25 * highest.saturating_sub(lowest) as f64
    });
    Queue::Backlog(Backlog {
        most,
        round: fullest.round,
        allowed,
        bytes_each: slope,
        correlation,
        drained,
    })
}

/// Slope and correlation of y on x; `None` with fewer than eight points or
/// three different x.
fn regression(pairs: &[(f64, f64)]) -> Option<(f64, f64)> {
    let mut xs: Vec<f64> = pairs.iter().map(|p| p.0).collect();
    xs.sort_unstable_by(f64::total_cmp);
    xs.dedup();
    if pairs.len() < 8 || xs.len() < 3 {
        return None;
    }
    let n = pairs.len() as f64;
    let (mx, my) = pairs
        .iter()
        .fold((0.0, 0.0), |(a, b), (x, y)| (a + x / n, b + y / n));
    let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
    for (x, y) in pairs {
        xx += (x - mx) * (x - mx);
        yy += (y - my) * (y - my);
        xy += (x - mx) * (y - my);
    }
    let correlation = xy / (xx * yy).sqrt();
    (xx > 0.0 && correlation.is_finite()).then_some((xy / xx, correlation))
}
