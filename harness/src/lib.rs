//! A memory-leak regression suite and CI gate for GPU provers, and for any heavy
//! Rust, C++ and CUDA pipeline.
//!
//! A program that works in rounds (prove a batch, serve a request, run an epoch)
//! should give back in each round what it took. Whether it does cannot be read
//! from RSS: allocators keep freed memory, caches fill, threads free late. This
//! crate keeps exact books instead. Every block of Rust's, C's and C++'s heap is
//! booked with the round, item and phase that bore it, in memory that outlives the
//! process, and a verdict is read from the books.
//!
//! # The first test
//!
//! ```no_run
//! #[global_allocator]
//! static ALLOC: tidegate::Alloc = tidegate::Alloc::system();
//!
//! # fn prove(partitions: u32) {}
//! #[test]
//! fn proving_gives_everything_back() {
//!     tidegate::Scenario::new("proving")
//!         .run(|_round| prove(4))
//!         .assert_passes();
//! }
//! # fn main() {}
//! ```
//!
//! `cargo nextest run` (or `cargo test`) starts the test again as a supervised
//! child process, has it do 2 rounds to warm up and 8 that count, and prints what
//! was kept, if anything was, by layer and phase, since which round.
//!
//! # Phases and items
//!
//! [`phase()`] names a part of a round and [`item`] the unit of work (for a prover,
//! the partition); [`PhaseLayer`] takes both from `tracing` spans. [`Place::carry`]
//! takes them along to another thread. With items named,
//! [`Run::assert_releases_match`] demands that for each item and phase as many
//! blocks were released as allocated.
//!
//! # Verdicts
//!
//! [`Class`] lists what a run can be found to be. [`verdict`] says how it is
//! decided. Everything that was measured is in [`Run::books`], and in `run.json`
//! in the run's folder.
//!
//! # Limits
//!
//! - Linux on x86-64 with glibc.
//! - Memory that passes neither through malloc nor through `mmap` and, with the feature
//!   `gpu`, the interfaces of CUDA, is in no book. It shows in the gauges, which witness
//!   and do not decide.
//! - What a test does before [`Scenario::run`] is done in the child process too.
#![deny(unsafe_code)]

mod aside;
pub mod baseline;
pub mod books;
mod card;
mod collect;
pub mod compare;
mod control;
pub mod diff;
pub mod doctor;
mod error;
pub mod explain;
mod folder;
pub mod gate;
mod gauges;
#[cfg(feature = "html")]
pub mod html;
mod launch;
mod limit;
mod machine;
mod maps;
mod phase;
pub mod policy;
pub mod profile;
mod program;
pub mod reconcile;
mod report;
mod rounds;
mod run;
mod sampler;
mod scenario;
mod schemas;
mod supervisor;
pub mod suppressions;
#[allow(unsafe_code)]
mod sys;
pub mod verdict;
mod watch;

/// Whether a machine runs this: the environment has `CI`, and not as `false`. Nothing that is
/// kept in a project is written then.
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|ci| !ci.is_empty() && ci != "false")
}

pub use aside::{CameTo, Residue, SetAside, SuppressionUse};
pub use error::Error;
pub use explain::{Explain, Explanation};
pub use machine::{Fingerprint, Machine};
pub use phase::{Guard, PhaseLayer, Place, item, phase};
pub use policy::Policy;
pub use profile::Profile;
pub use program::Program;
pub use rounds::Rounds;
pub use run::{RUN_FILE, RUN_SCHEMA, Run};
pub use sampler::{SAMPLES_FILE, Sample, read_samples};
pub use scenario::{Outcome, Plan, Round, Scenario};
pub use schemas::schemas;
pub use suppressions::{Day, Suppressions};
pub use tidegate_hook::{Alloc, consumed, is_metered, produced};
pub use verdict::{Class, Verdict};
pub use watch::{Reading, Watching};
