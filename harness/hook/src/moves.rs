//! How counts move from a shard to a context while someone reads both.
//!
//! A shard's `moving` is odd while its counts move. A reader notes it before and
//! after: if it was even and the same both times, each count was seen once.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Counts are about to move. One does so at a time.
pub(crate) fn begin(moving: &AtomicU32) {
    // Odd already where the last one was killed at it.
    let broken_off = moving.load(Ordering::Relaxed) & 1;
    moving.fetch_add(1 + broken_off, Ordering::Relaxed);
    // Who sees anything that is written from here on sees this too. That takes a
    // fence: an ordering of the addition would not bind what comes after it.
    fence(Ordering::Release);
}

/// Counts have moved.
pub(crate) fn end(moving: &AtomicU32) {
    moving.fetch_add(1, Ordering::Release);
}

/// Moves one count; only the caller writes to `from`.
pub(crate) fn move_count(from: &AtomicU64, to: &AtomicU64) {
    let amount = from.load(Ordering::Relaxed);
    if amount != 0 {
        to.fetch_add(amount, Ordering::Relaxed);
        from.store(0, Ordering::Relaxed);
    }
}

/// What a reader notes before it reads counts.
pub(crate) fn before(moving: &AtomicU32) -> u32 {
    moving.load(Ordering::Acquire)
}

/// What a reader notes after it has read counts.
pub(crate) fn after(moving: &AtomicU32) -> u32 {
    // Without the fence the counts could be read later than this.
    fence(Ordering::Acquire);
    moving.load(Ordering::Relaxed)
}

/// Whether no count moved between the two.
pub(crate) fn stood_still(before: u32, after: u32) -> bool {
    before == after && before.is_multiple_of(2)
}
