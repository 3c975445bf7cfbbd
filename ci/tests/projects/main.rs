//! Commands in temporary projects, over stored runs: see `project` for how to write one.

mod diff;
mod gate;
mod project;
mod written;
