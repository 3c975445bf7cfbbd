//! A memory-leak regression suite and CI gate.
#![deny(unsafe_code)]

pub mod books;
mod collect;
mod control;
mod error;
mod folder;
mod gauges;
mod limit;
mod machine;
mod phase;
mod report;
mod run;
mod sampler;
mod scenario;
mod supervisor;
#[allow(unsafe_code)]
mod sys;
pub mod verdict;

pub use error::Error;
pub use machine::Machine;
pub use phase::{Guard, PhaseLayer, Place, item, phase};
pub use run::{RUN_FILE, RUN_SCHEMA, Run};
pub use sampler::{SAMPLES_FILE, Sample, read_samples};
pub use scenario::{Outcome, Plan, Round, Scenario};
pub use tidegate_hook::{Alloc, consumed, is_metered, produced};
pub use verdict::{Class, Verdict};
