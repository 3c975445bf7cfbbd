//! The reading side: the supervisor makes the memory, hands it to the workload,
//! and reads it at any time, also after the workload is gone.
//!
//! The workload can write anything into the memory. Everything read from it is
//! treated as untrusted: indices are checked, arithmetic wraps, names are made
//! valid UTF-8.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::layout::{
    CELLS, Capacity, Context, FLUSH_BYTES, Header, HookLayer, Key, LAYERS, MAGIC, NAME_BYTES, Name,
    PHASES, PROCESSES, REFUSALS, Shard, VERSION, layer_of,
};
use crate::ledger;
use crate::moves;
use crate::processes::{self, Identity, View};
use crate::sites::{self, Sites};

/// The name of phase 0, and of every phase that has no name.
pub const UNATTRIBUTED: &str = "unattributed";

/// A ledger in shared memory, as its maker sees it.
#[derive(Debug)]
pub struct Ledger {
    file: OwnedFd,
    base: NonNull<u8>,
    capacity: Capacity,
    /// Held while this process closes books: to the others, its threads are one.
    closing: Mutex<()>,
}

// SAFETY: the mapping is shared memory that is only accessed through atomics.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

impl Drop for Ledger {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `create` with this size, and every
        // reference into it borrows from `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast::<c_void>(), self.capacity.bytes()) };
    }
}

/// What was allocated and released under one context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Blocks born.
    pub allocated_blocks: u64,
    /// Bytes born.
    pub allocated_bytes: u64,
    /// Of these, blocks released.
    pub released_blocks: u64,
    /// Of these, bytes released.
    pub released_bytes: u64,
}

impl Counters {
    /// Adds another context's counters.
    pub fn add(&mut self, other: Self) {
        self.allocated_blocks = self.allocated_blocks.wrapping_add(other.allocated_blocks);
        self.allocated_bytes = self.allocated_bytes.wrapping_add(other.allocated_bytes);
        self.released_blocks = self.released_blocks.wrapping_add(other.released_blocks);
        self.released_bytes = self.released_bytes.wrapping_add(other.released_bytes);
    }
}

/// One context with its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// The slot of the process that bore the blocks (see [`Snapshot::processes`]).
    pub process: u32,
    /// Round of birth; 0 is before the first.
    pub round: u32,
    /// Item of birth.
    pub item: Option<u32>,
    /// Number of the phase of birth (see [`Snapshot::phases`]).
    pub phase: u8,
    /// The layer.
    pub layer: HookLayer,
    /// Number of the stack that bore the blocks (see [`Ledger::sites`]); 0 where none was taken.
    pub site: u32,
    /// What was booked.
    pub counters: Counters,
}

/// A process that wrote to the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeteredProcess {
    /// Its slot, from 1.
    pub slot: u32,
    /// Its process id.
    pub pid: u32,
    /// Whether the hook found that it cannot meter there.
    pub refused: bool,
    /// Mappings that malloc made for single blocks of 128 KiB or more that are alive, in bytes.
    pub block_mappings: u64,
    /// What allocators under [`Alloc`](crate::Alloc) have mapped, in bytes.
    pub allocator_mappings: u64,
}

/// What processes booked whose books are closed, because they have ended or have
/// executed another program. What they had not released is gone with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Ended {
    /// How many those are.
    pub processes: u64,
    /// What they booked, by the layer's number.
    pub layers: [Counters; LAYERS],
}

impl Ended {
    /// What they booked in one layer.
    pub fn of(&self, layer: HookLayer) -> Counters {
        self.layers[layer as usize]
    }
}

/// Live and highest bytes of one phase and layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Number of the phase.
    pub phase: u8,
    /// The layer.
    pub layer: HookLayer,
    /// Bytes live now, within [`Snapshot::peak_error_bytes`].
    pub live: i64,
    /// Highest live bytes, within the same bound.
    pub peak: i64,
}

/// What is known of the GPU's ledger.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct GpuState {
    /// Processes that kept books of the GPU.
    pub attached: u32,
    /// Processes that were to, and could not.
    pub failed: u32,
    /// Why the last of these could not.
    pub failure: Option<GpuFailure>,
    /// Things that were born under an address or handle that was taken, so that a
    /// release had gone unseen.
    pub unseen: u64,
    /// Releases of things that were never seen born.
    pub foreign: u64,
    /// Releases that were refused, those alike together, in the order in which they came.
    pub refusals: Vec<Refusal>,
    /// What the driver last said of its pools; `None` if it never was asked.
    pub pools: Option<GpuPools>,
}

/// What the driver said of the pools of the card's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuPools {
    /// The round after which it was asked.
    pub round: u32,
    /// Bytes that the pools hold, graphs' included.
    pub reserved: u64,
    /// Of these, bytes in use.
    pub used: u64,
}

/// Why a process keeps no books of the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuFailure {
    /// CUPTI's library was not found.
    NoLibrary,
    /// What was found is not CUPTI.
    NotCupti,
    /// CUPTI refused, with this error (a `CUptiResult`).
    Cupti(u32),
}

/// How the shared memory has it.
pub(crate) mod gpu_failure {
    pub(crate) const NO_LIBRARY: u32 = 1;
    pub(crate) const NOT_CUPTI: u32 = 2;
    /// And CUPTI's own error on top of this.
    pub(crate) const CUPTI_SAID: u32 = 1000;
}

impl GpuFailure {
    /// What a number in the shared memory stands for.
    pub(crate) const fn of(code: u32) -> Self {
        match code {
            0..=gpu_failure::NO_LIBRARY => Self::NoLibrary,
            gpu_failure::NOT_CUPTI..gpu_failure::CUPTI_SAID => Self::NotCupti,
            said => Self::Cupti(said - gpu_failure::CUPTI_SAID),
        }
    }

    /// CUPTI's error where another tool of its kind is subscribed already.
    pub const TAKEN: Self = Self::Cupti(39);
}

/// Releases that were refused alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The round in which they were tried.
    pub round: u32,
    /// Number of the phase in which they were tried.
    pub phase: u8,
    /// The layer of what was to be released.
    pub layer: HookLayer,
    /// The call that was refused.
    pub call: String,
    /// What it returned (a `CUresult` or `cudaError_t`).
    pub status: u32,
    /// Whether the thread had a current context.
    pub has_context: bool,
    /// The thread that was refused first.
    pub thread: u32,
    /// How often.
    pub count: u64,
}

/// Everything in a ledger at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// All contexts that were ever used.
    pub accounts: Vec<Account>,
    /// Phase names by number; number 0 is [`UNATTRIBUTED`].
    pub phases: Vec<String>,
    /// Processes, in the order in which they appeared.
    pub processes: Vec<MeteredProcess>,
    /// Threads that ever allocated.
    pub threads: u64,
    /// Operations that could not be booked.
    pub lost: u64,
    /// Releases of blocks born before the ledger or in another allocator.
    pub foreign: u64,
    /// Blocks that were given to another allocator than the one that made them,
    /// as far as that can be told: made by malloc, given to Rust's own allocator.
    pub crossed: u64,
    /// What is known of the GPU's ledger.
    pub gpu: GpuState,
    /// Processes that could not map the ledger and are not metered.
    pub unmapped: u64,
    /// Processes that have ended and whose books are closed (see [`Ledger::close_ended`]).
    pub ended: Ended,
    /// Shards that were caught moving counts, so that a few operations may be
    /// counted twice or not at all. 0 once the workload has settled, and
    /// practically always when it was killed.
    pub moving: u32,
    /// Highest live bytes of the judged layers.
    pub peak: i64,
    /// The same since the round began.
    pub round_peak: i64,
    /// The round that goes on.
    pub round: u32,
    /// Highest live bytes of the judged layers in the round before it.
    pub ended_round_peak: i64,
    /// Bound on the error of every peak, in bytes: what threads may hold back.
    pub peak_error_bytes: u64,
    /// The memory that the ledger itself has taken, in bytes.
    pub own_bytes: u64,
}

impl Ledger {
    /// Makes a ledger: a memfd that can neither grow nor shrink any more.
    ///
    /// # Errors
    /// If the system refuses the memory or the mapping.
    pub fn create(capacity: Capacity) -> io::Result<Self> {
        if capacity.contexts > Capacity::MAX_CONTEXTS
            || capacity.shards > Capacity::MAX_SHARDS
            || capacity.sites > Capacity::MAX_SITES
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "ledger capacity too large",
            ));
        }
        // SAFETY: a C string and a flag; the descriptor is owned from here on.
        let file = unsafe {
            let fd = libc::memfd_create(
                c"tidegate-ledger".as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
            );
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let file = File::from(out_of_the_way(file));
        file.set_len(capacity.bytes() as u64)?;
        // SAFETY: fcntl on our own descriptor; mmap of its whole length.
        let base = unsafe {
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
            if libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) != 0 {
                return Err(io::Error::last_os_error());
            }
            let at = libc::mmap(
                null_mut(),
                capacity.bytes(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            );
            if at == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            NonNull::new(at.cast::<u8>()).ok_or_else(io::Error::last_os_error)?
        };
        let ledger = Self {
            file: file.into(),
            base,
            capacity,
            closing: Mutex::new(()),
        };
        let header = ledger.header();
        header.contexts.store(capacity.contexts, Ordering::Relaxed);
        header.shards.store(capacity.shards, Ordering::Relaxed);
        header.sites.store(capacity.sites, Ordering::Relaxed);
        header
            .bytes
            .store(capacity.bytes() as u64, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(ledger)
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping begins with a header, all of atomics, and lives as
        // long as `self`.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    fn contexts(&self) -> &[Context] {
        let used = self.header().contexts_used.0.load(Ordering::Acquire);
        // SAFETY: within the mapping: no more than the capacity.
        unsafe {
            let at = self
                .base
                .add(self.capacity.contexts_offset())
                .cast::<Context>();
            std::slice::from_raw_parts(at.as_ptr(), used.min(self.capacity.contexts) as usize)
        }
    }

    fn shards(&self) -> &[Shard] {
        let used = self.header().shards_used.0.load(Ordering::Acquire);
        // SAFETY: within the mapping: no more than the capacity.
        unsafe {
            let at = self.base.add(self.capacity.shards_offset()).cast::<Shard>();
            std::slice::from_raw_parts(at.as_ptr(), used.min(self.capacity.shards) as usize)
        }
    }

    fn view(&self) -> View<'_> {
        // SAFETY: the mapping is as large as the capacity says, all of atomics, and
        // lives as long as `self`. The parts that were never used read as zeros.
        unsafe {
            let contexts = self.base.add(self.capacity.contexts_offset());
            let shards = self.base.add(self.capacity.shards_offset());
            View {
                header: self.header(),
                contexts: std::slice::from_raw_parts(
                    contexts.cast::<Context>().as_ptr(),
                    self.capacity.contexts as usize,
                ),
                shards: std::slice::from_raw_parts(
                    shards.cast::<Shard>().as_ptr(),
                    self.capacity.shards as usize,
                ),
            }
        }
    }

    /// Closes the books of the processes that have ended: what they booked moves
    /// to [`Snapshot::ended`], and what they held leaves [`live`](Self::live) and
    /// the cells. Returns how many those were.
    ///
    /// Each process that joins does the same; calling it now and then makes the
    /// live counters and peaks right soon after an end. The first process of a
    /// ledger is spared, so that its books can be read after its end.
    pub fn close_ended(&self) -> u32 {
        let me = Identity::current();
        let _closing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        processes::close_ended(self.view(), me, |other| has_ended(other, me))
    }

    /// Begins round `round` in all processes: blocks that are born from now on
    /// belong to it. For workloads whose rounds are told from outside.
    pub fn begin_round(&self, round: u32) {
        ledger::begin_round_in(self.header(), round);
    }

    /// The round that goes on.
    pub fn round(&self) -> u32 {
        self.header().now.round.load(Ordering::Acquire)
    }

    /// The ids of the processes that write to this ledger and have not ended, the oldest
    /// first. Only those are named that have it mapped, so that an id which another
    /// process got meanwhile is not among them.
    pub fn running(&self) -> Vec<u32> {
        let me = Identity::current();
        let header = self.header();
        let ended = |slot: u32| {
            let process = header.processes.get(slot as usize);
            process.is_none_or(|process| has_ended(Identity::of(process), me))
        };
        let inode = self.inode();
        let processes = self.processes().into_iter();
        processes
            .filter(|process| !ended(process.slot) && maps_memfd(process.pid, inode))
            .map(|process| process.pid)
            .collect()
    }

    /// The ids of all processes that have this ledger mapped, but for the calling one: also
    /// of a forked child that has not allocated anything yet. Looks at every process of the
    /// system, which takes tens of microseconds for each.
    pub fn holders(&self) -> Vec<u32> {
        let inode = self.inode();
        let me = std::process::id();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| *pid != me && maps_memfd(*pid, inode))
            .collect()
    }

    /// Whether this process has this ledger mapped, or inherited its descriptor: one that has
    /// just executed a program maps it in a moment.
    pub fn is_held_by(&self, pid: u32) -> bool {
        let at = |process: &str| {
            let path = format!("/proc/{process}/fd/{}", self.file.as_raw_fd());
            let file = std::fs::metadata(path).ok()?;
            Some((file.dev(), file.ino()))
        };
        let inherited = at(&pid.to_string());
        maps_memfd(pid, self.inode()) || (inherited.is_some() && inherited == at("self"))
    }

    /// The memfd's number in its file system; 0, which none has, if that is not to be had.
    fn inode(&self) -> u64 {
        // SAFETY: fstat on our own descriptor; the struct is filled before it is read.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            match libc::fstat(self.file.as_raw_fd(), &raw mut stat) {
                0 => stat.st_ino,
                _ => 0,
            }
        }
    }

    /// A number that changes with every booked operation: equal twice, nothing happened between.
    pub fn operations(&self) -> u64 {
        let mut sum = 0_u64;
        let mut add = |counts: &crate::layout::Counts| {
            sum = sum
                .wrapping_add(counts.allocated_blocks.load(Ordering::Relaxed))
                .wrapping_add(counts.released_blocks.load(Ordering::Relaxed));
        };
        self.contexts()
            .iter()
            .for_each(|context| add(&context.counts));
        for shard in self.shards() {
            if shard.process.load(Ordering::Acquire) != 0 {
                shard.entries.iter().for_each(|entry| add(&entry.counts));
            }
        }
        self.header().ended.iter().for_each(add);
        sum
    }

    /// Live bytes and peaks of every phase and layer that was ever used, from
    /// the shared counters alone: cheap, and exact but for what threads hold back.
    pub fn cells(&self) -> Vec<Cell> {
        let header = self.header();
        let mut cells = Vec::new();
        for index in 0..CELLS {
            let live = header.cell_live[index].load(Ordering::Relaxed);
            let peak = header.cell_peak[index].load(Ordering::Relaxed);
            if live != 0 || peak != 0 {
                cells.push(Cell {
                    phase: (index % PHASES) as u8,
                    layer: layer_of(index),
                    live,
                    peak,
                });
            }
        }
        cells
    }

    /// Live bytes of the judged layers, from the shared counters alone.
    pub fn live(&self) -> i64 {
        self.header().live.0.load(Ordering::Relaxed)
    }

    /// Whether a process keeps books of the GPU by now.
    pub fn keeps_gpu_books(&self) -> bool {
        self.header().gpu.attached.load(Ordering::Acquire) != 0
    }

    /// Bytes and things that are alive in a layer of the GPU's, which no thread keeps
    /// counters of its own for.
    pub fn held(&self, layer: HookLayer) -> (u64, u64) {
        let mut sum = Counters::default();
        for context in self.contexts() {
            let key = Key(context.key.load(Ordering::Acquire));
            if key.0 != 0 && key.layer() == layer {
                sum.add(read_counts(&context.counts));
            }
        }
        (
            sum.allocated_bytes.wrapping_sub(sum.released_bytes),
            sum.allocated_blocks.wrapping_sub(sum.released_blocks),
        )
    }

    /// Items handed over by producers, and taken over by consumers, so far.
    pub fn queue(&self) -> (u64, u64) {
        let header = self.header();
        // Consumed first: read the other way round, an item that passes between
        // the two reads would have been consumed without being produced.
        let consumed = header.consumed.0.load(Ordering::Acquire);
        (header.produced.0.load(Ordering::Acquire), consumed)
    }

    /// Has the workload take the stacks of blocks of these sizes (in bytes, the end
    /// not included) that are born in a phase and layer; `None` is every one. To be
    /// called before the workload starts, on a ledger with room for sites.
    ///
    /// Returns whether it could be done: not if there is no room for sites, or for
    /// another phase's name.
    pub fn want_sites(
        &self,
        phase: Option<&str>,
        layer: Option<HookLayer>,
        sizes: &Range<u64>,
    ) -> bool {
        let Some(table) = self.site_table() else {
            return false;
        };
        let phases = match phase {
            None => 0..PHASES,
            Some(UNATTRIBUTED) => 0..1,
            Some(name) => match ledger::number_of(self.header(), name) {
                0 => return false,
                number => usize::from(number)..usize::from(number) + 1,
            },
        };
        let wanted = HookLayer::ALL
            .into_iter()
            .filter(|of| *of != HookLayer::Meter && layer.is_none_or(|layer| layer == *of));
        for phase in phases {
            for of in wanted.clone() {
                table.want(phase, of, sizes);
            }
        }
        true
    }

    /// The stacks that were taken so far; `None` on a ledger without room for any.
    pub fn sites(&self) -> Option<Sites> {
        self.site_table().map(|table| table.read())
    }

    fn site_table(&self) -> Option<sites::Table<'_>> {
        // SAFETY: the mapping was made with this capacity and lives as long as `self`.
        unsafe { sites::Table::at(self.base.as_ptr(), self.capacity) }
    }

    /// The memory that the ledger itself has taken, in bytes.
    pub fn own_bytes(&self) -> u64 {
        // SAFETY: fstat of our own descriptor into a zeroed struct.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            match libc::fstat(self.file.as_raw_fd(), &raw mut stat) {
                0 => u64::try_from(stat.st_blocks).unwrap_or(0) * 512,
                _ => 0,
            }
        }
    }

    /// Reads everything. Tries again while a thread moves counts, a bounded
    /// number of times; [`Snapshot::moving`] says whether that was enough.
    pub fn snapshot(&self) -> Snapshot {
        const TRIES: u32 = 100;
        let mut snapshot = Snapshot::default();
        for _ in 0..TRIES {
            let before = self.moves(moves::before);
            snapshot = self.read();
            let after = self.moves(moves::after);
            let pairs = before.iter().zip(&after).enumerate();
            snapshot.moving = pairs
                .filter(|(place, (before, after))| {
                    let stood_still = moves::stood_still(**before, **after)
                        || (before == after && self.is_left_behind(*place));
                    !stood_still
                })
                .count() as u32
                + after.len().abs_diff(before.len()) as u32;
            if snapshot.moving == 0 {
                break;
            }
            std::thread::yield_now();
        }
        snapshot
    }

    /// Whether what [`moves`](Self::moves) has in this place is of a shard whose
    /// process has ended: no counts move there any more, though they once did.
    fn is_left_behind(&self, place: usize) -> bool {
        let slot = |shard: &Shard| shard.process.load(Ordering::Acquire) as usize;
        let process = place
            .checked_sub(1)
            .and_then(|shard| self.shards().get(shard))
            .and_then(|shard| self.header().processes.get(slot(shard)));
        process.is_some_and(|process| has_ended(Identity::of(process), Identity::current()))
    }

    /// Of closing books, and of each shard, what tells whether counts move.
    fn moves(&self, look: fn(&AtomicU32) -> u32) -> Vec<u32> {
        std::iter::once(&self.header().closings)
            .chain(self.shards().iter().map(|shard| &shard.moving))
            .map(look)
            .collect()
    }

    fn read(&self) -> Snapshot {
        let header = self.header();
        let contexts = self.contexts();
        let mut counters: Vec<Counters> = contexts
            .iter()
            .map(|context| read_counts(&context.counts))
            .collect();
        let keys: Vec<(Key, u32)> = contexts
            .iter()
            .map(|context| {
                let key = Key(context.key.load(Ordering::Acquire));
                (key, context.site.load(Ordering::Relaxed))
            })
            .collect();

        let shards = self.shards();
        let mut held_back_cells = 0_u64;
        for shard in shards {
            if shard.process.load(Ordering::Acquire) == 0 {
                continue;
            }
            let cells = shard.held_back.iter();
            held_back_cells += cells
                .filter(|cell| cell.load(Ordering::Relaxed) != 0)
                .count() as u64;
            for entry in &shard.entries {
                let index = entry.context.load(Ordering::Relaxed) as usize;
                if index != 0
                    && let Some(sum) = counters.get_mut(index)
                {
                    sum.add(read_counts(&entry.counts));
                }
            }
        }
        let accounts = keys
            .into_iter()
            .zip(counters)
            .filter(|((key, _), counters)| key.0 != 0 && *counters != Counters::default())
            .map(|((key, site), counters)| Account {
                process: key.process(),
                round: key.round(),
                item: key.place().item(),
                phase: key.place().phase(),
                layer: key.layer(),
                site,
                counters,
            })
            .collect();

        Snapshot {
            accounts,
            phases: self.phases(),
            processes: self.processes(),
            threads: header.threads.load(Ordering::Relaxed),
            lost: header.lost.load(Ordering::Relaxed),
            foreign: header.foreign.load(Ordering::Relaxed),
            crossed: header.crossed.load(Ordering::Relaxed),
            gpu: self.gpu(),
            unmapped: header.unmapped.load(Ordering::Relaxed),
            ended: self.ended(),
            moving: 0,
            peak: header.peak.load(Ordering::Relaxed),
            round_peak: header.round_peak.load(Ordering::Relaxed),
            round: self.round(),
            ended_round_peak: header.ended_round_peak.load(Ordering::Relaxed),
            peak_error_bytes: held_back_cells * FLUSH_BYTES as u64,
            own_bytes: self.own_bytes(),
        }
    }

    /// The names of the phases that were ever used, by number; the first stands for none.
    pub fn phases(&self) -> Vec<String> {
        let header = self.header();
        let used = (header.phases_used.load(Ordering::Acquire) as usize).min(PHASES - 1);
        let name = |number: usize| match read_name(&header.phase_names[number]) {
            text if text.is_empty() => UNATTRIBUTED.to_owned(),
            text => text,
        };
        std::iter::once(UNATTRIBUTED.to_owned())
            .chain((1..=used).map(name))
            .collect()
    }

    fn gpu(&self) -> GpuState {
        let gpu = &self.header().gpu;
        let used = (gpu.refusals_used.load(Ordering::Acquire) as usize).min(REFUSALS);
        let refusals = gpu.refusals[..used].iter().filter_map(|refused| {
            let count = refused.count.load(Ordering::Acquire);
            let place = refused.place.load(Ordering::Relaxed);
            (count != 0).then(|| Refusal {
                round: (place >> 32) as u32,
                phase: (place >> 24) as u8,
                layer: HookLayer::from_bits(place >> 16),
                call: read_name(&refused.call),
                status: refused.status.load(Ordering::Relaxed),
                has_context: place >> 8 & 1 != 0,
                thread: refused.thread.load(Ordering::Relaxed),
                count,
            })
        });
        GpuState {
            attached: gpu.attached.load(Ordering::Acquire),
            failed: gpu.failed.load(Ordering::Acquire),
            failure: match gpu.failure.load(Ordering::Relaxed) {
                0 => None,
                code => Some(GpuFailure::of(code)),
            },
            unseen: gpu.unseen.load(Ordering::Relaxed),
            foreign: gpu.foreign.load(Ordering::Relaxed),
            refusals: refusals.collect(),
            pools: gpu
                .pools_asked
                .load(Ordering::Acquire)
                .checked_sub(1)
                .map(|round| GpuPools {
                    round,
                    reserved: gpu.pools_reserved.load(Ordering::Relaxed),
                    used: gpu.pools_used.load(Ordering::Relaxed),
                }),
        }
    }

    fn processes(&self) -> Vec<MeteredProcess> {
        let header = self.header();
        let used = (header.processes_used.load(Ordering::Acquire) as usize).min(PROCESSES);
        let mut processes: Vec<_> = (1..=used)
            .filter_map(|slot| {
                let process = &header.processes[slot];
                let pid = process.identity.load(Ordering::Acquire) as u32;
                let bytes = |of: &AtomicI64| of.load(Ordering::Relaxed).max(0) as u64;
                let found = MeteredProcess {
                    slot: slot as u32,
                    pid,
                    refused: process.refused.load(Ordering::Acquire) != 0,
                    block_mappings: bytes(&process.block_mappings),
                    allocator_mappings: bytes(&process.allocator_mappings),
                };
                (pid != 0).then(|| (process.born.load(Ordering::Acquire), found))
            })
            .collect();
        processes.sort_by_key(|(born, _)| *born);
        processes.into_iter().map(|(_, process)| process).collect()
    }

    fn ended(&self) -> Ended {
        let header = self.header();
        Ended {
            processes: header.ended_processes.load(Ordering::Relaxed),
            layers: std::array::from_fn(|layer| read_counts(&header.ended[layer])),
        }
    }
}

impl AsFd for Ledger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The same file under a descriptor that no script or program counts on for
/// itself, if there may be so many.
fn out_of_the_way(file: OwnedFd) -> OwnedFd {
    const FROM: c_int = 512;
    // SAFETY: fcntl on our own descriptor; a new descriptor is owned from here on.
    unsafe {
        match libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, FROM) {
            fd if fd >= 0 => OwnedFd::from_raw_fd(fd),
            _ => file,
        }
    }
}

/// Whether a process holds no memory any more: it does not exist, or its parent
/// has not waited for it yet.
fn has_ended(identity: Identity, asker: Identity) -> bool {
    if identity.is_gone(asker) {
        return true;
    }
    // The name in brackets can hold anything; the fields come after the last one.
    let stat = std::fs::read(format!("/proc/{}/stat", identity.pid())).unwrap_or_default();
    let after = stat
        .iter()
        .rposition(|byte| *byte == b')')
        .unwrap_or(stat.len());
    let text = String::from_utf8_lossy(&stat[after..]);
    let mut fields = text.split_ascii_whitespace().skip(1);
    let state = fields.next();
    // A first thread that has ended looks the same while others go on.
    let threads = fields.nth(16).and_then(|threads| threads.parse().ok());
    identity.shares_namespace(asker) && state == Some("Z") && threads.is_some_and(|n: u32| n <= 1)
}

/// Whether a process has the ledger of this inode mapped. What cannot be read (a process
/// that is gone, or another user's) does not count.
fn maps_memfd(pid: u32, inode: u64) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let inode = inode.to_string();
    maps.lines().any(|line| {
        line.contains("/memfd:tidegate-ledger")
            && line.split_ascii_whitespace().nth(4) == Some(&inode)
    })
}

fn read_name(name: &Name) -> String {
    let len = usize::from(name.len.load(Ordering::Acquire)).min(NAME_BYTES);
    let bytes: Vec<u8> = name.bytes[..len]
        .iter()
        .map(|byte| byte.load(Ordering::Relaxed))
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn read_counts(counts: &crate::layout::Counts) -> Counters {
    Counters {
        allocated_blocks: counts.allocated_blocks.load(Ordering::Relaxed),
        allocated_bytes: counts.allocated_bytes.load(Ordering::Relaxed),
        released_blocks: counts.released_blocks.load(Ordering::Relaxed),
        released_bytes: counts.released_bytes.load(Ordering::Relaxed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that has ended and was waited for.
    fn somebody_gone() -> Identity {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        Identity::current().with_pid(child.id())
    }

    /// A ledger with as many processes, of one thread each.
    fn written_by(processes: u32, identity: Identity, root: Identity) -> Ledger {
        let ledger = Ledger::create(Capacity::default()).unwrap();
        let header = ledger.header();
        header.root.store(root.bits(), Ordering::Relaxed);
        header.processes_used.store(processes, Ordering::Relaxed);
        header.shards_used.0.store(processes, Ordering::Relaxed);
        for (slot, shard) in (1..).zip(ledger.shards()) {
            let process = &header.processes[slot as usize];
            process.identity.store(identity.bits(), Ordering::Relaxed);
            shard.process.store(slot, Ordering::Relaxed);
        }
        ledger
    }

    /// A ledger in which a thread of process `of` was stopped while it moved counts.
    fn stopped_while_moving(of: Identity, root: Identity) -> Ledger {
        let ledger = written_by(1, of, root);
        moves::begin(&ledger.shards()[0].moving);
        ledger
    }

    #[test]
    fn books_that_several_threads_close_at_one_time_are_closed_once() {
        const PROCESSES: u32 = 1000;
        let ledger = written_by(PROCESSES, somebody_gone(), Identity::current());
        let barrier = std::sync::Barrier::new(4);
        let closed: u32 = std::thread::scope(|scope| {
            let close = || {
                scope.spawn(|| {
                    barrier.wait();
                    ledger.close_ended()
                })
            };
            let threads = [close(), close(), close(), close()];
            threads.map(|thread| thread.join().unwrap()).iter().sum()
        });
        assert_eq!(closed, PROCESSES);
        assert_eq!(ledger.snapshot().moving, 0);
        let free = || crate::free_shards::pop(&ledger.header().free_shards.0, ledger.shards());
        let given_back = std::iter::from_fn(free).take(2 * PROCESSES as usize);
        assert_eq!(given_back.count(), PROCESSES as usize);
    }

    #[test]
    fn a_shard_of_a_process_that_was_killed_while_it_moved_counts_stands_still() {
        let gone = somebody_gone();
        assert_eq!(stopped_while_moving(gone, gone).snapshot().moving, 0);
        let me = Identity::current();
        assert_eq!(
            stopped_while_moving(me, me).snapshot().moving,
            1,
            "one that lives may go on at any moment"
        );
    }

    #[test]
    fn a_shard_that_was_left_moving_is_as_good_as_new_once_its_books_are_closed() {
        let ledger = stopped_while_moving(somebody_gone(), Identity::current());
        assert_eq!(ledger.close_ended(), 1);
        assert_eq!(ledger.snapshot().moving, 0);
        assert!(
            ledger.shards()[0]
                .moving
                .load(Ordering::Relaxed)
                .is_multiple_of(2)
        );
    }

    #[test]
    fn who_was_killed_while_it_closed_books_is_relieved_though_nobody_else_has_ended() {
        let ledger = Ledger::create(Capacity::default()).unwrap();
        let header = ledger.header();
        header
            .closer
            .0
            .store(somebody_gone().bits(), Ordering::Relaxed);
        moves::begin(&header.closings);
        assert_eq!(ledger.snapshot().moving, 1);
        ledger.close_ended();
        assert_eq!(ledger.snapshot().moving, 0);
    }
}
