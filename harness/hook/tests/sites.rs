//! Stacks of a real process: each test starts this program again, metered and with
//! stacks wanted, to do one thing.

use std::alloc::System;
use std::hint::black_box;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::Instant;

use tidegate_hook::{
    Alloc, Capacity, FD_VARIABLE, HookLayer, Ledger, Sites, Snapshot, Whereabouts, begin_round,
    phase,
};

#[global_allocator]
static ALLOC: Alloc<System> = Alloc::system();

const DEED: &str = "TIDEGATE_TEST_DEED";

/// Runs the test `name` again in a child of which the stacks in phase `work` are wanted.
fn metered(name: &str, sizes: std::ops::Range<u64>) -> (Snapshot, Sites, String) {
    metered_with_room(name, sizes, 1 << 12)
}

fn metered_with_room(
    name: &str,
    sizes: std::ops::Range<u64>,
    room: u32,
) -> (Snapshot, Sites, String) {
    let ledger = Ledger::create(Capacity {
        sites: room,
        ..Capacity::default()
    })
    .unwrap();
    assert!(ledger.want_sites(Some("work"), None, &sizes));
    let fd = rustix::io::dup(ledger.as_fd()).unwrap(); // Without close-on-exec.
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(FD_VARIABLE.to_str().unwrap(), fd.as_raw_fd().to_string())
        .env(DEED, name)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    (ledger.snapshot(), ledger.sites().unwrap(), said)
}

fn in_child() -> bool {
    std::env::var_os(DEED).is_some()
}

fn enter() -> impl Drop {
    Whereabouts::changed(phase("work"), None).enter()
}

fn malloc(size: usize) -> *mut libc::c_void {
    // SAFETY: malloc has no preconditions.
    black_box(unsafe { libc::malloc(size) })
}

#[inline(never)]
fn one(size: usize) -> *mut libc::c_void {
    black_box(malloc(size))
}

#[inline(never)]
fn other(size: usize) -> *mut libc::c_void {
    black_box(malloc(size))
}

#[test]
fn blocks_are_booked_by_stack_and_only_those_wanted() {
    if in_child() {
        let _place = enter();
        for round in 1..=3 {
            begin_round(round);
            for _ in 0..round {
                one(100);
            }
            other(200);
            other(5000);
        }
        return;
    }
    let (snapshot, sites, _) =
        metered("blocks_are_booked_by_stack_and_only_those_wanted", 90..1000);
    assert_eq!((snapshot.lost, sites.dropped), (0, 0));
    let born = |round, bytes| -> Vec<u32> {
        let accounts = snapshot.accounts.iter().filter(|account| {
            account.round == round
                && account.layer == HookLayer::Native
                && account.counters.allocated_bytes == bytes
        });
        accounts.map(|account| account.site).collect()
    };
    let one = born(1, 100)[0];
    assert_ne!(one, 0);
    assert!(born(2, 200).contains(&one), "{:#?}", snapshot.accounts);
    assert_eq!(born(3, 300), [one]);
    let other = born(1, 200)[0];
    assert!(other != 0 && other != one);
    assert!(born(3, 200).contains(&other));
    assert_eq!(born(3, 5000), [0], "{:#?}", snapshot.accounts);
    let stack = &sites.stacks[one as usize];
    assert!(!stack.cut && stack.frames.len() > 8, "{stack:#?}");
    let program = sites.objects[stack.frames[0].object.unwrap()].clone();
    assert_eq!(program.path, std::env::current_exe().unwrap());
    assert_eq!(program.build_id.len(), 20);
    let last = stack.frames.last().unwrap();
    assert!(
        sites.objects[last.object.unwrap()]
            .path
            .to_string_lossy()
            .contains("libc.so"),
        "the walk goes to the start of the thread: {sites:#?}"
    );
}

#[inline(never)]
fn deeper(levels: usize, work: &mut dyn FnMut()) {
    if levels == 0 {
        work();
    } else {
        deeper(black_box(levels - 1), work);
        black_box(&levels);
    }
}

#[test]
fn taking_a_stack_costs_microseconds_at_most() {
    if in_child() {
        const TIMES: u32 = 200_000;
        let time = |phase_entered: bool, levels: usize| {
            let place = phase_entered.then(enter);
            let mut nanoseconds = 0.0;
            deeper(levels, &mut || {
                let begun = Instant::now();
                for _ in 0..TIMES {
                    // SAFETY: a block that was just made.
                    unsafe { libc::free(malloc(100)) };
                }
                nanoseconds = begun.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES);
            });
            drop(place);
            nanoseconds
        };
        for levels in [0, 10, 40] {
            let plain = time(false, levels);
            let with = time(true, levels);
            println!("levels {levels}: {plain:.0} ns without a stack, {with:.0} ns with");
            assert!(with < 20_000.0);
        }
        return;
    }
    let (_, sites, said) = metered("taking_a_stack_costs_microseconds_at_most", 90..1000);
    println!("{said}");
    for stack in &sites.stacks {
        println!("{} frames, cut {}", stack.frames.len(), stack.cut);
    }
    assert_eq!(sites.captures, 600_000);
}

/// Births in phase `work` of blocks of `size` bytes each, by site.
fn born(snapshot: &Snapshot, size: u64) -> Vec<(u32, u64)> {
    let mut sites = std::collections::BTreeMap::new();
    for account in &snapshot.accounts {
        let counters = account.counters;
        let here = snapshot.phases[account.phase as usize] == "work";
        if here && counters.allocated_bytes == size * counters.allocated_blocks {
            *sites.entry(account.site).or_default() += counters.allocated_blocks;
        }
    }
    sites.into_iter().collect()
}

#[test]
fn threads_that_allocate_at_one_place_share_its_site() {
    if in_child() {
        begin_round(1);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let _place = enter();
                    for _ in 0..10_000 {
                        // SAFETY: a block that was just made.
                        unsafe { libc::free(one(777)) };
                    }
                });
            }
        });
        return;
    }
    let (snapshot, sites, _) = metered(
        "threads_that_allocate_at_one_place_share_its_site",
        777..778,
    );
    assert_eq!((snapshot.lost, sites.dropped), (0, 0));
    assert_eq!(sites.captures, 80_000);
    let born = born(&snapshot, 777);
    assert_eq!(born.len(), 1, "{born:?}");
    assert_ne!(born[0].0, 0);
    assert_eq!(born[0].1, 80_000);
}

#[test]
fn blocks_without_room_for_their_stack_are_booked_all_the_same() {
    if in_child() {
        begin_round(1);
        let _place = enter();
        for levels in 0..20 {
            deeper(levels, &mut || {
                one(777);
            });
        }
        return;
    }
    let name = "blocks_without_room_for_their_stack_are_booked_all_the_same";
    let (snapshot, sites, _) = metered_with_room(name, 777..778, 8);
    assert_eq!(snapshot.lost, 0);
    assert_eq!((sites.captures, sites.dropped), (20, 13));
    let born = born(&snapshot, 777);
    assert_eq!(born.iter().find(|(site, _)| *site == 0), Some(&(0, 13)));
    assert_eq!(born.len(), 8, "{born:?}");
}

#[test]
fn the_child_of_a_fork_takes_stacks_of_its_own() {
    if in_child() {
        begin_round(1);
        let _place = enter();
        one(777);
        // SAFETY: the child only allocates and leaves.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                other(777);
                libc::_exit(0);
            }
            let mut status = 0;
            libc::waitpid(pid, &raw mut status, 0);
            assert_eq!(status, 0);
        }
        return;
    }
    let (snapshot, sites, _) = metered("the_child_of_a_fork_takes_stacks_of_its_own", 777..778);
    let born = born(&snapshot, 777);
    assert_eq!(born.len(), 2, "{born:?}");
    let process = |(site, _): (u32, u64)| sites.stacks[site as usize].process;
    assert_ne!(process(born[0]), process(born[1]));
    let [one, other] = [born[0], born[1]].map(|(site, _)| &sites.stacks[site as usize].frames);
    assert!(one.len() > 8 && other.len() > 8);
}
