//! Address ranges that do not overlap, in order, each with a label.
//!
//! A sorted array in memory that someone else provides: it is searched by halves
//! and changed by moving what comes after. That is linear in the number of ranges,
//! of which a process has at most some tens of thousands (`vm.max_map_count`), and
//! each change goes with a system call.

/// One range, `start <= address < end`, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Range {
    pub start: usize,
    pub end: usize,
    pub label: u32,
}

impl Range {
    pub const fn bytes(&self) -> usize {
        self.end - self.start
    }
}

/// What became of a range when a part of it was taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// All of it is gone.
    Whole,
    /// A part at one end is gone.
    Trimmed,
    /// A part in the middle is gone: one range has become two.
    Split,
    /// As split, but there was no room for the second one, which is forgotten:
    /// so many bytes.
    SplitAndLost(usize),
}

/// The ranges; the first `used` of `slots`.
pub(crate) struct Ranges<'a> {
    pub used: &'a mut usize,
    pub slots: &'a mut [Range],
}

impl Ranges<'_> {
    /// The first range with `label` that reaches into `start..end`.
    pub fn find(&self, label: u32, start: usize, end: usize) -> Option<Range> {
        let from = self.used().get(self.first_after(start)..)?;
        let mut inside = from.iter().take_while(|range| range.start < end);
        inside.find(|range| range.label == label).copied()
    }

    /// The first range that reaches into `start..end`.
    pub fn first(&self, start: usize, end: usize) -> Option<Range> {
        let first = self.used().get(self.first_after(start)).copied();
        first.filter(|range| range.start < end)
    }

    fn used(&self) -> &[Range] {
        self.slots.get(..*self.used).unwrap_or(&[])
    }

    /// Index of the first range that ends after `address`.
    fn first_after(&self, address: usize) -> usize {
        self.used().partition_point(|range| range.end <= address)
    }

    /// Adds a range that overlaps none. Returns whether there was room.
    pub fn add(&mut self, range: Range) -> bool {
        let used = *self.used;
        if used >= self.slots.len() {
            return false;
        }
        let at = self.first_after(range.start);
        self.slots.copy_within(at..used, at + 1);
        self.slots[at] = range;
        *self.used += 1;
        true
    }

    /// Takes out what lies in `start..end`, and tells of each piece that is gone.
    pub fn take(&mut self, start: usize, end: usize, mut gone: impl FnMut(Range, Cut)) {
        let first = self.first_after(start);
        let mut at = first;
        while let Some(&range) = self.used().get(at) {
            if range.start >= end {
                break;
            }
            let piece = Range {
                start: range.start.max(start),
                end: range.end.min(end),
                label: range.label,
            };
            let (before, after) = (range.start < start, range.end > end);
            let cut = match (before, after) {
                (false, false) => {
                    // Compacted in one go below, when all are known.
                    at += 1;
                    gone(piece, Cut::Whole);
                    continue;
                }
                (true, false) => {
                    self.slots[at].end = start;
                    Cut::Trimmed
                }
                (false, true) => {
                    self.slots[at].start = end;
                    Cut::Trimmed
                }
                (true, true) => {
                    self.slots[at].end = start;
                    let second = Range {
                        start: end,
                        ..range
                    };
                    match self.add(second) {
                        true => Cut::Split,
                        false => Cut::SplitAndLost(second.bytes()),
                    }
                }
            };
            gone(piece, cut);
            at += 1;
            if after {
                break;
            }
        }
        self.compact(first, at, start, end);
    }

    /// Removes those of `first..last` that lie wholly in `start..end`.
    fn compact(&mut self, first: usize, last: usize, start: usize, end: usize) {
        let inside = |range: &Range| range.start >= start && range.end <= end;
        let seen = &self.used()[first..last];
        let from = first + seen.iter().take_while(|range| !inside(range)).count();
        let count = seen.iter().filter(|range| inside(range)).count();
        let used = *self.used;
        self.slots.copy_within(from + count..used, from);
        *self.used -= count;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const NOTHING: Range = Range {
        start: 0,
        end: 0,
        label: 0,
    };

    #[derive(Clone, Debug)]
    enum Act {
        Add {
            start: usize,
            len: usize,
            label: u32,
        },
        Take {
            start: usize,
            len: usize,
        },
    }

    fn act() -> impl Strategy<Value = Act> {
        let add = (0..60_usize, 1..12_usize, 1..5_u32).prop_map(|(start, len, label)| Act::Add {
            start,
            len,
            label,
        });
        let take = (0..60_usize, 1..30_usize).prop_map(|(start, len)| Act::Take { start, len });
        prop_oneof![add, take]
    }

    proptest! {
        /// The model: each address has a label and the number of its range.
        #[test]
        fn ranges_agree_with_a_map_of_single_addresses(acts in proptest::collection::vec(act(), 0..80)) {
            let (mut used, mut slots) = (0, [NOTHING; 64]);
            let mut ranges = Ranges { used: &mut used, slots: &mut slots };
            let mut model = BTreeMap::<usize, u32>::new();
            for act in acts {
                match act {
                    Act::Add { start, len, label } => {
                        let mut replaced = 0;
                        ranges.take(start, start + len, |piece, _| replaced += piece.bytes());
                        let known = model.range(start..start + len).count();
                        prop_assert_eq!(replaced, known);
                        let range = Range { start, end: start + len, label };
                        prop_assert!(ranges.add(range));
                        model.extend((start..start + len).map(|at| (at, label)));
                    }
                    Act::Take { start, len } => {
                        let before = *ranges.used;
                        let mut gone = Vec::new();
                        ranges.take(start, start + len, |piece, cut| gone.push((piece, cut)));
                        let mut change = 0_isize;
                        for (piece, cut) in gone {
                            for at in piece.start..piece.end {
                                prop_assert_eq!(model.remove(&at), Some(piece.label));
                            }
                            match cut {
                                Cut::Whole => change -= 1,
                                Cut::Trimmed => {}
                                Cut::Split => change += 1,
                                Cut::SplitAndLost(_) => prop_assert!(false, "there is room"),
                            }
                        }
                        prop_assert_eq!(model.range(start..start + len).count(), 0);
                        prop_assert_eq!(*ranges.used as isize, before as isize + change);
                    }
                }
                let flat: Vec<_> = ranges
                    .used()
                    .iter()
                    .flat_map(|range| (range.start..range.end).map(|at| (at, range.label)))
                    .collect();
                prop_assert_eq!(flat, model.iter().map(|(at, label)| (*at, *label)).collect::<Vec<_>>());
                prop_assert!(ranges.used().windows(2).all(|pair| pair[0].end <= pair[1].start));
            }
        }
    }

    #[test]
    fn without_room_a_range_is_refused_and_a_split_forgets_its_second_half() {
        let (mut used, mut slots) = (0, [NOTHING; 1]);
        let mut ranges = Ranges {
            used: &mut used,
            slots: &mut slots,
        };
        let range = |start, end| Range {
            start,
            end,
            label: 1,
        };
        assert!(ranges.add(range(0, 10)));
        assert!(!ranges.add(range(20, 30)));
        let mut cuts = Vec::new();
        ranges.take(4, 6, |piece, cut| cuts.push((piece, cut)));
        assert_eq!(cuts, [(range(4, 6), Cut::SplitAndLost(4))]);
        assert_eq!(ranges.used(), [range(0, 4)]);
    }
}
