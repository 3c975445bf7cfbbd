//! An exact ledger of every malloc, in shared memory that outlives the process.
//!
//! Linking this crate into an executable puts its `malloc` family in the place of
//! the C library's, for Rust, C and C++ alike. A process that was started without
//! a ledger pays two loads a call. One that was given a ledger by its supervisor
//! books every block with the round, item, phase and layer that bore it.
//!
//! - The supervisor makes a [`Ledger`], passes its file descriptor on and names it
//!   in the environment ([`FD_VARIABLE`]), and takes a [`Snapshot`] when it likes.
//! - The workload says where it is: [`begin_round`], [`phase`], [`Whereabouts`].
//! - [`Alloc`] tags the blocks of Rust's global allocator.
//!
//! # Limits
//!
//! - Linux on x86-64 with glibc. Elsewhere the crate does not build.
//! - Blocks born before the C library has its environment (the dynamic loader's
//!   own) are foreign: counted when released, never judged.
//! - A process that is killed may leave one operation per thread half-booked.
//!
//! The page-level picture is in the `layout` module, the cost of an allocation
//! in the `ledger` module.

#[cfg(not(all(target_os = "linux", target_env = "gnu", target_arch = "x86_64")))]
compile_error!(
    "tidegate-hook meters glibc's malloc on Linux x86-64; on musl and on other systems \
     there is no such allocator to meter. Build for x86_64-unknown-linux-gnu."
);

mod alloc;
mod arch;
mod attach;
mod context;
mod free_shards;
mod glibc;
mod layout;
mod ledger;
mod malloc;
mod mappings;
mod moves;
mod preload;
mod processes;
mod ranges;
mod reader;
mod sites;
mod sync;
mod trailer;
mod unwind;

pub use alloc::Alloc;
pub use attach::{FD_VARIABLE, PATH_VARIABLE, Refused};
pub use context::{
    AsMeter, Entered, PhaseNumber, Whereabouts, as_meter, begin_round, consumed, is_metered, phase,
    produced,
};
pub use layout::{Capacity, HookLayer};
pub use preload::{LIBRARY_VARIABLE, library, preload};
pub use reader::{Account, Cell, Counters, Ended, Ledger, MeteredProcess, Snapshot, UNATTRIBUTED};
pub use sites::{DEPTH, LoadedObject, SOURCE_FOLDER, Sites, Stack, StackFrame};
