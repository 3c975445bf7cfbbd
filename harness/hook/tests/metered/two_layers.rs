//! What holds for a Rust program on any allocator of its own beside glibc's malloc.

use std::hint::black_box;

use tidegate_hook::{Counters, HookLayer, Snapshot, Whereabouts, begin_round, phase};

use super::{counters, sum};

/// A workload of both sides, with what is left in the end known to the byte.
pub fn work() {
    begin_round(1);
    let place = Whereabouts::changed(phase("both"), Some(1));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                let _place = place.enter();
                one_thread();
            });
        }
    });
    super::wait_for_threads();
}

fn one_thread() {
    // Zeroed, over-aligned, grown, shrunk, large, moved to another thread.
    #[repr(align(256))]
    struct Wide(#[allow(dead_code)] [u8; 512]);
    for size in [1_usize, 16, 100, 5000, 300_000, 5_000_000] {
        let zeros = black_box(vec![0_u8; size]);
        assert!(zeros.iter().all(|byte| *byte == 0));
        let mut grown = black_box(Vec::<u8>::with_capacity(size));
        grown.resize(size, 7);
        grown.reserve_exact(size);
        grown.resize(2 * size, 8);
        assert!(grown[..size].iter().all(|byte| *byte == 7));
        grown.truncate(size.div_ceil(2));
        grown.shrink_to_fit();
        assert!(grown.iter().all(|byte| *byte == 7));
        let wide = black_box(Box::new(Wide([3; 512])));
        assert!((&raw const *wide).addr().is_multiple_of(256));
    }
    for size in 0..100 {
        // SAFETY: both are C's; one is kept.
        unsafe {
            libc::free(black_box(libc::malloc(size)));
            black_box(libc::malloc(size));
        }
    }
    std::mem::forget(black_box(vec![1_u8; 4321]));
}

/// What [`work`] leaves in the books, whatever Rust's allocator is.
pub fn assert_both_layers_are_exact(books: &Snapshot) {
    assert_eq!((books.lost, books.foreign, books.crossed), (0, 0, 0));
    let of = |layer: HookLayer| -> Counters {
        sum(books, |account| {
            account.round == 1 && account.layer == layer && account.item == Some(1)
        })
    };
    // Six sizes: zeros, a vector that is grown and shrunk (three births), a wide
    // box; then the one that is kept.
    let sizes = [1_u64, 16, 100, 5000, 300_000, 5_000_000];
    let per_size = |size: u64| size + (size + 2 * size + size.div_ceil(2)) + 512;
    let released: u64 = sizes.iter().map(|size| per_size(*size)).sum();
    assert_eq!(
        of(HookLayer::Rust),
        counters((4 * 31, 4 * (released + 4321)), (4 * 30, 4 * released)),
    );
    assert_eq!(
        of(HookLayer::Native),
        counters((4 * 200, 4 * 2 * 4950), (4 * 100, 4 * 4950)),
    );
}
