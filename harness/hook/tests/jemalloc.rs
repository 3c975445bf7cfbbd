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
}
