//! What this machine lets tidegate measure.

use std::fs;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limit::Cgroup;
use crate::machine::Machine;

/// One thing that is needed to measure something, and whether it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Check {
    /// What it is.
    pub what: String,
    /// Whether it is there.
    pub state: State,
    /// What was seen.
    pub seen: String,
    /// What is lost without it, or what to do.
    pub advice: Option<String>,
}

/// Whether something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is there.
    Good,
    /// It is there in part, or something stands in for it.
    Limited,
    /// It is wanted, and not there.
    Missing,
    /// It is not there, and nothing on this machine wants it.
    Absent,
}

impl State {
    /// The state's name, as in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Limited => "limited",
            Self::Missing => "missing",
            Self::Absent => "absent",
        }
    }
}

fn check(what: &str, state: State, seen: impl Into<String>, advice: Option<&str>) -> Check {
    Check {
        what: what.to_owned(),
        state,
        seen: seen.into(),
        advice: advice.map(str::to_owned),
    }
}

/// Looks at everything. Changes nothing but for a memory cgroup that is made and
/// removed again.
pub fn examine() -> Vec<Check> {
    let machine = Machine::this();
    let mut checks = vec![
        check("C library", State::Good, &machine.libc, None),
        preload(),
        memory_limit(),
        oom_kills(),
        huge_pages(&machine.thp),
        mappings(),
    ];
    checks.extend(gpu());
    checks
}

fn preload() -> Check {
    let what = "ledger to preload";
    match tidegate_hook::library() {
        Ok(path) => check(what, State::Good, path.display().to_string(), None),
        Err(error) => check(
            what,
            State::Missing,
            error.to_string(),
            Some("programs that were not built with tidegate cannot be metered"),
        ),
    }
}

fn memory_limit() -> Check {
    match Cgroup::with_limit(1 << 30) {
        Ok(cgroup) => check(
            "memory limit",
            State::Good,
            format!("{:?}", cgroup.kind()),
            None,
        ),
        Err(error) => check(
            "memory limit",
            State::Limited,
            format!("no memory cgroup: {error}"),
            Some("limits are kept by the sampler, which can be 10 ms late"),
        ),
    }
}

fn oom_kills() -> Check {
    match crate::limit::kernel_kills() {
        Some(kills) => check(
            "kernel's OOM kills",
            State::Good,
            format!("{kills} since boot"),
            None,
        ),
        None => check(
            "kernel's OOM kills",
            State::Limited,
            "/proc/vmstat does not count them",
            Some("a kill by the kernel looks like a crash by signal 9"),
        ),
    }
}

fn huge_pages(mode: &str) -> Check {
    let what = "transparent huge pages";
    match mode {
        "" => check(what, State::Limited, "cannot be read", None),
        "always" => check(
            what,
            State::Limited,
            mode,
            Some(
                "resident memory moves by 2 MiB without an allocation; the ledgers decide all \
                 the same",
            ),
        ),
        mode => check(what, State::Good, mode, None),
    }
}

fn mappings() -> Check {
    match fs::File::open("/proc/self/smaps") {
        Ok(_) => check("mappings by name", State::Good, "/proc/PID/smaps", None),
        Err(error) => check(
            "mappings by name",
            State::Missing,
            error.to_string(),
            Some("growth that no ledger explains cannot be named"),
        ),
    }
}

/// What the GPU's driver makes when it is loaded.
const DRIVER: &str = "/proc/driver/nvidia/version";

fn gpu() -> Vec<Check> {
    let here = Path::new(DRIVER).exists() || Path::new("/dev/nvidiactl").exists();
    if !here {
        return vec![check("GPU", State::Absent, "no driver of NVIDIA's", None)];
    }
    let version = fs::read_to_string(DRIVER).unwrap_or_default();
    let version = version.lines().next().unwrap_or("/dev/nvidiactl");
    let mut checks = vec![check("GPU's driver", State::Good, version, None)];
    checks.push(cupti());
    checks.extend(crate::card::examine());
    checks
}

#[cfg(feature = "gpu")]
fn cupti() -> Check {
    use tidegate_hook::GpuFailure;

    let what = "CUPTI";
    match tidegate_hook::gpu::find() {
        Ok(()) => check(what, State::Good, "found", None),
        Err(GpuFailure::NoLibrary) => check(
            what,
            State::Missing,
            "its library was not found",
            Some(
                "the GPU has no ledger, and programs that use it are inconclusive; name the \
                 library in TIDEGATE_CUPTI, or set CUDA_HOME",
            ),
        ),
        Err(_) => check(
            what,
            State::Missing,
            "what was found is not CUPTI",
            Some("name the right library in TIDEGATE_CUPTI"),
        ),
    }
}

#[cfg(not(feature = "gpu"))]
fn cupti() -> Check {
    check(
        "CUPTI",
        State::Missing,
        "tidegate was built without its feature `gpu`",
        Some("programs that use the GPU are inconclusive; build with the feature"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_what_that_costs() {
        let checks = examine();
        assert!(checks.len() >= 7, "{checks:?}");
        for check in checks {
            assert!(!check.seen.is_empty(), "{check:?}");
            assert!(
                check.state != State::Missing || check.advice.is_some(),
                "{check:?}"
            );
        }
    }

    #[test]
    fn huge_pages_are_told_by_their_mode() {
        assert_eq!(huge_pages("never").state, State::Good);
        assert_eq!(huge_pages("always").state, State::Limited);
        assert_eq!(huge_pages("").state, State::Limited);
    }
}
