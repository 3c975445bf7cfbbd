//! Runs of programs that we did not build: preloaded, with rounds told by a line of
//! their output.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use regex::bytes::Regex;
use rustix::fs::SeekFrom;
use tidegate_hook::{Capacity, Ledger, NVTX_VARIABLE, Snapshot};

use crate::books::{Ending, LimitKind, Settle};
use crate::collect::{Collector, EndedRound, read_books};
use crate::error::{Error, failed_to};
use crate::explain::{self, Again, Explain, Request, Second};
use crate::folder::RunFolder;
use crate::gauges::{gauges_now, is_ending};
use crate::limit::{self, Cgroup};
use crate::run::Run;
use crate::sampler::{Job, SAMPLES_FILE, Sampler, kill_group};
use crate::scenario::{Plan, Scenario};
use crate::supervisor::{Outcome, Progress, Workload, how_it_ended, prefer_for_oom_kill};
use crate::suppressions::Suppressions;
use crate::sys::{AtBirth, before_exec};
use crate::verdict::{Settings, judge};

/// Names a library that CUDA's driver loads into every program that initialises it.
const INJECTION_VARIABLE: &str = "CUDA_INJECTION64_PATH";
/// Between two looks at a program that prints nothing.
const LOOK: Duration = Duration::from_millis(10);

/// A program of somebody else's, and how its rounds are told.
///
/// The ledger is preloaded (`LD_PRELOAD`) into the program and into what it starts.
/// A line of its output that matches the pattern ends a round. The program is not
/// stopped then: blocks of the next round are told apart by the round that bears
/// them, and only what the ended round left is waited for.
#[derive(Clone, Debug)]
pub struct Program {
    plan: Plan,
    command: Vec<OsString>,
    round_on: Regex,
    folder: Option<PathBuf>,
    explain: Option<Explain>,
    suppressions: Option<Suppressions>,
}

impl Program {
    /// The program `command` (its name, then its arguments); each line of its
    /// standard output or error that `round_on` matches ends a round.
    pub fn new(command: Vec<OsString>, round_on: Regex) -> Self {
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
        plan.round_on = Some(round_on.as_str().to_owned());
        Self {
            plan,
            command,
            round_on,
            folder: None,
            explain: None,
            suppressions: None,
        }
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

    /// Without progress for so long, the program hangs and is killed.
    #[must_use]
    pub fn hang_after(mut self, idle: Duration) -> Self {
        self.plan.hang_ms = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
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

    /// Runs the program to its end and judges it. Its output is passed on as it comes.
    ///
    /// A second run for call stacks runs to its end too, and its output goes to a file
    /// alone. It gets the same standard input where that is a file; from a pipe,
    /// there is nothing left to read.
    ///
    /// # Errors
    /// If tidegate itself fails: the program cannot be started, the ledger's shared
    /// object is not found, the run cannot be stored.
    pub fn run(self) -> Result<Run, Error> {
        let folder = RunFolder::create(&self.plan.name, self.folder.as_deref())?;
        let input = rustix::fs::seek(io::stdin(), SeekFrom::Current(0));
        let to_ours = [Box::new(io::stdout()) as To, Box::new(io::stderr())];
        let Second { run, .. } = self.run_once(&folder, None, to_ours)?;
        if let Ok(begin) = input {
            // What cannot be read again is read from where it stands.
            let _ = rustix::fs::seek(io::stdin(), SeekFrom::Start(begin));
        }
        let explain = self.explain.or_else(Explain::from_environment);
        explain::explained(run, explain.unwrap_or_default(), &self)
    }

    /// Runs the program, with the stacks of what `request` asks for.
    fn run_once(
        &self,
        folder: &RunFolder,
        request: Option<&Request>,
        [to_out, to_err]: [To; 2],
    ) -> Result<Second, Error> {
        let capacity = request.map_or_else(Capacity::default, Request::capacity);
        let ledger = Ledger::create(capacity).map_err(failed_to("make the ledger's memory"))?;
        if let Some(request) = request {
            let asked = request.enter_into(&ledger);
            asked.map_err(failed_to("ask for stacks"))?;
        }
        let ledger = Arc::new(ledger);
        let cgroup = self
            .plan
            .limit_bytes
            .and_then(|limit| Cgroup::with_limit(limit).ok());
        let kernel_kills = limit::kernel_kills();
        let samples = folder.create_file(SAMPLES_FILE)?;
        let mut command = self.command(&ledger, cgroup.as_ref())?;
        let start = Instant::now();
        let mut child = command.spawn().map_err(failed_to(format!(
            "start {}",
            self.command
                .first()
                .unwrap_or(&OsString::new())
                .to_string_lossy()
        )))?;
        drop(command);
        let pid = child.id() as i32;
        prefer_for_oom_kill(pid);
        ledger.begin_round(1);
        let (rounds, ended) = channel();
        let listen = |from, to, log| {
            Listener {
                round_on: self.round_on.clone(),
                ledger: Arc::clone(&ledger),
                rounds: rounds.clone(),
                to,
                log,
            }
            .listen(from)
        };
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (out_log, err_log) = (
            folder.create_file("stdout.log")?,
            folder.create_file("stderr.log")?,
        );
        let count = Arc::new(RoundCount::default());
        let listeners = [
            out.map(|out| listen(Box::new(out) as Output, to_out, out_log)(&count)),
            err.map(|err| listen(Box::new(err) as Output, to_err, err_log)(&count)),
        ];
        drop(rounds);
        let sampler = Sampler::start(Job {
            ledger: Arc::clone(&ledger),
            pid,
            every: Duration::from_millis(self.plan.sample_ms),
            start,
            file: samples,
            watchdog_limit: self.plan.limit_bytes.filter(|_| cgroup.is_none()),
        })
        .map_err(failed_to("start the sampler"))?;

        let mut watch = Watch {
            plan: &self.plan,
            start,
            pid,
            child: Workload(child),
            ledger: &ledger,
            sampler: &sampler,
            collector: Collector::new(self.plan.clone()),
            settled: Snapshot::default(),
        };
        let outcome = watch.until_it_ends(&ended);
        let Watch {
            collector,
            settled,
            mut child,
            ..
        } = watch;
        let exit = child.end().map_err(failed_to("wait for the program"))?;
        for listener in listeners.into_iter().flatten() {
            // A listener that panicked has lost output, no books.
            let _ = listener.join();
        }
        let found = sampler.stop();
        let ending = match how_it_ended(
            &self.plan,
            outcome?,
            exit,
            &found,
            cgroup.as_ref(),
            kernel_kills,
        ) {
            Ending::Exited { code: 0 } => Ending::Completed,
            other => other,
        };
        let snapshot = match ending {
            Ending::Completed => settled,
            _ => read_books(&ledger),
        };
        let books = collector.books(&ledger, &snapshot, ending, Some(&found));
        let limit_kind = self
            .plan
            .limit_bytes
            .map(|_| cgroup.as_ref().map_or(LimitKind::Watchdog, Cgroup::kind));
        let settings = self.settings();
        let verdict = judge(&books, &settings);
        let run = Run::new(self.plan.clone(), limit_kind, books, verdict);
        let sites = ledger.sites();
        Ok(Second {
            stacks: sites.map(|sites| collector.stacks(sites, &snapshot)),
            run: folder.keep(run)?,
            settings,
        })
    }

    fn command(&self, ledger: &Ledger, cgroup: Option<&Cgroup>) -> Result<Command, Error> {
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
            .env("LD_PRELOAD", preload)
            // The driver calls the ledger when the program initialises CUDA. Whoever
            // else is named there already could not share CUPTI with it.
            .env(INJECTION_VARIABLE, or_given(INJECTION_VARIABLE, &library))
            // Its NVTX ranges are phases, unless somebody else listens to them.
            .env(NVTX_VARIABLE, or_given(NVTX_VARIABLE, &library))
            .envs(ledger.variables())
            .stdin(Stdio::inherit())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let entrance = cgroup.map(Cgroup::entrance).transpose();
        let at_birth = AtBirth {
            keep: vec![ledger.as_fd().as_raw_fd()],
            join: entrance.map_err(failed_to("open the memory cgroup"))?,
        };
        before_exec(&mut command, at_birth);
        Ok(command)
    }
}

impl Again for Program {
    fn name(&self) -> &str {
        &self.plan.name
    }

    fn settings(&self) -> Settings {
        Settings {
            limit_bytes: self.plan.limit_bytes,
            probes: Vec::new(),
            ..Settings::default()
        }
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

/// What the environment says, or else the library's path.
fn or_given(variable: &str, library: &Path) -> OsString {
    std::env::var_os(variable).unwrap_or_else(|| library.into())
}

/// What a program prints.
type Output = Box<dyn Read + Send>;
/// Where that is passed on to.
type To = Box<dyn Write + Send>;

/// The number of the round that goes on, over both streams.
#[derive(Default)]
struct RoundCount(std::sync::Mutex<u32>);

/// Passes one stream of output on, keeps it, and finds the rounds' ends in it.
struct Listener {
    round_on: Regex,
    ledger: Arc<Ledger>,
    rounds: Sender<u32>,
    to: To,
    log: File,
}

impl Listener {
    fn listen(mut self, from: Output) -> impl FnOnce(&Arc<RoundCount>) -> JoinHandle<()> {
        move |count| {
            let count = Arc::clone(count);
            std::thread::spawn(move || {
                let mut from = BufReader::new(from);
                let mut line = Vec::new();
                // An error on a pipe is its end.
                while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                    if self
                        .round_on
                        .is_match(line.strip_suffix(b"\n").unwrap_or(&line))
                    {
                        let mut count = count.0.lock().unwrap_or_else(|e| e.into_inner());
                        *count += 1;
                        // At once, for the program goes on.
                        self.ledger.begin_round(*count + 1);
                        let _ = self.rounds.send(*count);
                    }
                    // Nobody may be there to read it; the program shall not notice.
                    let _ = self.to.write_all(&line).and_then(|()| self.to.flush());
                    let _ = self.log.write_all(&line);
                    line.clear();
                }
            })
        }
    }
}

struct Watch<'a> {
    plan: &'a Plan,
    start: Instant,
    pid: i32,
    child: Workload,
    ledger: &'a Ledger,
    sampler: &'a Sampler,
    collector: Collector,
    /// The books as they stood after the last round that counts.
    settled: Snapshot,
}

impl Watch<'_> {
    /// Books rounds as they end, until the program has ended or hangs.
    fn until_it_ends(&mut self, ended: &Receiver<u32>) -> Result<Outcome, Error> {
        let hang_after = Duration::from_millis(self.plan.hang_ms);
        let mut progress = Progress::new();
        let mut next = None;
        loop {
            let round = match next.take() {
                Some(round) => Ok(round),
                None => ended.recv_timeout(LOOK),
            };
            match round {
                Ok(round) => {
                    progress = Progress::new();
                    next = self.round_ended(round, ended)?;
                    continue;
                }
                // Both streams are closed; a program may live on without them.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(LOOK),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.is_gone()? && ended.try_recv().is_err() {
                return Ok(Outcome::Gone);
            }
            let cpu_ms = self.sampler.latest().map_or(0, |gauges| gauges.cpu_ms);
            let idle = progress.idle_for(self.ledger, cpu_ms);
            if idle >= hang_after {
                kill_group(self.pid);
                return Ok(Outcome::Hung { idle });
            }
        }
    }

    fn is_gone(&mut self) -> Result<bool, Error> {
        let status = self
            .child
            .0
            .try_wait()
            .map_err(failed_to("wait for the program"))?;
        Ok(status.is_some())
    }

    /// Enters a round as the books stood at its end. Returns the number of the next
    /// round if that ended meanwhile.
    ///
    /// What the round still releases is waited for as long as the next one has borne
    /// nothing: from then on a release may be the next round's doing, which replaces
    /// what this one left.
    ///
    /// A round during whose settling the program ends is not entered: what the end
    /// of a process gives back (destructors of statics) is not what its rounds do.
    fn round_ended(&mut self, round: u32, ended: &Receiver<u32>) -> Result<Option<u32>, Error> {
        self.sampler.round_is(round + 1);
        let begun = Instant::now();
        let quiet = Duration::from_millis(self.plan.quiet_ms);
        let at_most = Duration::from_millis(self.plan.settle_ms);
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
        let gauges = gauges_now(self.pid, self.ledger);
        if next.is_none() && (self.is_gone()? || (gauges.is_none() && is_ending(self.pid))) {
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
