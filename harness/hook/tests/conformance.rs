//! The malloc family's semantics, to the letter.
//!
//! Each check runs three times: on glibc alone (a process without a ledger, whose
//! calls pass through), metered with the hook linked in, and, for C and C++
//! programs, metered with the hook preloaded. What holds for glibc must hold for all.

mod metered;

use std::ffi::{c_int, c_void};
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;

use metered::{again, counters, in_child, in_phase, preloaded};
use tidegate_hook::{Alloc, HookLayer, Whereabouts, phase};

/// So that what the tests call in C's name is told from what Rust does.
#[global_allocator]
static ALLOC: Alloc = Alloc::system();

unsafe extern "C" {
    fn reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void;
    fn memalign(alignment: usize, size: usize) -> *mut c_void;
    fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void;
    fn valloc(size: usize) -> *mut c_void;
    fn pvalloc(size: usize) -> *mut c_void;
    fn malloc_usable_size(block: *mut c_void) -> usize;
}

/// The family behind pointers that the compiler knows nothing of: it would leave
/// out a `malloc` whose block is not looked at, and fold a `calloc` that it sees.
struct Family {
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    calloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    reallocarray: unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    memalign: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    aligned_alloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    posix_memalign: unsafe extern "C" fn(*mut *mut c_void, usize, usize) -> c_int,
    valloc: unsafe extern "C" fn(usize) -> *mut c_void,
    pvalloc: unsafe extern "C" fn(usize) -> *mut c_void,
    usable_size: unsafe extern "C" fn(*mut c_void) -> usize,
}

fn family() -> Family {
    black_box(Family {
        malloc: libc::malloc,
        calloc: libc::calloc,
        realloc: libc::realloc,
        reallocarray,
        free: libc::free,
        memalign,
        aligned_alloc,
        posix_memalign: libc::posix_memalign,
        valloc,
        pvalloc,
        usable_size: malloc_usable_size,
    })
}

fn errno() -> c_int {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() = value };
}

/// Runs `check` here if this is the child of the test `name`; else starts
/// children with and without a ledger, and returns the books of the first.
fn on_glibc_and_metered(name: &str, check: impl Fn(&Family)) -> Option<tidegate_hook::Snapshot> {
    if in_child() {
        let _place = phase("check").map(|phase| Whereabouts::changed(Some(phase), Some(1)).enter());
        check(&family());
        return None;
    }
    let plain = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env("TIDEGATE_TEST_DEED", name)
        .output()
        .unwrap();
    assert!(
        plain.status.success(),
        "on glibc alone: {}",
        String::from_utf8_lossy(&plain.stderr)
    );
    let books = again(name);
    assert_eq!((books.lost, books.foreign), (0, 0));
    Some(books)
}

fn fill(block: *mut c_void, bytes: usize, seed: u8) {
    for at in 0..bytes {
        // SAFETY: the callers' blocks have that many bytes.
        unsafe { block.cast::<u8>().add(at).write_volatile(seed ^ at as u8) };
    }
}

fn assert_filled(block: *mut c_void, bytes: usize, seed: u8) {
    for at in 0..bytes {
        // SAFETY: the callers' blocks have that many bytes.
        let byte = unsafe { block.cast::<u8>().add(at).read_volatile() };
        assert_eq!(byte, seed ^ at as u8, "byte {at} of {bytes}");
    }
}

const SIZES: [usize; 22] = [
    0, 1, 7, 8, 15, 16, 17, 23, 24, 25, 31, 32, 40, 100, 1000, 1032, 4088, 4096, 100_000, 131_064,
    200_000, 5_000_000,
];

#[test]
fn each_block_is_writable_to_its_usable_size_and_its_neighbours_stay_whole() {
    let books = on_glibc_and_metered(
        "each_block_is_writable_to_its_usable_size_and_its_neighbours_stay_whole",
        |c| {
            let mut blocks = Vec::new();
            for (seed, size) in SIZES.into_iter().chain(SIZES).enumerate() {
                // SAFETY: blocks are used within their usable size and freed once.
                unsafe {
                    let block = (c.malloc)(size);
                    assert!(!block.is_null() && (block as usize).is_multiple_of(16));
                    let usable = (c.usable_size)(block);
                    assert!(usable >= size);
                    fill(block, usable, seed as u8);
                    blocks.push((block, usable, seed as u8));
                }
            }
            for (block, usable, seed) in blocks {
                assert_filled(block, usable, seed);
                // SAFETY: as above.
                unsafe {
                    assert_eq!((c.usable_size)(block), usable);
                    (c.free)(block);
                }
            }
            // SAFETY: null is allowed.
            assert_eq!(unsafe { (c.usable_size)(null_mut()) }, 0);
        },
    );
    let Some(books) = books else { return };
    let bytes = 2 * SIZES.iter().sum::<usize>() as u64;
    let blocks = 2 * SIZES.len() as u64;
    assert_eq!(
        in_phase(&books, "check", HookLayer::Native),
        counters((blocks, bytes), (blocks, bytes))
    );
}

#[test]
fn calloc_zeroes_used_memory_and_refuses_what_overflows() {
    on_glibc_and_metered(
        "calloc_zeroes_used_memory_and_refuses_what_overflows",
        |c| {
            for size in SIZES {
                // SAFETY: blocks are used within their size and freed once.
                unsafe {
                    for _ in 0..4 {
                        let dirty = (c.malloc)(size);
                        fill(dirty, size, 0xff);
                        (c.free)(dirty);
                    }
                    let block = (c.calloc)(1, size);
                    assert!(!block.is_null());
                    for at in 0..size {
                        assert_eq!(
                            block.cast::<u8>().add(at).read_volatile(),
                            0,
                            "{at} of {size}"
                        );
                    }
                    (c.free)(block);
                }
            }
            // SAFETY: all of these fail or are freed.
            unsafe {
                for (count, size) in [
                    (usize::MAX, 2),
                    (2, usize::MAX),
                    (1 << 32, 1 << 32),
                    (1, usize::MAX),
                    (usize::MAX, 1),
                    (1, isize::MAX as usize - 8),
                ] {
                    set_errno(0);
                    assert!((c.calloc)(count, size).is_null(), "{count} × {size}");
                    assert_eq!(errno(), libc::ENOMEM);
                }
                for (count, size) in [(0, 0), (0, 8), (8, 0), (usize::MAX, 0)] {
                    let block = (c.calloc)(count, size);
                    assert!(!block.is_null());
                    (c.free)(block);
                }
            }
        },
    );
}

#[test]
fn sizes_that_no_object_can_have_fail_with_enomem_everywhere() {
    on_glibc_and_metered(
        "sizes_that_no_object_can_have_fail_with_enomem_everywhere",
        |c| {
            let too_large = [
                usize::MAX,
                usize::MAX - 7,
                usize::MAX - 8,
                usize::MAX - 4096,
                isize::MAX as usize + 1,
                isize::MAX as usize,
                isize::MAX as usize - 8,
                isize::MAX as usize - 5000,
                1 << 62,
            ];
            for size in too_large {
                // SAFETY: all of these fail; the old block is freed at the end.
                unsafe {
                    let failing: [(&str, &dyn Fn() -> *mut c_void); 7] = [
                        ("malloc", &|| (c.malloc)(size)),
                        ("memalign", &|| (c.memalign)(64, size)),
                        ("aligned_alloc", &|| (c.aligned_alloc)(64, size)),
                        ("valloc", &|| (c.valloc)(size)),
                        ("pvalloc", &|| (c.pvalloc)(size)),
                        ("realloc", &|| (c.realloc)(null_mut(), size)),
                        ("reallocarray", &|| (c.reallocarray)(null_mut(), 1, size)),
                    ];
                    for (name, call) in failing {
                        set_errno(0);
                        assert!(call().is_null(), "{name}({size})");
                        assert_eq!(errno(), libc::ENOMEM, "{name}({size})");
                    }
                    let mut out = black_box(5 as *mut c_void);
                    assert_eq!((c.posix_memalign)(&raw mut out, 64, size), libc::ENOMEM);
                    assert_eq!(out as usize, 5, "left alone");
                }
            }
        },
    );
}

#[test]
fn a_realloc_keeps_the_contents_and_one_that_fails_keeps_the_block() {
    let books = on_glibc_and_metered(
        "a_realloc_keeps_the_contents_and_one_that_fails_keeps_the_block",
        |c| {
            // SAFETY: blocks are used within their size and freed once.
            unsafe {
                for from in SIZES {
                    for to in SIZES.into_iter().filter(|to| *to != 0) {
                        let block = (c.malloc)(from);
                        fill(block, from, 3);
                        let block = (c.realloc)(block, to);
                        assert_filled(block, from.min(to), 3);
                        fill(block, (c.usable_size)(block), 4);
                        (c.free)(block);
                    }
                }
                let block = (c.realloc)(null_mut(), 100);
                fill(block, 100, 9);
                for too_large in [usize::MAX, isize::MAX as usize, 1 << 60] {
                    set_errno(0);
                    assert!((c.realloc)(block, too_large).is_null());
                    assert_eq!(errno(), libc::ENOMEM);
                }
                set_errno(0);
                assert!((c.reallocarray)(block, 1 << 33, 1 << 33).is_null());
                assert_eq!(errno(), libc::ENOMEM);
                assert_filled(block, 100, 9);
                let block = (c.reallocarray)(block, 10, 20);
                assert_filled(block, 100, 9);
                assert!((c.usable_size)(block) >= 200);
                assert!((c.realloc)(block, 0).is_null(), "that frees it");
                let empty = (c.realloc)(null_mut(), 0);
                assert!(!empty.is_null(), "that is malloc(0)");
                (c.free)(empty);
            }
        },
    );
    let Some(books) = books else { return };
    let booked = in_phase(&books, "check", HookLayer::Native);
    // Each of 22 × 21 pairs is a birth and a rebirth; then 100, 200 and 0 bytes.
    assert_eq!(booked.allocated_blocks, 22 * 21 * 2 + 3);
    assert_eq!(booked.allocated_blocks, booked.released_blocks);
    assert_eq!(booked.allocated_bytes, booked.released_bytes);
}

#[test]
fn a_block_whose_realloc_failed_is_still_booked_once_and_to_the_byte() {
    let books = on_glibc_and_metered(
        "a_block_whose_realloc_failed_is_still_booked_once_and_to_the_byte",
        |c| {
            // SAFETY: the block is kept for ever.
            unsafe {
                let block = (c.malloc)(1234);
                assert!((c.realloc)(block, 1 << 60).is_null());
                assert!((c.reallocarray)(block, usize::MAX, 3).is_null());
                black_box(block);
            }
        },
    );
    let Some(books) = books else { return };
    assert_eq!(
        in_phase(&books, "check", HookLayer::Native),
        counters((1, 1234), (0, 0))
    );
}

#[test]
fn every_alignment_is_kept_and_odd_ones_are_treated_as_glibc_does() {
    on_glibc_and_metered(
        "every_alignment_is_kept_and_odd_ones_are_treated_as_glibc_does",
        |c| {
            let old = glibc_minor() < 38;
            // SAFETY: blocks are used within their usable size and freed once.
            unsafe {
                for size in SIZES {
                    for power in 0..21 {
                        let alignment = 1_usize << power;
                        for block in [
                            (c.memalign)(alignment, size),
                            (c.aligned_alloc)(alignment, size),
                        ] {
                            assert!((block as usize).is_multiple_of(alignment));
                            fill(block, (c.usable_size)(block), 1);
                            (c.free)(block);
                        }
                        let mut out = black_box(null_mut());
                        set_errno(77);
                        let status = (c.posix_memalign)(&raw mut out, alignment, size);
                        if alignment < 8 {
                            assert_eq!(status, libc::EINVAL);
                            assert!(out.is_null());
                        } else {
                            assert_eq!((status, errno()), (0, 77));
                            assert!((out as usize).is_multiple_of(alignment));
                            (c.free)(out);
                        }
                    }
                    for block in [(c.valloc)(size), (c.pvalloc)(size)] {
                        assert!((block as usize).is_multiple_of(4096));
                        (c.free)(block);
                    }
                    let whole = (c.pvalloc)(size);
                    assert!((c.usable_size)(whole) >= size.next_multiple_of(4096));
                    (c.free)(whole);
                }
                for odd in [0, 3, 24, 48, 100, 1000, 5000] {
                    let block = (c.memalign)(odd, 10);
                    assert!((block as usize).is_multiple_of(odd.next_power_of_two()));
                    (c.free)(block);
                    set_errno(0);
                    let block = (c.aligned_alloc)(odd, 10);
                    if old {
                        assert!((block as usize).is_multiple_of(odd.next_power_of_two()));
                        (c.free)(block);
                    } else {
                        assert!(block.is_null());
                        assert_eq!(errno(), libc::EINVAL);
                    }
                    let mut out = black_box(null_mut());
                    assert_eq!((c.posix_memalign)(&raw mut out, odd, 10), libc::EINVAL);
                }
                set_errno(0);
                assert!((c.memalign)(usize::MAX / 2 + 2, 1).is_null());
                assert_eq!(errno(), libc::EINVAL);
            }
        },
    );
}

fn glibc_minor() -> u32 {
    // SAFETY: the function returns a static C string.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    version.to_str().unwrap()[2..].parse().unwrap()
}

#[test]
fn aligned_blocks_can_be_reallocated_and_freed_like_others() {
    on_glibc_and_metered(
        "aligned_blocks_can_be_reallocated_and_freed_like_others",
        |c| {
            // SAFETY: blocks are used within their size and freed once.
            unsafe {
                for size in SIZES {
                    let block = (c.memalign)(4096, size);
                    fill(block, size, 8);
                    let block = (c.realloc)(block, size + 5000);
                    assert_filled(block, size, 8);
                    (c.free)(block);
                }
            }
        },
    );
}

#[test]
fn free_takes_null_and_leaves_errno_alone() {
    on_glibc_and_metered("free_takes_null_and_leaves_errno_alone", |c| {
        // SAFETY: blocks are freed once.
        unsafe {
            (c.free)(null_mut());
            for size in SIZES {
                let block = (c.malloc)(size);
                set_errno(4321);
                (c.free)(block);
                assert_eq!(errno(), 4321);
                let block = (c.malloc)(size);
                set_errno(4321);
                let gone = (c.realloc)(block, 0);
                assert!(gone.is_null());
                assert_eq!(errno(), 4321);
            }
            // The first call of a thread, which claims what it needs, is a free.
            let block = (c.malloc)(10) as usize;
            let free = c.free;
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    set_errno(4321);
                    free(block as *mut c_void);
                    assert_eq!(errno(), 4321);
                });
            });
        }
    });
}

#[test]
fn a_block_from_before_the_ledger_is_foreign_and_stays_whole() {
    // The loader's and the C library's own early blocks are the only ones that a
    // linked hook can miss; a preloaded program's look the same. Here glibc is
    // asked behind the hook's back.
    unsafe extern "C" {
        fn __libc_malloc(size: usize) -> *mut c_void;
    }
    const NAME: &str = "a_block_from_before_the_ledger_is_foreign_and_stays_whole";
    if in_child() {
        let c = family();
        // SAFETY: blocks are used within their size and freed once.
        unsafe {
            for size in SIZES {
                let block = __libc_malloc(size);
                fill(block, size, 5);
                assert!((c.usable_size)(block) >= size);
                assert_filled(block, size, 5);
                (c.free)(block);
                let block = __libc_malloc(size);
                fill(block, size, 6);
                let block = (c.realloc)(block, 2 * size + 1);
                assert_filled(block, size, 6);
                (c.free)(block);
            }
        }
        return;
    }
    let books = again(NAME);
    assert_eq!((books.lost, books.foreign), (0, 2 * SIZES.len() as u64));
}

/// Compiles a program in `tests/native` and returns its path.
fn compiled(source: &str, compiler: &str, options: &[&str]) -> Option<PathBuf> {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/native")
        .join(source);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(folder).unwrap();
    let program = folder.join(source.file_stem().unwrap());
    let status = Command::new(compiler)
        .args(options)
        .arg("-I")
        .arg(include)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .status();
    match status {
        Ok(status) => {
            assert!(
                status.success(),
                "{compiler} could not compile {}",
                source.display()
            );
            Some(program)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("not tested: {compiler} is not installed");
            None
        }
        Err(error) => panic!("{compiler}: {error}"),
    }
}

#[test]
fn sized_aligned_and_nothrow_new_and_delete_of_cpp_are_booked_to_the_byte() {
    let Some(program) = compiled("new_delete.cpp", "g++", &["-std=c++17", "-O1"]) else {
        return;
    };
    let plain = Command::new(&program).output().unwrap();
    assert!(plain.status.success(), "{plain:?}");
    let (ledger, output) = preloaded(Command::new(&program));
    assert_eq!(plain, output);
    let books = ledger.snapshot();
    assert_eq!((books.lost, books.foreign), (0, 0));
    let left = metered::sum(&books, |account| account.layer == HookLayer::Native);
    // What the program says that it keeps, over what the C++ runtime keeps itself:
    // its emergency pool for exceptions, of 72,704 bytes.
    let alive = (
        left.allocated_blocks - left.released_blocks,
        left.allocated_bytes - left.released_bytes,
    );
    let runtime = alive.1 - 123_456;
    assert!(alive.0 <= 3 && runtime <= 80_000, "{alive:?}");
}

#[test]
fn a_c_program_says_its_rounds_phases_and_items_and_runs_without_the_hook_too() {
    let Some(program) = compiled("rounds.c", "gcc", &["-O1", "-pthread"]) else {
        return;
    };
    let plain = Command::new(&program).output().unwrap();
    assert!(plain.status.success(), "{plain:?}");
    let (ledger, output) = preloaded(Command::new(&program));
    assert_eq!(plain, output);
    let books = ledger.snapshot();
    assert_eq!((books.lost, books.foreign), (0, 0));
    assert_eq!(ledger.queue(), (12, 9));
    for round in 1..=3 {
        for item in 0..4 {
            let of = |name: &str| {
                metered::sum(&books, |account| {
                    account.round == round
                        && account.item == Some(item)
                        && books.phases[account.phase as usize] == name
                        && account.layer == HookLayer::Native
                })
            };
            assert_eq!(of("inner"), counters((1, 7), (0, 0)));
            let work = of("work");
            // What the C library takes to start a thread is in here too, and is
            // used again.
            assert!(work.allocated_bytes >= 10 + 1000 + 33, "{work:?}");
            assert!(work.allocated_bytes - work.released_bytes >= 43, "{work:?}");
        }
    }
}

#[test]
fn ranges_of_nvtx_are_phases() {
    let Some(program) = compiled("nvtx.c", "gcc", &["-O1", "-ldl"]) else {
        return;
    };
    let mut command = Command::new(&program);
    command.env(
        tidegate_hook::NVTX_VARIABLE,
        tidegate_hook::library().unwrap(),
    );
    let (ledger, output) = preloaded(command);
    assert!(output.status.success(), "{output:?}");
    // Levels from 0 as they were pushed and popped; a string is registered once.
    assert_eq!(output.stdout, b"012332 1\n");
    let books = ledger.snapshot();
    let of = |name: &str| {
        metered::sum(&books, |account| {
            books.phases[account.phase as usize] == name && account.layer == HookLayer::Native
        })
    };
    assert_eq!(of("outer"), counters((1, 101), (0, 0)));
    // Popping a range brings its outer one back.
    assert_eq!(of("ascii"), counters((2, 102 + 105), (0, 0)));
    // A name that cannot be read leaves the phase as it was.
    assert_eq!(of("registered"), counters((2, 103 + 104), (0, 0)));
    assert_eq!(of("deep"), counters((0, 0), (0, 0)));
}
