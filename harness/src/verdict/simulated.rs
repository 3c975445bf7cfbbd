//! Books of programs that never ran: block by block, so that live memory and
//! survivors agree as they do in a real ledger.

use crate::books::{
    Amount, Books, Gauges, Health, ItemBook, Layer, Probe, ProbeKind, RoundBook, Series, Settle,
    Survivors,
};
use std::collections::BTreeMap;

/// Alive until the process ends.
pub(crate) const FOR_EVER: u32 = u32::MAX;

/// A program, told by what each round allocates.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) warmup: u32,
    pub(crate) rounds: u32,
    /// (layer, phase, round that bears it, round that frees it, bytes, blocks)
    blocks: Vec<(Layer, String, u32, u32, i64, i64)>,
    /// Bytes added to a block that only becomes larger, by round.
    grown: Vec<(Layer, String, u32, i64)>,
    items: Vec<ItemBook>,
    pub(crate) gauges: Vec<Gauges>,
    pub(crate) threads_created: Vec<u64>,
    pub(crate) errors: Vec<u64>,
    pub(crate) seconds: Vec<f64>,
}

impl Program {
    pub(crate) fn new(warmup: u32, rounds: u32) -> Self {
        Self {
            warmup,
            rounds,
            blocks: Vec::new(),
            grown: Vec::new(),
            items: Vec::new(),
            gauges: Vec::new(),
            threads_created: Vec::new(),
            errors: Vec::new(),
            seconds: Vec::new(),
        }
    }

    /// Blocks born in one round and freed in another (before its settling).
    pub(crate) fn block(
        &mut self,
        layer: Layer,
        phase: &str,
        born: u32,
        freed: u32,
        bytes: i64,
        blocks: i64,
    ) -> &mut Self {
        self.blocks
            .push((layer, phase.to_owned(), born, freed, bytes, blocks));
        self
    }

    /// What each round allocates and never frees: (bytes, blocks) by round.
    pub(crate) fn keeps(
        &mut self,
        layer: Layer,
        phase: &str,
        of: impl Fn(u32) -> (i64, i64),
    ) -> &mut Self {
        for round in 1..=self.rounds {
            let (bytes, blocks) = of(round);
            if blocks != 0 {
                self.block(layer, phase, round, FOR_EVER, bytes, blocks);
            }
        }
        self
    }

    /// What each round allocates and the next replaces.
    pub(crate) fn rolls(
        &mut self,
        layer: Layer,
        phase: &str,
        of: impl Fn(u32) -> (i64, i64),
    ) -> &mut Self {
        for round in 1..=self.rounds {
            let (bytes, blocks) = of(round);
            self.block(layer, phase, round, round + 1, bytes, blocks);
        }
        self
    }

    /// One block, born in round 1, that each round enlarges.
    pub(crate) fn enlarges(
        &mut self,
        layer: Layer,
        phase: &str,
        of: impl Fn(u32) -> i64,
    ) -> &mut Self {
        self.block(layer, phase, 1, FOR_EVER, 64, 1);
        for round in 1..=self.rounds {
            self.grown.push((layer, phase.to_owned(), round, of(round)));
        }
        self
    }

    /// The traffic of one item.
    pub(crate) fn item(
        &mut self,
        round: u32,
        item: u32,
        phase: &str,
        allocated: Amount,
        released: Amount,
    ) -> &mut Self {
        self.items.push(ItemBook {
            round,
            item,
            layer: Layer::RustHeap,
            phase: phase.to_owned(),
            allocated,
            released,
        });
        self
    }

    pub(crate) fn books(&self) -> Books {
        let n = self.rounds;
        let mut series: BTreeMap<(Layer, String), Vec<Amount>> = BTreeMap::new();
        let mut survivors: BTreeMap<(u32, Layer, String), Amount> = BTreeMap::new();
        let entry = |series: &mut BTreeMap<_, Vec<Amount>>, layer, phase: &String| {
            series
                .entry((layer, phase.clone()))
                .or_insert_with(|| vec![Amount::ZERO; n as usize]);
        };
        for (layer, phase, born, freed, bytes, blocks) in &self.blocks {
            entry(&mut series, *layer, phase);
            let live = series.get_mut(&(*layer, phase.clone())).expect("just made");
            for round in *born..=n.min(freed.saturating_sub(1)) {
                live[round as usize - 1] += Amount::new(*bytes, *blocks);
            }
            if *freed > n && *born <= n {
                *survivors.entry((*born, *layer, phase.clone())).or_default() +=
                    Amount::new(*bytes, *blocks);
            }
        }
        for (layer, phase, from, bytes) in &self.grown {
            entry(&mut series, *layer, phase);
            let live = series.get_mut(&(*layer, phase.clone())).expect("just made");
            for round in *from..=n {
                live[round as usize - 1].bytes += bytes;
            }
            survivors
                .entry((1, *layer, phase.clone()))
                .or_default()
                .bytes += bytes;
        }
        let settle = Settle {
            settled: true,
            ..Settle::default()
        };
        let at = |list: &[u64], round: u32| list.get(round as usize - 1).copied().unwrap_or(0);
        Books {
            warmup: self.warmup,
            rounds: (1..=n)
                .map(|round| RoundBook {
                    round,
                    settle,
                    at_seconds: self
                        .seconds
                        .get(round as usize - 1)
                        .copied()
                        .unwrap_or(f64::from(round)),
                    threads_created: at(&self.threads_created, round),
                    errors: at(&self.errors, round),
                    peak_bytes: 1 << 20,
                    gauges: Some(
                        self.gauges
                            .get(round as usize - 1)
                            .copied()
                            .unwrap_or(Gauges {
                                rss_anon: 2 << 20,
                                rss_peak: 4 << 20,
                                threads: 3,
                                fds: 5,
                                ..Gauges::default()
                            }),
                    ),
                    ..RoundBook::default()
                })
                .collect(),
            series: series
                .into_iter()
                .map(|((layer, phase), live)| Series { layer, phase, live })
                .collect(),
            survivors: survivors
                .into_iter()
                .map(|((round, layer, phase), left)| Survivors {
                    round,
                    layer,
                    phase,
                    left,
                })
                .collect(),
            items: self.items.clone(),
            final_settle: Some(settle),
            health: Health {
                attached: true,
                ..Health::default()
            },
            ..Books::default()
        }
    }
}

/// A trim after which this many anonymous bytes are resident.
pub(crate) fn trim(books: &Books, after: u64) -> Probe {
    let before = books
        .rounds
        .last()
        .and_then(|round| round.gauges)
        .expect("gauges");
    let live = books
        .series
        .iter()
        .filter_map(|series| series.live.last())
        .copied()
        .sum();
    Probe {
        kind: ProbeKind::Trim,
        seconds: 0.0,
        live_before: live,
        live_after: live,
        before: Some(before),
        after: Some(Gauges {
            rss_anon: after,
            ..before
        }),
    }
}
