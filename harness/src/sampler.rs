//! The sampler: reads gauges and books from outside the workload, at an
//! interval, and streams them to the run folder as they come.

mod queue;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_hook::{Cell, HookLayer, Ledger};

use crate::books::{Gauges, Layer, QueueSample, UNATTRIBUTED};
use crate::card;
use crate::collect::judged_layer;
use crate::gauges::{Tree, in_background};
use crate::reconcile::FirstContext;

/// Name of the samples' file in a run folder: one JSON object a line.
pub const SAMPLES_FILE: &str = "samples.jsonl";

/// One sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sample {
    /// Number of the sample from 0; a gap means that samples are missing.
    pub n: u64,
    /// Seconds since the start of the run.
    pub t: f64,
    /// The round that was going on; 0 before the first.
    pub round: u32,
    /// Live bytes of all heap layers, within the peaks' error bound.
    pub live: i64,
    /// Live bytes of the card's layers.
    #[serde(default)]
    pub card_live: i64,
    /// The process tree's gauges, or nothing if they could not be read.
    pub gauges: Option<Gauges>,
    /// Items handed over so far.
    pub produced: u64,
    /// Items taken over so far.
    pub consumed: u64,
    /// Live bytes by layer, within the peaks' error bound; empty in runs of before it was kept.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<Layer, i64>,
    /// Live bytes of the heap layers by the phase that bore them, likewise.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub phases: BTreeMap<String, i64>,
}

/// Reads the samples of a run, and says whether the file ends within a line (or
/// holds one that is none): what comes after such a line is not trusted.
///
/// # Errors
/// If the file cannot be read.
pub fn read_samples(folder: &Path) -> io::Result<(Vec<Sample>, bool)> {
    let mut samples = Samples::open(folder)?;
    let all = samples.by_ref().collect::<io::Result<Vec<Sample>>>()?;
    Ok((all, samples.is_torn()))
}

/// The samples of a run, read one at a time: a long run has a million.
pub(crate) struct Samples {
    file: BufReader<File>,
    line: Vec<u8>,
    read: u64,
    torn: bool,
}

impl Samples {
    /// Opens the samples in a run's folder.
    pub fn open(folder: &Path) -> io::Result<Self> {
        Ok(Self {
            file: BufReader::new(File::open(folder.join(SAMPLES_FILE))?),
            line: Vec::new(),
            read: 0,
            torn: false,
        })
    }

    /// Whether the file ended within a line, or held one that is none, once there is no
    /// more.
    pub fn is_torn(&self) -> bool {
        self.torn
    }
}

impl Iterator for Samples {
    type Item = io::Result<Sample>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.torn {
            return None;
        }
        self.line.clear();
        match self.file.read_until(b'\n', &mut self.line) {
            Err(error) => return Some(Err(error)),
            Ok(0) => return None,
            Ok(_) => {}
        }
        let whole = self.line.ends_with(b"\n");
        match serde_json::from_slice::<Sample>(&self.line) {
            Ok(sample) if whole && sample.n == self.read => {
                self.read += 1;
                Some(Ok(sample))
            }
            _ => {
                self.torn = true;
                None
            }
        }
    }
}

/// What the sampler found, when it has stopped.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Samples taken.
    pub taken: u64,
    /// Samples whose gauges could not be read although the workload was there.
    pub unreadable: u64,
    /// ∫ live dt in byte-seconds, by phase number and layer.
    pub byte_seconds: BTreeMap<(u8, HookLayer), f64>,
    /// Moments at which the queue had changed, thinned where there are many.
    pub queue: Vec<QueueSample>,
    /// The card when a context of the GPU was first seen.
    pub first_context: Option<FirstContext>,
    /// Highest resident bytes seen (anonymous, shared and huge pages, swap included).
    pub highest_use: u64,
    /// Whether the watchdog killed the workload for passing its limit.
    pub killed_over_limit: bool,
    /// Why samples could not be written any more.
    pub write_error: Option<io::Error>,
}

/// What the sampler is to do.
pub(crate) struct Job {
    pub ledger: Arc<Ledger>,
    pub pid: i32,
    pub every: Duration,
    pub start: Instant,
    pub file: File,
    /// Kill the workload above this many bytes; `None` if something else enforces the limit.
    pub watchdog_limit: Option<u64>,
}

/// A running sampler.
pub(crate) struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Found>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    latest: Mutex<Option<Gauges>>,
}

impl Sampler {
    pub fn start(job: Job) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("tidegate-sampler".into())
            .spawn(move || sample(job, &theirs))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// The gauges of the last sample.
    pub fn latest(&self) -> Option<Gauges> {
        *self
            .shared
            .latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub fn stop(mut self) -> Found {
        self.shared.stop.store(true, Ordering::Release);
        self.thread
            .take()
            .and_then(|thread| thread.join().ok())
            .unwrap_or_default()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
    }
}

fn sample(mut job: Job, shared: &Shared) -> Found {
    /// Between two looks for processes that came and went, at least.
    const RESCAN: Duration = Duration::from_millis(100);
    let mut found = Found::default();
    let mut tree = Tree::of(job.pid);
    let mut before = Instant::now();
    let mut rescanned = None;
    let mut queue = queue::Course::default();
    let mut queue_before = (0, 0);
    // Counted once the gauges are there again: at the workload's end they stay away.
    let mut unreadable = 0;
    let mut due = job.start;
    let mut phase_names = Vec::new();
    while !shared.stop.load(Ordering::Acquire) {
        if rescanned.is_none_or(|last: Instant| last.elapsed() >= RESCAN) {
            job.ledger.close_ended();
            tree.rescan(|| in_background(&job.ledger));
            rescanned = Some(Instant::now());
        }
        let now = Instant::now();
        let gauges = tree.read().map(|gauges| Gauges {
            rss_shmem: gauges.rss_shmem.saturating_sub(job.ledger.own_bytes()),
            ..gauges
        });
        *shared.latest.lock().unwrap_or_else(PoisonError::into_inner) = gauges;
        if found.first_context.is_none() {
            found.first_context = first_context(&job.ledger, &tree);
        }
        let (produced, consumed) = job.ledger.queue();
        let cells = job.ledger.cells();
        let sample = Sample {
            n: found.taken,
            t: now.duration_since(job.start).as_secs_f64(),
            round: job.ledger.round(),
            live: job.ledger.live(),
            card_live: on_the_card(&cells),
            gauges,
            produced,
            consumed,
            layers: by_layer(&cells),
            phases: by_phase(&cells, &mut phase_names, &job.ledger),
        };
        let passed = now.duration_since(before).as_secs_f64();
        before = now;
        for cell in cells {
            *found
                .byte_seconds
                .entry((cell.phase, cell.layer))
                .or_default() += cell.live.max(0) as f64 * passed;
        }
        if (produced, consumed) != queue_before {
            queue_before = (produced, consumed);
            queue.push(QueueSample {
                at_seconds: sample.t,
                round: sample.round,
                produced,
                consumed,
                live_bytes: sample.live.max(0) as u64,
            });
        }
        match gauges {
            Some(gauges) => {
                found.unreadable += std::mem::take(&mut unreadable);
                let in_use = gauges.rss_anon + gauges.rss_shmem + gauges.hugetlb + gauges.swap;
                found.highest_use = found.highest_use.max(in_use);
                if job.watchdog_limit.is_some_and(|limit| in_use > limit) {
                    found.killed_over_limit = true;
                    kill_group(job.pid);
                    for pid in job.ledger.holders() {
                        signal(pid, Signal::KILL);
                    }
                }
            }
            None => unreadable += 1,
        }
        if found.write_error.is_none()
            && let Err(error) = write(&mut job.file, &sample)
        {
            found.write_error = Some(error);
        }
        found.taken += 1;

        due += job.every;
        let now = Instant::now();
        match due.checked_duration_since(now) {
            Some(wait) => std::thread::sleep(wait),
            // Behind: skip what was missed rather than hurry after it.
            None => due = now,
        }
    }
    found.queue = queue.end();
    found
}

/// The card, if there is a context on it by now, and if the books stood still while it
/// was read.
fn first_context(ledger: &Ledger, tree: &Tree) -> Option<FirstContext> {
    if !ledger.keeps_gpu_books() {
        return None;
    }
    let count = || {
        let held = |layer| ledger.held(layer);
        let bytes = held(HookLayer::Device).0 + held(HookLayer::DevicePool).0;
        (held(HookLayer::Contexts).1, bytes)
    };
    let before = count();
    if before.0 == 0 {
        return None;
    }
    let card = card::now(|pid| tree.contains(pid))?;
    (count() == before && card.process > 0).then_some(FirstContext {
        contexts: before.0,
        card: card.process,
        ledger: before.1,
    })
}

/// Live bytes of the card's memory.
fn on_the_card(cells: &[Cell]) -> i64 {
    let is_there = |cell: &&Cell| {
        matches!(
            cell.layer,
            HookLayer::Device | HookLayer::DevicePool | HookLayer::Managed
        )
    };
    cells.iter().filter(is_there).map(|cell| cell.live).sum()
}

fn by_layer(cells: &[Cell]) -> BTreeMap<Layer, i64> {
    let mut layers = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.live > 0) {
        if let Some(layer) = judged_layer(cell.layer) {
            *layers.entry(layer).or_default() += cell.live;
        }
    }
    layers
}

/// The same by phase, of the heap. The names are asked for again when there is a new phase.
fn by_phase(cells: &[Cell], names: &mut Vec<String>, ledger: &Ledger) -> BTreeMap<String, i64> {
    let mut phases = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.live > 0) {
        if judged_layer(cell.layer).is_some_and(Layer::is_heap) {
            if usize::from(cell.phase) >= names.len() {
                *names = ledger.phases();
            }
            let name = names.get(usize::from(cell.phase));
            let name = name.map_or(UNATTRIBUTED, String::as_str);
            *phases.entry(name.to_owned()).or_default() += cell.live;
        }
    }
    phases
}

/// One line, in one write, so that a reader sees it whole or knows that it is not.
fn write(file: &mut File, sample: &Sample) -> io::Result<()> {
    let mut line = serde_json::to_vec(sample)?;
    line.push(b'\n');
    file.write_all(&line)
}

/// Kills the process group that the workload leads.
pub(crate) fn kill_group(pid: i32) {
    signal_group(pid, Signal::KILL);
}

/// Sends a signal to the process group that the workload leads.
pub(crate) fn signal_group(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // Gone already is as good.
        let _ = rustix::process::kill_process_group(pid, signal);
    }
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}
