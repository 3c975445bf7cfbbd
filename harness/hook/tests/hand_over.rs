//! The hand-over of shards and of their counts under a model checker, which tries
//! every order of memory operations that the language allows.
//!
//! The code under test is the crate's own, included here beside a `sync` module
//! with loom's atomics in it.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;

#[allow(unused_imports, reason = "each included file uses its part")]
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

#[path = "../src/free_shards.rs"]
mod free_shards;
#[path = "../src/moves.rs"]
mod moves;

/// As much of a shard as the hand-over touches.
struct Shard {
    next_free: AtomicU32,
    /// Who owns it, or 0. Not atomic in spirit: only the owner writes.
    owner: AtomicU32,
    /// Written with plain loads and stores by the owner.
    count: AtomicU64,
}

impl free_shards::Stacked for Shard {
    fn next_free(&self) -> &AtomicU32 {
        &self.next_free
    }
}

struct Books {
    top: AtomicU64,
    shards: Vec<Shard>,
}

impl Books {
    fn new(shards: usize) -> Arc<Self> {
        let shard = || Shard {
            next_free: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            count: AtomicU64::new(0),
        };
        let books = Self {
            top: AtomicU64::new(0),
            shards: (0..shards).map(|_| shard()).collect(),
        };
        for index in 0..shards {
            free_shards::push(&books.top, &books.shards, index as u32);
        }
        Arc::new(books)
    }

    /// A thread's life: claim, count, give back. Returns whether it had a shard.
    fn live(&self, me: u32) -> bool {
        let Some(shard) = free_shards::pop(&self.top, &self.shards) else {
            return false;
        };
        assert_eq!(shard.owner.load(Ordering::Relaxed), 0, "owned by two");
        shard.owner.store(me, Ordering::Relaxed);
        let count = shard.count.load(Ordering::Relaxed);
        shard.count.store(count + 1, Ordering::Relaxed);
        assert_eq!(shard.owner.load(Ordering::Relaxed), me, "owned by two");
        shard.owner.store(0, Ordering::Relaxed);
        let index = self
            .shards
            .iter()
            .position(|other| std::ptr::eq(other, shard));
        free_shards::push(&self.top, &self.shards, index.unwrap() as u32);
        true
    }

    fn counted(&self) -> u64 {
        let counts = self.shards.iter();
        counts
            .map(|shard| shard.count.load(Ordering::Relaxed))
            .sum()
    }

    fn free(&self) -> usize {
        std::iter::from_fn(|| free_shards::pop(&self.top, &self.shards)).count()
    }
}

#[test]
fn a_shard_has_one_owner_at_a_time_and_is_handed_over_with_its_counts() {
    loom::model(|| {
        let books = Books::new(1);
        let other = {
            let books = Arc::clone(&books);
            thread::spawn(move || u64::from(books.live(1)) + u64::from(books.live(1)))
        };
        let lives = u64::from(books.live(2)) + other.join().unwrap();
        assert_eq!(books.counted(), lives);
        assert_eq!(books.free(), 1);
    });
}

#[test]
fn no_shard_is_lost_or_given_out_twice_when_many_threads_come_and_go() {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(2);
    bounded.check(|| {
        let books = Books::new(2);
        let others: Vec<_> = (1..=2)
            .map(|me| {
                let books = Arc::clone(&books);
                thread::spawn(move || u64::from(books.live(me)) + u64::from(books.live(me)))
            })
            .collect();
        let mut lives = u64::from(books.live(3));
        for other in others {
            lives += other.join().unwrap();
        }
        assert_eq!(books.counted(), lives);
        assert_eq!(books.free(), 2);
    });
}

#[test]
fn a_reader_sees_each_count_once_or_knows_that_it_may_not() {
    loom::model(|| {
        let shard = Arc::new((AtomicU32::new(0), AtomicU64::new(3), AtomicU64::new(4)));
        let context = Arc::new(AtomicU64::new(10));
        let mover = {
            let (shard, context) = (Arc::clone(&shard), Arc::clone(&context));
            thread::spawn(move || {
                let (moving, first, second) = &*shard;
                moves::begin(moving);
                moves::move_count(first, &context);
                moves::move_count(second, &context);
                moves::end(moving);
            })
        };
        let (moving, first, second) = &*shard;
        let before = moves::before(moving);
        let sum = context.load(Ordering::Relaxed)
            + first.load(Ordering::Relaxed)
            + second.load(Ordering::Relaxed);
        let after = moves::after(moving);
        if moves::stood_still(before, after) {
            assert_eq!(sum, 17);
        }
        mover.join().unwrap();
        assert_eq!(context.load(Ordering::Relaxed), 17);
    });
}
