//! Blocks that one allocator made and another one is given.

mod metered;

use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};

use metered::{again, counters, in_child, sum};
use tidegate_hook::{Alloc, HookLayer, Whereabouts, phase};

/// An allocator of its own that gives out memory once and takes anything back,
/// where a real one would fall over.
struct Arena;

const BYTES: usize = 64 << 20;

#[repr(align(4096))]
struct Memory(std::cell::UnsafeCell<[u8; BYTES]>);

// SAFETY: each part of it is given out once.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(std::cell::UnsafeCell::new([0; BYTES]));
static USED: AtomicUsize = AtomicUsize::new(64);

// SAFETY: parts of the memory never overlap and are aligned as asked for.
unsafe impl GlobalAlloc for Arena {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let room = layout.size() + layout.align();
        let at = USED.fetch_add(room, Ordering::Relaxed);
        if at + room > BYTES {
            return std::ptr::null_mut();
        }
        let base = MEMORY.0.get().cast::<u8>();
        base.wrapping_add((base as usize + at).next_multiple_of(layout.align()) - base as usize)
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static ALLOC: Alloc<Arena> = Alloc::new(Arena);

#[test]
fn mallocs_blocks_that_rust_drops_are_told_from_foreign_ones_and_stay_alive() {
    const NAME: &str = "mallocs_blocks_that_rust_drops_are_told_from_foreign_ones_and_stay_alive";
    const SIZES: [usize; 8] = [1, 24, 100, 1000, 5000, 100_000, 300_000, 3_000_000];
    if in_child() {
        let _place = Whereabouts::changed(phase("crossed"), Some(1)).enter();
        for size in SIZES {
            // SAFETY: none; this is the mistake under test. The arena ignores it.
            unsafe {
                let block = black_box(libc::malloc(size)).cast::<u8>();
                drop(Vec::from_raw_parts(block, 0, size));
                let block = black_box(libc::malloc(size)).cast::<u8>();
                block.write_bytes(5, size);
                let mut taken = Vec::from_raw_parts(block, size, size);
                taken.reserve_exact(size); // A realloc, which moves it to the arena.
                assert!(taken.iter().all(|byte| *byte == 5));
            }
        }
        for size in SIZES {
            // Not malloc's and not the wrapper's: really foreign.
            let layout = Layout::from_size_align(size + 100, 16).unwrap();
            // SAFETY: as above.
            unsafe { drop(Vec::from_raw_parts(Arena.alloc(layout).add(48), 0, size)) };
        }
        return;
    }
    let books = again(NAME);
    let sizes = SIZES.len() as u64;
    assert_eq!(
        (books.lost, books.crossed, books.foreign),
        (0, 2 * sizes, sizes)
    );
    let in_layer = |layer| {
        sum(&books, |account| {
            account.item == Some(1) && account.layer == layer
        })
    };
    let bytes = SIZES.iter().sum::<usize>() as u64;
    assert_eq!(
        in_layer(HookLayer::Native),
        counters((2 * sizes, 2 * bytes), (0, 0)),
        "malloc never got them back"
    );
    assert_eq!(
        in_layer(HookLayer::Rust),
        counters((sizes, 2 * bytes), (sizes, 2 * bytes))
    );
}
