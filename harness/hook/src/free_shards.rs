//! The shards that no thread owns, as a lock-free stack in shared memory.
//!
//! The upper half of the top counts changes, so that a shard that was popped and
//! pushed between another's load and exchange is noticed (the ABA problem); the
//! lower half is the index of the top shard plus one. Owning a shard means to have
//! popped it (or to have been the first to use it) and not yet pushed it: what was
//! written to a shard before the push is seen by who pops it.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// What can be stacked: it has room for the link.
pub(crate) trait Stacked {
    /// Index of the next one plus one, or 0.
    fn next_free(&self) -> &AtomicU32;
}

/// Takes the top off.
pub(crate) fn pop<'a, T: Stacked>(top: &AtomicU64, all: &'a [T]) -> Option<&'a T> {
    let mut seen = top.load(Ordering::Acquire);
    loop {
        let index = (seen as u32).checked_sub(1)?;
        let shard = all.get(index as usize)?;
        // May be nonsense if someone else pops it now; then the exchange fails.
        let next = u64::from(shard.next_free().load(Ordering::Relaxed));
        match top.compare_exchange_weak(
            seen,
            changed(seen) | next,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return Some(shard),
            Err(now) => seen = now,
        }
    }
}

/// Puts the one at `index`, which the caller owns, on top.
pub(crate) fn push<T: Stacked>(top: &AtomicU64, all: &[T], index: u32) {
    let Some(shard) = all.get(index as usize) else {
        return;
    };
    let mut seen = top.load(Ordering::Relaxed);
    loop {
        shard.next_free().store(seen as u32, Ordering::Relaxed);
        match top.compare_exchange_weak(
            seen,
            changed(seen) | u64::from(index + 1),
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

fn changed(top: u64) -> u64 {
    (top >> 32).wrapping_add(1) << 32
}
