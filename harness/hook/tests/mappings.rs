//! Mappings that a program makes itself, outside malloc.

mod metered;

use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::null_mut;

use metered::{again, counters, in_child, in_phase, sum, wait_for_threads};
use tidegate_hook::{Alloc, Counters, HookLayer, Snapshot, Whereabouts, phase};

#[global_allocator]
static ALLOC: Alloc = Alloc::system();

const PAGE: usize = 4096;
const USABLE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

fn enter(name: &str) -> impl Drop {
    Whereabouts::changed(phase(name), Some(1)).enter()
}

/// What was booked as a mapping in a phase by the thread that entered it.
fn mapped(snapshot: &Snapshot, name: &str) -> Counters {
    sum(snapshot, |account| {
        snapshot.phases[account.phase as usize] == name
            && account.layer == HookLayer::Anon
            && account.item.is_some()
    })
}

fn map_at(address: *mut c_void, pages: usize, access: i32, flags: i32) -> *mut c_void {
    // SAFETY: each test maps where nothing is, or over its own.
    let at = unsafe { libc::mmap(address, pages * PAGE, access, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    black_box(at)
}

fn map(pages: usize) -> *mut c_void {
    map_at(null_mut(), pages, USABLE, PRIVATE)
}

fn page(at: *mut c_void, number: usize) -> *mut c_void {
    at.wrapping_byte_add(number * PAGE)
}

fn unmap(at: *mut c_void, pages: usize) {
    // SAFETY: each test unmaps its own.
    assert_eq!(unsafe { libc::munmap(at, pages * PAGE) }, 0);
}

fn in_pages(allocated: (u64, u64), released: (u64, u64)) -> Counters {
    let page = PAGE as u64;
    counters(
        (allocated.0, allocated.1 * page),
        (released.0, released.1 * page),
    )
}

#[test]
fn a_mapping_is_released_whole_in_parts_and_with_a_hole() {
    const NAME: &str = "a_mapping_is_released_whole_in_parts_and_with_a_hole";
    if in_child() {
        {
            let _place = enter("whole");
            // SAFETY: the kernel rounds the length up to a page.
            unsafe {
                let at = libc::mmap(null_mut(), 5000, USABLE, PRIVATE, -1, 0);
                assert_eq!(libc::munmap(at, 5000), 0);
            }
            map(3);
        }
        {
            let _place = enter("parts");
            let at = map(10);
            unmap(at, 2);
            unmap(page(at, 9), 1);
            unmap(page(at, 2), 7);
        }
        {
            let _place = enter("hole");
            let at = map(10);
            unmap(page(at, 4), 2);
        }
        {
            let _place = enter("across");
            // Two mappings and a hole between them, in one call.
            let at = map(30);
            unmap(page(at, 10), 10);
            unmap(page(at, 5), 20);
        }
        return;
    }
    let books = again(NAME);
    assert_eq!(books.lost, 0);
    assert_eq!(mapped(&books, "whole"), in_pages((2, 2 + 3), (1, 2)));
    assert_eq!(mapped(&books, "parts"), in_pages((1, 10), (1, 10)));
    assert_eq!(mapped(&books, "hole"), in_pages((2, 10), (0, 2)));
    assert_eq!(mapped(&books, "across"), in_pages((2, 30), (0, 20)));
}

#[test]
fn a_mapping_over_another_takes_its_place() {
    const NAME: &str = "a_mapping_over_another_takes_its_place";
    if in_child() {
        let at = {
            let _place = enter("first");
            map(10)
        };
        {
            let _place = enter("second");
            map_at(page(at, 2), 3, USABLE, PRIVATE | libc::MAP_FIXED);
        }
        {
            let _place = enter("third");
            // Shared memory and reserved addresses are none of this layer's.
            let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            map_at(page(at, 3), 1, USABLE, shared | libc::MAP_FIXED);
            map_at(page(at, 8), 2, libc::PROT_NONE, PRIVATE | libc::MAP_FIXED);
        }
        return;
    }
    let books = again(NAME);
    assert_eq!(books.lost, 0);
    assert_eq!(mapped(&books, "first"), in_pages((2, 10), (0, 5)));
    assert_eq!(mapped(&books, "second"), in_pages((2, 3), (0, 1)));
    assert_eq!(mapped(&books, "third"), in_pages((0, 0), (0, 0)));
}

#[test]
fn reserved_addresses_count_from_when_they_can_be_used() {
    const NAME: &str = "reserved_addresses_count_from_when_they_can_be_used";
    if in_child() {
        let at = {
            let _place = enter("reserved");
            map_at(null_mut(), 1000, libc::PROT_NONE, PRIVATE)
        };
        let _place = enter("used");
        // SAFETY: within the reservation.
        unsafe {
            assert_eq!(libc::mprotect(page(at, 10), 5 * PAGE, USABLE), 0);
            assert_eq!(libc::mprotect(page(at, 12), 6 * PAGE, USABLE), 0);
            // Neither gives the mapping back.
            assert_eq!(libc::mprotect(page(at, 10), 5 * PAGE, libc::PROT_NONE), 0);
            assert_eq!(
                libc::madvise(page(at, 10), 8 * PAGE, libc::MADV_DONTNEED),
                0
            );
            assert_eq!(libc::mprotect(page(at, 10), 5 * PAGE, libc::PROT_READ), 0);
        }
        unmap(page(at, 11), 500);
        return;
    }
    let books = again(NAME);
    assert_eq!(books.lost, 0);
    assert_eq!(mapped(&books, "reserved"), in_pages((0, 0), (0, 0)));
    assert_eq!(mapped(&books, "used"), in_pages((2, 8), (1, 7)));
}

#[test]
fn a_mapping_that_is_grown_or_moved_is_born_again_and_one_that_is_shrunk_is_not() {
    const NAME: &str =
        "a_mapping_that_is_grown_or_moved_is_born_again_and_one_that_is_shrunk_is_not";
    if in_child() {
        let at = {
            let _place = enter("first");
            map(10)
        };
        let _place = enter("second");
        // SAFETY: the mapping is this test's, and is used where it was moved to.
        unsafe {
            let same = libc::mremap(at, 10 * PAGE, 6 * PAGE, 0);
            assert_eq!(same, at);
            let grown = libc::mremap(at, 6 * PAGE, 4000 * PAGE, libc::MREMAP_MAYMOVE);
            assert_ne!(grown, libc::MAP_FAILED);
            let target = map(4000);
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            let moved = libc::mremap(grown, 4000 * PAGE, 4000 * PAGE, flags, target);
            assert_eq!(moved, target);
            assert_eq!(libc::mremap(moved, 1, 0, 0), libc::MAP_FAILED);
            unmap(moved, 4000);
        }
        return;
    }
    let books = again(NAME);
    assert_eq!(books.lost, 0);
    assert_eq!(mapped(&books, "first"), in_pages((1, 10), (1, 10)));
    assert_eq!(mapped(&books, "second"), in_pages((3, 12_000), (3, 12_000)));
}

#[test]
fn files_and_shared_memory_are_not_anonymous() {
    const NAME: &str = "files_and_shared_memory_are_not_anonymous";
    if in_child() {
        let _place = enter("file");
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: a new mapping.
        unsafe {
            let at = libc::mmap(null_mut(), PAGE, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::munmap(at, PAGE), 0);
        }
        map_at(
            null_mut(),
            1,
            USABLE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        return;
    }
    assert_eq!(mapped(&again(NAME), "file"), counters((0, 0), (0, 0)));
}

#[test]
fn mallocs_own_mappings_and_threads_stacks_are_not_booked_twice() {
    const NAME: &str = "mallocs_own_mappings_and_threads_stacks_are_not_booked_twice";
    if in_child() {
        let _place = enter("malloc");
        let block = black_box(vec![1_u8; 50 << 20]);
        drop(block);
        // A bare thread: one of Rust's maps an alternate stack for signals.
        extern "C" fn nothing(_: *mut c_void) -> *mut c_void {
            null_mut()
        }
        // SAFETY: a thread that does nothing, waited for.
        unsafe {
            let mut thread = std::mem::zeroed();
            libc::pthread_create(&raw mut thread, std::ptr::null(), nothing, null_mut());
            libc::pthread_join(thread, null_mut());
        }
        return;
    }
    let books = again(NAME);
    assert_eq!(mapped(&books, "malloc"), counters((0, 0), (0, 0)));
    assert_eq!(
        in_phase(&books, "malloc", HookLayer::Rust),
        counters((1, 50 << 20), (1, 50 << 20))
    );
}

#[test]
fn threads_that_map_and_unmap_at_once_stay_exact_and_so_does_a_child() {
    const NAME: &str = "threads_that_map_and_unmap_at_once_stay_exact_and_so_does_a_child";
    if in_child() {
        let before = {
            let _place = enter("before");
            map(7)
        };
        let before = before as usize;
        let place = Whereabouts::changed(phase("threads"), Some(1));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    let _place = place.enter();
                    for round in 0..2000 {
                        let at = map(1 + round % 5);
                        unmap(at, 1 + round % 5);
                    }
                });
            }
            for _ in 0..20 {
                // SAFETY: the child maps, unmaps and leaves.
                unsafe {
                    let pid = libc::fork();
                    if pid == 0 {
                        let _place = enter("child");
                        unmap(before as *mut c_void, 7); // Its copy: nobody's.
                        unmap(map(2), 1);
                        libc::_exit(0);
                    }
                    let mut status = 0;
                    libc::waitpid(pid, &raw mut status, 0);
                    assert_eq!(status, 0);
                }
            }
        });
        wait_for_threads();
        return;
    }
    let books = again(NAME);
    assert_eq!(books.lost, 0);
    assert_eq!(mapped(&books, "before"), in_pages((1, 7), (0, 0)));
    let pages = 4 * 400 * (1 + 2 + 3 + 4 + 5);
    assert_eq!(
        mapped(&books, "threads"),
        in_pages((8000, pages), (8000, pages))
    );
    // All children but the last have been followed by another, whose arrival
    // closed their books.
    let ended = books.ended.of(HookLayer::Anon);
    let last = mapped(&books, "child");
    assert_eq!(ended.allocated_blocks + last.allocated_blocks, 20);
    assert_eq!(ended.released_bytes + last.released_bytes, 20 * PAGE as u64);
}
