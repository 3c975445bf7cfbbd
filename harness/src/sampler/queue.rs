//! What is kept of the queue's course: bounded, however long the run.

use crate::books::QueueSample;

/// Moments that are kept at most.
const AT_MOST: usize = 4096;

/// The queue's samples. Once there are too many, one of each two is kept: the one with
/// more items waiting, so that the fullest moment of all is never lost.
#[derive(Debug)]
pub(super) struct Course {
    kept: Vec<QueueSample>,
    /// Samples of which one is kept.
    of: usize,
    /// The fullest of those that came since the last one was kept, and how many came.
    fullest: Option<QueueSample>,
    came: usize,
    last: Option<QueueSample>,
}

impl Default for Course {
    fn default() -> Self {
        Self {
            kept: Vec::new(),
            of: 1,
            fullest: None,
            came: 0,
            last: None,
        }
    }
}

impl Course {
    /// Takes a moment at which the queue had changed.
    pub(super) fn push(&mut self, sample: QueueSample) {
        self.last = Some(sample);
        self.fullest = Some(match self.fullest {
            Some(before) => fuller(before, sample),
            None => sample,
        });
        self.came += 1;
        if self.came < self.of {
            return;
        }
        self.came = 0;
        self.kept.extend(self.fullest.take());
        if self.kept.len() == AT_MOST {
            self.kept = self
                .kept
                .chunks(2)
                .filter_map(|pair| pair.iter().copied().reduce(fuller))
                .collect();
            self.of *= 2;
        }
    }

    /// What was kept, with the last moment, which says whether the queue was drained.
    pub(super) fn end(mut self) -> Vec<QueueSample> {
        let rest = self.fullest.take().filter(|rest| Some(*rest) != self.last);
        self.kept.extend(rest);
        if self.kept.last() != self.last.as_ref() {
            self.kept.extend(self.last);
        }
        self.kept
    }
}

fn waiting(sample: &QueueSample) -> u64 {
    sample.produced.saturating_sub(sample.consumed)
}

fn fuller(a: QueueSample, b: QueueSample) -> QueueSample {
    if waiting(&b) > waiting(&a) { b } else { a }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn course(waiting: impl Iterator<Item = u64>) -> (Vec<QueueSample>, Vec<QueueSample>) {
        let mut course = Course::default();
        let all: Vec<QueueSample> = waiting
            .enumerate()
            .map(|(at, waiting)| QueueSample {
                at_seconds: at as f64,
                round: at as u32 / 100,
                produced: at as u64 + waiting,
                consumed: at as u64,
                live_bytes: waiting,
            })
            .collect();
        for sample in &all {
            course.push(*sample);
        }
        (all, course.end())
    }

    #[test]
    fn a_short_course_is_kept_whole() {
        let (all, kept) = course((0..AT_MOST as u64 - 1).map(|at| at % 7));
        assert_eq!(kept, all);
        assert_eq!(Course::default().end(), []);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn a_long_course_keeps_its_order_its_fullest_moment_and_its_last(
            length in AT_MOST..40 * AT_MOST, peak in 0usize..40 * AT_MOST
        ) {
            let peak = peak % length;
            let (all, kept) = course((0..length).map(|at| if at == peak { 1000 } else { at as u64 % 9 }));
            prop_assert!(kept.len() <= AT_MOST + 1, "{}", kept.len());
            prop_assert!(kept.len() >= AT_MOST / 2, "{}", kept.len());
            prop_assert!(kept.windows(2).all(|pair| pair[0].at_seconds < pair[1].at_seconds));
            prop_assert!(kept.contains(&all[peak]));
            prop_assert_eq!(kept.last(), all.last());
        }
    }
}
