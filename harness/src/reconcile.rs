//! Reconciliation: what the system says is in use, explained by what the books and the
//! mappings know, with the remainder that neither explains.
//!
//! It is told beside the verdict and changes none: ledgers decide, gauges witness. A
//! large remainder is where to look next.
//!
//! # Resident memory
//!
//! The total is what the kernel counts as resident. Its pages are laid out by
//! the mappings that they lie in; those of malloc and of anonymous mappings are then
//! compared with the ledgers:
//!
//! - Blocks that malloc gave a mapping of their own lie in anonymous mappings, all others
//!   in malloc's arenas. What the arenas hold more than is alive, the allocator keeps.
//! - Anonymous pages are explained by those blocks, by the mappings that the program
//!   made, and by what an allocator of its own has mapped, in this order. More pages
//!   than that are in no book (a system call made directly, the loader): remainder.
//! - A block or mapping that was never touched is alive and not resident. Which one
//!   that is, cannot be told from outside: blocks count as touched before mappings, and
//!   [`ResidentAccount::untouched`] says how much it is at least. As much again of what
//!   is in no book can hide behind it.
//!
//! # The card
//!
//! The total is what NVML says that the workload's processes take. The books know
//! memory to the byte. What a context takes is read off: the card right after the first
//! context was seen, or else the least that the card ever was above the books. What
//! pools keep is asked of the driver, in the workload. Managed memory moves: as much of
//! it counts as the card has. Modules, the driver's records of handles and its
//! rounding (2 MiB on most cards) cannot be told apart; they are in the remainder.

use comfy_table::{Cell, CellAlignment, Table};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::books::{Amount, Books, Layer};
use crate::report::new_table;
use crate::verdict::words::{grouped, many, size_u64};

/// A remainder of so many bytes is none to speak of.
const TOLERANCE_BYTES: u64 = 32 << 20;
/// Nor is one part in so many of the whole.
const TOLERANCE_SHARE: u64 = 20;
/// What was never touched is told from so many bytes on; each thread has a little.
const WORTH_TELLING: u64 = 1 << 20;

/// Resident bytes by what they are for, as the kernel counts them page by page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pages {
    /// The program break and malloc's arenas.
    pub allocator: u64,
    /// Private anonymous mappings that are none of the others.
    pub anon: u64,
    /// Stacks of threads.
    pub stacks: u64,
    /// Files, as they are on disk; the driver's devices too.
    pub files: u64,
    /// Private copies of files' pages that were written, and data that begin as zeros.
    pub copies: u64,
    /// Shared memory, page-locked memory of the GPU's driver included.
    pub shmem: u64,
    /// The ledger's own pages.
    pub ledger: u64,
}

impl Pages {
    const fn sum(&self) -> u64 {
        self.allocator
            .saturating_add(self.anon)
            .saturating_add(self.stacks)
            .saturating_add(self.files)
            .saturating_add(self.copies)
            .saturating_add(self.shmem)
            .saturating_add(self.ledger)
    }
}

/// What was resident at one moment, and what was alive by the ledger then, over all
/// metered processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryReading {
    /// The last round that had ended.
    pub round: u32,
    /// Resident bytes by the kernel's counters, huge pages included.
    pub resident: u64,
    /// The same, page by page.
    pub pages: Pages,
    /// Alive in the heap's layers: blocks of Rust's, C's and the GPU driver's, in bytes.
    pub heap: u64,
    /// Alive mappings that the program made outside malloc, in bytes.
    pub anon: u64,
    /// Alive page-locked memory, in bytes.
    pub pinned: u64,
    /// What the meter itself and allocators under the ledger's hold, in bytes.
    pub meter: u64,
    /// Mappings that malloc made for single blocks (of 128 KiB or more), in bytes.
    pub block_mappings: u64,
    /// Of [`meter`](Self::meter), what allocators under the ledger's have mapped, in bytes.
    pub allocator_mappings: u64,
}

/// The card when a context was first seen on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FirstContext {
    /// Contexts that were alive.
    pub contexts: u64,
    /// What the workload's processes took of the card, in bytes.
    pub card: u64,
    /// Memory of the card that was alive by the ledger, in bytes.
    pub ledger: u64,
}

/// What the driver said of the pools of the card's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PoolReading {
    /// The round after which it was asked.
    pub round: u32,
    /// Bytes that the pools hold, graphs' included.
    pub reserved: u64,
    /// Of these, bytes in use.
    pub used: u64,
}

/// What the system has in use, explained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reconciliation {
    /// Resident memory after the last settled round; `None` if it could not be read.
    pub resident: Option<ResidentAccount>,
    /// The same after a trim, where one was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_trim: Option<ResidentAccount>,
    /// The cards after the last round; `None` where there is none, or it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<CardAccount>,
}

/// What explains resident memory, in bytes. All parts and the remainder add up to
/// [`resident`](Self::resident).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResidentAccount {
    /// The last round that had ended.
    pub round: u32,
    /// Resident by the kernel's counters, over all metered processes.
    pub resident: u64,
    /// Blocks of the heap that are alive, as far as they are resident.
    pub heap: u64,
    /// What the allocator keeps: freed blocks, headers, rounding.
    pub kept: u64,
    /// Mappings that the program made outside malloc, as far as they are resident.
    pub anon: u64,
    /// Stacks of threads.
    pub stacks: u64,
    /// Files, as they are on disk.
    pub files: u64,
    /// Written copies of files' pages.
    pub copies: u64,
    /// Shared memory that is not page-locked.
    pub shmem: u64,
    /// Page-locked memory of the GPU's driver.
    pub pinned: u64,
    /// The ledger's pages and the meter's own blocks.
    pub own: u64,
    /// What none of these explains; negative where they explain too much.
    pub remainder: i64,
    /// Blocks and mappings that are alive and not resident, at least.
    pub untouched: u64,
    /// Whether the remainder is within 5 % or 32 MiB.
    pub reconciled: bool,
}

/// What explains the memory that the workload takes of the cards, in bytes. All parts
/// and the remainder add up to [`card`](Self::card).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CardAccount {
    /// The round after which it was read.
    pub round: u32,
    /// What the workload's processes take, by NVML.
    pub card: u64,
    /// Memory of the card that is alive by the ledger, that from pools included.
    pub ledger: u64,
    /// What the contexts take.
    pub contexts: u64,
    /// How that is known.
    pub contexts_by: ContextsBy,
    /// How many contexts there are.
    pub contexts_alive: u64,
    /// What pools hold and nobody uses; `None` if the driver was not asked after this
    /// round (it is then in the remainder).
    pub pools_kept: Option<u64>,
    /// Managed memory, as much as the card can have of it.
    pub managed: u64,
    /// Modules that are alive, whose memory is in the remainder.
    pub modules: u64,
    /// Streams, events, graphs and imports that are alive. What the driver keeps with
    /// them is in the remainder.
    pub handles: u64,
    /// What none of these explains; negative where they explain too much.
    pub remainder: i64,
    /// Whether the remainder is within 5 % or 32 MiB.
    pub reconciled: bool,
}

/// How it is known what a context takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ContextsBy {
    /// Read when the first context was seen.
    FirstSeen,
    /// The least that the card was above the books after any round with as many contexts:
    /// at most so much, for what else was there at all times is in it.
    LeastEver,
}

/// Explains what the system has in use by the books.
pub fn reconcile(books: &Books) -> Reconciliation {
    Reconciliation {
        resident: books.memory.as_ref().map(resident),
        after_trim: books.memory_after_trim.as_ref().map(resident),
        card: card(books),
    }
}

fn resident(reading: &MemoryReading) -> ResidentAccount {
    let pages = &reading.pages;
    // Anonymous pages, to whom they can belong.
    let mut left = pages.anon;
    let mut take = |most: u64| {
        let taken = left.min(most);
        left -= taken;
        taken
    };
    let block_mappings = take(reading.block_mappings);
    let anon = take(reading.anon);
    let allocator_mappings = take(reading.allocator_mappings);
    let unbooked = left;

    let meter = reading.meter.saturating_sub(reading.allocator_mappings);
    let alive = reading.heap.saturating_add(meter);
    let in_arenas = alive.saturating_sub(reading.block_mappings);
    let arenas = pages.allocator + allocator_mappings;
    let alive_there = in_arenas.min(arenas);
    let alive_resident = block_mappings + alive_there;
    let meter = meter.min(alive_resident);

    let pinned = pages.shmem.min(reading.pinned);
    let explained = pages.sum().saturating_sub(unbooked);
    let remainder = signed(reading.resident).saturating_sub(signed(explained));
    ResidentAccount {
        round: reading.round,
        resident: reading.resident,
        heap: alive_resident - meter,
        kept: arenas - alive_there,
        anon,
        stacks: pages.stacks,
        files: pages.files,
        copies: pages.copies,
        shmem: pages.shmem - pinned,
        pinned,
        own: pages.ledger + meter,
        remainder,
        untouched: (reading.block_mappings - block_mappings)
            + (reading.anon - anon)
            + (in_arenas - alive_there),
        reconciled: is_little(remainder, reading.resident),
    }
}

fn card(books: &Books) -> Option<CardAccount> {
    let alive = |layer: Layer, at: usize| -> Amount {
        let series = books.series.iter().filter(|series| series.layer == layer);
        let values = series.filter_map(|series| series.live.get(at));
        values.copied().sum()
    };
    let bytes = |layer, at| unsigned(alive(layer, at).bytes);
    let count = |layer, at| unsigned(alive(layer, at).blocks);
    let ledger = |at| bytes(Layer::Device, at).saturating_add(bytes(Layer::DevicePool, at));
    let taken = |at: usize| {
        let gauges = books.rounds.get(at)?.gauges?;
        Some(gauges.card?.process)
    };

    let last = books.rounds.len().checked_sub(1)?;
    let card = taken(last)?;
    let contexts_alive = count(Layer::GpuContexts, last);
    let first = books.first_context.filter(|first| first.contexts > 0);
    let (contexts, contexts_by) = match first {
        Some(first) => {
            let each = first.card.saturating_sub(first.ledger) / first.contexts;
            let contexts = each.saturating_mul(contexts_alive);
            (contexts, ContextsBy::FirstSeen)
        }
        None => {
            let alike = (0..=last).filter(|at| count(Layer::GpuContexts, *at) == contexts_alive);
            let above = alike.filter_map(|at| Some(taken(at)?.saturating_sub(ledger(at))));
            (above.min().unwrap_or(0), ContextsBy::LeastEver)
        }
    };
    let uses_pools = |layer| books.series.iter().any(|series| series.layer == layer);
    let pools_kept = match books.pools {
        Some(pools) if pools.round == books.rounds[last].round => {
            Some(pools.reserved.saturating_sub(pools.used))
        }
        _ if uses_pools(Layer::DevicePool) || uses_pools(Layer::GpuPools) => None,
        // No pool, nothing kept.
        _ => Some(0),
    };
    let ledger = ledger(last);
    let explained = ledger
        .saturating_add(contexts)
        .saturating_add(pools_kept.unwrap_or(0));
    let managed = bytes(Layer::Managed, last).min(card.saturating_sub(explained));
    let remainder = signed(card).saturating_sub(signed(explained.saturating_add(managed)));
    let handles = [
        Layer::GpuStreams,
        Layer::GpuEvents,
        Layer::GpuGraphs,
        Layer::GpuImports,
    ];
    Some(CardAccount {
        round: books.rounds[last].round,
        card,
        ledger,
        contexts,
        contexts_by,
        contexts_alive,
        pools_kept,
        managed,
        modules: count(Layer::GpuModules, last),
        handles: handles.map(|layer| count(layer, last)).iter().sum(),
        remainder,
        reconciled: is_little(remainder, card),
    })
}

/// Whether a remainder is within the tolerance.
fn is_little(remainder: i64, of: u64) -> bool {
    remainder.unsigned_abs() <= TOLERANCE_BYTES.max(of / TOLERANCE_SHARE)
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn unsigned(amount: i64) -> u64 {
    u64::try_from(amount).unwrap_or(0)
}

impl Reconciliation {
    /// The tables of a report: resident memory, and the card.
    pub(crate) fn tables(&self) -> Vec<Table> {
        let resident = self.resident.map(|settled| {
            let moments = [Some(settled), self.after_trim];
            let moments: Vec<ResidentAccount> = moments.into_iter().flatten().collect();
            resident_table(&moments)
        });
        resident
            .into_iter()
            .chain(self.card.as_ref().map(card_table))
            .collect()
    }

    /// What the tables cannot say in numbers.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        if let Some(resident) = self.resident
            && resident.untouched >= WORTH_TELLING
        {
            sentences.push(format!(
                "at least {} that are alive were never touched, and are not resident",
                size_u64(resident.untouched)
            ));
        }
        if let Some(card) = self.card {
            let mut parts = Vec::new();
            if card.modules > 0 {
                parts.push(many(wide(card.modules), "module"));
            }
            if card.handles > 0 {
                parts.push(many(wide(card.handles), "handle"));
            }
            if card.pools_kept.is_none() {
                parts.push("what pools keep, which is not known".to_owned());
            }
            parts.push("the driver's rounding".to_owned());
            let contexts = match card.contexts_by {
                ContextsBy::FirstSeen => "read when the first one was seen",
                ContextsBy::LeastEver => "the least that the card ever was above the books",
            };
            sentences.push(format!(
                "what {} of the card {}: {contexts}; in the remainder: {}",
                many(wide(card.contexts_alive), "context"),
                if card.contexts_alive == 1 {
                    "takes"
                } else {
                    "take"
                },
                parts.join(", "),
            ));
        }
        sentences
    }
}

fn wide(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn resident_table(moments: &[ResidentAccount]) -> Table {
    let header = ["resident, in bytes", "settled", "after a trim"];
    let mut table = new_table(&header[..=moments.len().min(2)], 1);
    type Part = fn(&ResidentAccount) -> u64;
    let parts: [(&str, Part); 9] = [
        ("live heap", |account| account.heap),
        ("kept by the allocator", |account| account.kept),
        ("mappings of the program's", |account| account.anon),
        ("stacks", |account| account.stacks),
        ("files", |account| account.files),
        ("written copies of files", |account| account.copies),
        ("shared memory", |account| account.shmem),
        ("page-locked memory", |account| account.pinned),
        ("the meter's own", |account| account.own),
    ];
    for (what, of) in parts {
        if moments.iter().any(|account| of(account) != 0) {
            row(
                &mut table,
                what,
                moments.iter().map(|account| signed(of(account))),
            );
        }
    }
    row(
        &mut table,
        "remainder",
        moments.iter().map(|account| account.remainder),
    );
    row(
        &mut table,
        "resident",
        moments.iter().map(|account| signed(account.resident)),
    );
    let reconciled = moments.iter().map(|account| account.reconciled);
    last_row(&mut table, reconciled);
    table
}

fn card_table(card: &CardAccount) -> Table {
    let mut table = new_table(&["the card, in bytes", "settled"], 1);
    row(&mut table, "live by the ledger", [signed(card.ledger)]);
    row(&mut table, "contexts", [signed(card.contexts)]);
    match card.pools_kept {
        Some(0) => {}
        Some(kept) => row(&mut table, "kept by pools", [signed(kept)]),
        None => {
            table.add_row(["kept by pools", "not known"]);
        }
    }
    if card.managed > 0 {
        row(
            &mut table,
            "managed memory, at most",
            [signed(card.managed)],
        );
    }
    row(&mut table, "remainder", [card.remainder]);
    row(&mut table, "the card's", [signed(card.card)]);
    last_row(&mut table, [card.reconciled]);
    table
}

fn row(table: &mut Table, what: &str, bytes: impl IntoIterator<Item = i64>) {
    let cells = bytes.into_iter().map(|bytes| Cell::new(grouped(bytes)));
    table.add_row(std::iter::once(Cell::new(what)).chain(cells));
}

fn last_row(table: &mut Table, reconciled: impl IntoIterator<Item = bool>) {
    let words = reconciled
        .into_iter()
        .map(|is| if is { "yes" } else { "no" });
    let cells = words.map(|word| Cell::new(word).set_alignment(CellAlignment::Right));
    table.add_row(std::iter::once(Cell::new("within 5 % or 32 MiB")).chain(cells));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::{Card, Gauges, RoundBook, Series};

    const MIB: u64 = 1 << 20;

    /// Alive: 40 MiB of heap of which 24 MiB in mappings of their own, and 8 MiB mapped.
    fn reading() -> MemoryReading {
        MemoryReading {
            round: 10,
            resident: 120 * MIB,
            pages: Pages {
                allocator: 30 * MIB,
                anon: 32 * MIB,
                stacks: MIB,
                files: 40 * MIB,
                copies: 2 * MIB,
                shmem: 14 * MIB,
                ledger: MIB,
            },
            heap: 40 * MIB,
            anon: 8 * MIB,
            pinned: 10 * MIB,
            meter: 0,
            block_mappings: 24 * MIB,
            allocator_mappings: 0,
        }
    }

    /// The parts of an account, which add up.
    fn parts(account: &ResidentAccount) -> i64 {
        let parts = [
            account.heap,
            account.kept,
            account.anon,
            account.stacks,
            account.files,
            account.copies,
            account.shmem,
            account.pinned,
            account.own,
        ];
        signed(parts.iter().sum())
    }

    #[test]
    fn what_is_alive_and_what_is_kept_explain_what_is_resident() {
        let account = resident(&reading());
        assert_eq!(
            account,
            ResidentAccount {
                round: 10,
                resident: 120 * MIB,
                heap: 40 * MIB,
                kept: 14 * MIB,
                anon: 8 * MIB,
                stacks: MIB,
                files: 40 * MIB,
                copies: 2 * MIB,
                shmem: 4 * MIB,
                pinned: 10 * MIB,
                own: MIB,
                remainder: 0,
                untouched: 0,
                reconciled: true,
            }
        );
        assert_eq!(
            parts(&account) + account.remainder,
            signed(account.resident)
        );
    }

    #[test]
    fn what_no_ledger_books_is_the_remainder() {
        // Mapped by a system call that nobody sees.
        let mut hidden = reading();
        hidden.resident += 33 * MIB;
        hidden.pages.anon += 33 * MIB;
        let account = resident(&hidden);
        assert_eq!(account.remainder, signed(33 * MIB));
        assert!(!account.reconciled);
        assert_eq!(account.heap, 40 * MIB);
        assert_eq!(
            parts(&account) + account.remainder,
            signed(account.resident)
        );
        // A part of 20 of a large process is little.
        hidden.resident += 600 * MIB;
        hidden.pages.files += 600 * MIB;
        assert!(resident(&hidden).reconciled);
    }

    #[test]
    fn what_is_alive_and_was_never_touched_explains_nothing() {
        let mut reading = reading();
        reading.heap += 1024 * MIB;
        reading.block_mappings += 1024 * MIB;
        let account = resident(&reading);
        assert_eq!(account.untouched, 1024 * MIB);
        // Which block was not touched is not known; that the pages are somebody's is.
        assert_eq!(account.heap + account.anon, 48 * MIB);
        assert_eq!((account.kept, account.remainder), (14 * MIB, 0));
    }

    #[test]
    fn an_allocator_of_the_programs_own_keeps_what_it_mapped() {
        let mut reading = reading();
        // It has mapped 64 MiB, has 20 MiB of them resident, and gave out 4 MiB.
        reading.resident += 20 * MIB;
        reading.pages.anon += 20 * MIB;
        reading.heap += 4 * MIB;
        reading.meter = 64 * MIB + 512;
        reading.allocator_mappings = 64 * MIB;
        let account = resident(&reading);
        assert_eq!((account.remainder, account.untouched), (0, 0));
        assert_eq!(account.heap, 44 * MIB);
        assert_eq!(account.kept, (14 + 16) * MIB - 512);
        assert_eq!(account.own, MIB + 512);
        assert_eq!(parts(&account), signed(account.resident));
    }

    /// What the card had and the ledger held, round by round, and the contexts.
    fn on_a_card(rounds: &[(u64, i64, i64)]) -> Books {
        let live = |of: fn(&(u64, i64, i64)) -> Amount| rounds.iter().map(of).collect();
        let series = |layer, live| Series {
            layer,
            phase: "work".to_owned(),
            live,
        };
        let round = |(at, (card, ..)): (usize, &(u64, i64, i64))| RoundBook {
            round: at as u32 + 1,
            gauges: Some(Gauges {
                card: Some(Card {
                    process: *card,
                    used: 2 * card,
                    others: 0,
                }),
                ..Gauges::default()
            }),
            ..RoundBook::default()
        };
        Books {
            rounds: rounds.iter().enumerate().map(round).collect(),
            series: vec![
                series(Layer::Device, live(|round| Amount::new(round.1, 1))),
                series(Layer::GpuContexts, live(|round| Amount::new(0, round.2))),
            ],
            ..Books::default()
        }
    }

    #[test]
    fn contexts_take_what_the_card_showed_when_the_first_was_seen() {
        let mib = 1 << 20;
        let mut books = on_a_card(&[(540 * MIB, 0, 1), (1080 * MIB, 20 * mib, 2)]);
        books.first_context = Some(FirstContext {
            contexts: 1,
            card: 530 * MIB,
            ledger: 4 * MIB,
        });
        let account = card(&books).expect("a card");
        assert_eq!(account.contexts_by, ContextsBy::FirstSeen);
        assert_eq!(account.contexts, 2 * 526 * MIB);
        assert_eq!(account.ledger, 20 * MIB);
        assert_eq!(account.remainder, signed(8 * MIB));
        assert_eq!((account.pools_kept, account.reconciled), (Some(0), true));
    }

    #[test]
    fn without_such_a_reading_they_take_the_least_that_was_above_the_books() {
        let mib = 1 << 20;
        let rounds = [
            (0, 0, 0),
            (560 * MIB, 20 * mib, 1),
            (536 * MIB, 8 * mib, 1),
            (700 * MIB, 100 * mib, 1),
        ];
        let account = card(&on_a_card(&rounds)).expect("a card");
        assert_eq!(account.contexts_by, ContextsBy::LeastEver);
        assert_eq!(account.contexts, 528 * MIB);
        assert_eq!(account.remainder, signed(72 * MIB));
        assert!(!account.reconciled);
    }

    #[test]
    fn what_pools_keep_is_known_only_where_the_driver_was_asked_after_that_round() {
        let mib = 1 << 20;
        let mut books = on_a_card(&[(526 * MIB, 0, 1), (1590 * MIB, 0, 1)]);
        let pool = Series {
            layer: Layer::DevicePool,
            phase: "work".to_owned(),
            live: vec![Amount::ZERO, Amount::new(40 * mib, 4)],
        };
        books.series.push(pool);
        let account = card(&books).expect("a card");
        assert_eq!((account.pools_kept, account.reconciled), (None, false));
        let mut pools = PoolReading {
            round: 1,
            reserved: 1064 * MIB,
            used: 40 * MIB,
        };
        books.pools = Some(pools);
        assert_eq!(card(&books).expect("a card").pools_kept, None);
        pools.round = 2;
        books.pools = Some(pools);
        let account = card(&books).expect("a card");
        assert_eq!(account.pools_kept, Some(1024 * MIB));
        assert_eq!((account.remainder, account.reconciled), (0, true));
    }

    #[test]
    fn managed_memory_explains_no_more_than_the_card_has() {
        let mut books = on_a_card(&[(526 * MIB, 0, 1), (654 * MIB, 0, 1)]);
        books.series.push(Series {
            layer: Layer::Managed,
            phase: "work".to_owned(),
            live: vec![Amount::ZERO, Amount::new(1 << 30, 1)],
        });
        let account = card(&books).expect("a card");
        assert_eq!((account.managed, account.remainder), (128 * MIB, 0));
    }

    #[test]
    fn without_a_card_or_a_reading_there_is_nothing_to_reconcile() {
        assert_eq!(reconcile(&Books::default()), Reconciliation::default());
        let mut books = on_a_card(&[(1, 0, 1)]);
        books.rounds[0].gauges = Some(Gauges::default());
        assert_eq!(reconcile(&books).card, None);
    }
}
