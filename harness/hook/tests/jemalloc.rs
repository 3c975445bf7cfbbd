//! Rust on jemalloc, C on glibc: two layers in one process, both exact.

mod metered;

use metered::two_layers::{assert_both_layers_are_exact, work};
use metered::{again, in_child, sum};
use tidegate_hook::{Alloc, HookLayer};

#[global_allocator]
static ALLOC: Alloc<tikv_jemallocator::Jemalloc> = Alloc::new(tikv_jemallocator::Jemalloc);

#[test]
fn blocks_of_jemalloc_and_of_glibc_are_booked_apart_and_to_the_byte() {
    if in_child() {
        work();
        return;
    }
    let books = again("blocks_of_jemalloc_and_of_glibc_are_booked_apart_and_to_the_byte");
    assert_both_layers_are_exact(&books);
    // What jemalloc maps to make blocks of is not booked a second time.
    let mapped = sum(&books, |account| {
        account.round == 1 && account.layer == HookLayer::Anon && account.item.is_some()
    });
    assert!(mapped.allocated_bytes < 1 << 20, "{mapped:?}");
    // It is counted as the allocator's, and is no less than what was made of it.
    let rust = sum(&books, |account| account.layer == HookLayer::Rust);
    let theirs: u64 = books.processes.iter().map(|of| of.allocator_mappings).sum();
    let alive = rust.allocated_bytes - rust.released_bytes;
    assert!(theirs >= alive && theirs > 1 << 20, "{theirs} for {alive}");
}
