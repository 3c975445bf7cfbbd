//! From what the ledger and the sampler hold to [`Books`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use tidegate_hook::{Account, Counters, GpuFailure, GpuState, HookLayer, Ledger, Sites, Snapshot};

use crate::books::{
    Amount, Books, Ending, Gauges, Health, ItemBook, Layer, PhaseBook, Probe, Refusal, RoundBook,
    Series, Settle, Survivors, UNATTRIBUTED,
};
use crate::explain::{Booked, Recorder, Stacks};
use crate::maps::{Look, Maps};
use crate::reconcile::{MemoryReading, PoolReading};
use crate::sampler::Found;
use crate::scenario::Plan;

/// The books of a run that is going on.
#[derive(Debug)]
pub(crate) struct Collector {
    plan: Plan,
    rounds: Vec<RoundBook>,
    /// Alive after each round, by process.
    live: Vec<BTreeMap<Process, Alive>>,
    allocated_before: Amount,
    pub probes: Vec<Probe>,
    pub final_settle: Option<Settle>,
    pub unreadable: BTreeSet<String>,
    by_stack: Recorder,
    maps: Maps,
    memory: Option<MemoryReading>,
    memory_after_trim: Option<MemoryReading>,
}

/// A process, by its id and its slot in the ledger.
type Process = (u32, u32);

/// What is alive, by layer and phase.
type Alive = BTreeMap<(Layer, String), Amount>;

/// A round that has ended and settled.
pub(crate) struct EndedRound<'a> {
    pub number: u32,
    pub failed: Option<String>,
    pub late: bool,
    pub settle: Settle,
    pub at_seconds: f64,
    pub gauges: Option<Gauges>,
    pub snapshot: &'a Snapshot,
}

impl Collector {
    pub fn new(plan: Plan) -> Self {
        Self {
            plan,
            rounds: Vec::new(),
            live: Vec::new(),
            allocated_before: Amount::ZERO,
            probes: Vec::new(),
            final_settle: None,
            unreadable: BTreeSet::new(),
            by_stack: Recorder::default(),
            maps: Maps::default(),
            memory: None,
            memory_after_trim: None,
        }
    }

    /// How many rounds have ended, warm-up included.
    pub fn rounds_ended(&self) -> u32 {
        u32::try_from(self.rounds.len()).unwrap_or(u32::MAX)
    }

    /// What is alive in all judged layers.
    pub fn live(&self, snapshot: &Snapshot) -> Amount {
        self.live_until(snapshot, u32::MAX)
    }

    /// What is alive of the blocks that rounds up to `round` bore.
    pub fn live_until(&self, snapshot: &Snapshot, round: u32) -> Amount {
        let (births, releases) = self.traffic_until(snapshot, round);
        births - releases
    }

    /// What was allocated and released of the blocks that rounds up to `round` bore.
    pub fn traffic_until(&self, snapshot: &Snapshot, round: u32) -> (Amount, Amount) {
        self.judged(snapshot)
            .filter(|(_, account)| account.round <= round)
            .fold((Amount::ZERO, Amount::ZERO), |(b, r), (_, account)| {
                (b + births(account.counters), r + releases(account.counters))
            })
    }

    /// The accounts of judged layers whose blocks can still be alive: those of
    /// the workload and of the descendants that ran when the books were read.
    fn judged<'a>(
        &self,
        snapshot: &'a Snapshot,
    ) -> impl Iterator<Item = (Layer, &'a Account)> + use<'a> {
        let slots = slots_that_count(snapshot);
        snapshot.accounts.iter().filter_map(move |account| {
            let layer = judged_layer(account.layer)?;
            slots.contains(&account.process).then_some((layer, account))
        })
    }

    pub fn add_round(&mut self, ended: EndedRound<'_>) {
        let mut live = BTreeMap::<Process, Alive>::new();
        let pids: BTreeMap<u32, u32> = (ended.snapshot.processes.iter())
            .map(|process| (process.slot, process.pid))
            .collect();
        let ended_before = ended.snapshot.ended;
        let mut allocated: Amount = HookLayer::ALL
            .into_iter()
            .filter(|layer| judged_layer(*layer).is_some_and(Layer::is_heap))
            .map(|layer| births(ended_before.of(layer)))
            .sum();
        for (layer, account) in self.judged(ended.snapshot) {
            if layer.is_heap() {
                allocated += births(account.counters);
            }
            // Where nobody waits, the next round may have begun.
            if account.round <= ended.number {
                let phase = phase_name(ended.snapshot, account.phase);
                let pid = pids.get(&account.process).copied().unwrap_or(0);
                let of_process = live.entry((pid, account.process)).or_default();
                *of_process.entry((layer, phase.to_owned())).or_default() +=
                    alive(account.counters);
            }
        }
        if ended.gauges.is_none() {
            self.unreadable
                .insert(format!("the gauges after round {}", ended.number));
        }
        self.rounds.push(RoundBook {
            round: ended.number,
            failed: ended.failed,
            errors: 0,
            late: ended.late,
            settle: ended.settle,
            at_seconds: ended.at_seconds,
            threads_created: ended.snapshot.threads,
            allocated: allocated - self.allocated_before,
            peak_bytes: peak_of(ended.number, ended.snapshot).max(0) as u64,
            gauges: ended.gauges,
        });
        self.allocated_before = allocated;
        let until_now = self.booked(ended.snapshot);
        let until_now = until_now.filter(|booked| booked.round <= ended.number);
        self.by_stack.add_round(until_now);
        let look = self.maps.round_ended(metered(ended.snapshot).into_iter());
        // Where this was too much to read, an earlier round's reading says which it is of.
        if let Some(look) = look {
            self.memory = Some(self.reading(&look, ended.snapshot));
        }
        self.memory_after_trim = None;
        self.live.push(live);
    }

    /// Reads what is resident where, of a workload that stands still.
    pub fn read_memory(&mut self, snapshot: &Snapshot) {
        let look = self.maps.look(metered(snapshot).into_iter());
        self.memory = Some(self.reading(&look, snapshot));
    }

    /// The same once the heap has been trimmed.
    pub fn read_memory_after_trim(&mut self, snapshot: &Snapshot) {
        let look = self.maps.look(metered(snapshot).into_iter());
        self.memory_after_trim = Some(self.reading(&look, snapshot));
    }

    fn reading(&self, look: &Look, snapshot: &Snapshot) -> MemoryReading {
        let slots = slots_that_count(snapshot);
        let held = |is: fn(HookLayer) -> bool| {
            let accounts = snapshot.accounts.iter();
            let of_layer =
                accounts.filter(|account| is(account.layer) && slots.contains(&account.process));
            let bytes: i64 = of_layer.map(|account| alive(account.counters).bytes).sum();
            u64::try_from(bytes).unwrap_or(0)
        };
        let processes = snapshot.processes.iter();
        let mapped = processes.filter(|process| slots.contains(&process.slot));
        MemoryReading {
            round: self.rounds.last().map_or(0, |round| round.round),
            resident: look.resident,
            pages: look.pages,
            heap: held(|layer| {
                matches!(
                    layer,
                    HookLayer::Native | HookLayer::Rust | HookLayer::Driver
                )
            }),
            anon: held(|layer| layer == HookLayer::Anon),
            pinned: held(|layer| layer == HookLayer::Pinned),
            meter: held(|layer| layer == HookLayer::Meter),
            block_mappings: mapped.clone().map(|process| process.block_mappings).sum(),
            allocator_mappings: mapped.map(|process| process.allocator_mappings).sum(),
        }
    }

    /// The books as they stand in `snapshot`.
    pub fn books(
        &self,
        ledger: &Ledger,
        snapshot: &Snapshot,
        ending: Ending,
        found: Option<&Found>,
    ) -> Books {
        Books {
            warmup: self.plan.warmup,
            rounds: self.rounds.clone(),
            series: self.series(),
            survivors: self.survivors(snapshot),
            items: self.items(snapshot),
            phases: self.phases(ledger, snapshot, found),
            ending,
            final_settle: self.final_settle,
            probes: self.probes.clone(),
            refusals: refusals(snapshot),
            queue: found.map(|found| found.queue.clone()).unwrap_or_default(),
            maps: self.maps.series(),
            queue_design: self.plan.queue,
            limit_bytes: self.plan.limit_bytes,
            memory: self.memory,
            memory_after_trim: self.memory_after_trim,
            first_context: found.and_then(|found| found.first_context),
            pools: snapshot.gpu.pools.map(|pools| PoolReading {
                round: pools.round,
                reserved: pools.reserved,
                used: pools.used,
            }),
            peak_bytes: Some(snapshot.peak.max(0) as u64),
            health: self.health(snapshot, found),
            ..Books::default()
        }
    }

    /// The stacks that were taken, with what the books say of each.
    pub fn stacks(&self, sites: Sites, snapshot: &Snapshot) -> Stacks {
        self.by_stack.finish(sites, self.booked(snapshot))
    }

    fn booked<'a>(&self, snapshot: &'a Snapshot) -> impl Iterator<Item = Booked<'a>> + use<'a> {
        self.judged(snapshot).map(|(layer, account)| Booked {
            layer,
            phase: phase_name(snapshot, account.phase),
            site: account.site,
            round: account.round,
            births: births(account.counters),
            alive: alive(account.counters),
        })
    }

    fn series(&self) -> Vec<Series> {
        let mut series = BTreeMap::<&(Layer, String), Vec<Amount>>::new();
        for round in 0..self.live.len() {
            for (_, alive) in self.live[round]
                .iter()
                .filter(|(process, _)| !self.only_passed(**process, round))
            {
                for (key, amount) in alive {
                    let live = series
                        .entry(key)
                        .or_insert_with(|| vec![Amount::ZERO; self.live.len()]);
                    live[round] += *amount;
                }
            }
        }
        let series = series.into_iter();
        series
            .map(|(key, live)| Series {
                layer: key.0,
                phase: key.1.clone(),
                live,
            })
            .collect()
    }

    /// Whether a process was there when this round ended, and neither a round before
    /// nor after: all that it held was gone within a round, so it is nothing that a
    /// round keeps. Of the last round nobody knows.
    fn only_passed(&self, process: Process, round: usize) -> bool {
        let was_there = |round: usize| {
            let live = self.live.get(round);
            live.is_some_and(|live| live.contains_key(&process))
        };
        round + 1 < self.live.len()
            && !was_there(round + 1)
            && !round.checked_sub(1).is_some_and(was_there)
    }

    fn survivors(&self, snapshot: &Snapshot) -> Vec<Survivors> {
        let mut left = BTreeMap::<_, Amount>::new();
        for (layer, account) in self.judged(snapshot) {
            let phase = phase_name(snapshot, account.phase);
            *left.entry((account.round, layer, phase)).or_default() += alive(account.counters);
        }
        left.into_iter()
            .filter(|(_, left)| !left.is_zero())
            .map(|((round, layer, phase), left)| Survivors {
                round,
                layer,
                phase: phase.to_owned(),
                left,
            })
            .collect()
    }

    fn items(&self, snapshot: &Snapshot) -> Vec<ItemBook> {
        let mut traffic = BTreeMap::<_, (Amount, Amount)>::new();
        for (layer, account) in self.judged(snapshot) {
            let Some(item) = account.item else { continue };
            let phase = phase_name(snapshot, account.phase);
            let (allocated, released) = traffic
                .entry((account.round, item, layer, phase))
                .or_default();
            *allocated += births(account.counters);
            *released += releases(account.counters);
        }
        traffic
            .into_iter()
            .map(
                |((round, item, layer, phase), (allocated, released))| ItemBook {
                    round,
                    item,
                    layer,
                    phase: phase.to_owned(),
                    allocated,
                    released,
                },
            )
            .collect()
    }

    fn phases(
        &self,
        ledger: &Ledger,
        snapshot: &Snapshot,
        found: Option<&Found>,
    ) -> Vec<PhaseBook> {
        let mut books = BTreeMap::<(Layer, &str), PhaseBook>::new();
        fn book<'b, 's>(
            books: &'b mut BTreeMap<(Layer, &'s str), PhaseBook>,
            layer: Layer,
            phase: &'s str,
        ) -> &'b mut PhaseBook {
            books.entry((layer, phase)).or_insert_with(|| PhaseBook {
                layer,
                phase: phase.to_owned(),
                allocated: Amount::ZERO,
                released: Amount::ZERO,
                peak_bytes: 0,
                byte_seconds: 0.0,
            })
        }
        for (layer, account) in self.judged(snapshot) {
            if account.round > self.plan.warmup {
                let book = book(&mut books, layer, phase_name(snapshot, account.phase));
                book.allocated += births(account.counters);
                book.released += releases(account.counters);
            }
        }
        for cell in ledger.cells() {
            let Some(layer) = judged_layer(cell.layer) else {
                continue;
            };
            let seconds = found.and_then(|found| found.byte_seconds.get(&(cell.phase, cell.layer)));
            let book = book(&mut books, layer, phase_name(snapshot, cell.phase));
            book.peak_bytes += cell.peak.max(0) as u64;
            book.byte_seconds += seconds.copied().unwrap_or_default();
        }
        books.into_values().collect()
    }

    /// Why the books of the GPU cannot be trusted.
    fn gpu_trouble(&self, gpu: &GpuState) -> Vec<String> {
        let mut trouble = Vec::new();
        if gpu.failed != 0 {
            let why = match gpu.failure {
                Some(GpuFailure::NoLibrary) => "CUPTI's library was not found; name it in \
                    TIDEGATE_CUPTI, or set CUDA_HOME"
                    .to_owned(),
                Some(GpuFailure::TAKEN) => {
                    "another tool (a profiler, a sanitizer) has taken CUPTI; run without it"
                        .to_owned()
                }
                Some(GpuFailure::Cupti(code)) => format!("CUPTI refused with its error {code}"),
                _ => "the library that was found is not CUPTI".to_owned(),
            };
            trouble.push(format!("the GPU's ledger: {why}"));
        } else if gpu.attached == 0 && self.maps.saw_gpu() {
            trouble.push(
                "the GPU: the program uses one, and no books of it were kept (build tidegate \
                 with its feature `gpu`)"
                    .into(),
            );
        }
        if gpu.unseen != 0 {
            trouble.push(format!(
                "{} releases on the GPU that went unseen",
                gpu.unseen
            ));
        }
        trouble
    }

    fn health(&self, snapshot: &Snapshot, found: Option<&Found>) -> Health {
        let mut unreadable: Vec<String> = self.unreadable.iter().cloned().collect();
        if snapshot.processes.iter().any(|process| process.refused) {
            unreadable.push("the heap: this C library does not lay its blocks out as glibc".into());
        }
        if snapshot.unmapped != 0 {
            unreadable.push(format!(
                "{} processes that could not map the ledger (a limit on address space?)",
                snapshot.unmapped
            ));
        }
        if snapshot.moving != 0 {
            unreadable.push(format!(
                "{} shards that were moving counts",
                snapshot.moving
            ));
        }
        unreadable.extend(self.gpu_trouble(&snapshot.gpu));
        if let Some(error) = found.and_then(|found| found.write_error.as_ref()) {
            unreadable.push(format!("later samples, which could not be stored: {error}"));
        }
        let missed = found.map_or(0, |found| found.unreadable);
        Health {
            attached: snapshot.processes.iter().any(|process| !process.refused),
            lost: snapshot.lost,
            foreign_releases: snapshot.foreign,
            crossed_releases: snapshot.crossed,
            peak_error_bytes: snapshot.peak_error_bytes,
            own_bytes: snapshot.own_bytes,
            samples: found.map_or(0, |found| found.taken.saturating_sub(missed)),
            samples_missed: missed,
            unreadable,
        }
    }
}

/// The highest that was live in a round: where nobody waits, the next one has begun.
const fn peak_of(round: u32, snapshot: &Snapshot) -> i64 {
    match snapshot.round > round {
        true => snapshot.ended_round_peak,
        false => snapshot.round_peak,
    }
}

/// Releases on the GPU that were refused.
fn refusals(snapshot: &Snapshot) -> Vec<Refusal> {
    let refusals = snapshot.gpu.refusals.iter().filter_map(|refused| {
        let mut status = format!("{} ({})", refused.status, error_of_cuda(refused.status));
        if !refused.has_context {
            status.push_str(", with no context current");
        }
        let _ = write!(status, ", on thread {}", refused.thread);
        Some(Refusal {
            round: refused.round,
            layer: judged_layer(refused.layer)?,
            phase: phase_name(snapshot, refused.phase).to_owned(),
            call: plain_name(&refused.call).to_owned(),
            status,
            count: refused.count,
        })
    });
    refusals.collect()
}

/// A function's name without the version that CUPTI adds to the runtime's.
fn plain_name(call: &str) -> &str {
    match call.rsplit_once("_v") {
        Some((name, version)) if version.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => call,
    }
}

/// What an error of CUDA means, where a release can meet it.
const fn error_of_cuda(status: u32) -> &'static str {
    match status {
        1 => "invalid value",
        3 => "not initialised",
        100 => "no device",
        201 => "invalid context",
        400 => "invalid handle",
        700 => "illegal address, by work before",
        709 => "the context is destroyed",
        712 => "already registered",
        713 => "not registered",
        719 => "a kernel failed before",
        800 => "not permitted: inside a host function",
        900 => "not supported while a stream is captured",
        _ => "an error of CUDA",
    }
}

/// Reads the books. Those of processes that have ended are closed first: what a
/// process leaves behind when it ends is not memory any more. The workload itself
/// is spared, its books are read after its end too.
///
/// A process that ends while it moves counts is caught at it until its books are
/// closed, so that is tried again for a while.
pub(crate) fn read_books(ledger: &Ledger) -> Snapshot {
    const TRIES: u32 = 20;
    let mut snapshot = Snapshot::default();
    for _ in 0..TRIES {
        ledger.close_ended();
        snapshot = ledger.snapshot();
        if snapshot.moving == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    snapshot
}

/// The ids of the processes that wrote to the ledger and have not ended.
fn metered(snapshot: &Snapshot) -> BTreeSet<u32> {
    snapshot.processes.iter().map(|p| p.pid).collect()
}

/// For each process the last slot that it took, because a process that executes
/// another program starts anew.
fn slots_that_count(snapshot: &Snapshot) -> BTreeSet<u32> {
    let mut last = BTreeMap::new();
    for process in &snapshot.processes {
        last.insert(process.pid, process.slot);
    }
    last.into_values().collect()
}

/// What the books call a layer of the ledger's; `None` for the meter's own.
pub(crate) fn judged_layer(layer: HookLayer) -> Option<Layer> {
    Some(match layer {
        HookLayer::Native => Layer::NativeHeap,
        HookLayer::Rust => Layer::RustHeap,
        HookLayer::Meter => return None,
        HookLayer::Anon => Layer::Anon,
        HookLayer::Driver => Layer::DriverHeap,
        HookLayer::Device => Layer::Device,
        HookLayer::DevicePool => Layer::DevicePool,
        HookLayer::Managed => Layer::Managed,
        HookLayer::Pinned => Layer::Pinned,
        HookLayer::Registered => Layer::Registered,
        HookLayer::Contexts => Layer::GpuContexts,
        HookLayer::Streams => Layer::GpuStreams,
        HookLayer::Events => Layer::GpuEvents,
        HookLayer::Modules => Layer::GpuModules,
        HookLayer::Graphs => Layer::GpuGraphs,
        HookLayer::Pools => Layer::GpuPools,
        HookLayer::Imports => Layer::GpuImports,
    })
}

fn phase_name(snapshot: &Snapshot, phase: u8) -> &str {
    snapshot
        .phases
        .get(usize::from(phase))
        .map_or(UNATTRIBUTED, String::as_str)
}

fn amount(bytes: u64, blocks: u64) -> Amount {
    // Differences of counters that a killed workload left torn can be negative;
    // as two's complement they come out right.
    Amount::new(bytes as i64, blocks as i64)
}

fn births(counters: Counters) -> Amount {
    amount(counters.allocated_bytes, counters.allocated_blocks)
}

fn releases(counters: Counters) -> Amount {
    amount(counters.released_bytes, counters.released_blocks)
}

fn alive(counters: Counters) -> Amount {
    births(counters) - releases(counters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_named_without_cuptis_version() {
        assert_eq!(plain_name("cudaFreeHost_v3020"), "cudaFreeHost");
        assert_eq!(plain_name("cuMemFree_v2"), "cuMemFree");
        assert_eq!(plain_name("cuMemFreeHost"), "cuMemFreeHost");
        assert_eq!(plain_name("a_very_odd_name"), "a_very_odd_name");
    }

    #[test]
    fn a_process_that_passes_by_at_a_rounds_end_is_nothing_that_the_round_keeps() {
        let mut collector = Collector::new(crate::Scenario::new("x").plan);
        let alive =
            |bytes| Alive::from([((Layer::NativeHeap, "p".to_owned()), Amount::new(bytes, 1))]);
        let (root, passer, worker, last) = ((10, 1), (11, 2), (12, 2), (13, 3));
        collector.live = vec![
            BTreeMap::from([(root, alive(1_000)), (passer, alive(7))]),
            BTreeMap::from([(root, alive(1_000)), (worker, alive(20))]),
            BTreeMap::from([(root, alive(1_000)), (worker, alive(30))]),
            BTreeMap::from([(root, alive(1_000)), (last, alive(5))]),
        ];
        let series = collector.series();
        assert_eq!(series.len(), 1);
        let bytes: Vec<i64> = series[0].live.iter().map(|amount| amount.bytes).collect();
        assert_eq!(bytes, [1_000, 1_020, 1_030, 1_005]);
    }

    #[test]
    fn a_gpu_without_books_is_trouble_and_none_at_all_is_not() {
        let collector = Collector::new(crate::Scenario::new("x").plan);
        let trouble = |gpu: GpuState| collector.gpu_trouble(&gpu);
        assert!(trouble(GpuState::default()).is_empty());
        let attached = GpuState {
            attached: 1,
            ..GpuState::default()
        };
        assert!(trouble(attached.clone()).is_empty());
        let unseen = GpuState {
            unseen: 2,
            ..attached.clone()
        };
        assert_eq!(trouble(unseen), ["2 releases on the GPU that went unseen"]);
        let failed = |failure| GpuState {
            failed: 1,
            failure: Some(failure),
            ..attached.clone()
        };
        assert!(trouble(failed(GpuFailure::TAKEN))[0].contains("has taken CUPTI"));
        assert!(trouble(failed(GpuFailure::NoLibrary))[0].contains("TIDEGATE_CUPTI"));
        assert!(trouble(failed(GpuFailure::Cupti(2)))[0].contains("error 2"));
    }
}
