//! Resident memory of a process whose parts are known, explained part by part.

use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::{Arc, Barrier};

use tidegate::reconcile::ResidentAccount;
use tidegate::{Run, Scenario};

#[global_allocator]
static ALLOC: tidegate::Alloc = tidegate::Alloc::system();

const MIB: usize = 1 << 20;
const USABLE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Writes to every page.
fn touch(at: *mut c_void, bytes: usize) {
    assert!(!at.is_null() && at != libc::MAP_FAILED);
    // SAFETY: each caller has just made that much memory there.
    unsafe { at.cast::<u8>().write_bytes(1, bytes) };
    black_box(at);
}

fn malloc(bytes: usize) -> *mut c_void {
    // SAFETY: malloc has no preconditions.
    black_box(unsafe { libc::malloc(bytes) })
}

fn map(bytes: usize, flags: i32, fd: i32) -> *mut c_void {
    // SAFETY: a new mapping where nothing is.
    unsafe { libc::mmap(null_mut(), bytes, USABLE, flags, fd, 0) }
}

/// What a process holds from its first round on, for good; with so many bytes of a block
/// that is never touched, and so many of a mapping that no hook sees.
fn hold(untouched: usize, hidden: usize) {
    // Blocks in arenas and one in a mapping of its own.
    for _ in 0..300 {
        touch(malloc(32 << 10), 32 << 10);
    }
    touch(malloc(24 * MIB), 24 * MIB);
    malloc(untouched);
    touch(map(16 * MIB, PRIVATE, -1), 16 * MIB);
    // Shared memory, and a file that is read.
    // SAFETY: a C string; the file is mapped whole, and read only.
    unsafe {
        let shared = libc::memfd_create(c"shared".as_ptr(), 0);
        assert_eq!(libc::ftruncate(shared, 12 * MIB as i64), 0);
        touch(map(12 * MIB, libc::MAP_SHARED, shared), 12 * MIB);
    }
    let file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut &file, &vec![1; 8 * MIB]).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    let at = map(8 * MIB, libc::MAP_PRIVATE, fd);
    for page in (0..8 * MIB).step_by(4096) {
        // SAFETY: within the file's mapping.
        black_box(unsafe { at.cast::<u8>().add(page).read_volatile() });
    }
    // The stacks of four threads.
    let all_deep = Arc::new(Barrier::new(5));
    for _ in 0..4 {
        let all_deep = Arc::clone(&all_deep);
        std::thread::spawn(move || {
            let deep = black_box([1_u8; MIB]);
            all_deep.wait();
            loop {
                std::thread::park();
                black_box(&deep);
            }
        });
    }
    all_deep.wait();
    if hidden > 0 {
        // SAFETY: a new mapping where nothing is.
        let at = unsafe {
            libc::syscall(
                libc::SYS_mmap,
                null_mut::<c_void>(),
                hidden,
                USABLE,
                PRIVATE,
                -1,
                0,
            )
        };
        touch(at as *mut c_void, hidden);
    }
}

fn run(name: &str, hold: impl Fn()) -> (Run, ResidentAccount) {
    let scenario = Scenario::new(name).warmup(1).rounds(4);
    let run = scenario.run(|round| {
        if round.number() == 1 {
            hold();
        }
    });
    run.assert_passes();
    let account = run.reconciliation.resident.expect("it could be read");
    (run, account)
}

/// What is in a part more with the holdings than without, to this many bytes.
#[track_caller]
fn is_about(with: u64, without: u64, expected: usize, within: usize) {
    let difference = with as i64 - without as i64;
    assert!(
        (difference - expected as i64).unsigned_abs() <= within as u64,
        "{difference} and not {expected}"
    );
}

#[test]
fn the_parts_of_a_process_explain_what_is_resident() {
    let (_, without) = run("holds nothing", || ());
    let (run, with) = run("holds something of everything", || hold(0, 0));
    let page = 4096;
    let blocks = 24 * MIB + 300 * (32 << 10);
    is_about(with.heap, without.heap, blocks, 16 << 10);
    is_about(with.anon, without.anon, 16 * MIB, 4 * 4 * page);
    is_about(with.shmem, without.shmem, 12 * MIB, 0);
    is_about(with.stacks, without.stacks, 4 * MIB, 4 * 8 * page);
    // With pages of libraries that are first used then.
    is_about(with.files, without.files, 8 * MIB, 2 * MIB);
    // Headers, rounding and buffers are small.
    is_about(with.kept, without.kept, 0, 256 << 10);
    // The threads' signal stacks, mostly.
    assert!(with.untouched < 128 << 10, "{run}");
    // The kernel counts late, and nothing else is missing.
    assert!(with.remainder.unsigned_abs() < 64 * page as u64, "{run}");
    assert!(with.reconciled, "{run}");
    let shown = run.to_string();
    assert!(shown.contains("within 5 % or 32 MiB"), "{shown}");
}

#[test]
fn a_block_that_was_never_touched_is_told_apart_from_what_is_resident() {
    let (_, without) = run("all touched", || hold(0, 0));
    let (run, with) = run("64 MiB untouched", || hold(64 * MIB, 0));
    is_about(with.untouched, without.untouched, 64 * MIB, 16 << 10);
    is_about(
        with.heap + with.anon,
        without.heap + without.anon,
        0,
        16 << 10,
    );
    assert!(with.reconciled, "{run}");
}

#[test]
fn what_was_mapped_behind_the_hooks_back_is_the_remainder() {
    let (run, account) = run("48 MiB hidden", || hold(0, 48 * MIB));
    assert!(!account.reconciled, "{run}");
    let remainder = account.remainder.unsigned_abs();
    is_about(remainder, 0, 48 * MIB, 256 << 10);
}
