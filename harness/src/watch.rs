//! A process that is running already, watched from outside: gauges alone, no ledger.
//!
//! Gauges see what a process takes from the system. They do not see whether its allocator
//! still needs it, and a leak that is fed from memory which the allocator kept shows in none
//! of them. So what comes of watching is `unexplained-growth` or `handle-leak` where
//! something grows for good, and never `clean`.

use std::io;
use std::time::{Duration, Instant};

use crate::books::{Books, Ending, Gauges, Health, RoundBook, Settle};
use crate::gauges::Tree;
use crate::maps::Maps;
use crate::run::Run;
use crate::scenario::Scenario;
use crate::verdict::{Settings, judge};

/// Readings that are kept: with more, every second one is left out, and from then on only
/// every second one is taken up.
const KEPT: usize = 512;

/// A process tree under watch.
#[derive(Debug)]
pub struct Watching {
    pid: i32,
    name: String,
    every: Duration,
    start: Instant,
    tree: Tree,
    maps: Maps,
    kept: Vec<RoundBook>,
    taken: u64,
    /// Of so many readings one is kept.
    stride: u64,
}

/// One reading of a process tree's gauges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Since the watching began.
    pub at: Duration,
    /// What was read.
    pub gauges: Gauges,
}

impl Watching {
    /// Begins to watch the process `pid` and its descendants, to be read every `every`.
    ///
    /// # Errors
    /// If there is no such process, or if it cannot be read.
    pub fn begin(pid: i32, every: Duration) -> io::Result<Self> {
        let mut tree = Tree::of(pid);
        if tree.read().is_none() {
            return Err(match tree.contains(pid) {
                true => io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "its gauges cannot be read (is it yours? has it ended?)",
                ),
                false => io::Error::new(io::ErrorKind::NotFound, "there is no such process"),
            });
        }
        let name = procfs::process::Process::new(pid)
            .and_then(|process| process.stat())
            .map_or_else(|_| "process".to_owned(), |stat| stat.comm);
        Ok(Self {
            pid,
            name,
            every,
            start: Instant::now(),
            tree,
            maps: Maps::default(),
            kept: Vec::new(),
            taken: 0,
            stride: 1,
        })
    }

    /// Reads the gauges now. `None` once the process has ended.
    pub fn read(&mut self) -> Option<Reading> {
        self.tree.rescan(Vec::new);
        let gauges = self.tree.read()?;
        let at = self.start.elapsed();
        if self.taken.is_multiple_of(self.stride) {
            let members = self.tree.members().map(|pid| pid as u32);
            self.maps.round_ended(members);
            self.kept.push(RoundBook {
                round: u32::try_from(self.kept.len() + 1).unwrap_or(u32::MAX),
                at_seconds: at.as_secs_f64(),
                settle: Settle {
                    settled: true,
                    ..Settle::default()
                },
                gauges: Some(Gauges {
                    card: crate::card::now(|pid| self.tree.contains(pid)),
                    ..gauges
                }),
                ..RoundBook::default()
            });
            if self.kept.len() > KEPT {
                self.thin();
            }
        }
        self.taken += 1;
        Some(Reading { at, gauges })
    }

    fn thin(&mut self) {
        let mut is_kept = false;
        self.kept.retain(|_| {
            is_kept = !is_kept;
            is_kept
        });
        self.maps.thin();
        for (at, round) in self.kept.iter_mut().enumerate() {
            round.round = u32::try_from(at + 1).unwrap_or(u32::MAX);
        }
        self.stride *= 2;
    }

    /// Ends the watching and judges what was read.
    pub fn finish(self) -> Run {
        let mut plan = Scenario::new(format!("{} (process {})", self.name, self.pid)).plan;
        plan.warmup = 0;
        plan.rounds = 0;
        plan.rounds_at_most = 0;
        plan.sample_ms = u64::try_from(self.every.as_millis()).unwrap_or(u64::MAX);
        let books = Books {
            rounds: self.kept,
            maps: self.maps.series(),
            ending: Ending::Completed,
            gauges_only: true,
            health: Health {
                samples: self.taken,
                ..Health::default()
            },
            ..Books::default()
        };
        let verdict = judge(&books, &Settings::default());
        Run::new(plan, None, books, verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Class;

    fn read_times(times: usize) -> Watching {
        let pid = std::process::id() as i32;
        let mut watching = Watching::begin(pid, Duration::from_millis(1)).unwrap();
        for _ in 0..times {
            assert!(watching.read().is_some());
        }
        watching
    }

    #[test]
    fn however_long_it_takes_so_many_readings_are_kept() {
        let watching = read_times(KEPT * 2 + 3);
        assert!(watching.kept.len() <= KEPT, "{}", watching.kept.len());
        assert_eq!((watching.stride, watching.taken), (4, 1027));
        let run = watching.finish();
        let rounds: Vec<u32> = run.books().rounds.iter().map(|round| round.round).collect();
        assert_eq!(rounds, (1..=rounds.len() as u32).collect::<Vec<_>>());
        for series in &run.books().maps {
            assert_eq!(series.resident.len(), rounds.len());
        }
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let error = Watching::begin(child.id() as i32, Duration::from_secs(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn few_readings_decide_nothing() {
        let run = read_times(5).finish();
        assert_eq!(run.verdict().class, Class::Inconclusive, "{run}");
    }
}
