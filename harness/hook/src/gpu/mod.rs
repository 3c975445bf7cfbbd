//! The ledger of the GPU: its memory, the host's page-locked memory, and the objects
//! that a program makes on it.
//!
//! NVIDIA's CUPTI calls back at the begin and the end of every call of the driver's and
//! of the runtime's interface. What such a call makes or releases is booked like a block
//! of malloc's: with the round, item and phase of its birth, in a [layer](crate::HookLayer)
//! of its own. There is no trailer in the card's memory, so a table says which
//! birth an address or a handle is of. All this goes with calls that take microseconds;
//! malloc's own path is not touched.
//!
//! - The calls of the driver's interface are booked, which those of the runtime end in.
//!   The runtime's are looked at for releases that were refused before they got there:
//!   inside a host function the driver's call is not made, or not seen.
//! - A release is booked when it has succeeded. One that was refused stays a
//!   survivor, and [how it was refused](crate::Refusal) is kept.
//! - Destroying a context releases what was made in it.
//! - Blocks that the driver takes from malloc within a call, or on a thread of its own, are
//!   the [driver's](crate::HookLayer::Driver).
//!
//! # Limits
//!
//! - Memory that a graph takes and does not free is booked at its launch, if it was captured
//!   in the stream where the capture began or added by `cuGraphAddMemAllocNode`; memory
//!   that a graph takes and frees itself is not. Address ranges that are only reserved are
//!   no memory.
//! - A release by the driver's interface inside a host function is seen by nobody; what it
//!   was to release is a survivor.
//! - What a program makes before the ledger is attached is not known to it. A program under
//!   `LD_PRELOAD` is met when it initialises CUDA, a scenario before its body runs.
//! - One subscriber at a time: under a profiler that uses CUPTI there is no ledger, and
//!   [`GpuState::failed`](crate::GpuState) says so.

mod book;
mod calls;
mod cupti;
mod pools;
pub(crate) mod threads;

pub use cupti::{ask_pools, attach, find};
