//! Runs of programs that we did not build: preloaded, with rounds told by what they print
//! or log, by the clock, or by themselves.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::fs::SeekFrom;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tidegate_hook::{Ledger, NVTX_VARIABLE, Snapshot};

use crate::books::{Ending, QueueDesign, Settle};
use crate::collect::{Collector, EndedRound, read_books};
use crate::error::{Error, failed_to};
use crate::explain::{self, Again, Explain, Request, Second};
use crate::folder::RunFolder;
use crate::gauges::{gauges_now, in_background, is_ending};
use crate::launch::{Launch, Outcome, Progress, Running, Workload};
use crate::rounds::{Ended, Listeners, Rounds, To};
use crate::run::Run;
use crate::sampler::{Sampler, kill_group, signal, signal_group};
use crate::scenario::{Plan, Scenario};
use crate::suppressions::Suppressions;
use crate::verdict::{Settings, judge};

/// Names a library that CUDA's driver loads into every program that initialises it.
const INJECTION_VARIABLE: &str = "CUDA_INJECTION64_PATH";
/// Between two looks at a program that prints nothing.
const LOOK: Duration = Duration::from_millis(10);
/// How long processes in the background may take to end after they were told to.
const LEAVE_WITHIN: Duration = Duration::from_secs(20);

/// A program of somebody else's, and how its rounds are told.
///
/// The ledger is preloaded (`LD_PRELOAD`) into the program and into what it starts.
/// The program is not stopped when a round ends: blocks of the next round are told
/// apart by the round that bears them, and only what the ended round left is waited for.
///
/// A program whose first process ends well before its first round is over has put itself
/// into the background: then what it left there is watched in its place. Where the caller
/// is a child subreaper (`PR_SET_CHILD_SUBREAPER`), also how that ends is known.
#[derive(Clone, Debug)]
pub struct Program {
    plan: Plan,
    command: Vec<OsString>,
    rounds: Rounds,
    end_when: Arc<AtomicBool>,
    quiet: bool,
    folder: Option<PathBuf>,
    explain: Option<Explain>,
    suppressions: Option<Suppressions>,
}

impl Program {
    /// The program `command` (its name, then its arguments), whose rounds end as `rounds` says.
    pub fn new(command: Vec<OsString>, rounds: Rounds) -> Self {
        let words: Vec<String> = command
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let name = Path::new(command.first().map_or("", |_| words[0].as_str()))
            .file_name()
            .map_or_else(
                || "program".to_owned(),
                |name| name.to_string_lossy().into_owned(),
            );
        let mut plan = Scenario::new(name).plan;
        plan.settle_ms = 100;
        plan.quiet_ms = 10;
        plan.command = words;
        plan.round_on = rounds.pattern().map(|pattern| pattern.as_str().to_owned());
        match &rounds {
            Rounds::LineOf(file, _) => plan.round_file = Some(file.display().to_string()),
            Rounds::Every(interval) => plan.round_every_ms = Some(milliseconds(*interval)),
            Rounds::Line(_) | Rounds::Marks => {}
        }
        Self {
            plan,
            command,
            rounds,
            end_when: Arc::default(),
            quiet: false,
            folder: None,
            explain: None,
            suppressions: None,
        }
    }

    /// The name of the run, in place of the program's.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.plan.name = name.into();
        self
    }

    /// Ends the program once it has done so many rounds after the warm-up.
    #[must_use]
    pub fn rounds(mut self, rounds: Option<u32>) -> Self {
        self.plan.end_after_rounds = rounds;
        self
    }

    /// Ends the program when it has run for so long.
    #[must_use]
    pub fn end_after(mut self, time: Option<Duration>) -> Self {
        self.plan.end_after_ms = time.map(milliseconds);
        self
    }

    /// Ends the program when this becomes true; what it has done until then is judged.
    #[must_use]
    pub fn end_when(mut self, end: Arc<AtomicBool>) -> Self {
        self.end_when = end;
        self
    }

    /// How many items may wait in the program's queue, and how many producers may each hold
    /// one more; see [`Scenario::queue`].
    #[must_use]
    pub fn queue(mut self, queue: Option<QueueDesign>) -> Self {
        self.plan.queue = queue;
        self
    }

    /// Time between samples; 10 ms unless set.
    #[must_use]
    pub fn sample_every(mut self, interval: Duration) -> Self {
        self.plan.sample_ms = milliseconds(interval).max(1);
        self
    }

    /// Sets an environment variable for the program.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.plan.environment.insert(name.into(), value.into());
        self
    }

    /// Rounds before the measured ones.
    #[must_use]
    pub fn warmup(mut self, rounds: u32) -> Self {
        self.plan.warmup = rounds;
        self
    }

    /// Kills the program when it takes more than so many bytes.
    #[must_use]
    pub fn memory_limit(mut self, bytes: Option<u64>) -> Self {
        self.plan.limit_bytes = bytes;
        self
    }

    /// Has the samples enforce the memory limit, also where a memory cgroup could. A cgroup
    /// counts the kernel's memory for the program too (stacks, page tables, cached files), so
    /// that a limit set by what samples showed is another one there.
    #[must_use]
    pub fn limit_by_samples(mut self) -> Self {
        self.plan.limit_by_samples = true;
        self
    }

    /// Without progress for so long, the program hangs and is killed.
    #[must_use]
    pub fn hang_after(mut self, idle: Duration) -> Self {
        self.plan.hang_ms = milliseconds(idle);
        self
    }

    /// A round that takes longer hangs, however busy the program is; so does one before the
    /// first round.
    #[must_use]
    pub fn round_at_most(mut self, time: Option<Duration>) -> Self {
        self.plan.round_ms = time.map(milliseconds);
        self
    }

    /// Keeps the program's output in the run's folder alone, and does not pass it on.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Keeps the run in this folder.
    #[must_use]
    pub fn keep_in(mut self, folder: Option<PathBuf>) -> Self {
        self.folder = folder;
        self
    }

    /// When to run the program again for call stacks. `None` is what `TIDEGATE_EXPLAIN` in
    /// the environment says, or else on a leak.
    #[must_use]
    pub fn explain(mut self, explain: Option<Explain>) -> Self {
        self.explain = explain;
        self
    }

    /// Lets known leaks through, as [`Scenario::suppressions`] does.
    #[must_use]
    pub fn suppressions(mut self, suppressions: Option<Suppressions>) -> Self {
        self.suppressions = suppressions;
        self
    }

    /// Runs the program to its end and judges it. Its output is passed on as it
    /// comes, unless that is not wanted.
    ///
    /// A second run for call stacks runs to its end too, and its output goes to a file
    /// alone. It gets the same standard input where that is a file; from a pipe,
    /// there is nothing left to read.
    ///
    /// # Errors
    /// If tidegate itself fails: the program cannot be started, the ledger's shared
    /// object is not found, the log that tells the rounds cannot be read.
    pub fn run(self) -> Result<Run, Error> {
        let folder = RunFolder::create(&self.plan.name, self.folder.as_deref())?;
        let input = rustix::fs::seek(io::stdin(), SeekFrom::Current(0));
        let to_ours = match self.quiet {
            true => [Box::new(io::sink()) as To, Box::new(io::sink())],
            false => [Box::new(io::stdout()) as To, Box::new(io::stderr())],
        };
        let Second { run, .. } = self.run_once(&folder, None, to_ours)?;
        if let Ok(begin) = input {
            // What cannot be read again is read from where it stands.
            let _ = rustix::fs::seek(io::stdin(), SeekFrom::Start(begin));
        }
        let mut explain = self.explain.or_else(Explain::from_environment);
        if self.end_when.load(Ordering::Relaxed) {
            // Whoever wanted it to end does not want it to begin again.
            explain = Some(Explain::Never);
        }
        explain::explained(run, explain.unwrap_or_default(), &self)
    }

    /// Runs the program, with the stacks of what `request` asks for.
    fn run_once(
        &self,
        folder: &RunFolder,
        request: Option<&Request>,
        [to_out, to_err]: [To; 2],
    ) -> Result<Second, Error> {
        let launch = Launch::prepare(&self.plan, request)?;
        let ledger = Arc::clone(&launch.ledger);
        let mut listeners = Listeners::new(Arc::clone(&ledger), self.rounds.first());
        let listening = listeners.listen(&self.rounds);
        listening.map_err(failed_to("read the log that tells the rounds"))?;
        // Before the program can do anything to the folder.
        let log = |name| folder.create_file(name).map(|file| Box::new(file) as To);
        let (out_log, err_log) = (log("stdout.log")?, log("stderr.log")?);
        let name = self.command.first().map(|name| name.to_string_lossy());
        let Running {
            start,
            mut child,
            sampler,
        } = launch.start(self.command()?, &[], folder, &name.unwrap_or_default())?;
        let pattern = match &self.rounds {
            Rounds::Line(pattern) => Some(pattern),
            _ => None,
        };
        if let (Some(out), Some(err)) = (child.0.stdout.take(), child.0.stderr.take()) {
            listeners.stream(out, pattern, [to_out, out_log]);
            listeners.stream(err, pattern, [to_err, err_log]);
        }

        let mut watch = Watch {
            program: self,
            start,
            child,
            ledger: &ledger,
            sampler: &sampler,
            collector: Collector::new(self.plan.clone()),
            settled: Snapshot::default(),
            in_background: None,
        };
        let outcome = watch.until_it_ends(&listeners.ended);
        let exit = watch.end().map_err(failed_to("wait for the program"))?;
        let Watch {
            collector, settled, ..
        } = watch;
        listeners.end();
        let found = sampler.stop();
        let ending = match launch.how_it_ended(outcome?, exit, &found) {
            Ending::Exited { code: 0 } => Ending::Completed,
            other => other,
        };
        let snapshot = match ending {
            Ending::Completed => settled,
            _ => read_books(&ledger),
        };
        let books = collector.books(&ledger, &snapshot, ending, Some(&found));
        let settings = self.settings();
        let verdict = judge(&books, &settings);
        let run = Run::new(self.plan.clone(), launch.limit_kind(), books, verdict);
        let sites = ledger.sites();
        Ok(Second {
            stacks: sites.map(|sites| collector.stacks(sites, &snapshot)),
            run: folder.keep(run),
            settings,
        })
    }

    fn command(&self) -> Result<Command, Error> {
        let (name, arguments) = self.command.split_first().ok_or_else(|| Error::BadPlan {
            problem: "there is no program to run".into(),
        })?;
        let library = tidegate_hook::library().map_err(failed_to("find the ledger to preload"))?;
        let already = std::env::var_os("LD_PRELOAD");
        let preload = tidegate_hook::preload(&library, already.as_deref());
        let preload = preload.map_err(failed_to("preload the ledger"))?;
        let mut command = Command::new(name);
        command
            .args(arguments)
            .envs(&self.plan.environment)
            .env("LD_PRELOAD", preload)
            // The driver calls the ledger when the program initialises CUDA. Whoever
            // else is named there already could not share CUPTI with it.
            .env(INJECTION_VARIABLE, or_given(INJECTION_VARIABLE, &library))
            // Its NVTX ranges are phases, unless somebody else listens to them.
            .env(NVTX_VARIABLE, or_given(NVTX_VARIABLE, &library))
            .stdin(Stdio::inherit())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Ok(command)
    }
}

impl Again for Program {
    fn settings(&self) -> Settings {
        settings(&self.plan)
    }

    fn suppressions(&self) -> Option<&Suppressions> {
        self.suppressions.as_ref()
    }

    /// The program itself says how many rounds it does.
    fn run_again(&self, _: u32, request: &Request, folder: &Path) -> Result<Second, Error> {
        let folder = RunFolder::create(&self.plan.name, Some(folder))?;
        let to_nobody = [Box::new(io::sink()) as To, Box::new(io::sink())];
        self.run_once(&folder, Some(request), to_nobody)
    }
}

/// The engine's settings for a program's plan.
pub(crate) fn settings(plan: &Plan) -> Settings {
    Settings {
        limit_bytes: plan.limit_bytes,
        // A program that we did not build does nothing that we ask.
        probes: Vec::new(),
        ..Settings::default()
    }
}

/// What the environment says, or else the library's path.
fn or_given(variable: &str, library: &Path) -> OsString {
    std::env::var_os(variable).unwrap_or_else(|| library.into())
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

struct Watch<'a> {
    program: &'a Program,
    start: Instant,
    child: Workload,
    ledger: &'a Ledger,
    sampler: &'a Sampler,
    collector: Collector,
    /// The books as they stood after the last round that counts.
    settled: Snapshot,
    /// What is known of the processes that go on in the background, once the first has ended.
    in_background: Option<Background>,
}

/// Processes that go on when the first one has ended.
#[derive(Default)]
struct Background {
    /// Those that were seen and have not been waited for.
    seen: Vec<u32>,
    /// How the last of them ended that this process could wait for.
    exit: Option<ExitStatus>,
}

impl Watch<'_> {
    /// Books rounds as they end, until the program has ended, is told to, or hangs.
    fn until_it_ends(&mut self, ended: &Receiver<Ended>) -> Result<Outcome, Error> {
        let hang_after = Duration::from_millis(self.program.plan.hang_ms);
        let round_at_most = self.program.plan.round_ms.map(Duration::from_millis);
        let mut progress = Progress::new();
        let mut begun = Instant::now();
        let mut next = None;
        loop {
            if self.is_to_end() {
                self.tell_to_end();
                return Ok(Outcome::Told);
            }
            let round = match next.take() {
                Some(round) => Ok(round),
                None => ended.recv_timeout(LOOK),
            };
            match round {
                Ok(round) => {
                    next = self.round_ended(round, ended)?;
                    progress = Progress::new();
                    begun = Instant::now();
                    continue;
                }
                // Both streams are closed; a program may live on without them.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.is_gone()? {
                match ended.try_recv() {
                    Ok(round) => next = Some(round),
                    Err(_) => return Ok(Outcome::Gone),
                }
            }
            let cpu_ms = self.sampler.latest().map_or(0, |gauges| gauges.cpu_ms);
            let idle = progress.idle_for(self.ledger, cpu_ms);
            if idle >= hang_after {
                self.kill();
                return Ok(Outcome::Hung { idle, busy: false });
            }
            let took = begun.elapsed();
            if round_at_most.is_some_and(|limit| took >= limit) {
                self.kill();
                return Ok(Outcome::Hung {
                    idle: took,
                    busy: true,
                });
            }
        }
    }

    /// Whether somebody wants the program to end: the plan, or whoever may say so.
    fn is_to_end(&self) -> bool {
        let plan = &self.program.plan;
        let rounds = self.collector.rounds_ended().saturating_sub(plan.warmup);
        let ran_ms = milliseconds(self.start.elapsed());
        self.program.end_when.load(Ordering::Relaxed)
            || plan.end_after_rounds.is_some_and(|most| rounds >= most)
            || plan.end_after_ms.is_some_and(|most| ran_ms >= most)
    }

    /// Asks all processes to end, as a service manager does: the group, and whoever left it.
    fn tell_to_end(&self) {
        let group = Pid::from_raw(self.child.pid());
        signal_group(self.child.pid(), Signal::TERM);
        for pid in self.ledger.holders() {
            // Once to each: asked twice, some do not clean up.
            let of = Pid::from_raw(pid as i32).map(|pid| rustix::process::getpgid(Some(pid)));
            if of != group.map(Ok) {
                signal(pid, Signal::TERM);
            }
        }
    }

    fn kill(&self) {
        for pid in self.ledger.holders() {
            signal(pid, Signal::KILL);
        }
        kill_group(self.child.pid());
    }

    /// Waits for the end of all processes, and returns how the one that counts ended.
    fn end(&mut self) -> io::Result<ExitStatus> {
        let first = self.child.end()?;
        let Some(mut background) = self.in_background.take() else {
            self.kill(); // What has left the group.
            return Ok(first);
        };
        let begun = Instant::now();
        loop {
            let running = in_background(self.ledger);
            // One that is on its way out has no memory any more, and no status yet.
            let known = background.wait();
            if (running.is_empty() && known) || begun.elapsed() >= LEAVE_WITHIN {
                break;
            }
            std::thread::sleep(LOOK);
        }
        self.kill();
        if background.exit.is_none() {
            let what = "how the program ended that had put itself into the background";
            self.collector.unreadable.insert(what.to_owned());
        }
        Ok(background.exit.unwrap_or(first))
    }

    /// Whether the program has ended.
    fn is_gone(&mut self) -> Result<bool, Error> {
        let exit = self.child.0.try_wait();
        let Some(exit) = exit.map_err(failed_to("wait for the program"))? else {
            return Ok(false);
        };
        let goes_on =
            self.in_background.is_some() || (exit.success() && self.collector.rounds_ended() == 0);
        if !goes_on {
            return Ok(true);
        }
        let running = in_background(self.ledger);
        if self.in_background.is_none() && running.is_empty() {
            return Ok(true);
        }
        let background = self.in_background.get_or_insert_default();
        background.wait();
        for pid in &running {
            if !background.seen.contains(pid) {
                background.seen.push(*pid);
            }
        }
        Ok(running.is_empty())
    }

    /// Whether every process that goes on is on its way out.
    fn is_ending(&self) -> bool {
        match self.in_background {
            None => is_ending(self.child.pid()),
            Some(_) => in_background(self.ledger)
                .into_iter()
                .all(|pid| is_ending(pid as i32)),
        }
    }

    /// Enters a round as the books stood at its end. Returns the next round if that ended
    /// meanwhile.
    ///
    /// What the round still releases is waited for as long as the next one has borne
    /// nothing: from then on a release may be the next round's doing, which replaces
    /// what this one left.
    ///
    /// A round during whose settling the program ends is not entered: what the end
    /// of a process gives back (destructors of statics) is not what its rounds do.
    fn round_ended(
        &mut self,
        Ended { round, late }: Ended,
        ended: &Receiver<Ended>,
    ) -> Result<Option<Ended>, Error> {
        let begun = Instant::now();
        let quiet = Duration::from_millis(self.program.plan.quiet_ms);
        let at_most = Duration::from_millis(self.program.plan.settle_ms);
        let mut snapshot = read_books(self.ledger);
        let before = self.collector.live_until(&snapshot, round);
        let mut still_since = Instant::now();
        let mut next = None;
        let mut goes_on = self.has_borne_since(&snapshot, round);
        while !goes_on && still_since.elapsed() < quiet && begun.elapsed() < at_most {
            next = ended.recv_timeout(Duration::from_millis(1)).ok();
            let now = read_books(self.ledger);
            goes_on = next.is_some() || self.has_borne_since(&now, round);
            if !goes_on {
                let moved = |at| self.collector.traffic_until(at, round);
                if moved(&now) != moved(&snapshot) {
                    still_since = Instant::now();
                }
                snapshot = now;
            }
        }
        // First, for a child that has ended is in the way of those in its place until it is
        // waited for.
        let is_gone = self.is_gone()?;
        let gauges = gauges_now(self.child.pid(), self.ledger);
        if next.is_none() && (is_gone || (gauges.is_none() && self.is_ending())) {
            return Ok(ended.try_recv().ok());
        }
        let settle = Settle {
            settled: goes_on || still_since.elapsed() >= quiet,
            seconds: begun.elapsed().as_secs_f64(),
            before,
            after: self.collector.live_until(&snapshot, round),
        };
        self.collector.add_round(EndedRound {
            number: round,
            failed: None,
            late,
            settle,
            at_seconds: self.start.elapsed().as_secs_f64(),
            gauges,
            snapshot: &snapshot,
        });
        self.settled = snapshot;
        Ok(next)
    }

    /// Whether a later round than this one has borne a block.
    fn has_borne_since(&self, snapshot: &Snapshot, round: u32) -> bool {
        let (all, _) = self.collector.traffic_until(snapshot, u32::MAX);
        let (until, _) = self.collector.traffic_until(snapshot, round);
        all != until
    }
}

impl Background {
    /// Waits for those that have ended, and returns whether those are all that can be waited for.
    fn wait(&mut self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let exit = &mut self.exit;
        self.seen.retain(|pid| {
            let Some(pid) = Pid::from_raw(*pid as i32) else {
                return false;
            };
            match rustix::process::waitid(WaitId::Pid(pid), options) {
                Ok(None) => true,
                Ok(Some(status)) => {
                    let raw = match (status.terminating_signal(), status.exit_status()) {
                        (Some(signal), _) => signal,
                        (None, code) => code.unwrap_or_default() << 8,
                    };
                    *exit = Some(ExitStatus::from_raw(raw));
                    false
                }
                // It is somebody else's child.
                Err(_) => false,
            }
        });
        self.seen.is_empty()
    }
}
