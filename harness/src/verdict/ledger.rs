//! The exact books, series by series: which of them grow for good, and how.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use super::Settings;
use super::drivers::{self, Happened};
use super::finding::Driver;
use super::growth::{self, Climb, Course, Repeating, View};
use crate::books::{Amount, Books, Layer, ProbeKind};

/// What the ledger says of every series.
#[derive(Debug, Default)]
pub(super) struct Ledger<'a> {
    /// The index of the round that the measured ones are compared with.
    pub(super) base: usize,
    /// Rounds with a step to judge.
    pub(super) steps: usize,
    /// Every series by layer and phase, in that order, then those by site.
    pub(super) rows: Vec<Row<'a>>,
    /// The sum of each layer.
    pub(super) layers: Vec<Row<'a>>,
    /// Series that do not have a value for each round.
    pub(super) broken: usize,
    /// What went on beside, step by step.
    pub(super) happened: Happened,
    /// What is in the books and not in the rows: set aside.
    aside: BTreeMap<Layer, Vec<Amount>>,
}

/// One series with what was made of it.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) layer: Layer,
    /// Empty for the sum of a layer.
    pub(super) phase: &'a str,
    pub(super) site: Option<&'a str>,
    /// Alive after the base round and after each measured one.
    pub(super) values: Cow<'a, [Amount]>,
    /// Alive at the end, by the measured round that bore it (step by step); empty
    /// where nothing is.
    pub(super) born: Vec<Amount>,
    /// Alive at the end, born in the base round or before it.
    pub(super) born_before: BTreeMap<u32, Amount>,
    pub(super) outcome: Outcome,
}

/// What was made of a series.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    /// It does not rise for good.
    Flat,
    /// It rises by less than the floor.
    Below(Amount),
    /// It rose and stopped; the last rise was in this step.
    Stopped { total: Amount, last: usize },
    /// It rises, and it cannot be told how it goes on.
    Unclear {
        total: Amount,
        more: u32,
        slowing: bool,
    },
    /// It rises for good.
    Leak(Growth),
    /// It rises by what another series falls: the same memory, born again.
    Moved,
}

/// How a series rises.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Growth {
    pub(super) driver: Driver,
    pub(super) per_driver: Option<Amount>,
    pub(super) also_fits: Vec<Driver>,
    /// The first step of it.
    pub(super) start: usize,
    /// The steps that `total` covers.
    pub(super) steps: usize,
    pub(super) total: Amount,
    /// Whether the step is exactly constant.
    pub(super) constant: bool,
    /// Whether live memory shows it (else the survivors).
    pub(super) by_live: bool,
}

impl<'a> Ledger<'a> {
    /// Reads and judges every series.
    pub(super) fn read(books: &'a Books, settings: &Settings) -> Self {
        let rounds = books.rounds.len();
        let warmup = usize::try_from(books.warmup)
            .unwrap_or(usize::MAX)
            .min(rounds);
        let base = warmup.saturating_sub(1);
        let steps = rounds.saturating_sub(base + 1);
        let mut ledger = Self {
            base,
            steps,
            happened: Happened::from(books, base),
            ..Self::default()
        };
        ledger.gather(books);
        let exact_only = mostly_unsettled(books, warmup) && !idling_returned_nothing(books);
        let happened = std::mem::take(&mut ledger.happened);
        let judged = |row: &Row<'_>, born: &[Amount]| {
            outcome(
                row.layer,
                &row.values,
                born,
                &happened,
                settings,
                exact_only,
            )
        };
        // What a driver keeps for itself is told, and never judged.
        for row in (ledger.rows.iter_mut()).filter(|row| row.layer != Layer::DriverHeap) {
            row.outcome = judged(row, &row.born);
        }
        // What comes and goes in one phase would hide from the survivors of
        // another that live memory stands still: the sum must show it itself.
        let none = vec![Amount::ZERO; steps];
        for layer in (ledger.layers.iter_mut()).filter(|row| row.layer != Layer::DriverHeap) {
            layer.outcome = match judged(layer, &none) {
                // Caches of several phases, one after the other, look uneven.
                Outcome::Leak(growth) if !growth.constant => Outcome::Flat,
                outcome => outcome,
            };
        }
        ledger.happened = happened;
        ledger.find_moved(settings, exact_only);
        ledger
    }

    fn gather(&mut self, books: &'a Books) {
        let rounds = books.rounds.len();
        let mut at: HashMap<(Layer, &str), usize> = HashMap::new();
        for series in &books.series {
            if series.live.len() != rounds {
                self.broken += 1;
                continue;
            }
            let values = series.live.get(self.base..).unwrap_or_default();
            match at.entry((series.layer, series.phase.as_str())) {
                Entry::Occupied(row) => add(self.rows[*row.get()].values.to_mut(), values),
                Entry::Vacant(row) => {
                    row.insert(self.rows.len());
                    self.rows
                        .push(Row::new(series.layer, &series.phase, None, values));
                }
            }
        }
        let of_round: HashMap<u32, usize> = books
            .rounds
            .iter()
            .enumerate()
            .map(|(at, round)| (round.round, at))
            .collect();
        // Books come in order: the next entry is mostly of the same series or of the next,
        // and of the same round.
        let mut last = 0;
        let mut round = (0, of_round.get(&0).copied());
        for left in &books.survivors {
            let is = |row: &Row<'_>| row.layer == left.layer && row.phase == left.phase;
            let near = [last + 1, last]
                .into_iter()
                .find(|row| self.rows.get(*row).is_some_and(is));
            let Some(row) = near.or_else(|| at.get(&(left.layer, left.phase.as_str())).copied())
            else {
                continue;
            };
            last = row;
            let Some(row) = self.rows.get_mut(row) else {
                continue;
            };
            if round.0 != left.round {
                round = (left.round, of_round.get(&left.round).copied());
            }
            match round.1 {
                Some(round) if round > self.base => row.bear(round - self.base - 1, left.left),
                Some(_) => *row.born_before.entry(left.round).or_default() += left.left,
                // Before the first round, or in one that never ended.
                None => {}
            }
        }
        for aside in books
            .aside
            .iter()
            .filter(|aside| aside.live.len() == rounds)
        {
            let values = aside.live.get(self.base..).unwrap_or_default();
            let Some(&row) = at.get(&(aside.layer, aside.phase.as_str())) else {
                continue;
            };
            let row = &mut self.rows[row];
            take(row.values.to_mut(), values);
            let sum = self.aside.entry(aside.layer);
            add(
                sum.or_insert_with(|| vec![Amount::ZERO; values.len()]),
                values,
            );
            for (round, left) in &aside.left {
                match of_round.get(round) {
                    Some(&round) if round > self.base => {
                        row.bear(round - self.base - 1, Amount::ZERO - *left);
                    }
                    Some(_) => {
                        let born = row.born_before.entry(*round).or_default();
                        *born = *born - *left;
                    }
                    None => {}
                }
            }
        }
        for row in self.rows.iter_mut().filter(|row| !row.born.is_empty()) {
            row.born.resize(self.steps, Amount::ZERO);
        }
        self.rows
            .sort_by(|a, b| (a.layer, a.phase).cmp(&(b.layer, b.phase)));
        self.sum_layers();
        let mut sites: BTreeMap<(Layer, &str, &str), Row<'a>> = BTreeMap::new();
        for series in &books.sites {
            if series.live.len() != rounds {
                self.broken += 1;
                continue;
            }
            let row = sites
                .entry((series.layer, &series.phase, &series.site))
                .or_insert_with(|| Row::empty(series.layer, &series.phase, self.steps));
            row.site = Some(&series.site);
            add(
                row.values.to_mut(),
                series.live.get(self.base..).unwrap_or_default(),
            );
        }
        for aside in books
            .aside
            .iter()
            .filter(|aside| aside.live.len() == rounds)
        {
            if let Some(site) = &aside.site
                && let Some(row) = sites.get_mut(&(aside.layer, aside.phase.as_str(), site))
            {
                take(
                    row.values.to_mut(),
                    aside.live.get(self.base..).unwrap_or_default(),
                );
            }
        }
        self.rows.extend(sites.into_values());
    }

    fn sum_layers(&mut self) {
        let mut layers: BTreeMap<Layer, Row<'a>> = BTreeMap::new();
        for row in &self.rows {
            let sum = layers
                .entry(row.layer)
                .or_insert_with(|| Row::empty(row.layer, "", self.steps));
            add(sum.values.to_mut(), &row.values);
            sum.born
                .resize(row.born.len().max(sum.born.len()), Amount::ZERO);
            add(&mut sum.born, &row.born);
            for (round, left) in &row.born_before {
                *sum.born_before.entry(*round).or_default() += *left;
            }
        }
        self.layers = layers.into_values().collect();
    }

    /// Takes back what only moved from one phase to another, or from one heap to the
    /// other: a block freed there and born again here, round after round.
    fn find_moved(&mut self, settings: &Settings, exact_only: bool) {
        for at in self.moved(&self.rows, settings, exact_only) {
            self.rows[at].outcome = Outcome::Moved;
        }
        for at in self.moved(&self.layers, settings, exact_only) {
            self.layers[at].outcome = Outcome::Moved;
        }
    }

    /// Which of these rise for good by what another of them falls.
    fn moved(&self, rows: &[Row<'_>], settings: &Settings, exact_only: bool) -> Vec<usize> {
        let falling: Vec<usize> = (0..rows.len())
            .filter(|at| rows[*at].site.is_none() && rows[*at].is_below_its_highest())
            .collect();
        (0..rows.len())
            .filter(|at| {
                let row = &rows[*at];
                let Outcome::Leak(growth) = &row.outcome else {
                    return false;
                };
                row.site.is_none()
                    && falling.iter().any(|other| {
                        let falling = &rows[*other];
                        other != at
                            && (row.layer == falling.layer
                                || is_heap(row.layer) && is_heap(falling.layer))
                            && balances(row, falling, growth.start)
                            && {
                                let mut sum = row.values.to_vec();
                                add(&mut sum, &falling.values);
                                let born = vec![Amount::ZERO; self.steps];
                                let both = outcome(
                                    row.layer,
                                    &sum,
                                    &born,
                                    &self.happened,
                                    settings,
                                    exact_only,
                                );
                                !matches!(both, Outcome::Leak(_))
                            }
                    })
            })
            .collect()
    }

    /// All heap layers together, after the base round and each measured one.
    pub(super) fn heap(&self) -> Vec<Amount> {
        self.held(is_heap)
    }

    /// All that these layers hold, what is set aside included, after the base round
    /// and each measured one.
    pub(super) fn held(&self, layer: impl Fn(Layer) -> bool) -> Vec<Amount> {
        let mut sum = vec![Amount::ZERO; self.steps + 1];
        for row in self.layers.iter().filter(|row| layer(row.layer)) {
            add(&mut sum, &row.values);
        }
        for (_, aside) in self.aside.iter().filter(|(of, _)| layer(**of)) {
            add(&mut sum, aside);
        }
        sum
    }
}

impl<'a> Row<'a> {
    fn new(
        layer: Layer,
        phase: &'a str,
        site: Option<&'a str>,
        values: impl Into<Cow<'a, [Amount]>>,
    ) -> Self {
        Self {
            layer,
            phase,
            site,
            values: values.into(),
            born: Vec::new(),
            born_before: BTreeMap::new(),
            outcome: Outcome::Flat,
        }
    }

    /// A sum to be.
    fn empty(layer: Layer, phase: &'a str, steps: usize) -> Self {
        Self::new(layer, phase, None, vec![Amount::ZERO; steps + 1])
    }

    /// A series of counts that a gauge gave.
    pub(super) fn counted(layer: Layer, values: Vec<Amount>) -> Self {
        Self::new(layer, "", None, values)
    }

    /// Enters what is left of what a step bore. Steps come in order, mostly: then this
    /// writes on, and touches nothing that has left the processor's caches.
    fn bear(&mut self, step: usize, left: Amount) {
        if step >= self.born.len() {
            self.born
                .reserve(self.values.len().saturating_sub(self.born.len()));
            self.born.resize(step, Amount::ZERO);
            self.born.push(left);
        } else {
            self.born[step] += left;
        }
    }

    /// Whether it ends below where it once was, in bytes or in blocks.
    fn is_below_its_highest(&self) -> bool {
        let Some(last) = self.values.last() else {
            return false;
        };
        let mut values = self.values.iter();
        values.any(|value| value.bytes > last.bytes || value.blocks > last.blocks)
    }

    /// How often it rose for good, in bytes.
    pub(super) fn rise_count(&self) -> usize {
        let bytes: Vec<i64> = self.values.iter().map(|a| a.bytes).collect();
        growth::rises(&bytes).len()
    }
}

/// Whether these are malloc's blocks.
pub(super) const fn is_heap(layer: Layer) -> bool {
    matches!(
        layer,
        Layer::RustHeap | Layer::NativeHeap | Layer::DriverHeap
    )
}

/// Whether more than half of the measured rounds did not settle.
pub(super) fn mostly_unsettled(books: &Books, warmup: usize) -> bool {
    let measured = books.rounds.get(warmup..).unwrap_or_default();
    let unsettled = measured
        .iter()
        .filter(|round| !round.settle.settled)
        .count();
    unsettled * 2 > measured.len()
}

/// Whether the end of more than half of the measured rounds was heard of too late.
pub(super) fn mostly_late(books: &Books, warmup: usize) -> bool {
    let measured = books.rounds.get(warmup..).unwrap_or_default();
    measured.iter().filter(|round| round.late).count() * 2 > measured.len()
}

/// Whether the workload was left alone, and what was alive is alive still: then
/// what the rounds left did not only wait for its release.
fn idling_returned_nothing(books: &Books) -> bool {
    let mut idle = books.probes.iter().filter(|p| p.kind == ProbeKind::Idle);
    idle.next()
        .is_some_and(|probe| probe.live_after.bytes >= probe.live_before.bytes)
}

fn add(sum: &mut [Amount], values: &[Amount]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += *value;
    }
}

fn take(sum: &mut [Amount], values: &[Amount]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum = *sum - *value;
    }
}

/// Whether one series falls by what the other rises, from this step on: in
/// all, and in half of the steps that rise, to within a tenth.
fn balances(rising: &Row<'_>, falling: &Row<'_>, start: usize) -> bool {
    let close = |up: i64, down: i64| {
        let (up, down) = (i128::from(up), i128::from(down));
        (up + down).abs() * 10 <= up.abs()
    };
    let both = |up: Amount, down: Amount| {
        close(up.bytes, down.bytes) && close(up.blocks, down.blocks) && !up.is_zero()
    };
    let (Some(up), Some(down)) = (rising.values.get(start..), falling.values.get(start..)) else {
        return false;
    };
    let change = |values: &[Amount]| match (values.first(), values.last()) {
        (Some(first), Some(last)) => *last - *first,
        _ => Amount::ZERO,
    };
    if !both(change(up), change(down)) {
        return false;
    }
    let rises = |step: &Amount| step.bytes > 0 || step.blocks > 0;
    let (up_steps, down_steps) = (growth::steps(up), growth::steps(down));
    let risen = up_steps.iter().filter(|step| rises(step)).count();
    let matched = up_steps
        .iter()
        .zip(&down_steps)
        .filter(|(up, down)| rises(up) && both(**up, **down))
        .count();
    matched * 2 >= risen
}

/// Judges one series by what is alive after each round and by its survivors.
///
/// The survivors of the last rounds may be blocks that the next round
/// replaces, so up to three of them are left out where that makes a pattern;
/// and survivors count only if live memory rose by half of them at least, so
/// that a window of the last few rounds (live is flat) is no leak.
pub(super) fn outcome(
    layer: Layer,
    values: &[Amount],
    born: &[Amount],
    happened: &Happened,
    settings: &Settings,
    exact_only: bool,
) -> Outcome {
    // One descriptor in sixteen rounds is a lost descriptor: counts have no floor.
    let counted;
    let settings = if layer.is_counted() {
        counted = Settings {
            floor_bytes_per_round: 0,
            ..settings.clone()
        };
        &counted
    } else {
        settings
    };
    if values.windows(2).all(|pair| pair[0] == pair[1]) {
        return Outcome::Flat;
    }
    let steps = growth::steps(values);
    let by_survivors: Vec<&[Amount]> = (1..=3)
        .filter_map(|last| born.get(..born.len().checked_sub(last)?))
        .filter(|born| born.iter().any(|left| left.blocks > 0))
        .collect();
    let series = Steps {
        values,
        live: &steps,
        born,
        by_survivors,
        happened,
    };
    if let Some(growth) = series.exact() {
        let by_law = match (growth.per_driver, growth.driver) {
            (Some(each), Driver::EveryKthRound(k)) => settings.matters(each, k as usize),
            _ => false,
        };
        if by_law || settings.matters(growth.total, growth.steps) {
            return Outcome::Leak(growth);
        }
        // The same window by the other book, where sizes come and go.
        let left: Amount = born.iter().skip(growth.start).copied().sum();
        if growth.by_live && growth.per_driver.is_none() && settings.matters(left, growth.steps) {
            return Outcome::Leak(Growth {
                total: left,
                ..growth
            });
        }
        // What came before it is over: a cache, if it was worth mentioning.
        let before = values.get(..=growth.start).unwrap_or_default();
        let blocks = growth::rises(&before.iter().map(|a| a.blocks).collect::<Vec<_>>());
        let bytes = growth::rises(&before.iter().map(|a| a.bytes).collect::<Vec<_>>());
        let earlier = risen(&blocks, &bytes);
        let last = blocks
            .iter()
            .chain(&bytes)
            .map(|(at, _)| *at)
            .max()
            .unwrap_or(0);
        return if settings.matters(earlier, steps.len()) {
            Outcome::Stopped {
                total: earlier,
                last,
            }
        } else {
            Outcome::Below(earlier + growth.total)
        };
    }
    let outcome = series.uneven(settings, exact_only);
    if layer.is_counted() {
        let counts: Vec<i64> = values.iter().map(|value| value.blocks).collect();
        return climbing(&counts, outcome);
    }
    outcome
}

/// What a count does that goes up and down, and up in the long run: it has no
/// survivors that could tell which of it stays.
fn climbing(counts: &[i64], judged: Outcome) -> Outcome {
    let (Some(first), Some(last)) = (counts.first(), counts.last()) else {
        return judged;
    };
    let n = counts.len().saturating_sub(1);
    let total = Amount::new(0, last.saturating_sub(*first));
    match (judged, growth::climb(counts)) {
        (Outcome::Flat | Outcome::Stopped { .. } | Outcome::Unclear { .. }, Climb::Steady) => {
            Outcome::Leak(Growth {
                driver: Driver::Unknown,
                per_driver: None,
                also_fits: Vec::new(),
                start: 0,
                steps: n,
                total,
                constant: false,
                by_live: true,
            })
        }
        (Outcome::Flat | Outcome::Stopped { .. }, Climb::Perhaps) => Outcome::Unclear {
            total,
            more: u32::try_from(n).unwrap_or(u32::MAX),
            slowing: false,
        },
        (judged, _) => judged,
    }
}

struct Steps<'a> {
    values: &'a [Amount],
    live: &'a [Amount],
    /// Survivors by the step that bore them.
    born: &'a [Amount],
    /// The same without the last one, two and three rounds.
    by_survivors: Vec<&'a [Amount]>,
    happened: &'a Happened,
}

impl Steps<'_> {
    /// Growth by an exact law: per error, per thread, or repeating.
    fn exact(&self) -> Option<Growth> {
        let events = [
            (Driver::PerError, &self.happened.errors),
            (Driver::PerThread, &self.happened.threads),
        ];
        for view in [View::Both, View::Blocks, View::Bytes] {
            for (driver, events) in events {
                if let Some((start, each)) = drivers::per_event(self.live, events, view) {
                    return Some(self.events(driver, start, each, view, None));
                }
                for born in &self.by_survivors {
                    if view != View::Bytes
                        && let Some((start, each)) = drivers::per_event(born, events, view)
                        && self.live_agrees(born, start, 1)
                    {
                        return Some(self.events(driver, start, each, view, Some(born)));
                    }
                }
            }
            let live = growth::repeating(self.live, view).filter(|found| {
                found.proven || (view == View::Both && self.both_books_agree(found))
            });
            let left = self
                .by_survivors
                .iter()
                .filter(|_| view != View::Bytes)
                .find_map(|born| {
                    let found = growth::repeating(born, view)?;
                    // Three additions are enough where live memory shows them too.
                    let covers = 2 * (born.len() - found.start) >= born.len();
                    let enough =
                        found.proven || (found.period > 1 && covers && self.blocks_never_fall());
                    let goes_on = found.period > 1 || self.last_rounds_hold(born.len());
                    (enough && goes_on && self.live_agrees(born, found.start, found.period))
                        .then_some((found, *born))
                });
            // What comes and goes may repeat too, and make the pattern longer.
            match (live, left) {
                (Some(live), Some((left, born))) if left.period < live.period => {
                    return Some(self.pattern(&left, view, Some(born)));
                }
                (Some(live), _) => return Some(self.pattern(&live, view, None)),
                (None, Some((left, born))) => return Some(self.pattern(&left, view, Some(born))),
                (None, None) => {}
            }
        }
        None
    }

    /// Whether a pattern that is too short by itself (four equal steps, three
    /// additions) is borne out by the survivors: exactly as much is left of each
    /// of its rounds, the last one aside, which holds as much at least.
    fn both_books_agree(&self, found: &Repeating) -> bool {
        let n = self.live.len();
        let length = n - found.start;
        let long_enough = (found.period > 1 || length >= 4) && 2 * length >= n;
        let (Some(live), Some(born)) =
            (self.live.get(found.start..), self.born.get(found.start..n))
        else {
            return false;
        };
        long_enough
            && live.iter().zip(born).enumerate().all(|(at, (step, left))| {
                if found.start + at + 1 == n {
                    left.bytes >= step.bytes && left.blocks >= step.blocks
                } else {
                    left == step
                }
            })
    }

    /// Whether live memory rose by half of what the survivors say at least: in
    /// the whole span of a pattern, in its second half and in its last quarter,
    /// each of them carried on to the last round, so that a window of the last
    /// rounds that has just become full is no leak.
    ///
    /// It rose from the highest value so far to the lowest that still comes: a
    /// block that is there by chance in the last round proves nothing.
    ///
    /// Where the number of blocks never falls, nothing hides it: then live
    /// memory must show the same pattern itself. Unless every measured round left
    /// the same behind: no window of recent rounds reaches back to all of them, so
    /// blocks that come and go beside them may blur what live memory shows, and
    /// only the whole span must agree.
    fn live_agrees(&self, born: &[Amount], start: usize, period: usize) -> bool {
        let (end, n) = (born.len(), self.live.len());
        let all_rounds = start == 0 && period == 1;
        if self.blocks_never_fall() && !all_rounds {
            return self.live.get(start..).is_some_and(|live| {
                live[..end - start]
                    .iter()
                    .zip(&born[start..])
                    .all(|(a, b)| a.blocks == b.blocks)
                    && live
                        .iter()
                        .skip(period)
                        .zip(live)
                        .all(|(a, b)| a.blocks == b.blocks)
            });
        }
        let blocks = |values: &[Amount]| -> (i64, i64) {
            values.iter().fold((i64::MAX, i64::MIN), |(low, high), a| {
                (low.min(a.blocks), high.max(a.blocks))
            })
        };
        let (lowest, _) = self.values.get(end..).map_or((i64::MIN, 0), blocks);
        let length = end.saturating_sub(start);
        let spans = if all_rounds {
            vec![length]
        } else {
            vec![length, length / 2, length / 4]
        };
        spans
            .into_iter()
            .filter(|span| *span >= period.max(2))
            .all(|span| {
                let from = end - span;
                let left: Amount = born.iter().skip(from).copied().sum();
                let (_, highest) = self.values.get(..=from).map_or((0, i64::MAX), blocks);
                let rose = i128::from(lowest) - i128::from(highest);
                // rose / (n - from) > left / span / 2, without a division.
                rose * 2 * (span as i128) > i128::from(left.blocks) * ((n - from) as i128)
            })
    }

    /// Whether the rounds that were left out at the end hold as many blocks as the
    /// one before them: what the next round would replace is there in addition.
    /// Where they hold fewer, whatever it was has stopped.
    fn last_rounds_hold(&self, kept: usize) -> bool {
        let (Some(last), Some(rest)) = (self.born[..kept].last(), self.born.get(kept..)) else {
            return true;
        };
        rest.iter().all(|left| left.blocks >= last.blocks)
    }

    fn blocks_never_fall(&self) -> bool {
        self.values
            .windows(2)
            .all(|pair| pair[1].blocks >= pair[0].blocks)
    }

    /// What is left of all measured rounds alike, or of most of them, where blocks that
    /// come and go hide whether live memory rises with it.
    fn hidden(&self) -> Option<Amount> {
        let blocks: Vec<i64> = self.values.iter().map(|a| a.blocks).collect();
        let fall = i128::from(deepest_fall(&blocks));
        let alike = self.by_survivors.iter().filter_map(|born| {
            let found = growth::repeating(born, View::Both)?;
            (found.proven && found.start == 0).then(|| born.iter().copied().sum::<Amount>())
        });
        alike
            .chain(self.left_by_most_rounds())
            .find(|left| fall * 2 >= i128::from(left.blocks))
    }

    /// What is left of the rounds, where three in four of them left something, and the
    /// first half of them as much as the second within a factor of two.
    ///
    /// The last three rounds are left out, whose blocks may be on their way.
    fn left_by_most_rounds(&self) -> Option<Amount> {
        let n = self.born.len();
        // Where the number of blocks never falls, nothing hides a step.
        if n < 8 || self.blocks_never_fall() {
            return None;
        }
        let older = &self.born[..n - 3];
        let left: Amount = older.iter().copied().sum();
        let sum = |part: &[Amount]| part.iter().copied().sum::<Amount>().blocks;
        let (first, second) = older.split_at(older.len() / 2);
        let (first, second) = (sum(first), sum(second));
        let goes_on = older[older.len() * 3 / 4..]
            .iter()
            .any(|left| left.blocks > 0);
        (rounds_that_left(older) * 4 >= older.len() * 3
            && goes_on
            && first <= second.saturating_mul(2)
            && second <= first.saturating_mul(2))
        .then_some(left)
    }

    /// Whether live memory rose by half of what is left at least, from the first third of
    /// the rounds to the last: a loss below blocks that come and go and hide its every step.
    fn rose_by_half_of(&self, left: Amount) -> bool {
        let mean = |part: &[Amount]| {
            part.iter().map(|value| value.blocks as f64).sum::<f64>() / part.len() as f64
        };
        let third = self.values.len() / 3;
        let last_third = &self.values[self.values.len() - third..];
        // From the middle of the first third to the middle of the last.
        let rose = 1.5 * (mean(last_third) - mean(&self.values[..third]));
        rose * 2.0 >= left.blocks as f64
    }

    /// Whether every round but the last three left blocks of one size behind, and the
    /// lowest that live memory came to rose by a third of them at least, from the first
    /// third of the rounds to the last: what comes and goes beside them only adds to it.
    fn left_by_all_rounds(&self) -> bool {
        let n = self.born.len();
        let Some(older) = n.checked_sub(3).and_then(|older| self.born.get(..older)) else {
            return false;
        };
        let Some(first) = older.iter().find(|left| left.blocks > 0) else {
            return false;
        };
        let of_one_size = older.iter().all(|left| {
            i128::from(left.bytes) * i128::from(first.blocks)
                == i128::from(first.bytes) * i128::from(left.blocks)
        });
        let third = self.values.len() / 3;
        let lowest = |part: &[Amount]| part.iter().map(|value| value.blocks).min().unwrap_or(0);
        let rose = lowest(&self.values[self.values.len() - third..])
            .saturating_sub(lowest(&self.values[..third]));
        let left = older.iter().copied().sum::<Amount>().blocks;
        // Two thirds of them lie between the two.
        of_one_size && leave_without_pause(older) && i128::from(rose) * 9 >= i128::from(left) * 2
    }

    fn rose_since(&self, start: usize) -> Amount {
        match (self.values.get(start), self.values.last()) {
            (Some(first), Some(last)) => *last - *first,
            _ => Amount::ZERO,
        }
    }

    fn events(
        &self,
        driver: Driver,
        start: usize,
        each: Amount,
        view: View,
        born: Option<&[Amount]>,
    ) -> Growth {
        let (total, steps) = self.total(start, born);
        Growth {
            driver,
            per_driver: (view == View::Both).then_some(each),
            also_fits: Vec::new(),
            start,
            steps,
            total,
            constant: true,
            by_live: born.is_none(),
        }
    }

    fn pattern(&self, found: &Repeating, view: View, born: Option<&[Amount]>) -> Growth {
        let (total, steps) = self.total(found.start, born);
        let driver = match u32::try_from(found.period) {
            Ok(1) | Err(_) => Driver::PerRound,
            Ok(k) => Driver::EveryKthRound(k),
        };
        let mut also_fits = Vec::new();
        if drivers::also_explains(found, &self.happened.errors) {
            also_fits.push(Driver::PerError);
        }
        if drivers::also_explains(found, &self.happened.threads) {
            also_fits.push(Driver::PerThread);
        }
        Growth {
            driver,
            per_driver: (view == View::Both).then_some(found.per_period),
            also_fits,
            start: found.start,
            steps,
            total,
            constant: true,
            by_live: born.is_none(),
        }
    }

    fn total(&self, start: usize, born: Option<&[Amount]>) -> (Amount, usize) {
        match born {
            None => (
                self.rose_since(start),
                self.live.len().saturating_sub(start),
            ),
            Some(born) => (
                born.iter().skip(start).copied().sum(),
                born.len().saturating_sub(start),
            ),
        }
    }

    /// Whether survivors bear uneven growth out: half of it, at least, is left of
    /// rounds before the last three. Where the number of blocks never falls, or
    /// rises no more than it falls (one block becomes larger), they need not.
    ///
    /// It rises to the lowest of the last three rounds: blocks that are there by chance
    /// in the last one (a child that has just begun) prove nothing.
    fn survivors_allow(&self) -> bool {
        let older = self.born.len().saturating_sub(3);
        let left: Amount = self.born.iter().take(older).copied().sum();
        let blocks: Vec<i64> = self.values.iter().map(|a| a.blocks).collect();
        let lowest = blocks.iter().rev().take(3).min();
        let rose = match (blocks.first(), lowest) {
            (Some(first), Some(lowest)) => lowest.saturating_sub(*first),
            _ => 0,
        };
        rose <= deepest_fall(&blocks).max(0)
            || self.blocks_never_fall()
            || i128::from(left.blocks) * 2 >= i128::from(rose)
    }

    /// Growth by no exact law: its course decides.
    fn uneven(&self, settings: &Settings, exact_only: bool) -> Outcome {
        let blocks: Vec<i64> = self.values.iter().map(|a| a.blocks).collect();
        let bytes: Vec<i64> = self.values.iter().map(|a| a.bytes).collect();
        let (block_rises, byte_rises) = (growth::rises(&blocks), growth::rises(&bytes));
        let n = self.live.len();
        let rose = risen(&block_rises, &byte_rises);
        let total = self.rose_since(0);
        let enough = usize::try_from(settings.uneven_rounds).unwrap_or(usize::MAX);

        let grown = |driver, start: usize| Growth {
            driver,
            per_driver: None,
            also_fits: Vec::new(),
            start,
            steps: n - start,
            total: self.rose_since(start),
            constant: false,
            by_live: true,
        };
        let courses = [
            (
                growth::course(&blocks, &block_rises, enough),
                &blocks,
                &block_rises,
            ),
            (
                growth::course(&bytes, &byte_rises, enough),
                &bytes,
                &byte_rises,
            ),
        ];
        let verdict = courses.iter().max_by_key(|(course, ..)| match course {
            Course::Flat => 0,
            Course::Stopped => 1,
            Course::Slowing => 2,
            Course::Unclear => 3,
            Course::Steady => 4,
        });
        let Some((course, values, rises)) = verdict else {
            return Outcome::Flat;
        };
        let first = rises.first().map_or(0, |(at, _)| *at);
        let last = rises.last().map_or(0, |(at, _)| *at);
        let more =
            |wanted: usize| u32::try_from(wanted.saturating_sub(n).max(1)).unwrap_or(u32::MAX);

        // What is left of nearly every round is lost, where live memory bears it out.
        let lost = self
            .left_by_most_rounds()
            .filter(|left| settings.matters(*left, n) && self.rose_by_half_of(*left));
        let lost_for_good = || {
            let left = lost.filter(|_| n >= enough && !exact_only)?;
            let borne_out = growth::climb(&blocks) != Climb::No || self.left_by_all_rounds();
            let first = self.born.iter().position(|left| left.blocks > 0);
            borne_out.then(|| {
                Outcome::Leak(Growth {
                    total: left,
                    ..grown(Driver::Unknown, first.unwrap_or(0))
                })
            })
        };
        if matches!(course, Course::Steady | Course::Unclear) {
            if !settings.matters(total, n) && !settings.matters(rose, n) {
                return Outcome::Below(rose);
            }
            let by_clock = drivers::per_second(
                &values
                    .windows(2)
                    .map(|p| p[1].saturating_sub(p[0]))
                    .collect::<Vec<_>>(),
                &self.happened.seconds,
            );
            if by_clock.is_some() {
                return Outcome::Leak(grown(Driver::PerSecond, first));
            }
            if *course == Course::Steady && !exact_only && self.survivors_allow() {
                let driver = if rises.len() * 4 >= n * 3 {
                    Driver::PerRound
                } else {
                    Driver::Unknown
                };
                return Outcome::Leak(grown(driver, first));
            }
            return lost_for_good().unwrap_or(Outcome::Unclear {
                total,
                more: more(enough),
                slowing: false,
            });
        }
        if byte_rises.len() >= 4 && growth::doubling(&byte_rises, n) && settings.matters(rose, n) {
            return Outcome::Leak(grown(Driver::Unknown, byte_rises[byte_rises.len() - 4].0));
        }
        // The last steps may be the beginning of a pattern.
        if let Some(found) = growth::repeating(self.live, View::Both)
            && settings.matters(self.rose_since(found.start), n - found.start)
            && (rises.len() >= 3 && rises[rises.len() - 3].0 + 3 == n || found.period > 1)
            && rises.last().is_some_and(|(at, _)| at + found.period >= n)
        {
            return lost_for_good().unwrap_or(Outcome::Unclear {
                total: self.rose_since(found.start),
                more: 2,
                slowing: false,
            });
        }
        if *course == Course::Slowing {
            let tail = (n / 3).max(3).min(n);
            let late = self.values[n] - self.values[n - tail];
            let creeps = settings.cost(late).saturating_mul(10) <= settings.cost(total);
            if !creeps && settings.matters(late, tail) {
                return Outcome::Unclear {
                    total,
                    more: more(n * 2),
                    slowing: true,
                };
            }
        }
        if let Some(leak) = lost_for_good() {
            return leak;
        }
        let hidden = self.hidden().filter(|left| settings.matters(*left, n));
        if let Some(left) = lost.or(hidden) {
            return Outcome::Unclear {
                total: left,
                more: more(2 * n),
                slowing: false,
            };
        }
        if rises.is_empty() || (rises.len() <= 2 && within_noise(values, rises)) {
            return Outcome::Flat;
        }
        if settings.matters(rose, n) {
            Outcome::Stopped { total: rose, last }
        } else {
            Outcome::Below(rose)
        }
    }
}

/// How many rounds left something. One that left nothing counts where one beside it left
/// twice as much as others do: where a round ends is chance to whoever works beside it.
fn rounds_that_left(born: &[Amount]) -> usize {
    let some = born.iter().map(|left| left.blocks).filter(|left| *left > 0);
    let Some(least) = some.min() else { return 0 };
    let left = |at: Option<usize>, least: i64| {
        at.and_then(|at| born.get(at))
            .is_some_and(|left| left.blocks >= least)
    };
    let twice = least.saturating_mul(2);
    (0..born.len())
        .filter(|at| {
            left(Some(*at), 1) || left(at.checked_sub(1), twice) || left(at.checked_add(1), twice)
        })
        .count()
}

/// Whether each round left something: no stretch of rounds lacks more than what the least
/// of them leaves. Where a round ends is chance to whoever works beside it, so its blocks
/// may be booked with those of the next or of the one before, and so on from there.
fn leave_without_pause(born: &[Amount]) -> bool {
    let some = born.iter().map(|left| left.blocks).filter(|left| *left > 0);
    let Some(least) = some.min() else {
        return false;
    };
    let mut lacking = 0i64;
    born.iter().all(|left| {
        lacking = lacking
            .saturating_add(least.saturating_sub(left.blocks))
            .max(0);
        lacking <= least
    })
}

/// What all rises add up to.
fn risen(blocks: &[(usize, i64)], bytes: &[(usize, i64)]) -> Amount {
    let sum = |rises: &[(usize, i64)]| {
        rises
            .iter()
            .fold(0i64, |sum, (_, rise)| sum.saturating_add(*rise))
    };
    Amount::new(sum(bytes), sum(blocks))
}

/// Whether one or two rises are no larger than what the series falls elsewhere.
fn within_noise(values: &[i64], rises: &[(usize, i64)]) -> bool {
    let fall = deepest_fall(values);
    rises.iter().all(|(_, rise)| *rise <= fall)
}

/// The deepest falls of bytes and of blocks from any earlier value.
pub(super) fn deepest_falls(values: &[Amount]) -> Amount {
    let mut highest = Amount::new(i64::MIN, i64::MIN);
    let mut fall = Amount::ZERO;
    for value in values {
        highest.bytes = highest.bytes.max(value.bytes);
        highest.blocks = highest.blocks.max(value.blocks);
        let below = highest - *value;
        fall.bytes = fall.bytes.max(below.bytes);
        fall.blocks = fall.blocks.max(below.blocks);
    }
    fall
}

/// The deepest fall from any earlier value.
fn deepest_fall(values: &[i64]) -> i64 {
    let mut highest = i64::MIN;
    let mut fall = 0i64;
    for value in values {
        highest = highest.max(*value);
        fall = fall.max(highest.saturating_sub(*value));
    }
    fall
}

#[cfg(test)]
mod tests {
    use super::super::simulated::{FOR_EVER, Program};
    use super::*;
    use crate::books::{Aside, Probe, Series, SiteSeries, Survivors};

    /// Blocks of 100 bytes.
    fn of(blocks: i64) -> Amount {
        Amount::new(100 * blocks, blocks)
    }

    fn amounts(blocks: &[i64]) -> Vec<Amount> {
        blocks.iter().copied().map(of).collect()
    }

    fn series(phase: &str, live: &[i64]) -> Series {
        Series {
            layer: Layer::RustHeap,
            phase: phase.to_owned(),
            live: amounts(live),
        }
    }

    fn survivors(phase: &str, round: u32, blocks: i64) -> Survivors {
        Survivors {
            round,
            layer: Layer::RustHeap,
            phase: phase.to_owned(),
            left: of(blocks),
        }
    }

    /// One series with its survivors, judged step by step.
    struct Judged {
        values: Vec<Amount>,
        live: Vec<Amount>,
        born: Vec<Amount>,
        happened: Happened,
    }

    impl Judged {
        fn of(values: Vec<Amount>, born: Vec<Amount>) -> Self {
            Self {
                live: growth::steps(&values),
                values,
                born,
                happened: Happened::default(),
            }
        }

        fn blocks(values: &[i64], born: &[i64]) -> Self {
            Self::of(amounts(values), amounts(born))
        }

        fn steps(&self) -> Steps<'_> {
            let without = |last: usize| self.born.get(..self.born.len().checked_sub(last)?);
            Steps {
                values: &self.values,
                live: &self.live,
                born: &self.born,
                by_survivors: (1..=3).filter_map(without).collect(),
                happened: &self.happened,
            }
        }
    }

    #[test]
    fn the_books_of_one_layer_and_phase_are_one_row_and_survivors_find_theirs() {
        let mut books = Program::new(2, 4).books();
        books.series = vec![
            series("ntt", &[1, 2, 3, 4]),
            series("finish", &[5, 5, 6, 8]),
            series("ntt", &[0, 1, 1, 1]),
            series("broken", &[1, 2, 3]),
        ];
        // In no order, before the first round, and after the last one that ended.
        books.survivors = vec![
            survivors("finish", 4, 2),
            survivors("ntt", 2, 7),
            survivors("ntt", 4, 3),
            survivors("finish", 3, 1),
            survivors("ntt", 1, 9),
            survivors("ntt", 0, 1),
            survivors("ntt", 5, 1),
            survivors("nowhere", 4, 1),
        ];
        books.sites = vec![SiteSeries {
            layer: Layer::RustHeap,
            phase: "ntt".to_owned(),
            site: "a".to_owned(),
            live: amounts(&[1]),
        }];
        let ledger = Ledger::read(&books, &Settings::default());
        assert_eq!((ledger.base, ledger.steps, ledger.broken), (1, 2, 2));
        let [finish, ntt] = &ledger.rows[..] else {
            panic!("{:?}", ledger.rows);
        };
        assert_eq!((finish.phase, ntt.phase), ("finish", "ntt"));
        assert_eq!(finish.values[..], amounts(&[5, 6, 8]));
        assert_eq!(ntt.values[..], amounts(&[3, 4, 5]));
        assert_eq!(finish.born, amounts(&[1, 2]));
        assert_eq!(ntt.born, amounts(&[0, 3]));
        assert!(finish.born_before.is_empty());
        assert_eq!(ntt.born_before, BTreeMap::from([(1, of(9)), (2, of(7))]));
        let [layer] = &ledger.layers[..] else {
            panic!("{:?}", ledger.layers);
        };
        assert_eq!(layer.values[..], amounts(&[8, 10, 13]));
        assert_eq!(layer.born, amounts(&[1, 5]));
        assert_eq!(layer.born_before, ntt.born_before);
    }

    #[test]
    fn what_is_set_aside_is_taken_from_its_row_and_site_and_still_held() {
        let mut program = Program::new(2, 5);
        program.keeps(Layer::RustHeap, "ntt", |_| (200, 2));
        let mut books = program.books();
        books.sites = vec![SiteSeries {
            layer: Layer::RustHeap,
            phase: "ntt".to_owned(),
            site: "a".to_owned(),
            live: books.series[0].live.clone(),
        }];
        let aside = |live: &[i64]| Aside {
            layer: Layer::RustHeap,
            phase: "ntt".to_owned(),
            site: Some("a".to_owned()),
            live: amounts(live),
            left: [1, 2, 3, 5, 9].map(|round| (round, of(1))).to_vec(),
        };
        // The second of them says too little, and is left alone.
        books.aside = vec![aside(&[1, 2, 3, 3, 4]), aside(&[1, 1])];
        let ledger = Ledger::read(&books, &Settings::default());
        let [row, site] = &ledger.rows[..] else {
            panic!("{:?}", ledger.rows);
        };
        assert_eq!(site.site, Some("a"));
        for row in [row, site] {
            assert_eq!(row.values[..], amounts(&[2, 3, 5, 6]));
        }
        assert_eq!(row.born, amounts(&[1, 2, 1]));
        assert_eq!(row.born_before, BTreeMap::from([(1, of(1)), (2, of(1))]));
        assert_eq!(ledger.heap(), amounts(&[4, 6, 8, 10]));
    }

    #[test]
    fn a_row_is_below_its_highest_by_bytes_or_by_blocks() {
        let below = |values: &[(i64, i64)]| {
            let values: Vec<Amount> = values.iter().map(|(a, b)| Amount::new(*a, *b)).collect();
            Row::new(Layer::RustHeap, "", None, values).is_below_its_highest()
        };
        assert!(!below(&[(1, 1), (2, 2), (2, 2)]));
        assert!(below(&[(3, 1), (2, 2)]));
        assert!(below(&[(1, 3), (2, 2)]));
        assert!(!below(&[]));
    }

    #[test]
    fn most_rounds_are_more_than_half_of_the_measured_ones() {
        let mut books = Program::new(1, 9).books();
        for (at, round) in books.rounds.clone().iter().enumerate() {
            assert!(round.settle.settled);
            books.rounds[at].settle.settled = false;
            books.rounds[at].late = true;
            // The warm-up is the first of them.
            let most = at > 4;
            assert_eq!(mostly_unsettled(&books, 1), most, "{at} of 8");
            assert_eq!(mostly_late(&books, 1), most, "{at} of 8");
        }
    }

    #[test]
    fn idling_returned_nothing_where_as_much_is_alive_after_the_first_time() {
        let mut books = Program::new(1, 5).books();
        assert!(!idling_returned_nothing(&books));
        let probe = |kind, after| Probe {
            kind,
            seconds: 1.0,
            live_before: of(10),
            live_after: of(after),
            before: None,
            after: None,
        };
        for (kind, after, nothing) in [
            (ProbeKind::Idle, 10, true),
            (ProbeKind::Idle, 11, true),
            (ProbeKind::Idle, 9, false),
            (ProbeKind::Drain, 10, false),
        ] {
            books.probes = vec![probe(kind, after), probe(ProbeKind::Idle, 0)];
            assert_eq!(idling_returned_nothing(&books), nothing, "{kind:?} {after}");
        }
    }

    #[test]
    fn a_series_balances_another_to_within_a_tenth_in_half_of_its_rises() {
        let row = |values: &[i64]| Row::new(Layer::RustHeap, "", None, amounts(values));
        let falls = |up: &[i64], down: &[i64], start| balances(&row(up), &row(down), start);
        assert!(falls(&[0, 100, 200], &[200, 100, 0], 0));
        assert!(falls(&[0, 100, 200], &[190, 100, 10], 0));
        assert!(!falls(&[0, 100, 200], &[188, 100, 10], 0));
        assert!(!falls(&[0, 100, 200], &[222, 100, 0], 0));
        assert!(!falls(&[0, 100, 200], &[0, 100, 200], 0));
        // From a step on, and not before.
        assert!(falls(&[50, 0, 100, 200], &[0, 200, 100, 0], 1));
        assert!(!falls(&[50, 0, 100, 200], &[0, 200, 100, 0], 0));
        // One of two rises is matched by a fall, and then none.
        assert!(falls(&[0, 100, 200, 200], &[200, 100, 90, 0], 0));
        assert!(!falls(&[0, 100, 200, 200], &[200, 190, 10, 0], 0));
        assert!(!falls(&[5, 5], &[5, 5], 0));
        // The same where only bytes or only blocks rise.
        for part in [View::Bytes, View::Blocks] {
            let row = |values: &[i64]| {
                let values: Vec<Amount> = amounts(values).iter().map(|a| part.of(*a)).collect();
                Row::new(Layer::RustHeap, "", None, values)
            };
            let up = row(&[0, 100, 200, 200]);
            assert!(balances(&up, &row(&[200, 100, 90, 0]), 0));
            assert!(!balances(&up, &row(&[200, 190, 10, 0]), 0));
        }
        // Bytes and blocks both.
        let heavy = |values: &[i64]| {
            let values: Vec<Amount> = values.iter().map(|n| Amount::new(300 * n, *n)).collect();
            Row::new(Layer::RustHeap, "", None, values)
        };
        assert!(!balances(&row(&[0, 1, 2]), &heavy(&[2, 1, 0]), 0));
    }

    #[test]
    fn a_count_that_climbs_is_a_leak_and_one_that_may_climb_is_unclear() {
        let line = |n: i64| (0..n).collect::<Vec<_>>();
        let Outcome::Leak(growth) = climbing(&line(30), Outcome::Flat) else {
            panic!("it climbs");
        };
        assert_eq!((growth.total, growth.steps), (Amount::new(0, 29), 29));
        let unclear = Outcome::Unclear {
            total: Amount::new(0, 15),
            more: 15,
            slowing: false,
        };
        assert_eq!(climbing(&line(16), Outcome::Flat), unclear);
        let stopped = Outcome::Stopped {
            total: of(1),
            last: 3,
        };
        assert_eq!(climbing(&line(16), stopped.clone()), unclear);
        assert_eq!(climbing(&[0; 30], stopped.clone()), stopped);
        let other = Outcome::Unclear {
            total: of(1),
            more: 1,
            slowing: true,
        };
        assert_eq!(climbing(&line(16), other.clone()), other);
        assert!(matches!(climbing(&line(30), other), Outcome::Leak(_)));
        let below = Outcome::Below(of(1));
        assert_eq!(climbing(&line(30), below.clone()), below);
        assert_eq!(climbing(&[], Outcome::Flat), Outcome::Flat);
    }

    #[test]
    fn a_round_that_left_nothing_counts_beside_one_that_left_twice_as_much() {
        let count = |left: &[i64]| rounds_that_left(&amounts(left));
        assert_eq!(count(&[0, 0]), 0);
        assert_eq!(count(&[1, 0, 1, 0]), 2);
        assert_eq!(count(&[2, 0, 1, 0]), 3);
        assert_eq!(count(&[0, 2, 0, 1, 0]), 4);
        assert_eq!(count(&[0, 3, 0, 2]), 2);
        assert_eq!(count(&[-1, 4, 3]), 2);
    }

    #[test]
    fn rounds_leave_without_pause_where_no_stretch_lacks_more_than_one_rounds_blocks() {
        let leave = |left: &[i64]| leave_without_pause(&amounts(left));
        assert!(leave(&[1, 1, 1]));
        assert!(leave(&[3, 1, 2]));
        // A round's blocks are booked with the next one's, and those with the one after it.
        assert!(leave(&[1, 0, 1, 1, 2, 1, 0, 2]));
        assert!(leave(&[1, 0, 1, 1, 1]));
        assert!(!leave(&[1, 0, 1, 0, 1]));
        assert!(!leave(&[0, 2, 0, 0, 2]));
        assert!(!leave(&[0, 0, 9]));
        assert!(leave(&[0, 2, 4, 2, 2]));
        assert!(!leave(&[1, -1, 1, 1]));
        assert!(!leave(&[0, 0]));
        assert!(!leave(&[]));
    }

    #[test]
    fn noise_is_as_deep_as_the_series_ever_fell() {
        assert_eq!(deepest_fall(&[5, 9, 4, 6]), 5);
        assert_eq!(deepest_fall(&[1, 2, 2]), 0);
        assert_eq!(deepest_fall(&[]), 0);
        let values = [Amount::new(9, 1), Amount::new(5, 4), Amount::new(7, 2)];
        assert_eq!(deepest_falls(&values), Amount::new(4, 2));
        assert!(within_noise(&[5, 9, 4, 6], &[(1, 5), (2, 1)]));
        assert!(!within_noise(&[5, 9, 4, 6], &[(1, 1), (2, 6)]));
        let rises = [(0, 2), (1, 3)];
        assert_eq!(risen(&rises, &[(0, 70)]), Amount::new(70, 5));
    }

    #[test]
    fn a_short_pattern_needs_the_same_of_both_books() {
        let found = |start, period| Repeating {
            start,
            period,
            per_period: of(1),
            single: true,
            proven: false,
        };
        let agree = |live: &[i64], born: Vec<Amount>, found: &Repeating| {
            let mut judged = Judged::of(Vec::new(), born);
            judged.live = amounts(live);
            judged.steps().both_books_agree(found)
        };
        let four = [9, 1, 1, 1, 1];
        assert!(agree(&four, amounts(&[0, 1, 1, 1, 1]), &found(1, 1)));
        // The last round may hold more, and no less.
        assert!(agree(&four, amounts(&[0, 1, 1, 1, 2]), &found(1, 1)));
        assert!(!agree(&four, amounts(&[0, 1, 1, 1, 0]), &found(1, 1)));
        assert!(!agree(&four, amounts(&[0, 1, 1, 2, 1]), &found(1, 1)));
        let mut smaller = amounts(&[0, 1, 1, 1, 1]);
        smaller[4].bytes -= 1;
        assert!(!agree(&four, smaller, &found(1, 1)));
        // Four steps of one, half of all; of a longer period fewer will do.
        assert!(!agree(&four, amounts(&[0, 1, 1, 1, 1]), &found(2, 1)));
        let both = |others: &[i64], found| {
            let live = [others, &[1; 4]].concat();
            agree(&live, amounts(&live), &found)
        };
        assert!(both(&[5, 0, 3, 0], found(4, 1)));
        assert!(!both(&[5, 0, 3, 0, 7], found(5, 1)));
        let pairs = [0, 1, 0, 1];
        assert!(agree(&pairs, amounts(&pairs), &found(1, 2)));
        assert!(!agree(&four, Vec::new(), &found(1, 1)));
    }

    #[test]
    fn rounds_left_out_hold_as_much_as_the_one_before_them() {
        let hold = |born: &[i64], kept| {
            let judged = Judged::blocks(&[], born);
            judged.steps().last_rounds_hold(kept)
        };
        assert!(hold(&[2, 2, 2], 2));
        assert!(hold(&[2, 2, 3, 2], 2));
        assert!(!hold(&[2, 2, 2, 1], 2));
        assert!(hold(&[0, 1], 0));
    }

    #[test]
    fn most_rounds_left_something_where_three_in_four_did_as_much_in_both_halves() {
        let swings = [0, 5].repeat(8);
        let left = |born: &[i64]| {
            let born = [born, &[0; 3]].concat();
            let judged = Judged::blocks(&swings, &born);
            judged.steps().left_by_most_rounds()
        };
        assert_eq!(left(&[1; 4]), None, "seven rounds");
        assert_eq!(left(&[1; 5]), Some(of(5)));
        assert_eq!(left(&[1, 0, 1, 1, 0, 1, 1, 1]), Some(of(6)));
        assert_eq!(left(&[1, 0, 1, 0, 0, 1, 1, 1]), None, "five of eight");
        assert_eq!(left(&[1, 1, 1, 1, 1, 1, 0, 0]), None, "it has stopped");
        assert_eq!(left(&[3, 3, 3, 3, 1, 1, 2, 2]), Some(of(18)));
        assert_eq!(left(&[3, 3, 3, 3, 1, 1, 1, 2]), None, "less and less");
        assert_eq!(left(&[1, 1, 2, 2, 3, 3, 3, 3]), Some(of(18)));
        assert_eq!(left(&[1, 1, 1, 2, 3, 3, 3, 3]), None, "more and more");
        let never_falls = Judged::blocks(&[1, 2, 3], &[1; 11]);
        assert_eq!(never_falls.steps().left_by_most_rounds(), None);
    }

    #[test]
    fn what_all_rounds_left_alike_may_hide_below_falls_of_half_of_it() {
        let swings = [0, 5].repeat(8);
        let hidden = |born: &[i64]| Judged::blocks(&swings, born).steps().hidden();
        assert_eq!(hidden(&[1; 10]), Some(of(9)));
        assert_eq!(hidden(&[1; 11]), Some(of(10)));
        // Of two rounds less, it is hidden still.
        assert_eq!(hidden(&[1; 12]), Some(of(10)));
        assert_eq!(hidden(&[1; 16]), None);
        assert_eq!(hidden(&[1; 4]), None, "three may be chance");
        assert_eq!(hidden(&[0, 0, 1, 1, 1, 1, 1, 1, 1]), None, "not all rounds");
    }

    #[test]
    fn live_memory_rose_by_half_of_what_is_left_from_third_to_third() {
        // From the middle of the first third to that of the last are two thirds: 6 of 9.
        let judged = Judged::blocks(&[0, 0, 0, 5, 5, 5, 6, 6, 6], &[]);
        assert!(judged.steps().rose_by_half_of(of(18)));
        assert!(!judged.steps().rose_by_half_of(of(19)));
        let judged = Judged::blocks(&[0, 3, 0, 5, 5, 5, 5, 7, 6], &[]);
        assert!(judged.steps().rose_by_half_of(of(15)));
        assert!(!judged.steps().rose_by_half_of(of(16)));
    }

    #[test]
    fn all_rounds_left_blocks_of_one_size_where_the_lowest_rose_by_a_third_of_them() {
        let all = |values: &[i64], born: Vec<Amount>| {
            let judged = Judged::of(amounts(values), born);
            judged.steps().left_by_all_rounds()
        };
        let rises_by_two = [0, 5, 3, 9, 9, 9, 9, 2, 7, 8];
        let rises_by_one = [0, 5, 3, 9, 9, 9, 9, 1, 7, 8];
        let born = |six: &[i64]| amounts(&[six, &[0; 3]].concat());
        assert!(all(&rises_by_two, born(&[1; 6])));
        assert!(!all(&rises_by_one, born(&[1; 6])));
        assert!(all(&rises_by_two, born(&[1, 1, 3, 1, 1, 2])));
        assert!(!all(&rises_by_two, born(&[1, 1, 3, 1, 1, 3])));
        assert!(!all(&rises_by_two, born(&[1, 0, 1, 0, 1, 1])));
        let mut sizes = born(&[1; 6]);
        sizes[3].bytes += 1;
        assert!(!all(&rises_by_two, sizes));
        // The first one's were booked with the second's.
        let mut late = born(&[0, 2, 1, 1, 1, 1]);
        assert!(all(&rises_by_two, late.clone()));
        late[5].bytes += 1;
        assert!(!all(&rises_by_two, late));
        assert!(!all(&[0, 1, 2], amounts(&[1, 1])));
    }

    #[test]
    fn survivors_bear_growth_out_by_half_of_it_where_blocks_fall_less_than_they_rise() {
        let allow = |values: &[i64]| {
            let judged = Judged::blocks(values, &[1, 1, 1, 1, 9, 9, 9]);
            judged.steps().survivors_allow()
        };
        assert!(
            allow(&[5, 0, 13, 13, 13]),
            "8 rose, and half of that is left"
        );
        assert!(!allow(&[5, 0, 14, 14, 14]));
        assert!(allow(&[5, 5, 14, 14, 14]), "the number never falls");
        assert!(
            allow(&[5, 14, 5, 14, 14, 14]),
            "it falls as much as it rises"
        );
        assert!(!allow(&[5, 14, 6, 14, 14, 14]));
        assert!(
            allow(&[5, 0, 13, 14, 99]),
            "the lowest of the last three counts"
        );
        assert!(!allow(&[5, 0, 1, 14, 14, 99]));
    }

    #[test]
    fn live_memory_agrees_where_it_rose_by_half_of_what_all_rounds_left() {
        // Seven blocks of seven rounds are left; the eighth is left out.
        let agrees = |last: [i64; 2]| {
            let values = [&[0, 3, 1, 4, 2, 6, 3][..], &last].concat();
            let judged = Judged::blocks(&values, &[1; 7]);
            judged.steps().live_agrees(&judged.born, 0, 1)
        };
        assert!(agrees([5, 5]));
        assert!(agrees([5, 9]));
        assert!(!agrees([4, 9]));
        assert!(!agrees([9, 4]));
    }

    #[test]
    fn live_memory_that_never_falls_must_show_the_pattern_of_the_survivors_itself() {
        let agrees = |values: &[i64], born: &[i64], start, period| {
            let judged = Judged::blocks(values, born);
            judged.steps().live_agrees(&judged.born, start, period)
        };
        assert!(agrees(&[0, 5, 6, 7, 8], &[4, 1, 1], 1, 1));
        assert!(!agrees(&[0, 5, 6, 7, 9], &[4, 1, 1], 1, 1));
        assert!(!agrees(&[0, 5, 6, 7, 8], &[4, 1, 2], 1, 1));
        assert!(agrees(&[0, 0, 2, 2, 4, 4], &[0, 2, 0, 2], 0, 2));
        assert!(!agrees(&[0, 0, 2, 2, 4, 5], &[0, 2, 0, 2], 0, 2));
    }

    #[test]
    fn live_memory_agrees_in_the_whole_of_a_pattern_and_in_its_second_half() {
        let agrees = |values: &[i64], born: &[i64], start, period| {
            let judged = Judged::blocks(values, born);
            judged.steps().live_agrees(&judged.born, start, period)
        };
        let late = [0, 1, 1, 1, 1, 1, 1];
        assert!(agrees(&[3, 0, 4, 2, 5, 3, 6, 8, 8], &late, 1, 1));
        assert!(!agrees(&[3, 0, 4, 2, 5, 3, 6, 7, 8], &late, 1, 1));
        // What all rounds left need not be seen step by step, and only that.
        let by_two = [0, 2, 2, 4, 4, 6, 6, 8, 8];
        assert!(agrees(&by_two, &[1; 7], 0, 1));
        assert!(!agrees(&by_two, &[1; 7], 0, 2));
        assert!(!agrees(&by_two, &late, 1, 1));
    }

    /// What uneven growth is judged to be: blocks by step, after 1,000 of them.
    fn uneven(steps: &[i64], born: &[i64]) -> Outcome {
        let mut values = vec![1000];
        for step in steps {
            values.push(values[values.len() - 1] + step);
        }
        let judged = Judged::blocks(&values, born);
        judged.steps().uneven(&Settings::default(), false)
    }

    #[test]
    fn uneven_growth_is_per_round_where_three_in_four_rounds_rise() {
        let of = |steps: &[i64]| match uneven(steps, &[]) {
            Outcome::Leak(growth) => (growth.driver, growth.start, growth.steps, growth.total),
            other => panic!("{other:?}"),
        };
        let late = [0, 0, 0, 3, 4, 3, 5, 4, 3, 4, 5, 3];
        assert_eq!(of(&late), (Driver::PerRound, 3, 9, self::of(34)));
        let halves = [3, 0, 4, 0, 3, 0, 5, 0, 4, 0, 3, 0, 4, 0, 5, 0];
        assert_eq!(of(&halves), (Driver::Unknown, 0, 16, self::of(31)));
    }

    #[test]
    fn uneven_growth_over_too_few_rounds_needs_as_many_as_are_lacking() {
        let unclear = |n: usize| {
            let steps = [3, 5, 4, 7, 2, 6, 3, 5, 8, 4, 6, 5];
            let Outcome::Unclear { total, more, .. } = uneven(&steps[..n], &[]) else {
                panic!("{:?}", uneven(&steps[..n], &[]));
            };
            assert_eq!(total, of(steps[..n].iter().sum()));
            more
        };
        assert_eq!((unclear(8), unclear(11)), (4, 1));
    }

    #[test]
    fn uneven_growth_below_the_floor_is_told_and_no_more() {
        let judge = |step: fn(i64) -> Amount| {
            let mut values = vec![of(1000)];
            for at in 0..20 {
                values.push(values[values.len() - 1] + step(at * 7 % 5));
            }
            let judged = Judged::of(values, Vec::new());
            judged.steps().uneven(&Settings::default(), false)
        };
        let small = judge(|step| Amount::new(step + 2, 0));
        assert_eq!(small, Outcome::Below(Amount::new(80, 0)));
        // One block becomes smaller while others become more.
        let shrinks = judge(|step| Amount::new(-40, step + 1));
        let Outcome::Leak(growth) = shrinks else {
            panic!("{shrinks:?}");
        };
        assert_eq!(growth.total, Amount::new(-800, 60));
    }

    #[test]
    fn what_looks_like_the_beginning_of_a_pattern_needs_two_rounds_more() {
        let two_more = |total| Outcome::Unclear {
            total: of(total),
            more: 2,
            slowing: false,
        };
        assert_eq!(uneven(&[9, 0, 0, 0, 0, 0, 4, 4, 4], &[]), two_more(12));
        assert_eq!(uneven(&[0, 4, 0, 4, 0, 4], &[]), two_more(12));
        assert_eq!(uneven(&[4, 0, 4, 0, 4, 0], &[]), two_more(12));
        // Three equal steps, of which only the last is above what was there before.
        assert_eq!(uneven(&[-5, 2, 2, 2], &[]), Outcome::Flat);
        // The floor is that of the pattern's own rounds.
        let mut values = vec![Amount::new(1000, 10); 4];
        for step in [0, 40, 0, 40, 0, 40] {
            values.push(values[values.len() - 1] + Amount::new(step, 0));
        }
        let judged = Judged::of(values, Vec::new());
        let outcome = judged.steps().uneven(&Settings::default(), false);
        let total = Amount::new(120, 0);
        assert!(
            matches!(outcome, Outcome::Unclear { total: t, more: 2, .. } if t == total),
            "{outcome:?}"
        );
    }

    #[test]
    fn growth_that_slows_down_is_unclear_until_it_only_creeps() {
        assert_eq!(
            uneven(&[20, 18, 16, 10, 8, 7, 6, 5, 4, 4, 3, 3], &[]),
            Outcome::Unclear {
                total: of(104),
                more: 12,
                slowing: true
            }
        );
        assert_eq!(
            uneven(&[100, 50, 25, 12, 6, 3, 3, 2, 1, 2, 1, 1], &[]),
            Outcome::Stopped {
                total: of(206),
                last: 11
            }
        );
    }

    #[test]
    fn what_is_left_below_blocks_that_come_and_go_is_lost_where_live_memory_bears_it_out() {
        // Up by five and down by four: the lowest rises, and no value is below all later ones.
        let lost = |n: usize, exact_only| {
            let values = [0, 5, 1, 6, 2, 7, 3, 8, 4, 9, 5, 10, 6];
            let judged = Judged::blocks(&values[..=n], &vec![1; n]);
            judged.steps().uneven(&Settings::default(), exact_only)
        };
        let Outcome::Leak(growth) = lost(12, false) else {
            panic!("{:?}", lost(12, false));
        };
        assert_eq!((growth.start, growth.steps, growth.total), (0, 12, of(9)));
        let unclear = |total, more| Outcome::Unclear {
            total: of(total),
            more,
            slowing: false,
        };
        assert_eq!(lost(12, true), unclear(9, 12));
        assert_eq!(lost(10, false), unclear(7, 10));
        // Nothing is left of the first round; the last third is above the first one.
        let climbs = [4, -2].repeat(6);
        let born = [&[0][..], &[1; 11]].concat();
        let Outcome::Leak(growth) = uneven(&climbs, &born) else {
            panic!("{:?}", uneven(&climbs, &born));
        };
        assert_eq!((growth.start, growth.steps, growth.total), (1, 11, of(8)));
    }

    #[test]
    fn what_is_left_below_blocks_that_come_and_go_needs_twice_the_rounds() {
        let swings = [5, -5].repeat(5);
        assert_eq!(
            uneven(&swings, &[1; 10]),
            Outcome::Unclear {
                total: of(9),
                more: 10,
                slowing: false
            }
        );
        assert_eq!(uneven(&swings, &[]), Outcome::Flat);
    }

    #[test]
    fn caches_of_several_phases_one_after_the_other_are_no_leak_of_their_layer() {
        let mut program = Program::new(1, 17);
        let phases: Vec<String> = (0..17).map(|n| format!("phase {n}")).collect();
        for (at, phase) in phases.iter().enumerate() {
            let (round, blocks) = (
                at as u32 + 1,
                [3, 5, 4, 7, 2, 6, 3, 5, 8, 4, 6, 5, 7, 3, 4, 6, 2][at],
            );
            program.block(Layer::RustHeap, phase, round, FOR_EVER, 48 * blocks, blocks);
        }
        let books = program.books();
        let ledger = Ledger::read(&books, &Settings::default());
        assert_eq!(ledger.layers[0].outcome, Outcome::Flat);
    }
}
