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
    correlation.is_finite().then_some((xy / xx, correlation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::{QueueDesign, QueueSample, RoundBook};

    const MIB: u64 = 1 << 20;

    /// Samples of round 2: so many items wait, of so many produced until the end, and
    /// each holds a mebibyte.
    fn samples(waiting: &[u64], items: u64) -> Vec<QueueSample> {
        let most = waiting.iter().copied().max().unwrap_or(0);
        let fullest = waiting.iter().position(|n| *n == most).unwrap_or(0);
        let sample = |(at, waiting): (usize, &u64)| {
            let produced = if at <= fullest { *waiting } else { items };
            QueueSample {
                at_seconds: at as f64,
                round: 2,
                produced,
                consumed: produced - waiting,
                live_bytes: (4 + waiting) * MIB,
            }
        };
        waiting.iter().enumerate().map(sample).collect()
    }

    fn books(queue: Vec<QueueSample>) -> Books {
        Books {
            warmup: 1,
            rounds: (1..=3)
                .map(|round| RoundBook {
                    round,
                    ..RoundBook::default()
                })
                .collect(),
            queue,
            ..Books::default()
        }
    }

    fn judged(books: &Books) -> Queue {
        judge(books, &Settings::default())
    }

    fn backlog(books: &Books) -> Option<Backlog> {
        match judged(books) {
            Queue::Backlog(backlog) => Some(backlog),
            _ => None,
        }
    }

    const FIVE: [u64; 11] = [0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0];

    #[test]
    fn more_than_half_of_a_round_of_eight_items_are_a_backlog() {
        let found = backlog(&books(samples(&FIVE, 9))).expect("five of nine");
        assert_eq!((found.most, found.round, found.allowed), (5, 2, None));
        assert!((found.bytes_each / MIB as f64 - 1.0).abs() < 1e-9);
        assert!((found.correlation - 1.0).abs() < 1e-9);
        assert!(found.drained);
        assert_eq!(judged(&books(samples(&FIVE, 10))), Queue::Bounded(5));
        assert!(backlog(&books(samples(&FIVE, 8))).is_some());
        assert_eq!(judged(&books(samples(&FIVE, 7))), Queue::Bounded(5));
        assert_eq!(judged(&books(Vec::new())), Queue::None);
        // Items of the rounds before are none of this round's.
        let mut later = samples(&FIVE, 8);
        for sample in &mut later {
            sample.produced += 100;
            sample.consumed += 100;
        }
        assert!(backlog(&books(later)).is_some());
    }

    #[test]
    fn a_run_that_was_killed_is_judged_by_four_items_and_by_its_warm_up_too() {
        let waiting = [0, 1, 2, 3, 2, 1, 0, 0];
        let killed = |items| {
            let mut books = books(samples(&waiting, items));
            books.ending = Ending::OomKilled;
            judged(&books)
        };
        assert!(matches!(killed(4), Queue::Backlog(_)));
        assert_eq!(killed(3), Queue::Bounded(3));
        assert_eq!(killed(6), Queue::Bounded(3));
        let mut warm = books(samples(&FIVE, 9));
        warm.warmup = 2;
        assert_eq!(judged(&warm), Queue::None);
        warm.ending = Ending::OomKilled;
        assert!(matches!(judged(&warm), Queue::Backlog(_)));
    }

    #[test]
    fn a_declared_queue_may_hold_one_item_more_than_its_design() {
        let mut books = books(samples(&FIVE, 100));
        for (capacity, too_many) in [(2, false), (1, true)] {
            books.queue_design = Some(QueueDesign {
                capacity,
                producers: 2,
            });
            let found = backlog(&books);
            assert_eq!(found.is_some(), too_many, "{capacity}");
            assert!(found.is_none_or(|found| found.allowed == Some(3)));
        }
    }

    #[test]
    fn memory_is_the_items_where_it_follows_them_and_is_most_of_what_moves() {
        // Up to ten items wait, five times.
        let up_and_down = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1].repeat(5);
        let with = |live: fn(usize, u64) -> u64| {
            let mut queue = samples(&up_and_down, 12);
            for (at, sample) in queue.iter_mut().enumerate() {
                sample.live_bytes = live(at, sample.produced - sample.consumed);
            }
            backlog(&books(queue)).is_some()
        };
        // Other memory by turns, seven and eight times of what an item holds: correlations
        // of 0.64 and 0.59.
        assert!(with(|at, n| (n + 7 * (at as u64 % 2)) * MIB));
        assert!(!with(|at, n| (n + 8 * (at as u64 % 2)) * MIB));
        // Something else, once: four and five times of what the items hold.
        assert!(with(|at, n| if at == 10 { 46 } else { n } * MIB));
        assert!(!with(|at, n| if at == 10 { 50 } else { n } * MIB));
        // Ten items hold 256 KiB together.
        assert!(with(|_, n| n * 26_300));
        assert!(!with(|_, n| n * 26_100));
    }

    #[test]
    fn a_queue_has_drained_where_nothing_waits_and_memory_is_back() {
        let drained = |waiting: &[u64], last: u64| {
            let mut queue = samples(waiting, 9);
            let end = queue.len() - 1;
            queue[end].live_bytes = last;
            backlog(&books(queue)).expect("a backlog").drained
        };
        assert!(drained(&FIVE, 4 * MIB));
        assert!(drained(&FIVE, 5 * MIB));
        assert!(!drained(&FIVE, 5 * MIB + MIB / 4));
        assert!(!drained(&FIVE[..10], 4 * MIB));
    }

    #[test]
    fn the_first_round_in_which_most_items_waited_is_named() {
        let mut queue = samples(&FIVE, 9);
        let again = queue.clone().into_iter().map(|sample| QueueSample {
            round: 3,
            produced: sample.produced + 9,
            consumed: sample.consumed + 9,
            ..sample
        });
        queue.extend(again);
        assert_eq!(backlog(&books(queue)).expect("a backlog").round, 2);
    }

    #[test]
    fn a_line_needs_eight_points_at_three_places() {
        let line = |xs: &[u32]| -> Vec<(f64, f64)> {
            let point = |x: &u32| (f64::from(*x), 5.0 - 2.0 * f64::from(*x));
            xs.iter().map(point).collect()
        };
        let (slope, correlation) = regression(&line(&[0, 1, 2, 0, 1, 2, 0, 1])).expect("eight");
        assert!((slope + 2.0).abs() < 1e-9 && (correlation + 1.0).abs() < 1e-9);
        assert_eq!(regression(&line(&[0, 1, 2, 0, 1, 2, 0])), None);
        assert_eq!(regression(&line(&[0, 1, 0, 1, 0, 1, 0, 1])), None);
        let flat: Vec<(f64, f64)> = (0..9).map(|x| (f64::from(x), 3.0)).collect();
        assert_eq!(regression(&flat), None);
        let points = [
            (0, 0),
            (1, 1),
            (2, 2),
            (0, 2),
            (1, 1),
            (2, 4),
            (0, 1),
            (2, 3),
        ];
        let points = points.map(|(x, y)| (f64::from(x), f64::from(y)));
        let (slope, correlation) = regression(&points).expect("eight");
        assert!((slope - 1.0).abs() < 1e-9, "{slope}");
        assert!(
            (correlation - 6.0 / 69.0_f64.sqrt()).abs() < 1e-9,
            "{correlation}"
        );
    }
}
