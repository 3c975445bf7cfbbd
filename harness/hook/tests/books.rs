//! The books of a real process: each test starts this program again, metered, to
//! do one thing, and compares the books with what that thing is known to take.

mod metered;

use std::alloc::System;
use std::hint::black_box;

use metered::{again, counters, in_child, wait_for_threads};
use tidegate_hook::{
    Account, Alloc, Counters, HookLayer, Snapshot, Whereabouts, as_meter, begin_round, phase,
};

#[global_allocator]
static ALLOC: Alloc<System> = Alloc::system();

/// Enters a phase and an item. Other threads of the test program may inherit the
/// phase, but never the item: what is booked under both is this thread's alone.
fn enter(name: &str) -> impl Drop {
    Whereabouts::changed(phase(name), Some(3)).enter()
}

/// What was booked in a round, phase and layer, under any item.
fn booked(snapshot: &Snapshot, round: u32, phase: &str, layer: HookLayer) -> Counters {
    let wanted = |account: &&Account| {
        account.round == round
            && snapshot.phases[account.phase as usize] == phase
            && account.layer == layer
            && account.item.is_some()
    };
    let mut sum = Counters::default();
    snapshot
        .accounts
        .iter()
        .filter(wanted)
        .for_each(|account| sum.add(account.counters));
    sum
}

fn malloc(size: usize) -> *mut libc::c_void {
    // SAFETY: malloc has no preconditions.
    black_box(unsafe { libc::malloc(size) })
}

fn free(block: *mut libc::c_void) {
    // SAFETY: each test frees what `malloc` gave it, once.
    unsafe { libc::free(block) }
}

#[test]
fn rust_and_c_blocks_are_booked_apart_and_to_the_byte() {
    if in_child() {
        begin_round(7);
        let _phase = enter("work");
        let kept = black_box(vec![0_u8; 1000]);
        drop(black_box(Box::new([0_u64; 5])));
        std::mem::forget(kept);
        free(malloc(24));
        malloc(96);
        malloc(0);
        return;
    }
    let snapshot = again("rust_and_c_blocks_are_booked_apart_and_to_the_byte");
    assert_eq!((snapshot.lost, snapshot.moving), (0, 0));
    assert_eq!(
        booked(&snapshot, 7, "work", HookLayer::Rust),
        counters((2, 1040), (1, 40)),
        "{:#?}",
        snapshot.accounts
    );
    assert_eq!(
        booked(&snapshot, 7, "work", HookLayer::Native),
        counters((3, 120), (1, 24))
    );
    let items: Vec<_> = snapshot
        .accounts
        .iter()
        .filter(|account| account.round == 7)
        .collect();
    assert!(
        items
            .iter()
            .filter(|a| snapshot.phases[a.phase as usize] == "work")
            .all(|a| a.item == Some(3))
    );
}

#[test]
fn mappings_that_malloc_makes_for_single_blocks_are_counted_while_they_are_there() {
    const MIB: usize = 1 << 20;
    if in_child() {
        malloc(MIB);
        // SAFETY: a block of malloc's, which becomes another.
        black_box(unsafe { libc::realloc(malloc(MIB), 2 * MIB) });
        let mut aligned = std::ptr::null_mut();
        // SAFETY: a place for the block.
        let status = unsafe { libc::posix_memalign(&raw mut aligned, 1 << 16, 5 << 16) };
        assert_eq!(status, 0);
        free(aligned);
        malloc(100 << 10); // Too small for a mapping of its own.
        // SAFETY: the child frees its copy, which is not its to book, and ends.
        unsafe {
            let copied = malloc(4 * MIB);
            let child = libc::fork();
            if child == 0 {
                free(copied);
                libc::_exit(0);
            }
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        return;
    }
    let snapshot =
        again("mappings_that_malloc_makes_for_single_blocks_are_counted_while_they_are_there");
    let page = 4096;
    let process = snapshot.processes[0];
    let expected = (MIB + page) + (2 * MIB + page) + (4 * MIB + page);
    assert_eq!(process.block_mappings, expected as u64);
    assert_eq!(process.allocator_mappings, 0);
}

#[test]
fn a_release_on_another_thread_balances_the_birth() {
    if in_child() {
        begin_round(1);
        let blocks: Vec<_> = {
            let _meter = as_meter();
            Vec::with_capacity(5000)
        };
        let mut blocks = blocks;
        {
            let _place = enter("born");
            blocks.extend((0..5000).map(|i| malloc(i) as usize));
        }
        std::thread::scope(|scope| {
            for half in blocks.chunks(2500) {
                scope.spawn(move || half.iter().for_each(|block| free(*block as *mut _)));
            }
        });
        wait_for_threads();
        return;
    }
    let snapshot = again("a_release_on_another_thread_balances_the_birth");
    let bytes = (0..5000).sum();
    assert_eq!(
        booked(&snapshot, 1, "born", HookLayer::Native),
        counters((5000, bytes), (5000, bytes))
    );
}

#[test]
fn more_contexts_than_a_shard_has_entries_stay_exact() {
    if in_child() {
        let mut kept = Vec::new();
        for round in 1..=3000 {
            begin_round(round);
            let _place = Whereabouts::changed(phase("many"), Some(round % 7)).enter();
            kept.push(malloc(round as usize) as usize);
            if round > 1500 {
                free(kept[round as usize - 1501] as *mut _);
            }
        }
        return;
    }
    let snapshot = again("more_contexts_than_a_shard_has_entries_stay_exact");
    for round in 1..=3000 {
        let released = if round <= 1500 {
            (1, u64::from(round))
        } else {
            (0, 0)
        };
        assert_eq!(
            booked(&snapshot, round, "many", HookLayer::Native),
            counters((1, u64::from(round)), released),
            "round {round}"
        );
    }
}

#[test]
fn a_realloc_is_a_release_and_a_birth() {
    if in_child() {
        begin_round(1);
        let block = {
            let _place = enter("first");
            malloc(100)
        };
        let _place = enter("second");
        // SAFETY: `block` is live; its successor is not used.
        let block = unsafe { libc::realloc(block, 100_000) };
        assert!(!block.is_null());
        // SAFETY: as above.
        let gone = unsafe { libc::realloc(block, 0) };
        assert!(gone.is_null());
        return;
    }
    let snapshot = again("a_realloc_is_a_release_and_a_birth");
    assert_eq!(
        booked(&snapshot, 1, "first", HookLayer::Native),
        counters((1, 100), (1, 100))
    );
    assert_eq!(
        booked(&snapshot, 1, "second", HookLayer::Native),
        counters((1, 100_000), (1, 100_000))
    );
}

#[test]
fn a_thread_without_a_phase_inherits_the_only_active_one() {
    if in_child() {
        begin_round(1);
        let _place = Whereabouts::changed(phase("only"), Some(1)).enter();
        std::thread::scope(|scope| {
            scope.spawn(|| malloc(4321) as usize);
        });
        return;
    }
    let snapshot = again("a_thread_without_a_phase_inherits_the_only_active_one");
    let born = snapshot
        .accounts
        .iter()
        .filter(|a| a.counters.allocated_bytes >= 4321);
    assert!(
        born.clone()
            .any(|a| snapshot.phases[a.phase as usize] == "only"
                && a.item.is_none()
                && a.layer == HookLayer::Native),
        "{:#?}",
        snapshot.accounts
    );
}

#[test]
fn the_child_of_a_fork_does_not_touch_its_parents_books() {
    if in_child() {
        begin_round(1);
        let _place = enter("fork");
        let block = malloc(777);
        // SAFETY: the child only allocates, releases and leaves.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                free(block);
                malloc(555);
                libc::_exit(0);
            }
            let mut status = 0;
            libc::waitpid(pid, &raw mut status, 0);
            assert_eq!(status, 0);
        }
        return;
    }
    let snapshot = again("the_child_of_a_fork_does_not_touch_its_parents_books");
    assert_eq!(snapshot.processes.len(), 2);
    let of = |slot| {
        let of_slot = |account: &&Account| account.process == slot;
        let accounts = snapshot.accounts.iter().filter(of_slot).copied().collect();
        booked(
            &Snapshot {
                accounts,
                ..snapshot.clone()
            },
            1,
            "fork",
            HookLayer::Native,
        )
    };
    assert_eq!(of(1), counters((1, 777), (0, 0)));
    assert_eq!(of(2), counters((1, 555), (0, 0)));
}

#[test]
fn shards_of_ended_threads_are_used_again() {
    if in_child() {
        for _ in 0..3000 {
            std::thread::spawn(|| drop(black_box(vec![1_u8; 10])))
                .join()
                .unwrap();
        }
        return;
    }
    let snapshot = again("shards_of_ended_threads_are_used_again");
    assert_eq!(snapshot.lost, 0);
    assert!(snapshot.threads >= 3000, "{}", snapshot.threads);
    assert!(
        snapshot.own_bytes < 1 << 20,
        "{} bytes for the books",
        snapshot.own_bytes
    );
}

#[test]
fn peaks_are_right_within_their_stated_bound() {
    if in_child() {
        begin_round(1);
        let _place = enter("peak");
        for _ in 0..3 {
            let blocks: Vec<_> = (0..100).map(|_| malloc(100_000)).collect();
            blocks.into_iter().for_each(free);
        }
        return;
    }
    let snapshot = again("peaks_are_right_within_their_stated_bound");
    let peak = snapshot.peak as u64;
    let bound = snapshot.peak_error_bytes + 1_000_000; // What the test program itself holds.
    assert!(
        (10_000_000..10_000_000 + bound).contains(&(peak + snapshot.peak_error_bytes)),
        "{peak}"
    );
}
