//! What was measured in one run: the books that the verdict is read from.
//!
//! A [`Books`] value is plain data. The supervisor fills it from the ledger and
//! the gauges, `run.json` stores it, and [`judge`](crate::verdict::judge) turns
//! it into a verdict without looking at anything else, so that a stored run can
//! be judged again by a later engine.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::reconcile::{FirstContext, MemoryReading, PoolReading};

/// The phase of a block that was allocated outside every phase.
pub const UNATTRIBUTED: &str = "unattributed";

/// Where memory lives, or what is counted.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// Blocks that Rust's global allocator handed out.
    RustHeap,
    /// Blocks from the malloc family that Rust did not ask for: C, C++, drivers.
    NativeHeap,
    /// Private anonymous mappings made outside malloc.
    Anon,
    /// Mapped files.
    File,
    /// Shared memory.
    Shmem,
    /// Blocks that the GPU's driver took from malloc within one of its calls, for
    /// itself. Listed apart, and never a leak of the application's.
    DriverHeap,
    /// Page-locked host memory that the GPU's driver made.
    Pinned,
    /// Host memory of the application's that the GPU's driver page-locked.
    Registered,
    /// Memory of the card.
    Device,
    /// Memory of the card that was taken from a pool, in stream order.
    DevicePool,
    /// Memory that moves between host and card.
    Managed,
    /// Live threads.
    Threads,
    /// Open file descriptors.
    Fds,
    /// Contexts of the GPU.
    GpuContexts,
    /// Streams of the GPU.
    GpuStreams,
    /// Events of the GPU.
    GpuEvents,
    /// Modules and libraries of code on the GPU.
    GpuModules,
    /// Graphs and executable graphs of the GPU.
    GpuGraphs,
    /// Pools of the card's memory.
    GpuPools,
    /// Memory of another process or interface that was opened on the GPU.
    GpuImports,
}

impl Layer {
    /// Every layer, in the order of the documentation.
    pub const ALL: [Self; 20] = [
        Self::RustHeap,
        Self::NativeHeap,
        Self::Anon,
        Self::File,
        Self::Shmem,
        Self::DriverHeap,
        Self::Pinned,
        Self::Registered,
        Self::Device,
        Self::DevicePool,
        Self::Managed,
        Self::Threads,
        Self::Fds,
        Self::GpuContexts,
        Self::GpuStreams,
        Self::GpuEvents,
        Self::GpuModules,
        Self::GpuGraphs,
        Self::GpuPools,
        Self::GpuImports,
    ];

    /// The layer's name, as in reports and in `run.json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RustHeap => "rust-heap",
            Self::NativeHeap => "native-heap",
            Self::Anon => "anon",
            Self::File => "file",
            Self::Shmem => "shmem",
            Self::DriverHeap => "driver-heap",
            Self::Pinned => "pinned",
            Self::Registered => "registered",
            Self::Device => "device",
            Self::DevicePool => "device-pool",
            Self::Managed => "managed",
            Self::Threads => "threads",
            Self::Fds => "fds",
            Self::GpuContexts => "gpu-contexts",
            Self::GpuStreams => "gpu-streams",
            Self::GpuEvents => "gpu-events",
            Self::GpuModules => "gpu-modules",
            Self::GpuGraphs => "gpu-graphs",
            Self::GpuPools => "gpu-pools",
            Self::GpuImports => "gpu-imports",
        }
    }

    /// Whether this layer counts things rather than bytes.
    pub const fn is_counted(self) -> bool {
        matches!(self, Self::Threads | Self::Fds) || self.is_gpu_handle()
    }

    /// Whether this layer counts objects of the GPU.
    pub const fn is_gpu_handle(self) -> bool {
        matches!(
            self,
            Self::GpuContexts
                | Self::GpuStreams
                | Self::GpuEvents
                | Self::GpuModules
                | Self::GpuGraphs
                | Self::GpuPools
                | Self::GpuImports
        )
    }

    /// Whether this layer is part of the process's heap: blocks, and mappings made outside malloc.
    pub const fn is_heap(self) -> bool {
        matches!(
            self,
            Self::RustHeap | Self::NativeHeap | Self::Anon | Self::DriverHeap
        )
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// An exact amount: so many blocks that hold so many bytes.
///
/// Signed, because a difference of two amounts is one too.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
pub struct Amount {
    /// Bytes that the program asked for (the allocator's own rounding is not in it).
    pub bytes: i64,
    /// Blocks (for a counted layer: things).
    pub blocks: i64,
}

impl Amount {
    /// Nothing.
    pub const ZERO: Self = Self {
        bytes: 0,
        blocks: 0,
    };

    /// So many bytes in so many blocks.
    pub const fn new(bytes: i64, blocks: i64) -> Self {
        Self { bytes, blocks }
    }

    /// Whether both bytes and blocks are zero.
    pub const fn is_zero(self) -> bool {
        self.bytes == 0 && self.blocks == 0
    }
}

impl std::ops::Add for Amount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self::new(
            self.bytes.saturating_add(other.bytes),
            self.blocks.saturating_add(other.blocks),
        )
    }
}

impl std::ops::Sub for Amount {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self::new(
            self.bytes.saturating_sub(other.bytes),
            self.blocks.saturating_sub(other.blocks),
        )
    }
}

impl std::ops::AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, |a, b| a + b)
    }
}

/// Everything measured in one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Books {
    /// How many of the first rounds are warm-up: recorded, not judged.
    pub warmup: u32,
    /// The rounds that ended, in order, warm-up first. Round numbers start at 1.
    pub rounds: Vec<RoundBook>,
    /// The ledger's series: one per layer and phase that ever held a block.
    pub series: Vec<Series>,
    /// What was alive after the last round had settled, by the round that bore it.
    /// Birth round 0 is whatever was there before the first round began.
    pub survivors: Vec<Survivors>,
    /// Traffic by item (for a prover: by partition), where items were named.
    pub items: Vec<ItemBook>,
    /// Traffic and peak by phase over the measured rounds.
    pub phases: Vec<PhaseBook>,
    /// How the workload's process ended.
    pub ending: Ending,
    /// The last long wait: what was alive when the last round ended, and after settling.
    pub final_settle: Option<Settle>,
    /// What was tried after the last round, in order.
    pub probes: Vec<Probe>,
    /// Release calls that the callee refused.
    pub refusals: Vec<Refusal>,
    /// Items produced and not yet consumed, with the memory alive at that moment.
    pub queue: Vec<QueueSample>,
    /// Whether the ledger can be trusted, and what it does not know.
    pub health: Health,
    /// The ledger's series once more, by site, where sites were recorded.
    /// A site's blocks are also in the series of its layer and phase.
    #[serde(default)]
    pub sites: Vec<SiteSeries>,
    /// Parts of the series that are not judged: suppressed leaks, and what runtimes
    /// keep for themselves. Gauges are compared with all that is in the series.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aside: Vec<Aside>,
    /// Resident bytes of the mappings after each round, where they were read.
    #[serde(default)]
    pub maps: Vec<MapSeries>,
    /// How many items may wait by design, as the scenario declares it.
    #[serde(default)]
    pub queue_design: Option<QueueDesign>,
    /// The memory limit that this run was given, in bytes, also when it was not passed.
    #[serde(default)]
    pub limit_bytes: Option<u64>,
    /// Whether there was no ledger: a process was watched from outside, and its rounds are
    /// moments at which its gauges were read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gauges_only: bool,
    /// What was resident where, after the last settled round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryReading>,
    /// The same after the heap was trimmed, where that was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_after_trim: Option<MemoryReading>,
    /// The card when a context was first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_context: Option<FirstContext>,
    /// What the driver last said of the pools of the card's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools: Option<PoolReading>,
    /// Highest live bytes (all heap layers) until the last round had settled, in whichever
    /// round, within [`Health::peak_error_bytes`]; `None` in runs of before it was kept.
    #[serde(default)]
    pub peak_bytes: Option<u64>,
}

/// A part of a series that is not judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Aside {
    /// The layer.
    pub layer: Layer,
    /// The phase; empty for what has none (counted gauges).
    pub phase: String,
    /// The site, where it is one of [`Books::sites`].
    pub site: Option<String>,
    /// What of it was alive after each round, warm-up included; empty for what is in
    /// no series (gauges, refused releases), which is then left out as a whole.
    pub live: Vec<Amount>,
    /// What of it was left at the end, by the round that bore it.
    pub left: Vec<(u32, Amount)>,
}

/// One ended round, after settling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RoundBook {
    /// The round's number, from 1.
    pub round: u32,
    /// Why the body said that it failed; `None` if it succeeded.
    pub failed: Option<String>,
    /// Errors that the body reported within the round without failing it.
    #[serde(default)]
    pub errors: u64,
    /// Whether its end was heard of only when the program had ended a later round too:
    /// then what the books say of this round is partly the next one's.
    #[serde(default)]
    pub late: bool,
    /// The wait for the books to stop moving after this round.
    pub settle: Settle,
    /// Seconds from the start of the run to the end of this round's settling.
    pub at_seconds: f64,
    /// Threads that the workload had ever created by then.
    pub threads_created: u64,
    /// Bytes and blocks allocated during this round (all heap layers).
    pub allocated: Amount,
    /// Highest live bytes seen during the round (all heap layers), within
    /// [`Health::peak_error_bytes`].
    pub peak_bytes: u64,
    /// The system's gauges when the round had settled; `None` if unreadable.
    pub gauges: Option<Gauges>,
}

/// One wait for the books to stop moving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Settle {
    /// Whether they did within the bound.
    pub settled: bool,
    /// How long was waited, in seconds.
    pub seconds: f64,
    /// Alive when the wait began (all layers of the ledger).
    pub before: Amount,
    /// Alive when it ended.
    pub after: Amount,
}

/// What one layer and phase held after each round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Series {
    /// The layer.
    pub layer: Layer,
    /// The phase in which the blocks were born.
    pub phase: String,
    /// Alive after each round of [`Books::rounds`] had settled, in the same order.
    pub live: Vec<Amount>,
}

/// What one site held after each round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SiteSeries {
    /// The layer.
    pub layer: Layer,
    /// The phase in which the blocks were born.
    pub phase: String,
    /// The site: its frames from the innermost, joined by `;`.
    pub site: String,
    /// Alive after each round of [`Books::rounds`] had settled, in the same order.
    pub live: Vec<Amount>,
}

/// Resident bytes of the mappings of one name after each round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MapSeries {
    /// The name: a file, `[heap]`, `[stack]`, or what an unnamed mapping looks like.
    pub name: String,
    /// Who made them.
    pub kind: MapKind,
    /// Resident bytes after each round of [`Books::rounds`], in the same order.
    pub resident: Vec<u64>,
}

/// Who made a mapping.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum MapKind {
    /// The allocator: the program break, an arena.
    Allocator,
    /// A thread's stack.
    Stack,
    /// A mapped file.
    File,
    /// Shared memory.
    Shmem,
    /// An anonymous mapping that is none of these.
    Anon,
}

/// How many items may wait in front of a consumer by design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueDesign {
    /// Items that the queue itself may hold.
    pub capacity: u64,
    /// Producers, each of which may hold one finished item while the queue is full.
    pub producers: u64,
}

/// What is left of one round's blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Survivors {
    /// The round that bore them; 0 is before the first.
    pub round: u32,
    /// The layer.
    pub layer: Layer,
    /// The phase in which they were born.
    pub phase: String,
    /// How much is left.
    pub left: Amount,
}

/// The traffic of one item, layer and phase within one round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ItemBook {
    /// The round that bore the blocks.
    pub round: u32,
    /// The item that bore them, from 0.
    pub item: u32,
    /// The layer.
    pub layer: Layer,
    /// The phase in which they were born.
    pub phase: String,
    /// Allocated in that round for that item.
    pub allocated: Amount,
    /// Of these, released until the end of the run, by whichever thread.
    pub released: Amount,
}

/// The traffic of one layer and phase over the measured rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PhaseBook {
    /// The layer.
    pub layer: Layer,
    /// The phase.
    pub phase: String,
    /// Blocks born in measured rounds.
    pub allocated: Amount,
    /// Of these, released until the end of the run.
    pub released: Amount,
    /// Highest live bytes of this layer and phase, within [`Health::peak_error_bytes`].
    pub peak_bytes: u64,
    /// Bytes times seconds held, from the sampler (∫ live dt), over the whole run.
    pub byte_seconds: f64,
}

/// How the workload's process ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "how", rename_all = "kebab-case")]
pub enum Ending {
    /// It did all its rounds and ended as told.
    #[default]
    Completed,
    /// It passed the memory limit of this run and was killed.
    Limit {
        /// The limit in bytes.
        limit_bytes: u64,
        /// The highest use seen, in bytes.
        peak_bytes: u64,
        /// What enforced the limit.
        enforced_by: LimitKind,
    },
    /// The kernel's out-of-memory killer took it with no limit of ours involved.
    OomKilled,
    /// No progress for the watchdog's time: no round, no allocation, no CPU; or no round
    /// within the time that one may take.
    Hang {
        /// Seconds without progress.
        idle_seconds: f64,
        /// Whether it worked all the while, and only ended no round.
        #[serde(default)]
        busy: bool,
    },
    /// A signal killed it.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// It exited before its rounds were done.
    Exited {
        /// The exit status.
        code: i32,
    },
    /// The body panicked.
    Panicked {
        /// The panic's message.
        message: String,
    },
}

/// What enforces a memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LimitKind {
    /// A cgroup of version 1.
    CgroupV1,
    /// A cgroup of version 2.
    CgroupV2,
    /// The supervisor, from its samples.
    Watchdog,
}

/// The system's view of the workload's process tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gauges {
    /// Resident private anonymous bytes.
    pub rss_anon: u64,
    /// Resident file-backed bytes.
    pub rss_file: u64,
    /// Resident shared-memory bytes, without the ledger's own pages.
    pub rss_shmem: u64,
    /// Bytes in huge pages of hugetlbfs.
    pub hugetlb: u64,
    /// Swapped-out bytes.
    pub swap: u64,
    /// The kernel's own high-water mark of resident bytes.
    pub rss_peak: u64,
    /// Live threads.
    pub threads: u64,
    /// Open file descriptors; in samples read at most ten times a second.
    pub fds: u64,
    /// CPU time used so far, in milliseconds; in samples likewise.
    pub cpu_ms: u64,
    /// Memory of the cards; `None` where there is none, or it cannot be read. Read after
    /// rounds and around probes, not with every sample.
    #[serde(default)]
    pub card: Option<Card>,
}

/// Memory of all cards, as their driver sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Card {
    /// Bytes that the workload's processes take, contexts and modules included.
    pub process: u64,
    /// Bytes that are in use, by whomever.
    pub used: u64,
    /// Other processes that compute on the cards.
    pub others: u64,
}

impl Gauges {
    /// All resident bytes.
    pub const fn resident(&self) -> u64 {
        self.rss_anon
            .saturating_add(self.rss_file)
            .saturating_add(self.rss_shmem)
            .saturating_add(self.hugetlb)
    }
}

/// Something tried after the last round, and what the gauges showed before and after.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// What was tried.
    pub kind: ProbeKind,
    /// How long it took, in seconds.
    #[serde(default)]
    pub seconds: f64,
    /// Alive before it (all heap layers).
    pub live_before: Amount,
    /// Alive after it.
    pub live_after: Amount,
    /// Gauges before.
    pub before: Option<Gauges>,
    /// Gauges after.
    pub after: Option<Gauges>,
}

/// What a probe tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeKind {
    /// Waiting without work.
    Idle,
    /// `malloc_trim(0)`.
    Trim,
    /// The same inputs again.
    Replay,
    /// Producers stopped, the queue emptied.
    Drain,
}

/// A release that was attempted and refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Refusal {
    /// The round in which it happened.
    pub round: u32,
    /// The layer of what was to be released.
    pub layer: Layer,
    /// The phase in which it was attempted.
    pub phase: String,
    /// The call that was refused.
    pub call: String,
    /// What the callee said.
    pub status: String,
    /// How often.
    pub count: u64,
}

/// The queue at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct QueueSample {
    /// Seconds since the start of the run.
    pub at_seconds: f64,
    /// The round it was taken in.
    pub round: u32,
    /// Items produced so far.
    pub produced: u64,
    /// Items consumed so far.
    pub consumed: u64,
    /// Alive at that moment (all heap layers), in bytes.
    pub live_bytes: u64,
}

/// What the ledger knows of its own reliability.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Whether the workload ever reported to the ledger.
    pub attached: bool,
    /// Operations that could not be booked (a table was full). Must be 0 for a verdict.
    pub lost: u64,
    /// Releases of blocks that this ledger never saw born.
    pub foreign_releases: u64,
    /// Blocks that malloc made and that were given to another allocator, by C or C++ to
    /// Rust under an allocator of its own. Malloc never got them back: in the books they
    /// stay alive.
    #[serde(default)]
    pub crossed_releases: u64,
    /// Bound on the error of every peak, in bytes.
    pub peak_error_bytes: u64,
    /// The ledger's own memory, in bytes, inside the workload.
    pub own_bytes: u64,
    /// Samples that the sampler meant to take, and could.
    pub samples: u64,
    /// Samples that it meant to take, and could not.
    pub samples_missed: u64,
    /// Counters that could not be read, in words.
    pub unreadable: Vec<String>,
}
