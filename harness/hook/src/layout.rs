//! The shared memory that holds a ledger: what lies where.
//!
//! The supervisor makes the memory (a sealed memfd), the workload maps it and
//! writes, the supervisor reads, also after the workload is gone. Both sides
//! compile this file, so the types below are the format.
//!
//! ```text
//! Header │ Context × contexts │ Shard × shards │ (SiteHeader │ Site × sites)
//! ```
//!
//! A *context* is one combination of birth round, item, phase, layer and
//! process; a block's trailer names its context by index. A *shard* is one
//! thread's write-back cache over the contexts' counters: the thread adds to
//! its own entries with plain stores, and moves an entry's counts into the
//! context with atomic adds when it needs the slot for another context, or when
//! it ends. A context's true counters are therefore its own plus those of every
//! shard entry that names it.

use std::mem::size_of;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64};

/// "TIDEGATE", the first eight bytes of the memory.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TIDEGATE");
/// Version of this layout; both sides must agree.
pub const VERSION: u32 = 6;

/// Entries of a shard; a power of two. Contexts get consecutive indices, so the
/// last 512 of them never collide in a directly mapped table of this size.
pub const ENTRIES: usize = 512;
/// Phases that can be named, number 0 ([unattributed](crate::UNATTRIBUTED)) included.
pub const PHASES: usize = 256;
/// Layers that the ledger books.
pub const LAYERS: usize = HookLayer::ALL.len();
/// Of these, the first are the ones that threads keep counters of their own for; a power
/// of two.
pub const SHARD_LAYERS: usize = 8;
/// Layer and phase as one index, those of the first layer first.
pub const CELLS: usize = PHASES * LAYERS;
/// The cells that a shard has a counter for.
pub const SHARD_CELLS: usize = PHASES * SHARD_LAYERS;
/// Bytes of a phase's name that are kept.
pub const NAME_BYTES: usize = 63;
/// Buckets of the context index; a power of two.
pub const BUCKETS: usize = 16 * 1024;
/// Processes that one ledger can follow.
pub const PROCESSES: usize = 4095;
/// A thread holds back at most this many bytes per phase and layer from the
/// shared live counters, in either direction.
pub const FLUSH_BYTES: i64 = 64 * 1024;

/// The layers of a ledger, as numbers in a context's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum HookLayer {
    /// From the malloc family, not asked for by Rust's global allocator.
    Native = 0,
    /// From Rust's global allocator.
    Rust = 1,
    /// The meter's own, and what an inner allocator keeps for itself. Not judged.
    Meter = 2,
    /// Private anonymous mappings made outside malloc.
    Anon = 3,
    /// From the malloc family, asked for by the GPU's driver within one of its calls.
    Driver = 4,
    /// Memory of the card: plain, pitched, arrays, and physical memory to be mapped.
    Device = 5,
    /// Memory of the card that was taken from a pool, in stream order.
    DevicePool = 6,
    /// Memory that moves between host and card.
    Managed = 7,
    /// Page-locked host memory that the driver made.
    Pinned = 8,
    /// Host memory that the driver page-locked.
    Registered = 9,
    /// Contexts of the GPU.
    Contexts = 10,
    /// Its streams.
    Streams = 11,
    /// Its events.
    Events = 12,
    /// Modules and libraries of code.
    Modules = 13,
    /// Graphs, and executable graphs.
    Graphs = 14,
    /// Pools of the card's memory.
    Pools = 15,
    /// Memory of others that was opened or imported.
    Imports = 16,
}

impl HookLayer {
    /// Every layer, by number.
    pub const ALL: [Self; 17] = [
        Self::Native,
        Self::Rust,
        Self::Meter,
        Self::Anon,
        Self::Driver,
        Self::Device,
        Self::DevicePool,
        Self::Managed,
        Self::Pinned,
        Self::Registered,
        Self::Contexts,
        Self::Streams,
        Self::Events,
        Self::Modules,
        Self::Graphs,
        Self::Pools,
        Self::Imports,
    ];

    /// Whether these are blocks or mappings of the host's that live memory is the sum of.
    pub(crate) const fn is_host(self) -> bool {
        matches!(self, Self::Native | Self::Rust | Self::Anon | Self::Driver)
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        let number = (bits & 0x1f) as usize;
        if number < Self::ALL.len() {
            Self::ALL[number]
        } else {
            // Nobody writes this; what reads it judges nothing by it.
            Self::Meter
        }
    }
}

/// The name of one phase: `len` is written last, so a name with a length is whole.
#[repr(C)]
pub struct Name {
    pub len: AtomicU8,
    pub bytes: [AtomicU8; NAME_BYTES],
}

/// The slot of one process that writes to the ledger.
#[repr(C)]
pub struct Process {
    /// Id and namespace (see [`crate::processes::Identity`]), or 0 when the slot is free.
    pub identity: AtomicU64,
    /// Which execution of a program (see [`crate::processes::image`]); 0 after a fork.
    pub image: AtomicU64,
    /// Number of the process in the order in which they came, from 1.
    pub born: AtomicU64,
    /// Index of the first context with this slot, or 0. Stays when the slot is freed.
    pub contexts: AtomicU32,
    /// Why the hook refused to run in that process (a [`crate::Refused`]), or 0.
    pub refused: AtomicU32,
    /// Address in that process of the function that begins the GPU's books, or 0 if the copy
    /// of the hook that keeps its books cannot keep those.
    pub begin_gpu: AtomicU64,
    /// Bytes of mappings that malloc made for single blocks that are alive.
    pub block_mappings: AtomicI64,
    /// Bytes that allocators under the ledger's have mapped.
    pub allocator_mappings: AtomicI64,
}

/// What both sides share beside the contexts and the shards.
#[repr(C, align(64))]
pub struct Header {
    // Written once by the supervisor, before the workload starts.
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub contexts: AtomicU32,
    pub shards: AtomicU32,
    pub sites: AtomicU32,
    pub bytes: AtomicU64,

    // The line that every allocation reads; written when a round begins or the
    // inherited phase changes.
    pub now: Now,

    pub contexts_used: Line<AtomicU32>,
    pub shards_used: Line<AtomicU32>,
    /// Free shards as a stack: the upper half counts changes (against ABA), the
    /// lower half is the index of the top plus one.
    pub free_shards: Line<AtomicU64>,
    /// The highest slot that was ever taken.
    pub processes_used: AtomicU32,
    pub phases_used: AtomicU32,
    /// Threads that ever claimed a shard.
    pub threads: AtomicU64,
    /// Operations that no table had room for.
    pub lost: AtomicU64,
    /// Releases of blocks that this ledger never saw born.
    pub foreign: AtomicU64,
    /// Blocks that were given to another allocator than the one that made them.
    pub crossed: AtomicU64,
    /// Processes that could not map the ledger.
    pub unmapped: AtomicU64,

    /// Processes that ever took a slot, and those whose books are closed.
    pub processes_born: AtomicU64,
    pub ended_processes: AtomicU64,
    /// What those had booked, by layer.
    pub ended: [Counts; LAYERS],
    /// Identity of the first process.
    pub root: AtomicU64,
    /// Identity of the process that closes books now, or 0.
    pub closer: Line<AtomicU64>,
    /// Odd while someone closes books.
    pub closings: AtomicU32,

    /// Items that were finished by a producer, and taken over by a consumer.
    pub produced: Line<AtomicU64>,
    pub consumed: Line<AtomicU64>,

    /// What is known of the GPU's ledger.
    pub gpu: Gpu,

    /// Live bytes of the host's layers, and their highest value, ever and since the round began.
    pub live: Line<AtomicI64>,
    pub peak: AtomicI64,
    pub round_peak: AtomicI64,
    /// That highest value of the round before the one that goes on.
    pub ended_round_peak: AtomicI64,
    /// Live bytes by phase and layer, and their highest values.
    pub cell_live: [AtomicI64; CELLS],
    pub cell_peak: [AtomicI64; CELLS],

    /// Threads that are inside a phase, by phase (see [`crate::context`]).
    pub phase_names: [Name; PHASES],
    pub processes: [Process; PROCESSES + 1],
    pub buckets: [AtomicU32; BUCKETS],
}

/// Refused releases that can be told apart.
pub const REFUSALS: usize = 256;

/// What is known of the GPU's ledger.
#[repr(C)]
pub struct Gpu {
    /// Processes that keep books of the GPU.
    pub attached: AtomicU32,
    /// Processes that wanted to, and could not.
    pub failed: AtomicU32,
    /// Why the last of these could not.
    pub failure: AtomicU32,
    pub refusals_used: AtomicU32,
    /// Things that were born under a name that was taken.
    pub unseen: AtomicU64,
    /// Releases of things that were never seen born.
    pub foreign: AtomicU64,
    /// What pools hold and what of it is in use, in bytes, and the round after which they
    /// were asked, plus one; written last, 0 before they ever were.
    pub pools_reserved: AtomicU64,
    pub pools_used: AtomicU64,
    pub pools_asked: AtomicU32,
    pub refusals: [Refused; REFUSALS],
}

/// Releases that were refused alike.
#[repr(C)]
pub struct Refused {
    /// Round (32 bits), phase (8), layer (8), and whether a context was current (1), from
    /// the highest; the lowest bit is set.
    pub place: AtomicU64,
    /// How often. Written last: 0 is a slot that is not used yet.
    pub count: AtomicU64,
    pub status: AtomicU32,
    /// The thread that was refused first.
    pub thread: AtomicU32,
    pub call: Name,
}

impl Refused {
    pub const fn place(round: u32, phase: u8, layer: HookLayer, context: bool) -> u64 {
        (round as u64) << 32
            | (phase as u64) << 24
            | (layer as u64) << 16
            | (context as u64) << 8
            | 1
    }
}

/// What an allocation without a context of its own is booked under.
#[repr(C, align(64))]
pub struct Now {
    /// Changes whenever `round` does, or what threads without a phase inherit in
    /// one of the processes.
    pub generation: AtomicU32,
    pub round: AtomicU32,
}

/// Keeps a contended counter alone on its cache line.
#[repr(C, align(64))]
pub struct Line<T>(pub T);

/// Counters of one context. A key of 0 means: reserved, not published.
#[repr(C, align(64))]
pub struct Context {
    pub key: AtomicU64,
    /// Index of the next context in the same bucket, or 0.
    pub next: AtomicU32,
    /// The site that bore the blocks (see `sites`), or 0.
    pub site: AtomicU32,
    pub counts: Counts,
    /// Index of the next context of the same process, or 0.
    pub sibling: AtomicU32,
}

/// Allocations and releases, blocks and bytes. Only sums over all threads mean anything.
#[repr(C)]
pub struct Counts {
    pub allocated_blocks: AtomicU64,
    pub allocated_bytes: AtomicU64,
    pub released_blocks: AtomicU64,
    pub released_bytes: AtomicU64,
}

/// One thread's counters for one context.
#[repr(C)]
pub struct Entry {
    /// Index of the context, or 0 for an unused entry.
    pub context: AtomicU32,
    /// Index into [`Shard::held_back`].
    pub cell: AtomicU32,
    pub counts: Counts,
}

/// One thread's part of the ledger.
#[repr(C, align(64))]
pub struct Shard {
    /// Index of the owning process, or 0 when free.
    pub process: AtomicU32,
    /// The owning thread's id, for people.
    pub thread: AtomicU32,
    /// Odd while counts move from here to the contexts.
    pub moving: AtomicU32,
    /// Link of the stack of free shards: index plus one, or 0.
    pub next_free: AtomicU32,
    /// Live bytes per phase and layer that the shared counters do not know yet.
    pub held_back: [AtomicI64; SHARD_CELLS],
    pub entries: [Entry; ENTRIES],
}

impl crate::free_shards::Stacked for Shard {
    fn next_free(&self) -> &AtomicU32 {
        &self.next_free
    }
}

/// Phase and item of a thread, packed: `(item + 1) << 8 | phase`.
///
/// 0 is nothing: no phase, no item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Place(pub u64);

impl Place {
    /// The largest item number that a ledger can tell apart.
    pub const MAX_ITEM: u32 = (1 << 20) - 2;

    /// Items above [`MAX_ITEM`](Self::MAX_ITEM) are booked without an item.
    pub const fn new(phase: u8, item: Option<u32>) -> Self {
        let item = match item {
            Some(item) if item <= Self::MAX_ITEM => item as u64 + 1,
            _ => 0,
        };
        Self(item << 8 | phase as u64)
    }

    /// The phase's number.
    pub const fn phase(self) -> u8 {
        (self.0 & 0xff) as u8
    }

    /// The item's number, if any.
    pub const fn item(self) -> Option<u32> {
        match (self.0 >> 8) as u32 & 0xf_ffff {
            0 => None,
            item => Some(item - 1),
        }
    }
}

/// A context's identity: process (12 bits), round (19), item + 1 (20), phase (8), layer (5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(pub u64);

impl Key {
    /// The largest round number that a ledger can tell apart; later rounds are booked under it.
    pub const MAX_ROUND: u32 = (1 << 19) - 1;

    pub const fn new(process: u32, round: u32, place: Place, layer: HookLayer) -> Self {
        let round = if round > Self::MAX_ROUND {
            Self::MAX_ROUND
        } else {
            round
        };
        Self(
            (process as u64 & 0xfff) << 52
                | (round as u64) << 33
                | (place.0 >> 8 & 0xf_ffff) << 13
                | (place.0 & 0xff) << 5
                | layer as u64,
        )
    }

    pub const fn process(self) -> u32 {
        (self.0 >> 52) as u32
    }

    pub const fn round(self) -> u32 {
        (self.0 >> 33) as u32 & 0x7_ffff
    }

    pub const fn place(self) -> Place {
        Place((self.0 >> 13 & 0xf_ffff) << 8 | (self.0 >> 5 & 0xff))
    }

    pub const fn layer(self) -> HookLayer {
        HookLayer::from_bits(self.0)
    }

    /// Layer and phase as an index, below [`CELLS`] in a key that was made by [`new`](Self::new).
    pub const fn cell(self) -> u32 {
        cell((self.0 & 0x1f) as usize, self.0 as usize >> 5 & 0xff) as u32
    }

    /// The bucket of the context index that this key belongs to with a site.
    pub const fn bucket(self, site: u32) -> usize {
        let mixed = self.0 ^ (site as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as usize & (BUCKETS - 1)
    }
}

/// The index of the counters of a layer and a phase.
pub const fn cell(layer: usize, phase: usize) -> usize {
    layer * PHASES + phase
}

/// The layer that a cell is of.
pub const fn layer_of(cell: usize) -> HookLayer {
    HookLayer::from_bits((cell / PHASES) as u64)
}

/// How many contexts and shards a ledger has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Combinations of round, item, phase, layer and process. 64 bytes each, taken as used.
    pub contexts: u32,
    /// Threads alive at one time. About 28 KiB each, taken as used.
    pub shards: u32,
    /// Call stacks that can be told apart; 0, a ledger without stacks, is the default.
    /// 576 bytes each, taken as used.
    pub sites: u32,
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            contexts: 1 << 20,
            shards: 2048,
            sites: 0,
        }
    }
}

impl Capacity {
    /// The most contexts that a trailer can name.
    pub const MAX_CONTEXTS: u32 = 1 << 24;
    /// The most shards that a layout is made for.
    pub const MAX_SHARDS: u32 = 1 << 16;

    /// The most sites that a layout is made for.
    pub const MAX_SITES: u32 = crate::sites::MAX_SITES;

    /// Where the contexts begin.
    pub const fn contexts_offset(self) -> usize {
        size_of::<Header>()
    }

    /// Where the shards begin.
    pub const fn shards_offset(self) -> usize {
        self.contexts_offset() + self.contexts as usize * size_of::<Context>()
    }

    /// Where the sites begin.
    pub const fn sites_offset(self) -> usize {
        self.shards_offset() + self.shards as usize * size_of::<Shard>()
    }

    /// The memory's size in bytes, most of it never touched.
    pub const fn bytes(self) -> usize {
        self.sites_offset() + crate::sites::table_bytes(self.sites)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_gives_back_what_it_was_made_of() {
        let place = Place::new(200, Some(77));
        let key = Key::new(4095, 123_456, place, HookLayer::Meter);
        assert_eq!(key.process(), 4095);
        assert_eq!(key.round(), 123_456);
        assert_eq!(key.place(), place);
        assert_eq!(key.place().item(), Some(77));
        assert_eq!(key.place().phase(), 200);
        assert_eq!(key.layer(), HookLayer::Meter);
        assert_eq!(key.cell(), 2 * 256 + 200);
        assert_eq!(layer_of(key.cell() as usize), HookLayer::Meter);
    }

    #[test]
    fn every_layer_has_the_number_of_its_place() {
        for (number, layer) in HookLayer::ALL.into_iter().enumerate() {
            assert_eq!(layer as usize, number);
            assert_eq!(HookLayer::from_bits(number as u64), layer);
        }
    }

    #[test]
    fn numbers_past_a_field_do_not_spill_into_the_next() {
        let key = Key::new(1, u32::MAX, Place::new(1, Some(u32::MAX)), HookLayer::Rust);
        assert_eq!(key.round(), Key::MAX_ROUND);
        assert_eq!(key.process(), 1);
        assert_eq!(key.place().item(), None);
        assert_eq!(
            Place::new(0, Some(Place::MAX_ITEM)).item(),
            Some(Place::MAX_ITEM)
        );
    }

    #[test]
    fn a_shard_fits_the_promised_64_kib() {
        assert!(size_of::<Shard>() <= 64 * 1024, "{}", size_of::<Shard>());
        assert_eq!(size_of::<Context>(), 64);
    }
}
