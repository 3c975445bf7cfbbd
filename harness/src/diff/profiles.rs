//! Two profiles of ours, row by row.

use std::collections::{BTreeMap, BTreeSet};

use super::{Body, Change, Counts, Entry, Options, Standing, alike};
use crate::profile::{Basis, Metric, Place, Profile, Row, Sites, Spread, Value};

/// What changed from `old` to `new`.
pub(crate) fn body(old: &Profile, new: &Profile, options: &Options) -> Body {
    let mut notes = Vec::new();
    if old.scenario != new.scenario {
        notes.push(format!(
            "these are two scenarios, `{}` and `{}`",
            old.scenario, new.scenario
        ));
    }
    if old.rounds.differ(new.rounds) {
        notes.push(format!(
            "OLD has {} measured rounds and NEW {}: what is left is of as many",
            old.rounds, new.rounds
        ));
    }
    let sites = match (old.sites, new.sites) {
        (Sites::None, Sites::None) => false,
        (one, other) if one == other => true,
        (Sites::None, _) | (_, Sites::None) => {
            notes.push("only one side has sites: they are not compared".to_owned());
            false
        }
        _ => {
            notes.push(
                "the sites are of what leaked on one side, and of everything on the other: they are \
                 not compared"
                    .to_owned(),
            );
            false
        }
    };
    if old.runs < 2 {
        notes.push(
            "OLD is one run: what varies by itself is not told from what changed; give several \
             runs as OLD"
                .to_owned(),
        );
    }
    let (phases, phase_counts) = entries(old, new, false, options);
    let (mut found, site_counts) = match sites {
        true => entries(old, new, true, options),
        false => Default::default(),
    };
    found.truncate(options.top);
    Body {
        whole: changes(
            Of {
                row: Some(&old.whole),
                runs: old.runs,
            },
            Of {
                row: Some(&new.whole),
                runs: new.runs,
            },
        ),
        phases,
        phase_counts,
        sites: found,
        site_counts,
        notes,
    }
}

/// Whether anything of it is a change.
fn is_change(entry: &Entry) -> bool {
    entry.changes.iter().any(Change::is_change)
}

/// One side's row of a place, if it has one, and the runs that could have given one.
#[derive(Clone, Copy)]
struct Of<'a> {
    row: Option<&'a Row>,
    runs: u32,
}

impl Of<'_> {
    /// The metric's values. A place without a row held nothing, in every run; how long
    /// nothing was held is unknown.
    fn get(&self, metric: Metric) -> Option<Spread> {
        match self.row {
            Some(row) => row.get(&metric).cloned(),
            None => (metric != Metric::Dwell).then(|| Spread::repeated(Value::ZERO, self.runs)),
        }
    }
}

fn changes(old: Of<'_>, new: Of<'_>) -> Vec<Change> {
    let keys = |of: &Of<'_>| {
        of.row
            .into_iter()
            .flat_map(|row| row.keys().copied())
            .collect()
    };
    let mut metrics: BTreeSet<Metric> = keys(&old);
    metrics.append(&mut keys(&new));
    metrics
        .into_iter()
        .map(|metric| Change::of(metric, old.get(metric).as_ref(), new.get(metric).as_ref()))
        .collect()
}

fn entries(old: &Profile, new: &Profile, sites: bool, options: &Options) -> (Vec<Entry>, Counts) {
    let wanted = |place: &&Place| place.site.is_some() == sites;
    let places = || old.rows.keys().chain(new.rows.keys()).filter(wanted);
    let mut counts = Counts {
        old: old.rows.keys().filter(wanted).count() as u64,
        new: new.rows.keys().filter(wanted).count() as u64,
        ..Counts::default()
    };
    let places: BTreeSet<&Place> = places().collect();
    let mut entries = Vec::new();
    for place in places {
        let (before, after) = (old.rows.get(place), new.rows.get(place));
        let entry = Entry {
            phase: Some(place.phase.clone()),
            layer: Some(place.layer),
            frames: frames(place),
            standing: match (before, after) {
                (None, _) => Standing::New,
                (_, None) => Standing::Gone,
                _ => Standing::Changed,
            },
            changes: changes(
                Of {
                    row: before,
                    runs: old.runs,
                },
                Of {
                    row: after,
                    runs: new.runs,
                },
            ),
        };
        // What is on one side only is told, also where it is as little as may be.
        if is_change(&entry) || (entry.standing != Standing::Changed && is_sure(&entry)) {
            entries.push(entry);
        }
    }
    if sites {
        pair_moved(&mut entries);
    }
    for entry in &entries {
        match entry.standing {
            Standing::Changed => counts.changed += 1,
            Standing::New => counts.appeared += 1,
            Standing::Gone => counts.gone += 1,
            Standing::Moved { .. } => counts.moved += 1,
        }
    }
    entries.sort_by(|one, other| {
        let rank = |entry: &Entry| options.rank(&entry.changes);
        rank(one).order(&rank(other))
    });
    (entries, counts)
}

/// Whether none of it lies within what several runs gave.
fn is_sure(entry: &Entry) -> bool {
    let basis = |change: &Change| change.tolerance.map(|tolerance| tolerance.basis);
    !entry
        .changes
        .iter()
        .any(|change| basis(change) == Some(Basis::Spread))
}

fn frames(place: &Place) -> Vec<String> {
    let site = place.site.as_deref().unwrap_or_default();
    site.split(';')
        .filter(|frame| !frame.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Takes a gone site and a new one of as many bytes and blocks for one that moved, where
/// there is one such pair and their stacks are alike.
fn pair_moved(entries: &mut Vec<Entry>) {
    type Key = (String, Option<crate::books::Layer>, Value, Value);
    let key = |entry: &Entry, gone: bool| -> Option<Key> {
        let value = |metric| {
            let change = entry
                .changes
                .iter()
                .find(|change| change.metric == metric)?;
            if gone { change.old } else { change.new }
        };
        let phase = entry.phase.clone().unwrap_or_default();
        Some((
            phase,
            entry.layer,
            value(Metric::Bytes)?,
            value(Metric::Blocks)?,
        ))
    };
    let mut pairs = BTreeMap::<Key, (Vec<usize>, Vec<usize>)>::new();
    for (at, entry) in entries.iter().enumerate() {
        let gone = match entry.standing {
            Standing::Gone => true,
            Standing::New => false,
            _ => continue,
        };
        if let Some(key) = key(entry, gone) {
            let (olds, news) = pairs.entry(key).or_default();
            if gone { olds } else { news }.push(at);
        }
    }
    let mut went = BTreeSet::new();
    for (olds, news) in pairs.into_values() {
        let ([old], [new]) = (&olds[..], &news[..]) else {
            continue;
        };
        if !alike(&entries[*old].frames, &entries[*new].frames) {
            continue;
        }
        let from = entries[*old].frames.clone();
        let before = entries[*old].changes.clone();
        let entry = &mut entries[*new];
        entry.standing = Standing::Moved { from };
        for change in &mut entry.changes {
            let old = before.iter().find(|old| old.metric == change.metric);
            if let Some(old) = old.and_then(|old| old.old) {
                *change = Change::of_two(change.metric, old, change.new.unwrap_or(old));
            }
        }
        went.insert(*old);
    }
    let mut at = 0;
    entries.retain(|_| {
        at += 1;
        !went.contains(&(at - 1))
    });
}
