//! The parts of the hook that Miri can run, which is what calls neither the operating
//! system nor glibc: the trailer's reads and writes, and the hand-over of shards. Run by
//! `ci/miri`, which gives this file to Miri as a program of its own.
//!
//! The rest interposes malloc, maps shared memory and reads thread-locals by assembly;
//! Miri has none of that. Loom tries every order of the hand-over (`tests/hand_over.rs`).

#![allow(dead_code, reason = "the parts are used by the crate")]

mod sync {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

#[path = "../src/free_shards.rs"]
mod free_shards;
#[path = "../src/moves.rs"]
mod moves;
/// With tests of its own.
#[path = "../src/trailer.rs"]
mod trailer;

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

struct Shard {
    next_free: AtomicU32,
    /// Not atomic: Miri reports it as a race if two own the shard at one time, or if
    /// the hand-over does not order their writes.
    count: UnsafeCell<u64>,
}

// SAFETY: `count` is its owner's alone; that this holds is what is tested.
unsafe impl Sync for Shard {}

impl free_shards::Stacked for Shard {
    fn next_free(&self) -> &AtomicU32 {
        &self.next_free
    }
}

#[test]
fn what_an_owner_wrote_is_handed_over_with_the_shard() {
    const THREADS: u64 = 4;
    const TIMES: u64 = 20;
    let top = Arc::new(AtomicU64::new(0));
    let shards: Arc<Vec<Shard>> = Arc::new(
        (0..2)
            .map(|_| Shard {
                next_free: AtomicU32::new(0),
                count: UnsafeCell::new(0),
            })
            .collect(),
    );
    for index in 0..2 {
        free_shards::push(&top, &shards, index);
    }
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (top, shards) = (Arc::clone(&top), Arc::clone(&shards));
            thread::spawn(move || {
                let mut done = 0;
                while done < TIMES {
                    let Some(shard) = free_shards::pop(&top, &shards) else {
                        thread::yield_now();
                        continue;
                    };
                    // SAFETY: popped, so owned.
                    unsafe { *shard.count.get() += 1 };
                    let same = |other: &Shard| std::ptr::eq(other, shard);
                    let index = shards.iter().position(same).unwrap();
                    free_shards::push(&top, &shards, index as u32);
                    done += 1;
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    // SAFETY: the threads have ended.
    let counted: u64 = shards.iter().map(|shard| unsafe { *shard.count.get() }).sum();
    assert_eq!(counted, THREADS * TIMES);
}

#[test]
fn a_reader_sees_each_count_once_or_knows_that_it_may_not() {
    let shard = Arc::new((AtomicU32::new(0), AtomicU64::new(3)));
    let context = Arc::new(AtomicU64::new(10));
    let mover = {
        let (shard, context) = (Arc::clone(&shard), Arc::clone(&context));
        thread::spawn(move || {
            moves::begin(&shard.0);
            moves::move_count(&shard.1, &context);
            moves::end(&shard.0);
        })
    };
    let before = moves::before(&shard.0);
    let sum = context.load(Ordering::Relaxed) + shard.1.load(Ordering::Relaxed);
    let after = moves::after(&shard.0);
    assert!(sum == 13 || !moves::stood_still(before, after));
    mover.join().unwrap();
}
