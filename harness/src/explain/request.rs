//! What a second run is to take the stacks of.

use std::io;
use std::ops::Range;

use tidegate_hook::{Capacity, HookLayer, Ledger};

use super::{Explain, is_explainable, measured_rounds};
use crate::books::{Amount, Books, Ending, Layer};
use crate::run::Run;
use crate::verdict::{Driver, Finding, SEVERAL_PHASES};

/// What the stacks are to be taken of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Of every allocation; `wanted` says it too, then.
    pub every_site: bool,
    wanted: Vec<Wanted>,
}

/// Blocks of these sizes, born in this phase and layer; `None` is every one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    phase: Option<String>,
    layer: Option<HookLayer>,
    sizes: Range<u64>,
}

const ANY_SIZE: Range<u64> = 0..u64::MAX;

impl Request {
    /// What is worth asking after this run; `None`: nothing.
    pub fn after(run: &Run, explain: Explain) -> Option<Self> {
        match explain {
            Explain::Never => None,
            Explain::EverySite => Some(Self {
                every_site: true,
                wanted: vec![Wanted {
                    phase: None,
                    layer: None,
                    sizes: ANY_SIZE,
                }],
            }),
            // A workload that died would die again, or not get so far.
            Explain::OnLeak if run.books.ending != Ending::Completed => None,
            Explain::OnLeak => {
                let findings = run.verdict.findings.iter();
                let wanted: Vec<Wanted> = findings
                    .filter(|finding| is_explainable(finding))
                    .map(|finding| Wanted::of(finding, &run.books))
                    .collect();
                let every_site = false;
                (!wanted.is_empty()).then_some(Self { every_site, wanted })
            }
        }
    }

    /// How many measured rounds show the leaks again: four where each round leaks
    /// the same, two periods where it is every so many rounds, else as many as the
    /// first run had.
    pub fn rounds(&self, first: &Run) -> u32 {
        let measured = measured_rounds(first);
        let findings = first.verdict.findings.iter();
        let needed = findings
            .filter(|finding| is_explainable(finding))
            .map(|finding| match finding.driver {
                Driver::PerRound if finding.per_driver.is_some() => 4,
                Driver::EveryKthRound(k) => k.saturating_mul(2),
                _ => measured,
            })
            .max();
        needed.unwrap_or(4).clamp(1, measured)
    }

    /// The capacity of a ledger with room for the stacks.
    pub fn capacity(&self) -> Capacity {
        Capacity {
            contexts: 1 << 22,
            sites: if self.every_site { 1 << 18 } else { 1 << 16 },
            ..Capacity::default()
        }
    }

    /// Tells the hook, through the ledger.
    pub fn enter_into(&self, ledger: &Ledger) -> io::Result<()> {
        for wanted in &self.wanted {
            if !ledger.want_sites(wanted.phase.as_deref(), wanted.layer, &wanted.sizes) {
                return Err(io::Error::other("the ledger has no room for stacks"));
            }
        }
        Ok(())
    }
}

impl Wanted {
    fn of(finding: &Finding, books: &Books) -> Self {
        let any_phase = finding.phase.is_empty() || finding.phase == SEVERAL_PHASES;
        Self {
            phase: (!any_phase).then(|| finding.phase.clone()),
            layer: match finding.layer {
                Layer::RustHeap => Some(HookLayer::Rust),
                Layer::NativeHeap => Some(HookLayer::Native),
                Layer::Anon => Some(HookLayer::Anon),
                _ => None,
            },
            sizes: sizes(finding, books),
        }
    }
}

/// The sizes that the blocks of a leak can have, with some room for a second run
/// that is not quite the same.
///
/// No block is larger than everything that is left of its round (or of its item,
/// where items were named). Where one block is left of each, its size is known.
fn sizes(finding: &Finding, books: &Books) -> Range<u64> {
    let here = |layer, phase: &str| {
        layer == finding.layer
            && (finding.phase.is_empty()
                || finding.phase == SEVERAL_PHASES
                || phase == finding.phase)
    };
    let measured = |round: u32| round > books.warmup;
    let of_items = books
        .items
        .iter()
        .filter(|item| measured(item.round) && here(item.layer, &item.phase))
        .map(|item| item.allocated - item.released);
    let of_rounds = books
        .survivors
        .iter()
        .filter(|left| measured(left.round) && here(left.layer, &left.phase))
        .map(|left| left.left);
    let nonzero = |amounts: &mut dyn Iterator<Item = Amount>| -> Vec<Amount> {
        amounts.filter(|amount| !amount.is_zero()).collect()
    };
    let (items, rounds) = (
        nonzero(&mut of_items.into_iter()),
        nonzero(&mut of_rounds.into_iter()),
    );
    let sum = |amounts: &[Amount]| amounts.iter().copied().sum::<Amount>();
    // Items tell more, if they tell everything.
    let left = if sum(&items) == sum(&rounds) {
        &items
    } else {
        &rounds
    };

    let new_blocks = finding.per_driver.is_none_or(|each| each.blocks > 0);
    let largest = left.iter().map(|left| left.bytes).max();
    let (Some(largest), true) = (
        largest.and_then(|bytes| u64::try_from(bytes).ok()),
        new_blocks,
    ) else {
        return ANY_SIZE; // A block that only becomes larger: any step can be the one.
    };
    let single = left.iter().all(|left| left.blocks == 1);
    let smallest = left.iter().map(|left| left.bytes).min().unwrap_or_default();
    let from = match u64::try_from(smallest) {
        Ok(smallest) if single => smallest - smallest / 4,
        _ => 0,
    };
    from..largest.saturating_add(largest / 4).saturating_add(64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::{ItemBook, Survivors};
    use crate::verdict::Class;

    fn finding(per_driver: Option<Amount>) -> Finding {
        Finding {
            class: Class::Leak,
            layer: Layer::RustHeap,
            phase: "finish".to_owned(),
            site: None,
            driver: Driver::PerRound,
            per_driver,
            also_fits: Vec::new(),
            born_in: Vec::new(),
            since_round: None,
            over_rounds: 2,
            total: Amount::ZERO,
            per_item: None,
            cause: None,
            confirmed: Vec::new(),
            fingerprint: String::new(),
            sentence: String::new(),
        }
    }

    fn left(round: u32, phase: &str, bytes: i64, blocks: i64) -> Survivors {
        Survivors {
            round,
            layer: Layer::RustHeap,
            phase: phase.to_owned(),
            left: Amount::new(bytes, blocks),
        }
    }

    fn books(survivors: Vec<Survivors>) -> Books {
        Books {
            warmup: 1,
            survivors,
            ..Books::default()
        }
    }

    #[test]
    fn a_single_block_is_looked_for_by_its_size() {
        let books = books(vec![
            left(1, "finish", 1 << 20, 9),
            left(2, "finish", 4000, 1),
            left(3, "finish", 4400, 1),
            left(3, "other", 99_000, 1),
        ]);
        let sizes = sizes(&finding(Some(Amount::new(4000, 1))), &books);
        assert_eq!(sizes, 3000..5564);
    }

    #[test]
    fn no_block_is_larger_than_all_that_is_left_of_its_item() {
        let mut books = books(vec![left(2, "finish", 8000, 20)]);
        let all = finding(Some(Amount::new(8000, 20)));
        assert_eq!(sizes(&all, &books), 0..10_064);
        books.items = (0..4)
            .map(|item| ItemBook {
                round: 2,
                item,
                layer: Layer::RustHeap,
                phase: "finish".to_owned(),
                allocated: Amount::new(5000, 9),
                released: Amount::new(3000, 4),
            })
            .collect();
        assert_eq!(sizes(&all, &books), 0..2564);
        books.items.pop();
        assert_eq!(sizes(&all, &books), 0..10_064, "items that do not tell all");
    }

    #[test]
    fn a_block_that_only_becomes_larger_can_have_any_size() {
        let books = books(vec![left(3, "finish", 4000, 1)]);
        assert_eq!(sizes(&finding(Some(Amount::new(500, 0))), &books), ANY_SIZE);
        assert_eq!(sizes(&finding(None), &self::books(Vec::new())), ANY_SIZE);
    }
}
