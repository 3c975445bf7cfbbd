//! Every class that the harness can see on a CPU-only machine, from the smallest
//! program that has it, and the healthy twin that must not.

use std::hint::black_box;
use std::sync::Mutex;
use std::time::Duration;

use tidegate::books::{Amount, Ending, Layer, LimitKind};
use tidegate::verdict::Driver;
use tidegate::{Class, Round, Run, Scenario};

#[global_allocator]
static ALLOC: tidegate::Alloc = tidegate::Alloc::system();

/// Work that takes memory and gives it all back.
fn balanced_work() {
    let _phase = tidegate::phase("work");
    let mut rows: Vec<Vec<u8>> = (1..200).map(|n| vec![1; n * 100]).collect();
    rows.retain(|row| row.len() % 200 == 0);
    black_box(&rows);
}

fn malloc(size: usize) -> *mut libc::c_void {
    // SAFETY: malloc has no preconditions.
    black_box(unsafe { libc::malloc(size) })
}

#[test]
fn balanced_work_is_clean() {
    let run = Scenario::new("balanced work").run(|_| balanced_work());
    run.assert_class(Class::Clean);
}

#[test]
fn a_lost_rust_block_is_a_leak_to_the_byte() {
    let run = Scenario::new("lost rust block").run(|_| {
        balanced_work();
        let _phase = tidegate::phase("forget");
        std::mem::forget(black_box(vec![0_u8; 12_345]));
    });
    expect_leak(&run, Layer::RustHeap, "forget", Amount::new(12_345, 1));
}

#[test]
fn a_lost_c_block_of_24_bytes_is_a_leak_to_the_byte() {
    let run = Scenario::new("lost c block").run(|_| {
        balanced_work();
        let _phase = tidegate::phase("ffi");
        malloc(24);
    });
    expect_leak(&run, Layer::NativeHeap, "ffi", Amount::new(24, 1));
}

fn expect_leak(run: &Run, layer: Layer, phase: &str, per_round: Amount) {
    run.assert_class(Class::Leak);
    let finding = &run.verdict().findings[0];
    assert_eq!(run.verdict().findings.len(), 1, "{run}");
    assert_eq!(
        (finding.layer, finding.phase.as_str()),
        (layer, phase),
        "{run}"
    );
    assert_eq!(finding.driver, Driver::PerRound, "{run}");
    assert_eq!(finding.per_driver, Some(per_round), "{run}");
}

#[test]
fn a_cache_that_fills_once_is_not_a_leak() {
    static CACHE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
    let run = Scenario::new("late cache").run(|round: &Round| {
        balanced_work();
        if round.number() == 5 {
            let _phase = tidegate::phase("cache");
            CACHE
                .lock()
                .unwrap()
                .extend((0..10).map(|_| vec![1; 100_000]));
        }
    });
    run.assert_class(Class::Cache);
}

#[test]
fn a_block_that_each_round_replaces_is_not_a_leak() {
    static LAST: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    let run = Scenario::new("rolling block").run(|_| {
        balanced_work();
        let new = vec![1; 50_000];
        *LAST.lock().unwrap() = new;
    });
    assert!(run.verdict().class.passes(), "{run}");
}

#[test]
fn memory_that_a_detached_thread_frees_late_is_dwell() {
    // Late by some rounds, and by fewer than there are: where more memory is on its way
    // back after each round than before, it might as well be a queue that never empties.
    let run = Scenario::new("detached freeing").run(|_| {
        let big = vec![1_u8; 8 << 20];
        let here = tidegate::Place::current();
        std::thread::spawn(here.carry(move || {
            std::thread::sleep(Duration::from_millis(150));
            drop(big);
        }));
    });
    run.assert_class(Class::Dwell);
}

#[test]
fn a_panic_is_a_crash_with_its_message() {
    let run = Scenario::new("panic").run(|round: &Round| {
        balanced_work();
        assert!(round.number() < 6, "the sixth round is too many");
    });
    run.assert_class(Class::Crash);
    assert_eq!(
        run.books().ending,
        Ending::Panicked {
            message: "the sixth round is too many".into()
        }
    );
    assert_eq!(run.books().rounds.len(), 5);
}

#[test]
fn a_kill_half_way_is_a_crash_with_its_books() {
    let run = Scenario::new("kill").rounds(20).run(|round: &Round| {
        balanced_work();
        if round.number() == 9 {
            let _phase = tidegate::phase("last words");
            std::mem::forget(black_box(vec![1_u8; 777]));
            // SAFETY: kill of this very process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    });
    run.assert_class(Class::Crash);
    assert_eq!(run.books().ending, Ending::Signal { signal: 9 });
    assert_eq!(run.books().rounds.len(), 8);
    let left: Vec<_> = run
        .books()
        .survivors
        .iter()
        .filter(|left| left.phase == "last words")
        .collect();
    assert_eq!(left.len(), 1, "{run}");
    assert_eq!((left[0].round, left[0].left), (9, Amount::new(777, 1)));
    let (samples, torn) = tidegate::read_samples(run.folder()).unwrap();
    assert!(!torn && !samples.is_empty());
}

#[test]
fn a_peak_over_the_limit_is_a_ceiling() {
    let run = Scenario::new("ceiling").memory_limit(96 << 20).run(|_| {
        let rows: Vec<Vec<u8>> = (0..16).map(|_| vec![1; 16 << 20]).collect();
        black_box(rows);
    });
    run.assert_class(Class::Ceiling);
    let Ending::Limit {
        limit_bytes,
        peak_bytes,
        enforced_by,
    } = run.books().ending
    else {
        panic!("{run}");
    };
    assert_eq!(limit_bytes, 96 << 20);
    assert!(peak_bytes > 80 << 20, "{run}");
    assert_eq!(Some(enforced_by), run.limit_enforced_by);
    assert!(matches!(
        enforced_by,
        LimitKind::CgroupV1 | LimitKind::CgroupV2 | LimitKind::Watchdog
    ));
}

#[test]
fn a_deadlock_is_a_hang() {
    let run = Scenario::new("hang")
        .hang_after(Duration::from_secs(1))
        .run(|round: &Round| {
            if round.number() == 3 {
                std::thread::park_timeout(Duration::from_secs(600));
            }
        });
    run.assert_class(Class::Hang);
}

#[test]
fn two_scenarios_in_one_test_are_run_apart() {
    let clean = Scenario::new("first of two").run(|_| balanced_work());
    clean.assert_passes();
    let leak = Scenario::new("second of two").run(|_| {
        malloc(100);
    });
    leak.assert_class(Class::Leak);
    assert_ne!(clean.folder(), leak.folder());
}
