//! The writing side: what happens in the workload on every allocation.
//!
//! # Implementation
//!
//! A metered allocation costs, on top of the allocator's own work: two
//! thread-local stores that mark the thread as being in here, a load of the
//! shared generation (a line that only changes when a round or the inherited
//! phase does), the write of the trailer, and three additions to memory that
//! only this thread writes. A release reads the trailer and does the same
//! additions. No lock, no shared read-modify-write, no allocation, no panic.
//! That is [`quick_birth`] and [`quick_release`], which do all of it or nothing.
//!
//! Everything else is cold and stands apart, in [`slow_birth`] and [`slow_release`]: the first allocation of a process maps the
//! memory, the first of a thread claims a shard, the first in a new context
//! interns it, a shard entry that is needed for another context moves its counts
//! out, and what a thread holds back is told from time to time.
//!
//! A signal handler or an allocator callback that allocates while its thread is
//! in here finds the mark and books straight into the shared counters with
//! atomic additions, which is slower and needs no shard.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence};

use crate::arch::{self, THREAD_BYTES};
pub(crate) use crate::attach::{is_known_on, is_off, is_on};
use crate::free_shards;
use crate::layout::{
    Capacity, Context, ENTRIES, Entry, FLUSH_BYTES, Header, HookLayer, Key, Name, Now, PHASES,
    Place, Process, REFUSALS, Refused, SHARD_CELLS, SHARD_LAYERS, Shard, layer_of,
};
use crate::moves;
use crate::processes::{View, empty_shard, move_out};
use crate::sites;

static HEADER: AtomicPtr<Header> = AtomicPtr::new(null_mut());
static CONTEXTS: AtomicPtr<Context> = AtomicPtr::new(null_mut());
static SHARDS: AtomicPtr<Shard> = AtomicPtr::new(null_mut());
static CONTEXT_COUNT: AtomicU32 = AtomicU32::new(0);
static SHARD_COUNT: AtomicU32 = AtomicU32::new(0);
/// This process's slot in the ledger, from 1; 0 if the table was full.
static PROCESS: AtomicU32 = AtomicU32::new(0);
/// The [`Place`] of the only phase that is active in this process, or 0.
static INHERITED: AtomicU64 = AtomicU64::new(0);
static THREAD_END: AtomicU32 = AtomicU32::new(u32::MAX);

/// What a thread knows of itself. No destructor, no lazy initialisation.
struct Thread {
    /// The thread's shard, or null: none yet, or none any more.
    shard: Cell<*const Shard>,
    /// Whether the thread is in the ledger's code, and the layer to book under.
    mode: Cell<Mode>,
    /// [`Now::generation`] that `contexts` was made under.
    generation: Cell<u32>,
    /// Where the generation stands; valid where any of `current` is set.
    now: Cell<*const Now>,
    /// Where the births of the current contexts are counted, by layer.
    current: [Current; SHARD_LAYERS],
    /// Indices of the current contexts by layer; 0 is not known.
    contexts: [Cell<u32>; SHARD_LAYERS],
    /// The thread's own place, or nothing.
    place: Cell<Place>,
    /// The last block that the malloc family returned to this thread while a layer was set for it.
    last: Cell<*mut u8>,
    /// How often the thread-end destructor has been asked to come again.
    end_passes: Cell<u32>,
    /// Whether the thread's shard was taken back because the thread is ending.
    ended: Cell<bool>,
}

const _: () = assert!(size_of::<Thread>() <= THREAD_BYTES && align_of::<Thread>() <= 64);

/// Two answers in one word, so that one comparison says that neither matters.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mode(u32);

impl Mode {
    /// Not in the ledger's code, and no layer was set.
    const PLAIN: Self = Self(0);
    /// In the ledger's code, and no layer was set.
    const BUSY: Self = Self(1);
    /// On a thread where it depends on who asks for a block.
    #[cfg(feature = "gpu")]
    const ASKS: Self = Self(2);

    const fn is_busy(self) -> bool {
        self.0 & Self::BUSY.0 != 0
    }

    const fn with_busy(self, busy: bool) -> Self {
        Self(self.0 & !Self::BUSY.0 | busy as u32)
    }

    /// The layer to book under; [`HookLayer::Native`] unless someone said otherwise.
    const fn layer(self) -> HookLayer {
        HookLayer::from_bits((self.0 >> 8) as u64)
    }

    const fn with_layer(self, layer: HookLayer) -> Self {
        Self(self.0 & 0xff | (layer as u32) << 8)
    }
}

/// The shard's entry and the bytes held back of one current context, or nulls. The
/// entry is of that context as long as it stands here.
struct Current {
    entry: Cell<*const Entry>,
    held_back: Cell<*const AtomicI64>,
}

impl Thread {
    /// No context is current any more, for the place or the time is another.
    fn forget_contexts(&self) {
        self.forget_entries();
        for context in &self.contexts {
            context.set(0);
        }
    }

    /// The current contexts stay, their entries do not.
    fn forget_entries(&self) {
        for current in &self.current {
            current.entry.set(null());
        }
    }

    fn set_busy(&self, busy: bool) {
        self.mode.set(self.mode.get().with_busy(busy));
    }
}

/// The calling thread's [`Thread`]; not to be kept.
#[inline(always)]
fn this_thread<'now>() -> &'now Thread {
    // SAFETY: the block is large and aligned enough, is the calling thread's
    // alone, outlives every call into this crate, and all zeros are a valid `Thread`.
    unsafe { &*arch::thread_block().cast::<Thread>() }
}

/// Adds to a counter that only this thread writes.
#[inline(always)]
fn add_own(counter: &AtomicU64, amount: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(amount),
        Ordering::Relaxed,
    );
}

/// Books a new block of `size` bytes and returns the context for its trailer, if
/// nothing rare has to be done for it; else books nothing.
#[inline(always)]
pub(crate) fn quick_birth(layer: HookLayer, size: usize) -> Option<u32> {
    let thread = this_thread();
    if thread.mode.get() != Mode::PLAIN {
        return None;
    }
    thread.mode.set(Mode::BUSY);
    compiler_fence(Ordering::SeqCst);
    let context = count_birth(thread, layer, size);
    compiler_fence(Ordering::SeqCst);
    thread.mode.set(Mode::PLAIN);
    context
}

#[inline(always)]
fn count_birth(thread: &Thread, layer: HookLayer, size: usize) -> Option<u32> {
    let current = &thread.current[layer as usize & (SHARD_LAYERS - 1)];
    // SAFETY: an entry is null or one of the mapping, which is never unmapped, and
    // where it is not null the two others were set with it.
    let (entry, held_back, now) = unsafe {
        let entry = current.entry.get().as_ref()?;
        (entry, &*current.held_back.get(), &*thread.now.get())
    };
    if thread.generation.get() != now.generation.load(Ordering::Relaxed)
        || !hold_back_little(held_back, size as i64)
    {
        return None;
    }
    add_own(&entry.counts.allocated_blocks, 1);
    add_own(&entry.counts.allocated_bytes, size as u64);
    Some(entry.context.load(Ordering::Relaxed))
}

/// Books the release of a block if nothing rare has to be done for it; else books
/// nothing. Returns which.
#[inline(always)]
pub(crate) fn quick_release(context: u32, size: usize) -> bool {
    let thread = this_thread();
    if thread.mode.get() != Mode::PLAIN {
        return false;
    }
    thread.mode.set(Mode::BUSY);
    compiler_fence(Ordering::SeqCst);
    let booked = count_release(thread, context, size);
    compiler_fence(Ordering::SeqCst);
    thread.mode.set(Mode::PLAIN);
    booked
}

#[inline(always)]
fn count_release(thread: &Thread, context: u32, size: usize) -> bool {
    // SAFETY: null, or a shard of the mapping, which is never unmapped.
    let Some(shard) = (unsafe { thread.shard.get().as_ref() }) else {
        return false;
    };
    let entry = &shard.entries[context as usize & (ENTRIES - 1)];
    if entry.context.load(Ordering::Relaxed) != context
        || !hold_back_little(held_back_of(shard, entry), -(size as i64))
    {
        return false;
    }
    add_own(&entry.counts.released_blocks, 1);
    add_own(&entry.counts.released_bytes, size as u64);
    true
}

/// Keeps a change of live bytes to this thread, unless it is time to tell it.
/// Returns whether it did.
#[inline(always)]
fn hold_back_little(held_back: &AtomicI64, change: i64) -> bool {
    let sum = held_back.load(Ordering::Relaxed).wrapping_add(change);
    if is_much(sum) {
        return false;
    }
    held_back.store(sum, Ordering::Relaxed);
    true
}

/// Whether as much is held back as may be, or more, in either direction.
#[inline(always)]
const fn is_much(held_back: i64) -> bool {
    // One comparison for both directions.
    held_back.wrapping_add(FLUSH_BYTES - 1) as u64 > (2 * FLUSH_BYTES - 2) as u64
}

/// The bytes held back of the phase and layer that an entry is of.
#[inline(always)]
fn held_back_of<'a>(shard: &'a Shard, entry: &Entry) -> &'a AtomicI64 {
    // Whoever could write to the ledger could have written any cell there.
    &shard.held_back[entry.cell.load(Ordering::Relaxed) as usize & (SHARD_CELLS - 1)]
}

/// Books a new block of `size` bytes and returns the context for its trailer.
/// A layer that was set for the thread goes before `layer`.
#[inline(always)]
pub(crate) fn book_birth(layer: HookLayer, block: *mut u8, size: usize) -> u32 {
    match quick_birth(layer, size) {
        Some(context) => context,
        None => slow_birth(layer, block, size),
    }
}

/// Books the release of a block.
#[inline(always)]
pub(crate) fn book_release(context: u32, size: usize) {
    if !quick_release(context, size) {
        slow_release(context, size);
    }
}

/// [`book_birth`], whatever has to be done for it.
#[cold]
#[inline(never)]
pub(crate) fn slow_birth(layer: HookLayer, block: *mut u8, size: usize) -> u32 {
    let thread = this_thread();
    thread.last.set(block);
    let layer = match thread.mode.get().layer() {
        HookLayer::Native => of_driver(thread, layer),
        set => set,
    };
    birth(thread, layer, size)
}

/// The layer of a block that is born as `layer`, which may be the GPU's driver's on a
/// thread of its own.
#[inline]
fn of_driver(_thread: &Thread, layer: HookLayer) -> HookLayer {
    #[cfg(feature = "gpu")]
    if _thread.mode.get() == Mode::ASKS
        && layer == HookLayer::Native
        && crate::gpu::threads::is_asked_by_driver()
    {
        return HookLayer::Driver;
    }
    layer
}

/// From here to the end of the calling thread, blocks that the GPU's driver asks for are its.
#[cfg(feature = "gpu")]
pub(crate) fn ask_who_allocates() {
    let mode = &this_thread().mode;
    mode.set(Mode(mode.get().0 | Mode::ASKS.0));
}

/// Books that a block was given to another allocator than the one that made it.
#[cold]
pub(crate) fn book_crossed() {
    if let Some(header) = header() {
        header.crossed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Books a new mapping of `size` bytes, as the layer that was set for the thread or
/// as [`HookLayer::Anon`], and returns its context.
pub(crate) fn book_mapping(size: usize) -> u32 {
    let thread = this_thread();
    let layer = match thread.mode.get().layer() {
        HookLayer::Native => HookLayer::Anon,
        set => set,
    };
    birth(thread, layer, size)
}

/// Books something that is no block of malloc's, and returns the context that it is in.
#[cfg_attr(not(feature = "gpu"), expect(dead_code))]
#[cold]
pub(crate) fn book_thing(layer: HookLayer, bytes: u64) -> u32 {
    let (thread, Some(header)) = (this_thread(), header()) else {
        return 0;
    };
    let Some(key) = current_key(thread, header, layer) else {
        return 0;
    };
    let bytes = bytes.min(i64::MAX as u64);
    let site = sites::of_birth(key.cell(), bytes as usize, key.process());
    let context = interned(header, key, site.unwrap_or(0));
    count_directly(header, context, bytes as i64);
    context
}

/// Books the release of what [`book_thing`] booked.
#[cfg_attr(not(feature = "gpu"), expect(dead_code))]
#[cold]
pub(crate) fn book_thing_release(context: u32, bytes: u64) {
    if let Some(header) = header() {
        count_directly(header, context, !(bytes.min(i64::MAX as u64) as i64));
    }
}

/// Notes that a release was refused, where the calling thread is now.
#[cfg_attr(not(feature = "gpu"), expect(dead_code))]
#[cold]
pub(crate) fn note_refusal(layer: HookLayer, call: &[u8], status: u32, has_context: bool) {
    let Some(header) = header() else { return };
    let key = current_key(this_thread(), header, layer);
    let phase = key.map_or(0, |key| key.place().phase());
    let round = header.now.round.load(Ordering::Relaxed);
    let place = Refused::place(round, phase, layer, has_context);
    let call = &call[..call.len().min(crate::layout::NAME_BYTES)];
    let gpu = &header.gpu;
    let used = (gpu.refusals_used.load(Ordering::Acquire) as usize).min(REFUSALS);
    let alike = gpu.refusals[..used].iter().find(|known| {
        known.count.load(Ordering::Acquire) != 0
            && known.place.load(Ordering::Relaxed) == place
            && known.status.load(Ordering::Relaxed) == status
            && is_named(&known.call, call)
    });
    if let Some(known) = alike {
        known.count.fetch_add(1, Ordering::Relaxed);
        return;
    }
    // Two processes may note the same twice; the reader does not mind.
    let at = gpu.refusals_used.fetch_add(1, Ordering::AcqRel) as usize;
    let Some(new) = gpu.refusals.get(at) else {
        gpu.refusals_used.fetch_sub(1, Ordering::AcqRel);
        header.lost.fetch_add(1, Ordering::Relaxed);
        return;
    };
    // SAFETY: gettid has no preconditions.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    new.place.store(place, Ordering::Relaxed);
    new.status.store(status, Ordering::Relaxed);
    new.thread.store(thread as u32, Ordering::Relaxed);
    write_name(&new.call, call);
    new.count.store(1, Ordering::Release);
}

/// Books the release of some bytes of a mapping that stays, in `more` parts than before.
#[cold]
pub(crate) fn book_trim(index: u32, bytes: usize, more: u64) {
    let Some(header) = header() else { return };
    let Some(context) = context(index) else {
        return count_lost();
    };
    let counts = &context.counts;
    counts.allocated_blocks.fetch_add(more, Ordering::Relaxed);
    counts
        .released_bytes
        .fetch_add(bytes as u64, Ordering::Relaxed);
    let key = Key(context.key.load(Ordering::Relaxed));
    tell_change(header, key.cell(), -(bytes as i64));
}

/// Blocks of so many bytes or more are never booked the quick way: what a thread holds
/// back is less than half of it, in either direction.
pub(crate) const NEVER_QUICK: usize = 2 * FLUSH_BYTES as usize;

/// Counts bytes of a mapping that malloc made for one block, or gave back: of a block
/// that this process bore, and not of a parent's copy.
#[inline]
pub(crate) fn count_block_mapping(index: u32, bytes: i64) {
    if bytes != 0
        && let Some((process, _)) = owner(index)
    {
        process.block_mappings.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Counts bytes that an allocator under the ledger's has mapped, or given back. A mapping
/// of the program's own is none.
#[cold]
pub(crate) fn count_allocator_mapping(index: u32, bytes: i64) {
    if let Some((process, HookLayer::Meter)) = owner(index) {
        process
            .allocator_mappings
            .fetch_add(bytes, Ordering::Relaxed);
    }
}

/// This process's slot and the context's layer, if this process made the context.
#[cold]
fn owner(index: u32) -> Option<(&'static Process, HookLayer)> {
    let key = Key(context(index)?.key.load(Ordering::Relaxed));
    let is_ours = key.process() == PROCESS.load(Ordering::Relaxed);
    let process = header()?.processes.get(key.process() as usize)?;
    is_ours.then_some((process, key.layer()))
}

/// Counts something that no table had room for.
#[cold]
pub(crate) fn count_lost() {
    if let Some(header) = header() {
        header.lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// Lets others go on, for a tenth of a millisecond. The bare system call: the C
/// library's function is one where a thread can be cancelled.
pub(crate) fn sleep_a_moment() {
    let a_moment = libc::timespec {
        tv_sec: 0,
        tv_nsec: 100_000,
    };
    // SAFETY: the time is valid; what remains of it is not asked for.
    unsafe {
        libc::syscall(
            libc::SYS_nanosleep,
            &raw const a_moment,
            null_mut::<libc::timespec>(),
        );
    }
}

/// Books the release of a block that carries no trailer of ours.
#[cold]
pub(crate) fn book_foreign_release() {
    if let Some(header) = header() {
        header.foreign.fetch_add(1, Ordering::Relaxed);
    }
}

fn birth(thread: &Thread, layer: HookLayer, size: usize) -> u32 {
    if thread.mode.get().is_busy() {
        return direct_birth(thread, layer, size);
    }
    thread.set_busy(true);
    compiler_fence(Ordering::SeqCst);
    let Some(header) = header() else {
        thread.set_busy(false);
        return 0;
    };
    let generation = header.now.generation.load(Ordering::Acquire);
    if thread.generation.get() != generation {
        // The round or the inherited phase has changed.
        thread.generation.set(generation);
        thread.forget_contexts();
    }
    let mut context = thread.contexts[layer as usize & (SHARD_LAYERS - 1)].get();
    if context == 0 {
        context = enter_context(thread, header, layer, size);
    }
    match entry(thread, context) {
        Some((shard, entry)) => {
            add_own(&entry.counts.allocated_blocks, 1);
            add_own(&entry.counts.allocated_bytes, size as u64);
            hold_back(header, shard, entry, size as i64);
            if thread.contexts[layer as usize & (SHARD_LAYERS - 1)].get() == context {
                let current = &thread.current[layer as usize & (SHARD_LAYERS - 1)];
                thread.now.set(&raw const header.now);
                current.held_back.set(held_back_of(shard, entry));
                current.entry.set(entry);
            }
        }
        None => count_directly(header, context, size as i64),
    }
    compiler_fence(Ordering::SeqCst);
    thread.set_busy(false);
    context
}

/// [`book_release`], whatever has to be done for it.
#[cold]
#[inline(never)]
pub(crate) fn slow_release(context: u32, size: usize) {
    let Some(header) = header() else { return };
    let thread = this_thread();
    if thread.mode.get().is_busy() {
        return count_directly(header, context, -(size as i64) - 1);
    }
    thread.set_busy(true);
    compiler_fence(Ordering::SeqCst);
    match entry(thread, context) {
        Some((shard, entry)) => {
            add_own(&entry.counts.released_blocks, 1);
            add_own(&entry.counts.released_bytes, size as u64);
            hold_back(header, shard, entry, -(size as i64));
        }
        None => count_directly(header, context, -(size as i64) - 1),
    }
    compiler_fence(Ordering::SeqCst);
    thread.set_busy(false);
}

#[inline(always)]
pub(crate) fn header() -> Option<&'static Header> {
    // SAFETY: null, or the start of the mapping made by `attach`, which is never unmapped.
    unsafe { HEADER.load(Ordering::Relaxed).as_ref() }
}

/// Keeps a change of live bytes to this thread until it is worth telling.
fn hold_back(header: &Header, shard: &Shard, entry: &Entry, change: i64) {
    let held_back = held_back_of(shard, entry);
    let sum = held_back.load(Ordering::Relaxed).wrapping_add(change);
    held_back.store(sum, Ordering::Relaxed);
    if is_much(sum) {
        tell(header, held_back, entry.cell.load(Ordering::Relaxed));
    }
}

/// Moves a held-back change of live bytes into the shared counters.
#[cold]
fn tell(header: &Header, held_back: &AtomicI64, cell: u32) {
    let change = held_back.load(Ordering::Relaxed);
    held_back.store(0, Ordering::Relaxed);
    tell_change(header, cell, change);
}

fn tell_change(header: &Header, cell: u32, change: i64) {
    let cell = cell as usize;
    let (Some(live), Some(peak)) = (header.cell_live.get(cell), header.cell_peak.get(cell)) else {
        return;
    };
    let now = live.fetch_add(change, Ordering::Relaxed) + change;
    peak.fetch_max(now, Ordering::Relaxed);
    if layer_of(cell).is_host() {
        let now = header.live.0.fetch_add(change, Ordering::Relaxed) + change;
        header.peak.fetch_max(now, Ordering::Relaxed);
        header.round_peak.fetch_max(now, Ordering::Relaxed);
    }
}

/// A birth on a thread that is already in the ledger's code.
#[cold]
fn direct_birth(thread: &Thread, layer: HookLayer, size: usize) -> u32 {
    let Some(header) = header() else { return 0 };
    let context = current_context(thread, header, layer);
    count_directly(header, context, size as i64);
    context
}

/// Counts in the context itself. `change` is the bytes of a birth, or the
/// complement (`!bytes`, which is `-bytes - 1`) of the bytes of a release, so
/// that a release of an empty block is told from a birth of one.
#[cold]
fn count_directly(header: &Header, index: u32, change: i64) {
    let Some(context) = context(index) else {
        header.lost.fetch_add(1, Ordering::Relaxed);
        return;
    };
    let key = Key(context.key.load(Ordering::Relaxed));
    if key.process() != PROCESS.load(Ordering::Relaxed) {
        return; // A copy that fork made; the original belongs to the parent's books.
    }
    if change >= 0 {
        context
            .counts
            .allocated_blocks
            .fetch_add(1, Ordering::Relaxed);
        context
            .counts
            .allocated_bytes
            .fetch_add(change as u64, Ordering::Relaxed);
        tell_change(header, key.cell(), change);
    } else {
        let bytes = !change;
        context
            .counts
            .released_blocks
            .fetch_add(1, Ordering::Relaxed);
        context
            .counts
            .released_bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        tell_change(header, key.cell(), -bytes);
    }
}

fn context(index: u32) -> Option<&'static Context> {
    contexts().get(index as usize).filter(|_| index != 0)
}

fn contexts() -> &'static [Context] {
    let first = CONTEXTS.load(Ordering::Relaxed);
    if first.is_null() {
        return &[];
    }
    // SAFETY: the mapping holds CONTEXT_COUNT contexts from here, all of atomics,
    // and is never unmapped.
    unsafe { std::slice::from_raw_parts(first, CONTEXT_COUNT.load(Ordering::Relaxed) as usize) }
}

fn shards() -> &'static [Shard] {
    let first = SHARDS.load(Ordering::Relaxed);
    if first.is_null() {
        return &[];
    }
    // SAFETY: as for the contexts.
    unsafe { std::slice::from_raw_parts(first, SHARD_COUNT.load(Ordering::Relaxed) as usize) }
}

#[cold]
fn enter_context(thread: &Thread, header: &Header, layer: HookLayer, size: usize) -> u32 {
    let Some(key) = current_key(thread, header, layer) else {
        return 0;
    };
    if let Some(site) = sites::of_birth(key.cell(), size, key.process()) {
        // Not kept as the current context: the next block comes here too.
        return interned(header, key, site);
    }
    let context = interned(header, key, 0);
    thread.contexts[layer as usize & (SHARD_LAYERS - 1)].set(context);
    context
}

/// The context that a block born now on this thread belongs to, without its site.
fn current_context(thread: &Thread, header: &Header, layer: HookLayer) -> u32 {
    current_key(thread, header, layer).map_or(0, |key| interned(header, key, 0))
}

fn current_key(thread: &Thread, header: &Header, layer: HookLayer) -> Option<Key> {
    let process = PROCESS.load(Ordering::Relaxed);
    if process == 0 {
        header.lost.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    let own = thread.place.get();
    let round = header.now.round.load(Ordering::Relaxed);
    let place = if own.phase() == 0 {
        let inherited = inherited();
        Place::new(inherited.phase(), own.item())
    } else {
        own
    };
    Some(Key::new(process, round, place, layer))
}

fn interned(header: &Header, key: Key, site: u32) -> u32 {
    let index = intern(header, key, site);
    if index == 0 {
        header.lost.fetch_add(1, Ordering::Relaxed);
    }
    index
}

/// The index of the context of a key and a site, which is made if there is none. 0 if there
/// is no room.
///
/// A lock-free push onto the bucket's list. When two threads make the same
/// context, the slower one finds the other's on its next look and leaves the
/// index that it had reserved unpublished.
fn intern(header: &Header, key: Key, site: u32) -> u32 {
    let bucket = &header.buckets[key.bucket(site)];
    let mut reserved = 0;
    let mut head = bucket.load(Ordering::Acquire);
    let mut known = 0;
    loop {
        let mut index = head;
        while index != known {
            let Some(at) = context(index) else { break };
            if at.key.load(Ordering::Relaxed) == key.0 && at.site.load(Ordering::Relaxed) == site {
                return index;
            }
            index = at.next.load(Ordering::Relaxed);
        }
        if reserved == 0 {
            reserved = reserve_context(header);
            if reserved == 0 {
                return 0;
            }
            list_for_process(header, key.process(), reserved);
        }
        let Some(new) = context(reserved) else {
            return 0;
        };
        new.next.store(head, Ordering::Relaxed);
        new.site.store(site, Ordering::Relaxed);
        new.key.store(key.0, Ordering::Relaxed);
        match bucket.compare_exchange(head, reserved, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return reserved,
            Err(moved) => {
                new.key.store(0, Ordering::Relaxed);
                known = head;
                head = moved;
            }
        }
    }
}

/// Puts a context that was just reserved on its process's list, where it is found
/// when that process's books are closed.
fn list_for_process(header: &Header, process: u32, index: u32) {
    let (Some(process), Some(new)) = (header.processes.get(process as usize), context(index))
    else {
        return;
    };
    let mut head = process.contexts.load(Ordering::Relaxed);
    loop {
        new.sibling.store(head, Ordering::Relaxed);
        match process.contexts.compare_exchange_weak(
            head,
            index,
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            Ok(_) => return,
            Err(moved) => head = moved,
        }
    }
}

fn reserve_context(header: &Header) -> u32 {
    let count = CONTEXT_COUNT.load(Ordering::Relaxed);
    let mut used = header.contexts_used.0.load(Ordering::Relaxed);
    loop {
        // Index 0 means "none" and is never given out.
        let index = used.max(1);
        if index >= count {
            return 0;
        }
        match header.contexts_used.0.compare_exchange_weak(
            used,
            index + 1,
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            Ok(_) => return index,
            Err(now) => used = now,
        }
    }
}

/// The thread's entry for a context: claims a shard if the thread has none, and
/// moves out what the entry held for another context.
fn entry(thread: &Thread, index: u32) -> Option<(&'static Shard, &'static Entry)> {
    let key = Key(context(index)?.key.load(Ordering::Relaxed));
    if key.process() != PROCESS.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: null, or a shard of the mapping, which is never unmapped.
    let shard = match unsafe { thread.shard.get().as_ref() } {
        Some(shard) => shard,
        None => claim_shard(thread)?,
    };
    let entry = &shard.entries[index as usize & (ENTRIES - 1)];
    if entry.context.load(Ordering::Relaxed) != index {
        thread.forget_entries();
        moves::begin(&shard.moving);
        move_out(contexts(), entry);
        entry.cell.store(key.cell(), Ordering::Relaxed);
        entry.context.store(index, Ordering::Relaxed);
        moves::end(&shard.moving);
    }
    Some((shard, entry))
}

fn claim_shard(thread: &Thread) -> Option<&'static Shard> {
    if thread.ended.get() {
        return None;
    }
    let header = header()?;
    let process = PROCESS.load(Ordering::Relaxed);
    if process == 0 {
        return None;
    }
    let free = free_shards::pop(&header.free_shards.0, shards());
    let shard = free.or_else(|| new_shard(header))?;
    // SAFETY: gettid has no preconditions.
    let id = unsafe { libc::syscall(libc::SYS_gettid) };
    shard.thread.store(id as u32, Ordering::Relaxed);
    shard.process.store(process, Ordering::Release);
    header.threads.fetch_add(1, Ordering::Relaxed);
    thread.shard.set(shard);
    // SAFETY: the key was made before the state became ON. Glibc may allocate
    // here; the thread is marked busy, so that is booked directly. `free` gets
    // here too and must not change errno.
    unsafe {
        let errno = *libc::__errno_location();
        libc::pthread_setspecific(
            THREAD_END.load(Ordering::Relaxed),
            (&raw const *shard).cast(),
        );
        *libc::__errno_location() = errno;
    }
    Some(shard)
}

fn new_shard(header: &Header) -> Option<&'static Shard> {
    let mut used = header.shards_used.0.load(Ordering::Relaxed);
    loop {
        let shard = shards().get(used as usize)?;
        match header.shards_used.0.compare_exchange_weak(
            used,
            used + 1,
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            Ok(_) => return Some(shard),
            Err(now) => used = now,
        }
    }
}

/// Runs at the end of a thread. Other destructors may still come and allocate,
/// so it asks to be called again as often as POSIX promises to, and gives the
/// shard back the last time.
unsafe extern "C" fn thread_ends(value: *mut c_void) {
    const LAST_PASS: u32 = 3; // PTHREAD_DESTRUCTOR_ITERATIONS is 4.
    let thread = this_thread();
    let passes = thread.end_passes.get();
    if passes < LAST_PASS {
        thread.end_passes.set(passes + 1);
        // SAFETY: the key exists as long as the process.
        unsafe { libc::pthread_setspecific(THREAD_END.load(Ordering::Relaxed), value) };
        return;
    }
    thread.set_busy(true);
    compiler_fence(Ordering::SeqCst);
    give_back_shard(thread);
    thread.ended.set(true);
    compiler_fence(Ordering::SeqCst);
    thread.set_busy(false);
}

fn give_back_shard(thread: &Thread) {
    // SAFETY: null, or a shard of the mapping, which is never unmapped.
    let (Some(header), Some(shard)) = (header(), unsafe { thread.shard.get().as_ref() }) else {
        return;
    };
    thread.shard.set(null());
    thread.forget_entries();
    empty_shard(contexts(), shard);
    for (cell, held_back) in shard.held_back.iter().enumerate() {
        if held_back.load(Ordering::Relaxed) != 0 {
            tell(header, held_back, cell as u32);
        }
    }
    shard.process.store(0, Ordering::Release);
    let first = SHARDS.load(Ordering::Relaxed);
    // SAFETY: both pointers are into the mapping's array of shards.
    let index = unsafe { (&raw const *shard).offset_from(first) };
    free_shards::push(&header.free_shards.0, shards(), index as u32);
}

/// Where the parts of the ledger lie that is mapped at `base`.
///
/// # Safety
/// That much memory is mapped there, and stays so while anything is booked.
pub(crate) unsafe fn is_mapped_at(base: *const u8, capacity: Capacity) {
    // SAFETY: the caller's promise.
    let (contexts, shards) = unsafe {
        (
            base.add(capacity.contexts_offset()),
            base.add(capacity.shards_offset()),
        )
    };
    CONTEXT_COUNT.store(capacity.contexts, Ordering::Relaxed);
    SHARD_COUNT.store(capacity.shards, Ordering::Relaxed);
    CONTEXTS.store(contexts.cast_mut().cast(), Ordering::Relaxed);
    SHARDS.store(shards.cast_mut().cast(), Ordering::Relaxed);
}

/// The ledger as it is mapped.
pub(crate) fn view(header: &'static Header) -> View<'static> {
    View {
        header,
        contexts: contexts(),
        shards: shards(),
    }
}

/// Has shards given back when their threads end. Returns whether that can be had.
pub(crate) fn watch_threads() -> bool {
    let mut key = 0;
    // SAFETY: a valid key to fill in, and a function of the right type.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) } != 0 {
        return false;
    }
    THREAD_END.store(key, Ordering::Relaxed);
    true
}

/// Books from now on, as the process in `slot` (0: there was none free).
pub(crate) fn begin(header: &'static Header, slot: u32) {
    PROCESS.store(slot, Ordering::Relaxed);
    HEADER.store((&raw const *header).cast_mut(), Ordering::Release);
}

/// Books from now on in the child of a fork, as the process in `slot`: what its
/// thread had is the parent's.
pub(crate) fn begin_again(slot: u32) {
    PROCESS.store(slot, Ordering::Relaxed);
    let thread = this_thread();
    thread.shard.set(null());
    thread.set_busy(false);
    thread.forget_contexts();
}

/// This process's slot, or 0.
pub(crate) fn process() -> u32 {
    PROCESS.load(Ordering::Relaxed)
}

/// Sets the calling thread's own place and returns the one before.
pub(crate) fn set_own_place(place: Place) -> Place {
    let thread = this_thread();
    let before = thread.place.replace(place);
    thread.forget_contexts();
    before
}

/// The calling thread's own place.
pub(crate) fn own_place() -> Place {
    this_thread().place.get()
}

/// Sets the layer to book under on the calling thread and returns the one before.
#[inline(always)]
pub(crate) fn set_layer(layer: HookLayer) -> HookLayer {
    // The optimiser knows that malloc touches no memory of the program's and
    // would move this store past it, or drop it; the fences keep it here.
    compiler_fence(Ordering::SeqCst);
    let mode = &this_thread().mode;
    let before = mode.get();
    mode.set(before.with_layer(layer));
    compiler_fence(Ordering::SeqCst);
    before.layer()
}

/// The layer to book under on the calling thread.
#[inline(always)]
pub(crate) fn layer() -> HookLayer {
    this_thread().mode.get().layer()
}

/// The last block that the malloc family returned to this thread while a layer was
/// set for it, since this was last asked; or null.
pub(crate) fn take_last_block() -> *mut u8 {
    this_thread().last.replace(null_mut())
}

/// Begins a round: blocks born from now on belong to it.
pub(crate) fn begin_round(round: u32) {
    if let Some(header) = header() {
        begin_round_in(header, round);
    }
}

/// Begins a round in a ledger.
pub(crate) fn begin_round_in(header: &Header, round: u32) {
    header.now.round.store(round, Ordering::Relaxed);
    let live = header.live.0.load(Ordering::Relaxed);
    let ended = header.round_peak.swap(live, Ordering::Relaxed);
    header.ended_round_peak.store(ended, Ordering::Relaxed);
    header.now.generation.fetch_add(1, Ordering::AcqRel);
}

/// What threads without a phase of their own are booked under.
pub(crate) fn inherited() -> Place {
    Place(INHERITED.load(Ordering::Relaxed))
}

/// Sets what threads without a place of their own are booked under.
pub(crate) fn set_inherited(place: Place) {
    if let Some(header) = header() {
        INHERITED.store(place.0, Ordering::Relaxed);
        header.now.generation.fetch_add(1, Ordering::AcqRel);
    }
}

/// Counts items that a producer has finished.
pub(crate) fn count_produced(items: u64) {
    if let Some(header) = header() {
        header.produced.0.fetch_add(items, Ordering::Relaxed);
    }
}

/// Counts items that a consumer has taken over.
pub(crate) fn count_consumed(items: u64) {
    if let Some(header) = header() {
        header.consumed.0.fetch_add(items, Ordering::Relaxed);
    }
}

/// The number of a phase by name, which is given one if it has none. `None`
/// without a ledger; 0 (unattributed) when all numbers are taken, which counts as lost.
pub(crate) fn phase_number(name: &str) -> Option<u8> {
    header().map(|header| number_of(header, name))
}

/// The number of a phase by name in this ledger.
pub(crate) fn number_of(header: &Header, name: &str) -> u8 {
    let kept = &name.as_bytes()[..name.len().min(crate::layout::NAME_BYTES)];
    if kept.is_empty() {
        return 0;
    }
    let used = (header.phases_used.load(Ordering::Acquire) as usize).min(PHASES - 1);
    for number in 1..=used {
        if is_named(&header.phase_names[number], kept) {
            return number as u8;
        }
    }
    // Two threads may name the same phase twice; the reader adds such twins up.
    let number = header.phases_used.fetch_add(1, Ordering::AcqRel) as usize + 1;
    let Some(new) = header.phase_names.get(number) else {
        header.phases_used.fetch_sub(1, Ordering::AcqRel);
        header.lost.fetch_add(1, Ordering::Relaxed);
        return 0;
    };
    write_name(new, kept);
    number as u8
}

fn is_named(name: &Name, text: &[u8]) -> bool {
    let mut bytes = name.bytes.iter().zip(text);
    name.len.load(Ordering::Acquire) as usize == text.len()
        && bytes.all(|(a, b)| a.load(Ordering::Relaxed) == *b)
}

/// Writes a name that is short enough.
fn write_name(name: &Name, text: &[u8]) {
    for (to, from) in name.bytes.iter().zip(text) {
        to.store(*from, Ordering::Relaxed);
    }
    name.len.store(text.len() as u8, Ordering::Release);
}
