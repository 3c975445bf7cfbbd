//! What the C library keeps for threads that are gone.
//!
//! Glibc keeps the stack of a thread that has ended for one to come, and with it a
//! record of thread-local storage that was allocated when the stack was made. So
//! detached threads that pile up leave a small block for each stack that they needed at
//! one time, born in the round in which they became more than ever before. That is no
//! leak: it ends when they become no more.

use super::ledger::Row;
use super::resident::signed;
use super::settings::Settings;
use crate::books::{Books, Layer, ProbeKind};

/// What such a record takes at least, in bytes (glibc: its table of thread-local
/// storage, of 16 entries and more).
const RECORD: i64 = 256;

/// How many threads there were at one time.
#[derive(Debug, Default)]
pub(super) struct Threads {
    /// At most, until the end of each round: those at the end of the round before, and
    /// all that came in it.
    peaks: Vec<i64>,
    /// After the long wait; `None` without one.
    left: Option<i64>,
}

impl Threads {
    pub(super) fn seen(books: &Books) -> Self {
        let waits = |kind| matches!(kind, ProbeKind::Idle | ProbeKind::Drain);
        let waits = books.probes.iter().filter(|probe| waits(probe.kind));
        let left = waits
            .filter_map(|probe| probe.after.as_ref())
            .map(|gauges| signed(gauges.threads))
            .min();
        let (mut before, mut peak) = (None::<(i64, u64)>, 0);
        let peaks = books.rounds.iter().map(|round| {
            if let Some(gauges) = &round.gauges {
                let now = signed(gauges.threads);
                let in_round = before.map_or(now, |(threads, created)| {
                    let came = round.threads_created.saturating_sub(created);
                    threads.saturating_add(signed(came)).max(now)
                });
                peak = peak.max(in_round);
                before = Some((now, round.threads_created));
            }
            peak
        });
        Self {
            peaks: peaks.collect(),
            left,
        }
    }

    /// Whether all that the measured rounds left of a series are such records: blocks of
    /// one size, never more of them than there were more threads than in the rounds before, and
    /// no more than threads that are gone. One thread may be on its way out while the
    /// next one comes.
    pub(super) fn explain(&self, row: &Row<'_>, base: usize, settings: &Settings) -> bool {
        let at_most = signed(settings.ended_thread_keeps_bytes);
        let born = &row.born;
        let Some(first) = born.iter().find(|left| left.blocks > 0) else {
            return false;
        };
        let size = first.bytes / first.blocks;
        let (Some(at_first), Some(most), Some(left)) =
            (self.peaks.get(base), self.peaks.last(), self.left)
        else {
            return false;
        };
        let mut records = 0_i64;
        row.layer == Layer::NativeHeap
            && (RECORD..=at_most).contains(&size)
            && born.iter().enumerate().all(|(step, born)| {
                records = records.saturating_add(born.blocks);
                let peak = self.peaks.get(base + 1 + step).unwrap_or(most);
                born.blocks >= 0
                    && i128::from(born.bytes) == i128::from(size) * i128::from(born.blocks)
                    && records <= peak - at_first + 1
            })
            && records <= most - left
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Outcome;
    use super::super::simulated::Program;
    use super::*;
    use crate::books::{Amount, Gauges, Probe};

    fn row(layer: Layer, born: &[(i64, i64)]) -> Row<'static> {
        let amount = |(bytes, blocks): &(i64, i64)| Amount::new(*bytes, *blocks);
        Row {
            layer,
            phase: "unattributed",
            site: None,
            values: Vec::new().into(),
            born: born.iter().map(amount).collect(),
            born_before: Default::default(),
            outcome: Outcome::Flat,
        }
    }

    fn explains(born: &[(i64, i64)]) -> bool {
        // After two rounds of warm-up three threads more than ever before, all gone.
        let threads = Threads {
            peaks: vec![2, 3, 4, 5, 6, 6],
            left: Some(3),
        };
        threads.explain(&row(Layer::NativeHeap, born), 1, &Settings::default())
    }

    const ONE: (i64, i64) = (288, 1);
    const NONE: (i64, i64) = (0, 0);

    #[test]
    fn records_are_as_many_as_there_were_threads_more_than_before() {
        assert!(explains(&[ONE, ONE, ONE, NONE]));
        assert!(explains(&[NONE, ONE, NONE, NONE]));
        assert!(!explains(&[NONE, NONE, NONE, NONE]));
        // One thread may be on its way out while the next comes.
        assert!(explains(&[(576, 2), ONE, NONE, NONE]));
        assert!(!explains(&[(864, 3), NONE, NONE, NONE]));
        assert!(!explains(&[ONE, ONE, ONE, ONE]), "three threads are gone");
        assert!(!explains(&[ONE, (-288, -1), ONE, NONE]));
    }

    #[test]
    fn records_are_blocks_of_one_size_that_malloc_gave() {
        let of = |bytes| explains(&[(bytes, 1), (bytes, 1), NONE, NONE]);
        assert_eq!([255, 256, 1024, 1025].map(of), [false, true, true, false]);
        assert!(!explains(&[(288, 1), (304, 1), NONE, NONE]));
        let threads = Threads {
            peaks: vec![2, 3, 4, 5, 6, 6],
            left: Some(3),
        };
        let rust = row(Layer::RustHeap, &[ONE, ONE]);
        assert!(!threads.explain(&rust, 1, &Settings::default()));
        let unknown = Threads {
            left: None,
            ..threads
        };
        let native = row(Layer::NativeHeap, &[ONE, ONE]);
        assert!(!unknown.explain(&native, 1, &Settings::default()));
    }

    #[test]
    fn threads_of_a_round_are_those_before_it_and_all_that_came_in_it() {
        let mut program = Program::new(1, 5);
        program.threads_created = vec![3, 5, 9, 20, 21];
        let gauges = |threads| Gauges {
            threads,
            ..Gauges::default()
        };
        program.gauges = [3, 4, 4, 9, 7].map(gauges).to_vec();
        let mut books = program.books();
        books.rounds[3].gauges = None;
        // In the last round: four of the third, and twelve came since.
        assert_eq!(Threads::seen(&books).peaks, [3, 5, 8, 8, 16]);
        assert_eq!(Threads::seen(&books).left, None);
        let probe = |kind, left| Probe {
            kind,
            seconds: 1.0,
            live_before: Amount::ZERO,
            live_after: Amount::ZERO,
            before: None,
            after: Some(gauges(left)),
        };
        books.probes = vec![
            probe(ProbeKind::Trim, 1),
            probe(ProbeKind::Idle, 4),
            probe(ProbeKind::Drain, 3),
            probe(ProbeKind::Replay, 2),
        ];
        assert_eq!(Threads::seen(&books).left, Some(3));
    }
}
