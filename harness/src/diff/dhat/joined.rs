//! The points of a file that are one site, added up, and the sites of two files side by side.

use std::cmp::Ordering;
use std::hash::{BuildHasher as _, RandomState};

use super::{Dhat, Head, Numbers};
use crate::explain::{FrameKind, Kinded, Written, tell, without_address};

/// Hashes stacks of two files alike. The keys are random, so that no file can be made
/// in which two stacks are taken for one.
pub(in crate::diff) struct Keys {
    low: RandomState,
    high: RandomState,
}

/// A stack, or a name, in 128 bits.
pub(in crate::diff) type Hash = u128;

impl Keys {
    pub fn random() -> Self {
        Self {
            low: RandomState::new(),
            high: RandomState::new(),
        }
    }

    fn of(&self, text: &str) -> Hash {
        u128::from(self.low.hash_one(text)) << 64 | u128::from(self.high.hash_one(text))
    }

    /// An odd number, which a stack's hash is multiplied with from frame to frame.
    fn multiplier(&self) -> Hash {
        self.of("") | 1
    }
}

/// The points of a file, those of one site added up.
pub(in crate::diff) struct Sites {
    pub head: Head,
    frames: Vec<u32>,
    begins: Vec<usize>,
    texts: Vec<String>,
    table: Table,
    /// By hash, so that two files' are joined in one pass.
    pub(super) sites: Vec<SiteOf>,
    /// The sum of all.
    pub total: Numbers,
}

/// One site of a file.
#[derive(Clone, Copy, Debug)]
pub(in crate::diff) struct SiteOf {
    pub hash: Hash,
    pub numbers: Numbers,
    /// Tells apart what only lines tell apart.
    lines: u64,
    /// The first of its points in the file.
    pub point: u32,
}

impl SiteOf {
    /// Whether the same functions are at the same lines.
    pub fn is_where(&self, other: &Self) -> bool {
        self.lines == other.lines
    }
}

/// What is known of the frames, by their place in the file's table.
struct Table {
    kinds: Vec<FrameKind>,
    /// Of their names.
    names: Vec<Hash>,
    /// Of their texts without addresses.
    lines: Vec<u64>,
}

/// A frame of a stack, by its place in the table.
#[derive(Clone, Copy)]
struct FrameAt {
    index: u32,
    kind: FrameKind,
}

impl Kinded for FrameAt {
    fn kind(&self) -> FrameKind {
        self.kind
    }
}

impl Table {
    fn of(texts: &[String], keys: &Keys) -> Self {
        let mut table = Self {
            kinds: Vec::with_capacity(texts.len()),
            names: Vec::with_capacity(texts.len()),
            lines: Vec::with_capacity(texts.len()),
        };
        for text in texts {
            let Written { name, kind } = Written::read(text);
            table.kinds.push(kind);
            table.names.push(keys.of(&name));
            table.lines.push(keys.low.hash_one(without_address(text)));
        }
        table
    }

    /// Hands out the frames that tell a site, by [`tell`]'s rules. `stack` is overwritten.
    fn tell(&self, frames: &[u32], stack: &mut Vec<FrameAt>, mut each: impl FnMut(usize)) {
        stack.clear();
        stack.extend(frames.iter().map(|index| FrameAt {
            index: *index,
            kind: self.kinds[*index as usize],
        }));
        let name = |frame: &FrameAt| self.names[frame.index as usize];
        tell(
            stack,
            |one, other| name(one) == name(other),
            |frame| each(frame.index as usize),
        );
    }
}

impl Dhat {
    /// Adds up what is one site: the same functions, whatever the lines.
    pub fn sites(self, keys: &Keys) -> Sites {
        let table = Table::of(&self.table, keys);
        let multiplier = keys.multiplier();
        let mut stack = Vec::new();
        let mut points: Vec<(Hash, u32, u64)> = Vec::with_capacity(self.begins.len());
        for point in 0..self.begins.len() {
            let mut hash: Hash = 0;
            let mut lines = 0_u64;
            let frames = frames_of(&self.frames, &self.begins, point);
            table.tell(frames, &mut stack, |index| {
                hash = hash
                    .wrapping_mul(multiplier)
                    .wrapping_add(table.names[index]);
                lines = lines.rotate_left(9).wrapping_add(table.lines[index]);
            });
            points.push((hash, point as u32, lines));
        }
        points.sort_unstable_by_key(|(hash, point, _)| (*hash, *point));
        let mut total = Numbers::default();
        let mut sites: Vec<SiteOf> = Vec::with_capacity(points.len());
        for (hash, point, lines) in points {
            let numbers = self.numbers[point as usize];
            total.add(&numbers);
            match sites.last_mut() {
                Some(last) if last.hash == hash => {
                    last.numbers.add(&numbers);
                    last.lines = last.lines.wrapping_add(lines);
                }
                _ => sites.push(SiteOf {
                    hash,
                    numbers,
                    lines,
                    point,
                }),
            }
        }
        Sites {
            head: self.head,
            frames: self.frames,
            begins: self.begins,
            texts: self.table,
            table,
            sites,
            total,
        }
    }
}

fn frames_of<'a>(frames: &'a [u32], begins: &[usize], point: usize) -> &'a [u32] {
    let end = begins.get(point + 1).copied().unwrap_or(frames.len());
    &frames[begins[point]..end]
}

impl Sites {
    pub fn len(&self) -> usize {
        self.sites.len()
    }

    /// The sites of two files, those that are the same side by side.
    pub fn joined<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (Option<&'a SiteOf>, Option<&'a SiteOf>)> {
        let (mut ours, mut theirs) = (self.sites.iter().peekable(), other.sites.iter().peekable());
        std::iter::from_fn(move || {
            let order = match (ours.peek(), theirs.peek()) {
                (None, None) => return None,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(one), Some(another)) => one.hash.cmp(&another.hash),
            };
            Some(match order {
                Ordering::Less => (ours.next(), None),
                Ordering::Greater => (None, theirs.next()),
                Ordering::Equal => (ours.next(), theirs.next()),
            })
        })
    }

    /// The names that make the site, as hashes, and its frames' texts without addresses;
    /// both from the innermost.
    pub fn frames(&self, site: &SiteOf) -> Vec<(Hash, &str)> {
        let frames = frames_of(&self.frames, &self.begins, site.point as usize);
        let mut found = Vec::new();
        self.table.tell(frames, &mut Vec::new(), |index| {
            found.push((self.table.names[index], without_address(&self.texts[index])));
        });
        found
    }
}
