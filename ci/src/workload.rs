//! The program that a command runs, and how: the options that commands share.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;
use regex::bytes::Regex;
use tidegate::books::QueueDesign;
use tidegate::{Day, Explain, Program, Rounds, Run, Suppressions};

use crate::Failure;
use crate::store::store_json;

/// A program to run under the gate.
///
/// Without `--round-on` and `--every`, the program itself says when a round begins, by
/// `tidegate_round` of `tidegate.h`.
#[derive(Debug, Args)]
pub(crate) struct Workload {
    #[command(flatten)]
    options: Options,
    /// Write the run here as JSON, whole or not at all.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the run (samples, output, books) in this folder.
    #[arg(long, value_name = "FOLDER")]
    keep_in: Option<PathBuf>,
    /// The program and its arguments, after `--`.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// How a program is run: what its rounds are, and when it is ended.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// A line of the program's output that this regular expression matches ends a round.
    #[arg(long, value_name = "REGEX")]
    round_on: Option<Regex>,
    /// Take the lines from this file, to which the program appends, and not from its output.
    #[arg(long, value_name = "FILE", requires = "round_on")]
    log: Option<PathBuf>,
    /// A round ends each time so much has passed, such as 5s.
    #[arg(long, value_name = "TIME", value_parser = interval, conflicts_with = "round_on")]
    every: Option<Duration>,
    /// Rounds before the measured ones.
    #[arg(long, value_name = "N", default_value_t = 2)]
    warmup: u32,
    /// End the program after so many measured rounds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// End the program when it has run for so long, such as 10m.
    #[arg(long = "for", value_name = "TIME", value_parser = interval)]
    for_time: Option<Duration>,
    /// Kill the program when it takes more memory than this, such as 512MiB or 8GiB.
    #[arg(long, value_name = "SIZE")]
    limit: Option<ByteSize>,
    /// Without any progress for so long, the program hangs and is killed.
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = interval)]
    hang_after: Duration,
    /// A round that takes longer than this hangs, however busy the program is, such as 10m.
    #[arg(long, value_name = "TIME", value_parser = interval)]
    round_at_most: Option<Duration>,
    /// How many finished items may wait in the program's queue, where it counts items. More
    /// than that and one for each producer is a backlog.
    #[arg(long, value_name = "N")]
    queue_capacity: Option<u64>,
    /// How many producers may each hold one more while the queue is full.
    #[arg(
        long,
        value_name = "N",
        requires = "queue_capacity",
        default_value_t = 0
    )]
    producers: u64,
    /// Time between samples.
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = interval)]
    sample_every: Duration,
    /// Let through the known leaks that this file lists: LeakSanitizer's `leak:` lines,
    /// each with a reason and a last day above it.
    #[arg(long, value_name = "FILE")]
    suppressions: Option<PathBuf>,
    /// The day by which suppressions expire; the day of the run unless given.
    #[arg(long, value_name = "YYYY-MM-DD", requires = "suppressions")]
    as_of: Option<Day>,
}

/// A length of time that is not zero.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("a time of zero is none".to_owned()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

impl Options {
    /// The program `command`, to be run in this way and to be ended by a signal to us.
    pub(crate) fn program(&self, command: Vec<OsString>) -> Result<Program, Failure> {
        let rounds = match (&self.round_on, &self.log, self.every) {
            (Some(pattern), None, _) => Rounds::Line(pattern.clone()),
            (Some(pattern), Some(file), _) => Rounds::LineOf(file.clone(), pattern.clone()),
            (None, _, Some(interval)) => Rounds::Every(interval),
            (None, _, None) => Rounds::Marks,
        };
        let queue = self.queue_capacity.map(|capacity| QueueDesign {
            capacity,
            producers: self.producers,
        });
        Ok(Program::new(command, rounds)
            .warmup(self.warmup)
            .rounds(self.rounds)
            .end_after(self.for_time)
            .end_when(crate::signals::asked_to_end()?)
            .memory_limit(self.limit_bytes())
            .hang_after(self.hang_after)
            .round_at_most(self.round_at_most)
            .queue(queue)
            .sample_every(self.sample_every)
            .suppressions(self.read_suppressions()?))
    }

    /// Rounds before the measured ones.
    pub(crate) fn warmup(&self) -> u32 {
        self.warmup
    }

    /// The memory limit in bytes.
    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.limit.map(|limit| limit.as_u64())
    }

    /// Reads the suppressions before anything is run, for a mistake in them is the user's.
    fn read_suppressions(&self) -> Result<Option<Suppressions>, Failure> {
        let Some(file) = &self.suppressions else {
            return Ok(None);
        };
        let read = Suppressions::read(file).map_err(|error| Failure::of_usage(error.chain()))?;
        Ok(Some(match self.as_of {
            Some(day) => read.as_of(day),
            None => read,
        }))
    }
}

impl Workload {
    /// Runs the program, reports on the standard error and stores the run where that was asked.
    pub(crate) fn judge(self, explain: Option<Explain>) -> Result<Run, Failure> {
        let run = self
            .options
            .program(self.command)?
            .keep_in(self.keep_in)
            .explain(explain)
            .run()
            .map_err(|error| Failure::of_ours(error.chain()))?;
        // The program's own output goes to the standard output; this is about it.
        eprint!("{run}");
        if let Some(path) = &self.json {
            store_json(path, &run)?;
        }
        match run.not_stored() {
            None => Ok(run),
            Some(why) => Err(Failure::of_ours(why)),
        }
    }
}
