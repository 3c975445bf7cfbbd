//! What the ledger said of each stack, round by round, and the sites made of it.

use std::collections::BTreeMap;

use tidegate_hook::Sites;

use super::frames::{self, Frame};
use super::identity::identity;
use super::runtime::runtime;
use super::symbols::Symbols;
use super::{BornIn, Site};
use crate::books::{Amount, Books, Layer, SiteSeries};

/// A stack in one layer and phase.
type Key = (Layer, String, u32);

/// One account of the ledger that has a stack.
pub(crate) struct Booked<'a> {
    pub layer: Layer,
    pub phase: &'a str,
    pub site: u32,
    pub round: u32,
    pub births: Amount,
    pub alive: Amount,
}

/// Follows the stacks' accounts through a run. Costs nothing where there are none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder {
    live: Vec<BTreeMap<Key, Amount>>,
}

impl Recorder {
    /// Books a round that has ended and settled.
    pub fn add_round<'a>(&mut self, accounts: impl Iterator<Item = Booked<'a>>) {
        let mut live = BTreeMap::<Key, Amount>::new();
        for booked in accounts.filter(|booked| booked.site != 0) {
            let key = (booked.layer, booked.phase.to_owned(), booked.site);
            *live.entry(key).or_default() += booked.alive;
        }
        self.live.push(live);
    }

    /// Everything, once the workload is gone.
    pub fn finish<'a>(&self, sites: Sites, accounts: impl Iterator<Item = Booked<'a>>) -> Stacks {
        let mut booked = BTreeMap::<Key, BTreeMap<u32, (Amount, Amount)>>::new();
        for account in accounts.filter(|booked| booked.site != 0) {
            let key = (account.layer, account.phase.to_owned(), account.site);
            let (births, alive) = booked
                .entry(key)
                .or_default()
                .entry(account.round)
                .or_default();
            *births += account.births;
            *alive += account.alive;
        }
        Stacks {
            sites,
            live: self.live.clone(),
            booked,
        }
    }
}

/// The stacks of a run that has ended, not resolved yet.
#[derive(Clone, Debug)]
pub(crate) struct Stacks {
    sites: Sites,
    live: Vec<BTreeMap<Key, Amount>>,
    /// Births and what is alive of them at the end, by round of birth.
    booked: BTreeMap<Key, BTreeMap<u32, (Amount, Amount)>>,
}

impl Stacks {
    /// Stacks that were taken.
    pub fn captures(&self) -> u64 {
        self.sites.captures
    }

    /// Stacks that there was no room for.
    pub fn dropped(&self) -> u64 {
        self.sites.dropped
    }

    /// Names the frames, and adds up what has the same ones. The largest growth comes first.
    pub fn resolve(&self, books: &Books, missing: &mut Vec<String>) -> Vec<Site> {
        let mut symbols = Symbols::of(&self.sites.objects);
        // Stacks that differ only within the standard library are one site.
        let mut sites = BTreeMap::<(Layer, &str, Vec<Frame>), Site>::new();
        for (key, by_round) in &self.booked {
            let (layer, phase, number) = (key.0, key.1.as_str(), key.2);
            let Some(stack) = self.sites.stacks.get(number as usize) else {
                continue;
            };
            let mut resolved: Vec<Frame> = stack
                .frames
                .iter()
                .flat_map(|frame| symbols.frames(*frame))
                .collect();
            frames::settle(&mut resolved);
            let live: Vec<Amount> = self
                .live
                .iter()
                .map(|live| live.get(key).copied().unwrap_or_default())
                .collect();
            let site = sites
                .entry((layer, phase, frames::telling(&resolved)))
                .or_insert_with(|| Site {
                    layer,
                    phase: phase.to_owned(),
                    site: identity(&resolved),
                    runtime: runtime(&resolved, stack.cut),
                    yours: frames::first_of_yours(&resolved),
                    frames: resolved,
                    cut: stack.cut,
                    allocated: Amount::ZERO,
                    live: vec![Amount::ZERO; live.len()],
                    grown: Amount::ZERO,
                    per_round: None,
                    left: Vec::new(),
                });
            for (sum, more) in site.live.iter_mut().zip(live) {
                *sum += more;
            }
            for (&round, &(births, alive)) in by_round {
                if round > books.warmup {
                    site.allocated += births;
                }
                add_left(&mut site.left, round, alive);
            }
        }
        symbols.tell_missing(missing);
        let mut sites: Vec<Site> = sites.into_values().collect();
        for site in &mut sites {
            site.grown = growth(&site.live, books.warmup);
            site.per_round = steady_step(&site.live, books.warmup);
            site.left.retain(|born| !born.amount.is_zero());
        }
        sites.sort_by(|a, b| {
            let rank = |site: &Site| std::cmp::Reverse((site.grown, site.allocated));
            rank(a).cmp(&rank(b)).then_with(|| a.site.cmp(&b.site))
        });
        sites
    }
}

impl Site {
    /// The site's series, as the verdict engine reads it.
    pub(crate) fn series(&self) -> SiteSeries {
        SiteSeries {
            layer: self.layer,
            phase: self.phase.clone(),
            site: self.site.clone(),
            live: self.live.clone(),
        }
    }
}

fn add_left(left: &mut Vec<BornIn>, round: u32, amount: Amount) {
    match left.iter_mut().find(|born| born.round == round) {
        Some(born) => born.amount += amount,
        None => left.push(BornIn { round, amount }),
    }
}

/// What a series has grown by since the warm-up.
pub(crate) fn growth(live: &[Amount], warmup: u32) -> Amount {
    let before = (warmup as usize).checked_sub(1).and_then(|at| live.get(at));
    let last = live.last().copied().unwrap_or_default();
    last - before.copied().unwrap_or_default()
}

/// What each measured round added, if each added the same.
fn steady_step(live: &[Amount], warmup: u32) -> Option<Amount> {
    let from = (warmup as usize).saturating_sub(1);
    let mut steps = live.get(from..)?.windows(2).map(|pair| pair[1] - pair[0]);
    let first = steps.next()?;
    steps.all(|step| step == first).then_some(first)
}
