//! The machine that a run was made on, as far as it matters to memory.

use std::fs;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What makes two machines' numbers comparable, or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Machine {
    /// Logical CPUs that this process may use.
    pub cpus: u32,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The C library and its version.
    pub libc: String,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub thp: String,
}

impl Machine {
    /// This machine. What cannot be read is left empty.
    pub fn this() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let memory = read("/proc/meminfo")
            .lines()
            .find_map(|line| {
                line.strip_prefix("MemTotal:")?
                    .trim()
                    .strip_suffix(" kB")?
                    .parse()
                    .ok()
            })
            .unwrap_or(0_u64);
        let thp = read("/sys/kernel/mm/transparent_hugepage/enabled");
        let chosen = thp
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'));
        Self {
            cpus: std::thread::available_parallelism().map_or(0, |cpus| cpus.get() as u32),
            memory_bytes: memory.saturating_mul(1024),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            libc: format!("glibc {}", crate::sys::glibc_version()),
            thp: chosen.map(|(thp, _)| thp.to_owned()).unwrap_or_default(),
        }
    }
}
