//! Commands in temporary projects, over stored runs: see `project` for how to write one.

#[path = "../common/mod.rs"]
mod common;
mod diff;
mod gate;
mod project;
mod written;
