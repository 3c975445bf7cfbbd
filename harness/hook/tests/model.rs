//! The ledger against a simple model, over random traces of several threads.
//!
//! A trace is made from a seed, so that the metered child and the model in the
//! parent have the same one. Within a round the threads run freely; which
//! thread releases which block, and in which round, is a part of the trace.

mod metered;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use metered::{again_with, in_child, wait_for_threads};
use proptest::prelude::*;
use tidegate_hook::{
    Alloc, Capacity, Counters, HookLayer, Snapshot, Whereabouts, begin_round, phase,
};

#[global_allocator]
static ALLOC: Alloc = Alloc::system();

const TRACE: &str = "TIDEGATE_TEST_TRACE";

#[derive(Clone, Copy, Debug)]
struct Shape {
    seed: u64,
    threads: usize,
    rounds: u32,
    /// Acts of a thread in a round.
    acts: usize,
    phases: u64,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Enter { phase: u64, item: u32 },
    Allocate { block: usize, size: usize, way: u64 },
    Grow { block: usize, size: usize },
    Release { block: usize },
}

#[derive(Debug)]
struct Trace {
    /// By round, thread, and order.
    acts: Vec<Vec<Vec<Act>>>,
    blocks: usize,
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

fn trace(shape: Shape) -> Trace {
    let mut random = Random(shape.seed | 1);
    let mut blocks = 0;
    // Blocks that may be touched: by the same thread at once, by others from the
    // next round on.
    let mut shared = Vec::new();
    let mut rounds = Vec::new();
    for _ in 0..shape.rounds {
        let mut by_thread = Vec::new();
        let mut left = Vec::new();
        for _ in 0..shape.threads {
            let mut own: Vec<usize> = Vec::new();
            // Each thread starts a round in a place of its own.
            let place = |random: &mut Random| Act::Enter {
                phase: random.below(shape.phases),
                item: random.below(4) as u32,
            };
            let mut acts = vec![place(&mut random)];
            for _ in 0..shape.acts {
                let size = match random.below(4) {
                    0 => random.below(3_000_000) as usize,
                    1 => random.below(40) as usize,
                    _ => random.below(3000) as usize,
                };
                acts.push(match random.below(10) {
                    0 => place(&mut random),
                    1..=4 => {
                        own.push(blocks);
                        blocks += 1;
                        Act::Allocate {
                            block: blocks - 1,
                            size,
                            way: random.below(4),
                        }
                    }
                    5 | 6 if !own.is_empty() => {
                        let block = own[random.below(own.len() as u64) as usize];
                        Act::Grow {
                            block,
                            size: size + 1,
                        }
                    }
                    7 if !own.is_empty() => {
                        let at = random.below(own.len() as u64) as usize;
                        Act::Release {
                            block: own.swap_remove(at),
                        }
                    }
                    _ if !shared.is_empty() => {
                        let at = random.below(shared.len() as u64) as usize;
                        Act::Release {
                            block: shared.swap_remove(at),
                        }
                    }
                    _ => continue,
                });
            }
            left.append(&mut own);
            by_thread.push(acts);
        }
        shared.append(&mut left);
        rounds.push(by_thread);
    }
    Trace {
        acts: rounds,
        blocks,
    }
}

type Key = (u32, String, Option<u32>);

/// What the books must say.
fn model(trace: &Trace) -> BTreeMap<Key, Counters> {
    let mut books = BTreeMap::<Key, Counters>::new();
    let mut alive = BTreeMap::<usize, (Key, u64)>::new();
    for (round, threads) in trace.acts.iter().enumerate() {
        for acts in threads {
            let mut place = None;
            for act in acts {
                let mut born = |block, size| {
                    let (phase, item): (u64, u32) = place.unwrap();
                    let key = (round as u32 + 1, format!("p{phase}"), Some(item));
                    let book = books.entry(key.clone()).or_default();
                    book.allocated_blocks += 1;
                    book.allocated_bytes += size as u64;
                    alive.insert(block, (key, size as u64))
                };
                let gone = match *act {
                    Act::Enter { phase, item } => {
                        place = Some((phase, item));
                        None
                    }
                    Act::Allocate { block, size, .. } => born(block, size),
                    Act::Grow { block, size } => born(block, size),
                    Act::Release { block } => alive.remove(&block),
                };
                if let Some((key, size)) = gone {
                    let book = books.get_mut(&key).unwrap();
                    book.released_blocks += 1;
                    book.released_bytes += size;
                }
            }
        }
    }
    books
}

fn booked(snapshot: &Snapshot) -> BTreeMap<Key, Counters> {
    let mut books = BTreeMap::<Key, Counters>::new();
    for account in &snapshot.accounts {
        let phase = &snapshot.phases[account.phase as usize];
        if account.layer == HookLayer::Native && account.item.is_some() {
            let key = (account.round, phase.clone(), account.item);
            books.entry(key).or_default().add(account.counters);
        }
    }
    books
}

/// Runs a trace for real.
fn act(trace: &Trace, shape: Shape) {
    let blocks: Vec<AtomicUsize> = (0..trace.blocks).map(|_| AtomicUsize::new(0)).collect();
    let phases: Vec<_> = (0..shape.phases).map(|n| phase(&format!("p{n}"))).collect();
    let barrier = Barrier::new(shape.threads);
    std::thread::scope(|scope| {
        for thread in 0..shape.threads {
            let (blocks, phases, barrier) = (&blocks, &phases, &barrier);
            scope.spawn(move || {
                for (round, threads) in trace.acts.iter().enumerate() {
                    if barrier.wait().is_leader() {
                        begin_round(round as u32 + 1);
                    }
                    barrier.wait();
                    for act in &threads[thread] {
                        one(*act, blocks, phases);
                    }
                    Whereabouts::default().replace();
                }
            });
        }
    });
    wait_for_threads();
}

fn one(act: Act, blocks: &[AtomicUsize], phases: &[Option<tidegate_hook::PhaseNumber>]) {
    let put = |block: usize, at: *mut libc::c_void| {
        assert!(!at.is_null());
        blocks[block].store(black_box(at) as usize, Ordering::Relaxed);
    };
    let get = |block: usize| blocks[block].load(Ordering::Relaxed) as *mut libc::c_void;
    // SAFETY: the trace releases each block once, after its birth.
    unsafe {
        match act {
            Act::Enter { phase, item } => {
                Whereabouts::changed(phases[phase as usize], Some(item)).replace();
            }
            Act::Allocate { block, size, way } => put(
                block,
                match way {
                    0 => libc::calloc(1, size),
                    1 => libc::memalign(256, size),
                    _ => libc::malloc(size),
                },
            ),
            Act::Grow { block, size } => put(block, libc::realloc(get(block), size)),
            Act::Release { block } => libc::free(get(block)),
        }
    }
}

const NAME: &str = "books_and_model_agree_on_any_trace_of_threads_phases_and_rounds";

fn run(shape: Shape, capacity: Capacity) -> Snapshot {
    let Shape {
        seed,
        threads,
        rounds,
        acts,
        phases,
    } = shape;
    let ledger = again_with(NAME, capacity, |command| {
        command.env(TRACE, format!("{seed} {threads} {rounds} {acts} {phases}"));
    });
    ledger.snapshot()
}

fn check(shape: Shape, capacity: Capacity) -> Result<(), TestCaseError> {
    let snapshot = run(shape, capacity);
    prop_assert_eq!(
        (snapshot.lost, snapshot.foreign, snapshot.moving),
        (0, 0, 0)
    );
    prop_assert_eq!(booked(&snapshot), model(&trace(shape)));
    Ok(())
}

fn shapes() -> impl Strategy<Value = Shape> {
    let numbers = (any::<u64>(), 1..7_usize, 1..6_u32, 1..400_usize, 1..5_u64);
    numbers.prop_map(|(seed, threads, rounds, acts, phases)| Shape {
        seed,
        threads,
        rounds,
        acts,
        phases,
    })
}

#[test]
fn books_and_model_agree_on_any_trace_of_threads_phases_and_rounds() {
    if in_child() {
        let text = std::env::var(TRACE).unwrap();
        let numbers: Vec<u64> = text
            .split(' ')
            .map(|number| number.parse().unwrap())
            .collect();
        let shape = Shape {
            seed: numbers[0],
            threads: numbers[1] as usize,
            rounds: numbers[2] as u32,
            acts: numbers[3] as usize,
            phases: numbers[4],
        };
        act(&trace(shape), shape);
        return;
    }
    proptest!(ProptestConfig::with_cases(48), |(shape in shapes())| {
        check(shape, Capacity::default())?;
    });
    // With one shard for all threads, the others book without one: slower, as exact.
    let few = Capacity {
        shards: 1,
        ..Capacity::default()
    };
    proptest!(ProptestConfig::with_cases(16), |(shape in shapes())| {
        check(shape, few)?;
    });
}
