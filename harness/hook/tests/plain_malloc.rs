//! Rust on the system's allocator, which is glibc's malloc: two layers, both exact.

mod metered;

use metered::two_layers::{assert_both_layers_are_exact, work};
use metered::{again, in_child};
use tidegate_hook::Alloc;

#[global_allocator]
static ALLOC: Alloc = Alloc::system();

#[test]
fn blocks_of_rust_and_of_c_are_booked_apart_and_to_the_byte() {
    if in_child() {
        work();
        return;
    }
    let books = again("blocks_of_rust_and_of_c_are_booked_apart_and_to_the_byte");
    assert_both_layers_are_exact(&books);
}
