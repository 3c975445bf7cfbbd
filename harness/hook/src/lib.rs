//! An exact ledger of every malloc, in shared memory that outlives the process.
//!
//! Linking this crate into an executable puts its `malloc` family in the place of
//! the C library's, for Rust, C and C++ alike. A process that was started without
//! a ledger pays two loads a call. One that was given a ledger by its supervisor
//! books every block with the round, item, phase and layer that bore it.
//!
//! - The supervisor makes a [`Ledger`], passes its file descriptor on, names it
//!   in the environment ([`Ledger::variables`]), and takes a [`Snapshot`] when it likes.
//! - The workload says where it is: [`begin_round`], [`phase`], [`Whereabouts`].
//!   C and C++ programs do so through `include/tidegate.h`.
//! - [`Alloc`] tags the blocks of Rust's global allocator.
//!
//! # Programs that were not built with it
//!
//! The same code is built as `libtidegate_hook.so`, for `LD_PRELOAD`: see [`library`]
//! and [`preload()`]. Every process that a program starts finds the ledger through
//! the environment and gets books of its own. A process that has ended holds nothing
//! any more: what it booked is added to [`Snapshot::ended`], and its place in the
//! ledger is free for the next one. There is room for 4,095 processes and, by
//! default, 2,048 threads with a shard at one time; further threads are booked
//! without one, which is slower, and further processes count as lost.
//!
//! # Limits
//!
//! - Linux on x86-64 with glibc. Elsewhere the crate does not build.
//! - Blocks born before the C library has its environment (the dynamic loader's
//!   own) are foreign: counted when released, never judged.
//! - A process that is killed may leave one operation per thread half-booked.
//! - Not metered, and not counted as lost either: programs that are linked statically, that
//!   change their user when executed (setuid), that bring a malloc of their own,
//!   or that are started with an empty environment.
//! - A process needs 130 MB of address space for the ledger, little of it touched.
//!   One that may not have so much is not metered and counts as [`Snapshot::unmapped`].
//! - The ledger's descriptor (512 or above) can be seen by a program that lists its own.
//! - A filter on system calls that is put on before a fork has to allow the child
//!   `stat`, `kill` and `getpid`.
//! - A block of Rust's own allocator (jemalloc) that C frees cannot be told from nonsense:
//!   glibc ends the program, as it would without the hook. The other way round it
//!   is told ([`Snapshot::crossed`]).
//!
//! # How it is checked
//!
//! Each function of the family against the letter of its manual (`tests/conformance.rs`);
//! random traces of several threads against a simple model (`tests/model.rs`); a handler
//! that allocates at every instruction of the hook (`tests/safety.rs`); the hand-over of
//! shards in every order of memory operations, by loom (`tests/hand_over.rs`); real programs,
//! with and without it (`tests/programs.rs`). Miri runs the trailer and the hand-over
//! (`ci/miri`); the rest calls the system, assembly and glibc's own functions, which Miri
//! does not have. The C and C++ of this repository runs under sanitizers (`ci/sanitize`).
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
mod c_abi;
mod context;
mod free_shards;
mod glibc;
#[cfg(feature = "gpu")]
pub mod gpu;
mod layout;
mod ledger;
mod malloc;
mod mappings;
mod moves;
mod nvtx;
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
pub use nvtx::VARIABLE as NVTX_VARIABLE;
pub use preload::{LIBRARY_VARIABLE, library, preload};
pub use reader::{
    Account, Cell, Counters, Ended, GpuFailure, GpuPools, GpuState, Ledger, MeteredProcess,
    Refusal, Snapshot, UNATTRIBUTED,
};
pub use sites::{DEPTH, DRIVER_OBJECTS, LoadedObject, SOURCE_FOLDER, Sites, Stack, StackFrame};
