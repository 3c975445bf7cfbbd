//! The atomics of the code that a model checker runs too, with its own in their
//! place: `tests/hand_over.rs` includes that code beside another `sync` module.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
