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
                    && (born.blocks == 0 || records <= peak - at_first + 1)
            })
            && records <= most - left
    }
}
