//! Two files in DHAT's format, site by site.

use std::collections::HashMap;

use super::dhat::{Head, Numbers, SiteOf, Sites};
use super::{Body, Change, Counts, Entry, Options, Rank, Standing, alike};
use crate::profile::{Metric, Value};

/// Why two files cannot be compared, if they cannot.
pub(super) fn refusal(old: &Head, new: &Head) -> Option<String> {
    let heap = |head: &Head| matches!(head.mode.as_str(), "heap" | "rust-heap");
    if old.mode != new.mode && !(heap(old) && heap(new)) {
        return Some(format!(
            "the one is a profile of `{}` and the other of `{}`",
            old.mode, new.mode
        ));
    }
    if old.verb != new.verb {
        return Some(format!(
            "the one holds what was `{}` and the other what was `{}`",
            old.verb, new.verb
        ));
    }
    (old.unit != new.unit)
        .then(|| format!("the one counts {} and the other {}", old.unit, new.unit))
}

/// What changed from `old` to `new`.
pub(super) fn body(old: &Sites, new: &Sites, options: &Options) -> Body {
    let (before, after) = (&old.head, &new.head);
    let mut notes = Vec::new();
    if before.mode != after.mode {
        notes.push(format!(
            "`{}` is the whole heap as Valgrind sees it and `rust-heap` what Rust's allocator was \
             asked for: what C and C++ allocate is on one side only",
            "heap"
        ));
    }
    let both = before.has_lifetimes && after.has_lifetimes;
    let known = Known {
        left: both,
        // Of other units (instructions) means say nothing from build to build.
        microseconds: both && [before, after].iter().all(|head| head.unit_of_time == "µs"),
    };
    let mut counts = Counts {
        old: old.len() as u64,
        new: new.len() as u64,
        ..Counts::default()
    };
    let mut found: Vec<Found> = Vec::new();
    for (was, site) in old.joined(new) {
        if let (Some(was), Some(site)) = (was, site) {
            counts.other_lines += u64::from(!site.is_where(was));
            if known.of(&site.numbers) == known.of(&was.numbers) {
                continue;
            }
            counts.changed += 1;
        }
        found.push(Found::of(was.copied(), site.copied(), &known, options));
    }
    pair_moved(&mut found, old, new);
    for one in &found {
        match (one.old, one.new) {
            (None, _) => counts.appeared += 1,
            (_, None) => counts.gone += 1,
            _ if one.is_moved => counts.moved += 1,
            _ => {}
        }
    }
    if found.len() > options.top && options.top > 0 {
        found.select_nth_unstable_by(options.top - 1, Found::order);
    }
    found.truncate(options.top);
    found.sort_unstable_by(Found::order);
    Body {
        whole: known.changes(&old.total, &new.total),
        sites: found
            .iter()
            .map(|one| one.entry(old, new, &known))
            .collect(),
        site_counts: counts,
        notes,
        ..Body::default()
    }
}

/// What both files know of a site.
struct Known {
    left: bool,
    microseconds: bool,
}

impl Known {
    /// The numbers that are compared.
    fn of(&self, numbers: &Numbers) -> Numbers {
        let mut numbers = *numbers;
        if !self.left {
            numbers = Numbers {
                bytes: numbers.bytes,
                blocks: numbers.blocks,
                ..Numbers::default()
            };
        }
        // Times vary from run to run: alone they are no change.
        numbers.lifetimes = 0;
        numbers
    }

    fn changes(&self, old: &Numbers, new: &Numbers) -> Vec<Change> {
        let mut changes = Vec::with_capacity(6);
        let mut add = |metric, read: fn(&Numbers) -> u64| {
            let value = |numbers| Value::whole(i64::try_from(read(numbers)).unwrap_or(i64::MAX));
            changes.push(Change::of_two(metric, value(old), value(new)));
        };
        add(Metric::Blocks, |numbers| numbers.blocks);
        add(Metric::Bytes, |numbers| numbers.bytes);
        if self.left {
            add(Metric::LeftBlocks, |numbers| numbers.left_blocks);
            add(Metric::LeftBytes, |numbers| numbers.left_bytes);
            add(Metric::AtPeak, |numbers| numbers.at_peak);
        }
        if self.microseconds && old.blocks > 0 && new.blocks > 0 {
            let mean = |numbers: &Numbers| {
                Metric::Dwell.kept(numbers.lifetimes as f64 / numbers.blocks as f64)
            };
            changes.push(Change::of_two(Metric::Dwell, mean(old), mean(new)));
        }
        changes
    }
}

/// A site that is not the same on both sides.
struct Found {
    old: Option<SiteOf>,
    new: Option<SiteOf>,
    is_moved: bool,
    rank: Rank,
}

impl Found {
    fn of(old: Option<SiteOf>, new: Option<SiteOf>, known: &Known, options: &Options) -> Self {
        let numbers = |site: Option<SiteOf>| site.map(|site| site.numbers).unwrap_or_default();
        Self {
            old,
            new,
            is_moved: false,
            rank: options.rank(&known.changes(&numbers(old), &numbers(new))),
        }
    }

    fn order(one: &Self, other: &Self) -> std::cmp::Ordering {
        // Then as in the files, so that equal changes come in the same order each time.
        let place = |found: &Self| {
            let point = |site: Option<SiteOf>| site.map(|site| site.point);
            (found.new.is_none(), point(found.new), point(found.old))
        };
        let order = one.rank.order(&other.rank);
        order.then_with(|| place(one).cmp(&place(other)))
    }

    fn entry(&self, old: &Sites, new: &Sites, known: &Known) -> Entry {
        let numbers = |site: Option<SiteOf>| site.map(|site| site.numbers).unwrap_or_default();
        let texts = |sites: &Sites, site: &SiteOf| -> Vec<String> {
            let frames = sites.frames(site).into_iter();
            frames.map(|(_, text)| text.to_owned()).collect()
        };
        let (frames, standing) = match (&self.old, &self.new) {
            (Some(was), Some(site)) if self.is_moved => {
                let from = texts(old, was);
                (texts(new, site), Standing::Moved { from })
            }
            (Some(_), Some(site)) => (texts(new, site), Standing::Changed),
            (None, Some(site)) => (texts(new, site), Standing::New),
            (Some(was), None) => (texts(old, was), Standing::Gone),
            (None, None) => (Vec::new(), Standing::Changed),
        };
        Entry {
            phase: None,
            layer: None,
            frames,
            standing,
            changes: known.changes(&numbers(self.old), &numbers(self.new)),
        }
    }
}

/// Takes a gone site and a new one of as many bytes and blocks for one that moved, where
/// there is one such pair and their stacks are alike.
fn pair_moved(found: &mut Vec<Found>, old: &Sites, new: &Sites) {
    /// Where the one that is gone and the one that is new stand; `MANY` if there are more.
    type Pair = (usize, usize);
    const NONE: usize = usize::MAX;
    const MANY: usize = usize::MAX - 1;
    let mut pairs = HashMap::<(u64, u64), Pair>::new();
    let put = |slot: &mut usize, at: usize| *slot = if *slot == NONE { at } else { MANY };
    for (at, one) in found.iter().enumerate() {
        let (site, gone) = match (one.old, one.new) {
            (Some(was), None) => (was, true),
            (None, Some(site)) => (site, false),
            _ => continue,
        };
        let key = (site.numbers.bytes, site.numbers.blocks);
        let (olds, news) = pairs.entry(key).or_insert((NONE, NONE));
        put(if gone { olds } else { news }, at);
    }
    let mut went = Vec::new();
    for (gone, here) in pairs.into_values().filter(|pair| pair.0.max(pair.1) < MANY) {
        let (Some(was), Some(site)) = (found[gone].old, found[here].new) else {
            continue;
        };
        let names = |sites: &Sites, site: &SiteOf| -> Vec<u128> {
            sites
                .frames(site)
                .into_iter()
                .map(|(name, _)| name)
                .collect()
        };
        if alike(&names(old, &was), &names(new, &site)) {
            let moved = &mut found[here];
            moved.old = Some(was);
            moved.is_moved = true;
            moved.rank = Rank(0.0, 0.0);
            went.push(gone);
        }
    }
    // From the end, so that what is swapped in is not one that went.
    went.sort_unstable_by(|one, other| other.cmp(one));
    for gone in went {
        found.swap_remove(gone);
    }
}
