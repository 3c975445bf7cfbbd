//! Rust under dhat's profiler, which itself stands on malloc: the program's blocks are
//! Rust's to the byte, and dhat's own tables are the meter's.

mod metered;

use metered::two_layers::{assert_both_layers_are_exact, work};
use metered::{again, in_child, sum};
use tidegate_hook::{Alloc, HookLayer};

#[global_allocator]
static ALLOC: Alloc<dhat::Alloc> = Alloc::new(dhat::Alloc);

#[test]
fn the_programs_blocks_are_exact_and_the_profilers_own_are_booked_apart() {
    const NAME: &str = "the_programs_blocks_are_exact_and_the_profilers_own_are_booked_apart";
    if in_child() {
        let _profiler = dhat::Profiler::builder().testing().build();
        work();
        return;
    }
    let books = again(NAME);
    assert_both_layers_are_exact(&books);
    let own = sum(&books, |account| {
        account.round == 1 && account.layer == HookLayer::Meter
    });
    // A table entry and a stack for each place of allocation at least.
    assert!(own.allocated_blocks > 20, "{own:?}");
}
