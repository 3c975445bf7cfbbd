//! The supervisor: starts the workload, conducts its rounds, watches it, and
//! reads the books, however it ends.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use tidegate_hook::{Ledger, Snapshot};

use crate::books::{Amount, Books, Ending, Gauges, Probe, ProbeKind, Settle};
use crate::collect::{Collector, EndedRound, read_books};
use crate::control::{Channel, Order, Report};
use crate::error::{Error, failed_to};
use crate::explain::{Request, Stacks};
use crate::folder::RunFolder;
use crate::gauges::gauges_now;
use crate::launch::{Launch, Outcome, Progress, Running, Workload};
use crate::run::Run;
use crate::sampler::{Sampler, kill_group};
use crate::scenario::{
    CONTROL_VARIABLE, FINISHED_VARIABLE, Plan, SCENARIO_VARIABLE, Scenario, finished_in_this_test,
    this_test,
};
use crate::verdict::{Settings, Step, judge, next_step};

/// Between two looks at a workload that has nothing to say.
const LOOK: Duration = Duration::from_millis(10);
/// Between two readings of the books while they settle.
const SETTLE_LOOK: Duration = Duration::from_millis(1);

/// Runs a scenario in a child process and judges it; with the stacks of what
/// `request` asks for.
pub(crate) fn supervise(
    scenario: &Scenario,
    request: Option<&Request>,
) -> Result<(Run, Option<Stacks>), Error> {
    let plan = &scenario.plan;
    if plan.rounds == 0 {
        return Err(Error::BadPlan {
            problem: "a scenario needs at least one measured round".into(),
        });
    }
    let folder = RunFolder::create(&plan.name, scenario.folder.as_deref())?;
    let launch = Launch::prepare(plan, request)?;
    let ledger = Arc::clone(&launch.ledger);
    let (channel, theirs) = Channel::pair().map_err(failed_to("make the control channel"))?;
    let temporary = folder.create_folder("tmp")?;
    let mut command = child_command(scenario)?;
    command
        .envs(&plan.environment)
        // What a killed workload leaves lying about is gone with the run, and a lock
        // file that this test holds (`serial_test::file_serial`) is not the one
        // that the same test takes in the child: that would wait for ever.
        .env("TMPDIR", &temporary)
        .env(SCENARIO_VARIABLE, &plan.name)
        .env(FINISHED_VARIABLE, as_json(&finished_in_this_test()))
        .env(CONTROL_VARIABLE, theirs.as_fd().as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(folder.create_file("stdout.log")?)
        .stderr(folder.create_file("stderr.log")?);
    let keep = [theirs.as_fd().as_raw_fd()];
    let Running {
        start,
        child,
        sampler,
    } = launch.start(command, &keep, &folder, "the workload")?;
    drop(theirs);

    let mut session = Session {
        plan,
        settings: scenario.settings(),
        start,
        child,
        channel,
        ledger: &ledger,
        sampler: &sampler,
        collector: Collector::new(plan.clone()),
        settled: Snapshot::default(),
    };
    let outcome = session.conduct();
    let Session {
        collector,
        settled,
        mut child,
        ..
    } = session;
    let exit = child.end().map_err(failed_to("wait for the workload"))?;
    let found = sampler.stop();
    // Left over only if something still writes there.
    let _ = fs::remove_dir_all(temporary);
    let outcome = outcome?;
    let snapshot = match outcome {
        Outcome::Completed => settled,
        _ => read_books(&ledger),
    };
    let ending = launch.how_it_ended(outcome, exit, &found);
    let books: Books = collector.books(&ledger, &snapshot, ending, Some(&found));
    if !books.health.attached && books.rounds.is_empty() {
        // Not a word from the child: it never came to the scenario.
        if let Ending::Exited { code } = books.ending {
            return Err(Error::BadChild {
                problem: never_reached(plan, code, &folder),
            });
        }
    }
    let verdict = judge(&books, &scenario.settings());
    let run = Run::new(plan.clone(), launch.limit_kind(), books, verdict);
    let sites = ledger.sites();
    let stacks = sites.map(|sites| collector.stacks(sites, &snapshot));
    Ok((folder.keep(run), stacks))
}

/// The command that starts this test, or this program, again.
fn child_command(scenario: &Scenario) -> Result<Command, Error> {
    let program = std::env::current_exe().map_err(failed_to("find this program"))?;
    let mut command = Command::new(program);
    let thread = this_test();
    match &scenario.test {
        Some(test) => run_only(&mut command, test),
        None if !thread.is_empty() => run_only(&mut command, &thread),
        None if std::thread::current().name() == Some("main") => {
            command.args(std::env::args_os().skip(1));
        }
        None => {
            return Err(Error::UnknownTest {
                thread: "unnamed".into(),
            });
        }
    }
    Ok(command)
}

/// The arguments with which libtest runs exactly one test.
fn run_only(command: &mut Command, test: &str) {
    command.args([test, "--exact", "--nocapture", "--include-ignored"]);
}

fn as_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn never_reached(plan: &Plan, code: i32, folder: &RunFolder) -> String {
    format!(
        "the child process ended with status {code} and never reached scenario `{}`; if `run` is \
         called on a thread of its own or depends on what the environment says, name the test with \
         `Scenario::in_test`. What it printed:\n{}",
        plan.name,
        folder.tail_of_output()
    )
}

/// What was heard of the workload.
enum Heard {
    Report(Report),
    Gone,
    Hung { idle: Duration, busy: bool },
}

struct Session<'a> {
    plan: &'a Plan,
    settings: Settings,
    start: Instant,
    child: Workload,
    channel: Channel,
    ledger: &'a Ledger,
    sampler: &'a Sampler,
    collector: Collector,
    /// The books when they last had settled.
    settled: Snapshot,
}

impl Session<'_> {
    fn conduct(&mut self) -> Result<Outcome, Error> {
        match self.listen()? {
            Heard::Report(Report::Ready) => {}
            other => return self.broken_off(other),
        }
        let mut round = 0;
        loop {
            round += 1;
            match self.ask(Order::Begin(round))? {
                Heard::Report(Report::RoundEnded { failed }) => self.round_ended(round, failed),
                other => return self.broken_off(other),
            }
            if round < self.plan.warmup + self.plan.rounds {
                continue;
            }
            if let Some(outcome) = self.probe_until_decided()? {
                return match outcome {
                    Outcome::Completed => self.finish(),
                    other => Ok(other),
                };
            }
        }
    }

    /// Probes as the engine asks. `None` when it wants another round.
    fn probe_until_decided(&mut self) -> Result<Option<Outcome>, Error> {
        loop {
            let books = self
                .collector
                .books(self.ledger, &self.settled, Ending::Completed, None);
            match next_step(&books, &self.settings) {
                Step::Stop => return Ok(Some(Outcome::Completed)),
                Step::MoreRounds { .. } => {
                    // What was tried so far says nothing of the rounds to come.
                    self.collector.probes.clear();
                    self.collector.final_settle = None;
                    return Ok(None);
                }
                Step::Probe(kind) => {
                    if let Some(outcome) = self.probe(kind)? {
                        return Ok(Some(outcome));
                    }
                }
            }
        }
    }

    fn probe(&mut self, kind: ProbeKind) -> Result<Option<Outcome>, Error> {
        let live_before = self.collector.live(&self.settled);
        let before = self.gauges();
        if kind == ProbeKind::Trim {
            self.collector.read_memory(&self.settled);
        }
        let begun = Instant::now();
        match kind {
            ProbeKind::Trim => match self.ask(Order::Trim)? {
                Heard::Report(Report::Trimmed) => {}
                other => return self.broken_off(other).map(Some),
            },
            ProbeKind::Idle | ProbeKind::Replay | ProbeKind::Drain => {
                let patience = Duration::from_millis(self.plan.patience_ms);
                let settle = self.settle(patience, 10 * patience, live_before);
                self.collector.final_settle = Some(settle);
            }
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.settled = read_books(self.ledger);
        let live_after = self.collector.live(&self.settled);
        let after = self.gauges();
        if kind == ProbeKind::Trim {
            self.collector.read_memory_after_trim(&self.settled);
        }
        self.collector.probes.push(Probe {
            kind,
            seconds,
            live_before,
            live_after,
            before,
            after,
        });
        Ok(None)
    }

    fn finish(&mut self) -> Result<Outcome, Error> {
        let trimmed = |probe: &Probe| probe.kind == ProbeKind::Trim;
        if !self.collector.probes.iter().any(trimmed) {
            self.collector.read_memory(&self.settled);
        }
        // Gone already is a crash that `ask` would see; here only the end matters.
        let _ = self.channel.order(Order::Finish);
        Ok(Outcome::Completed)
    }

    fn round_ended(&mut self, number: u32, failed: Option<String>) {
        let before = self.collector.live(&read_books(self.ledger));
        let quiet = Duration::from_millis(self.plan.quiet_ms);
        let at_most = Duration::from_millis(self.plan.settle_ms);
        let settle = self.settle(quiet, at_most, before);
        self.settled = read_books(self.ledger);
        let gauges = self.gauges();
        self.collector.add_round(EndedRound {
            number,
            failed,
            late: false,
            settle,
            at_seconds: self.start.elapsed().as_secs_f64(),
            gauges,
            snapshot: &self.settled,
        });
    }

    /// Waits until the books have stood still for `quiet`, but no longer than `at_most`.
    fn settle(&self, quiet: Duration, at_most: Duration, before: Amount) -> Settle {
        let begun = Instant::now();
        let mut operations = self.ledger.operations();
        let mut still_since = Instant::now();
        let settled = loop {
            std::thread::sleep(SETTLE_LOOK);
            let now = self.ledger.operations();
            if now != operations {
                operations = now;
                still_since = Instant::now();
            } else if still_since.elapsed() >= quiet {
                break true;
            }
            if begun.elapsed() >= at_most {
                break false;
            }
        };
        Settle {
            settled,
            seconds: begun.elapsed().as_secs_f64(),
            before,
            after: self.collector.live(&read_books(self.ledger)),
        }
    }

    fn gauges(&self) -> Option<Gauges> {
        gauges_now(self.child.pid(), self.ledger)
    }

    fn ask(&mut self, order: Order) -> Result<Heard, Error> {
        match self.channel.order(order) {
            Ok(()) => self.listen(),
            // The other end is closed; what it said last may still be there.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.listen(),
            Err(error) => Err(failed_to("give the workload an order")(error)),
        }
    }

    /// Waits for a report, the workload's end, or the watchdog.
    fn listen(&mut self) -> Result<Heard, Error> {
        let begun = Instant::now();
        let mut progress = Progress::new();
        let hang_after = Duration::from_millis(self.plan.hang_ms);
        let round_at_most = self.plan.round_ms.map(Duration::from_millis);
        loop {
            if self.something_came()? {
                let report = self.channel.next_report();
                let report = report.map_err(failed_to("understand the workload"))?;
                return Ok(report.map_or(Heard::Gone, Heard::Report));
            }
            // A descendant can hold the other end open after the workload's death.
            let gone = self.child.is_gone();
            if gone.map_err(failed_to("wait for the workload"))? && !self.something_came()? {
                return Ok(Heard::Gone);
            }
            let cpu_ms = self.sampler.latest().map_or(0, |gauges| gauges.cpu_ms);
            let idle = progress.idle_for(self.ledger, cpu_ms);
            if idle >= hang_after {
                return Ok(Heard::Hung { idle, busy: false });
            }
            if round_at_most.is_some_and(|limit| begun.elapsed() >= limit) {
                return Ok(Heard::Hung {
                    idle: begun.elapsed(),
                    busy: true,
                });
            }
        }
    }

    fn something_came(&self) -> Result<bool, Error> {
        let mut descriptors = [PollFd::new(&self.channel, PollFlags::IN)];
        let timeout = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: i64::from(LOOK.subsec_nanos()),
        };
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(failed_to("wait for the workload")(error.into())),
        }
    }

    fn broken_off(&mut self, heard: Heard) -> Result<Outcome, Error> {
        match heard {
            Heard::Gone => Ok(Outcome::Gone),
            Heard::Report(Report::Panicked(message)) => Ok(Outcome::Panicked(message)),
            Heard::Hung { idle, busy } => {
                kill_group(self.child.pid());
                Ok(Outcome::Hung { idle, busy })
            }
            Heard::Report(report) => Err(Error::BadChild {
                problem: format!("the workload said {report:?} when that made no sense"),
            }),
        }
    }
}
