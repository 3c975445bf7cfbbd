//! The start of a workload under watch, and what its end is called: what scenarios and
//! programs have in common.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_hook::{Capacity, Ledger};

use crate::books::{Ending, LimitKind};
use crate::error::{Error, failed_to};
use crate::explain::Request;
use crate::folder::RunFolder;
use crate::limit::{self, Cgroup};
use crate::sampler::{Found, Job, SAMPLES_FILE, Sampler, kill_group};
use crate::scenario::Plan;
use crate::sys::{AtBirth, before_exec};

/// How long a workload may take to end after it was told to.
const END_WITHIN: Duration = Duration::from_secs(20);
/// Between two looks at a workload that is to end.
const END_LOOK: Duration = Duration::from_millis(1);

/// A run whose workload has not been started yet.
pub(crate) struct Launch<'a> {
    plan: &'a Plan,
    /// The books.
    pub ledger: Arc<Ledger>,
    cgroup: Option<Cgroup>,
    kernel_kills: Option<u64>,
}

/// A workload that has been started, with its sampler.
pub(crate) struct Running {
    /// When it was.
    pub start: Instant,
    /// The process.
    pub child: Workload,
    /// What watches it.
    pub sampler: Sampler,
}

impl<'a> Launch<'a> {
    /// Makes the ledger, with room for the stacks that `request` asks for, and the limit.
    pub fn prepare(plan: &'a Plan, request: Option<&Request>) -> Result<Self, Error> {
        let capacity = request.map_or_else(Capacity::default, Request::capacity);
        let ledger = Ledger::create(capacity).map_err(failed_to("make the ledger's memory"))?;
        if let Some(request) = request {
            let asked = request.enter_into(&ledger);
            asked.map_err(failed_to("ask for stacks"))?;
        }
        Ok(Self {
            plan,
            ledger: Arc::new(ledger),
            cgroup: plan
                .limit_bytes
                .filter(|_| !plan.limit_by_samples)
                .and_then(|limit| Cgroup::with_limit(limit).ok()),
            kernel_kills: limit::kernel_kills(),
        })
    }

    /// Starts the workload in a process group of its own, under the limit; it inherits the
    /// ledger and the descriptors `keep`. `what` names it in an error.
    pub fn start(
        &self,
        mut command: Command,
        keep: &[RawFd],
        folder: &RunFolder,
        what: &str,
    ) -> Result<Running, Error> {
        command.envs(self.ledger.variables()).process_group(0);
        let entrance = self.cgroup.as_ref().map(Cgroup::entrance).transpose();
        let mut keep = keep.to_vec();
        keep.push(self.ledger.as_fd().as_raw_fd());
        let at_birth = AtBirth {
            keep,
            join: entrance.map_err(failed_to("open the memory cgroup"))?,
        };
        before_exec(&mut command, at_birth);
        let samples = folder.create_file(SAMPLES_FILE)?;
        let start = Instant::now();
        let child = command
            .spawn()
            .map_err(failed_to(format!("start {what}")))?;
        let child = Workload(child);
        prefer_for_oom_kill(child.pid());
        let sampler = Sampler::start(Job {
            ledger: Arc::clone(&self.ledger),
            pid: child.pid(),
            every: Duration::from_millis(self.plan.sample_ms),
            start,
            file: samples,
            watchdog_limit: self.plan.limit_bytes.filter(|_| self.cgroup.is_none()),
        })
        .map_err(failed_to("start the sampler"))?;
        Ok(Running {
            start,
            child,
            sampler,
        })
    }

    /// What enforces the memory limit, if there is one.
    pub fn limit_kind(&self) -> Option<LimitKind> {
        let by = self
            .cgroup
            .as_ref()
            .map_or(LimitKind::Watchdog, Cgroup::kind);
        self.plan.limit_bytes.map(|_| by)
    }

    /// What the workload's end is called.
    pub fn how_it_ended(&self, outcome: Outcome, exit: ExitStatus, found: &Found) -> Ending {
        let completed = match outcome {
            Outcome::Panicked(message) => return Ending::Panicked { message },
            Outcome::Hung { idle, busy } => {
                return Ending::Hang {
                    idle_seconds: idle.as_secs_f64(),
                    busy,
                };
            }
            // The limit may have struck a descendant, and the workload went on without it.
            Outcome::Completed => true,
            Outcome::Told => ends_as_told(exit),
            Outcome::Gone => false,
        };
        if let Some(limit_bytes) = self.plan.limit_bytes {
            let over = |peak_bytes, enforced_by| Ending::Limit {
                limit_bytes,
                peak_bytes,
                enforced_by,
            };
            match &self.cgroup {
                Some(cgroup) if cgroup.kills() > 0 => {
                    return over(cgroup.peak().unwrap_or(found.highest_use), cgroup.kind());
                }
                None if found.killed_over_limit => {
                    return over(found.highest_use, LimitKind::Watchdog);
                }
                _ => {}
            }
        }
        if completed {
            return Ending::Completed;
        }
        match (exit.signal(), exit.code()) {
            (Some(signal), _) => {
                let kernel_struck = matches!(
                    (self.kernel_kills, limit::kernel_kills()),
                    (Some(before), Some(after)) if after > before
                );
                if signal == libc::SIGKILL && kernel_struck && self.cgroup.is_none() {
                    Ending::OomKilled
                } else {
                    Ending::Signal { signal }
                }
            }
            (None, code) => Ending::Exited {
                code: code.unwrap_or(-1),
            },
        }
    }
}

/// How the time with the workload ended.
pub(crate) enum Outcome {
    /// It did all its rounds and waits to be told to end.
    Completed,
    /// It was told to end before it did so by itself.
    Told,
    /// It is gone.
    Gone,
    /// Its body panicked.
    Panicked(String),
    /// It made no progress for so long, or worked and ended no round.
    Hung { idle: Duration, busy: bool },
}

/// Whether a program that was told to end did that, rather than crash on the way: what
/// status it ends with then is its own affair.
fn ends_as_told(exit: ExitStatus) -> bool {
    let told = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGKILL];
    exit.signal().is_none_or(|signal| told.contains(&signal))
}

/// Asks the kernel to take the workload first when memory runs out. A process
/// may always raise its own and its children's score.
fn prefer_for_oom_kill(pid: i32) {
    // Without this the kernel chooses by size, which most often is right too.
    let _ = fs::write(format!("/proc/{pid}/oom_score_adj"), "900");
}

/// A child process that does not outlive its supervisor's interest.
pub(crate) struct Workload(pub(crate) Child);

impl Workload {
    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// Whether it has ended.
    pub fn is_gone(&mut self) -> io::Result<bool> {
        Ok(self.0.try_wait()?.is_some())
    }

    /// Waits for the end, which is made to come if it does not come by itself.
    pub fn end(&mut self) -> io::Result<ExitStatus> {
        let since = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                kill_group(self.pid()); // What it left behind.
                return Ok(status);
            }
            if since.elapsed() > END_WITHIN {
                kill_group(self.pid());
                return self.0.wait();
            }
            std::thread::sleep(END_LOOK);
        }
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        kill_group(self.pid());
        let _ = self.0.wait();
    }
}

/// Tells work from waiting.
pub(crate) struct Progress {
    since: Instant,
    looked: Instant,
    operations: u64,
    cpu_ms: u64,
}

impl Progress {
    /// Between two looks at the books.
    const LOOK: Duration = Duration::from_millis(200);
    /// CPU below this share of one core is a process that waits.
    const IDLE_SHARE: u64 = 50;

    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            since: now,
            looked: now,
            operations: 0,
            cpu_ms: 0,
        }
    }

    /// How long there has been neither an allocation nor CPU worth the name.
    pub fn idle_for(&mut self, ledger: &Ledger, cpu_ms: u64) -> Duration {
        if self.looked.elapsed() >= Self::LOOK {
            self.looked = Instant::now();
            let operations = ledger.operations();
            let idle_ms = self.since.elapsed().as_millis() as u64;
            let worked = cpu_ms.saturating_sub(self.cpu_ms) > 20 + idle_ms / Self::IDLE_SHARE;
            if operations != self.operations || worked {
                *self = Self {
                    operations,
                    cpu_ms,
                    ..Self::new()
                };
            }
        }
        self.since.elapsed()
    }
}
