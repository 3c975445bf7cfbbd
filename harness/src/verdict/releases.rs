//! Whether every item's blocks were released: an assertion of its own.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::words;
use crate::books::{Amount, Books, ItemBook, Layer};

/// An item that released not exactly what it allocated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mismatch {
    /// The round that bore the blocks.
    pub round: u32,
    /// The item that bore them.
    pub item: u32,
    /// The layer.
    pub layer: Layer,
    /// The phase in which they were born.
    pub phase: String,
    /// What it allocated.
    pub allocated: Amount,
    /// What of that was released until the end of the run.
    pub released: Amount,
    /// The difference: allocated minus released.
    pub missing: Amount,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "round {}, item {}, phase {} in {}: {} allocated, {} released",
            self.round,
            self.item,
            self.phase,
            self.layer,
            words::amount(self.allocated),
            words::amount(self.released),
        )?;
        let less = Amount::ZERO - self.missing;
        if self.missing.bytes >= 0 && self.missing.blocks >= 0 {
            write!(f, "; {} never released", words::amount(self.missing))
        } else if less.bytes >= 0 && less.blocks >= 0 {
            write!(f, "; {} released too often", words::amount(less))
        } else {
            write!(f, "; the difference is {}", words::amount(self.missing))
        }
    }
}

/// What the items of the measured rounds gave back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Releases {
    /// Books looked at: one per round, item, layer and phase.
    pub judged: u64,
    /// Those that do not match.
    pub unmatched: Vec<Mismatch>,
    /// Those of the last rounds that do not match and are no loss: see [`releases`].
    pub rolling: Vec<Mismatch>,
}

/// Compares what each item of the measured rounds allocated with what was released of it.
///
/// A block that each round replaces is alive when the run ends, because the
/// round that would have replaced it never came. Such blocks are listed as
/// `rolling`: mismatches of the last round (or of the last two, for double
/// buffers) in a layer and phase whose earlier measured rounds, two at least,
/// all match. A block that an item of an early measured round holds for good is
/// unmatched, also if it is a lazily built static: give the scenario enough
/// warm-up for those.
pub fn releases(books: &Books) -> Releases {
    let warmup = usize::try_from(books.warmup).unwrap_or(usize::MAX);
    let measured: HashMap<u32, usize> = books
        .rounds
        .iter()
        .enumerate()
        .skip(warmup)
        .map(|(at, round)| (round.round, at))
        .collect();
    let end = books.rounds.len();
    let mut out = Releases::default();
    let mut wrong: BTreeMap<(Layer, &str), Vec<(usize, &ItemBook)>> = BTreeMap::new();
    for item in &books.items {
        let Some(&at) = measured.get(&item.round) else {
            continue;
        };
        out.judged += 1;
        if item.allocated != item.released {
            wrong
                .entry((item.layer, item.phase.as_str()))
                .or_default()
                .push((at, item));
        }
    }
    for items in wrong.values() {
        let earliest = items.iter().map(|(at, _)| *at).min().unwrap_or(0);
        let matched_before = earliest.saturating_sub(warmup);
        let held = items.iter().all(|(_, item)| {
            let missing = item.allocated - item.released;
            missing.bytes >= 0 && missing.blocks >= 0
        });
        let rolls = held && end - earliest <= 2 && matched_before >= 2;
        let into = if rolls {
            &mut out.rolling
        } else {
            &mut out.unmatched
        };
        into.extend(items.iter().map(|(_, item)| Mismatch {
            round: item.round,
            item: item.item,
            layer: item.layer,
            phase: item.phase.clone(),
            allocated: item.allocated,
            released: item.released,
            missing: item.allocated - item.released,
        }));
    }
    let key = |m: &Mismatch| (m.round, m.item, m.layer, m.phase.clone());
    out.unmatched.sort_by_key(key);
    out.rolling.sort_by_key(key);
    out
}

/// The mismatches that are a loss: [`Releases::unmatched`].
pub fn unmatched_releases(books: &Books) -> Vec<Mismatch> {
    releases(books).unmatched
}
