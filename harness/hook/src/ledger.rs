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
//!
//! Everything else is cold: the first allocation of a process maps the memory,
//! the first of a thread claims a shard, the first in a new context interns it,
//! and a shard entry that is needed for another context moves its counts out.
//!
//! A signal handler or an allocator callback that allocates while its thread is
//! in here finds the mark and books straight into the shared counters with
//! atomic additions, which is slower and needs no shard.

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{
    AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, compiler_fence,
};

use crate::layout::{
    Capacity, Context, Counts, ENTRIES, Entry, FLUSH_BYTES, Header, HookLayer, Key, MAGIC, PHASES,
    PROCESSES, Place, Shard, VERSION,
};

/// Environment variable that names the ledger's file descriptor in the workload.
pub const FD_VARIABLE: &CStr = c"TIDEGATE_LEDGER_FD";

/// Why a hook does not meter the process it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Refused {
    /// This C library does not lay its blocks out as glibc does.
    UnknownAllocator = 1,
}

/// No decision yet: the environment could not be read so early.
const UNDECIDED: u8 = 0;
/// There is no ledger; calls pass through.
const OFF: u8 = 1;
/// Metered.
const ON: u8 = 2;
/// One thread is deciding; it and others pass through unmetered meanwhile.
const DECIDING: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(UNDECIDED);
static HEADER: AtomicPtr<Header> = AtomicPtr::new(null_mut());
static CONTEXTS: AtomicPtr<Context> = AtomicPtr::new(null_mut());
static SHARDS: AtomicPtr<Shard> = AtomicPtr::new(null_mut());
static CONTEXT_COUNT: AtomicU32 = AtomicU32::new(0);
static SHARD_COUNT: AtomicU32 = AtomicU32::new(0);
/// This process's slot in the ledger, from 1; 0 if the table was full.
static PROCESS: AtomicU32 = AtomicU32::new(0);
static THREAD_END: AtomicU32 = AtomicU32::new(u32::MAX);

/// What a thread knows of itself. No destructor, no lazy initialisation.
struct Thread {
    /// The thread's shard, or null: none yet, or none any more.
    shard: Cell<*const Shard>,
    /// Whether the thread is in the ledger's code, or has no use for a shard.
    busy: Cell<bool>,
    /// Whether the thread's shard was taken back because the thread is ending.
    ended: Cell<bool>,
    /// The layer to book under; [`HookLayer::Native`] unless someone said otherwise.
    layer: Cell<HookLayer>,
    /// [`Now::generation`](crate::layout::Now) that `contexts` was made under.
    generation: Cell<u32>,
    /// Indices of the current contexts by layer; 0 is not known.
    contexts: [Cell<u32>; 4],
    /// The thread's own place, or nothing.
    place: Cell<Place>,
    /// The last block that the malloc family returned to this thread.
    last: Cell<*mut u8>,
    /// How often the thread-end destructor has been asked to come again.
    end_passes: Cell<u32>,
}

thread_local! {
    static THREAD: Thread = const { Thread {
        shard: Cell::new(null()),
        busy: Cell::new(false),
        ended: Cell::new(false),
        layer: Cell::new(HookLayer::Native),
        generation: Cell::new(0),
        contexts: [const { Cell::new(0) }; 4],
        place: Cell::new(Place(0)),
        last: Cell::new(null_mut()),
        end_passes: Cell::new(0),
    } };
}

/// Adds to a counter that only this thread writes.
#[inline(always)]
fn add_own(counter: &AtomicU64, amount: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(amount),
        Ordering::Relaxed,
    );
}

#[inline(always)]
fn add_own_signed(counter: &AtomicI64, amount: i64) -> i64 {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(amount);
    counter.store(sum, Ordering::Relaxed);
    sum
}

/// Whether this process is metered; decides it on the first call.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    let state = STATE.load(Ordering::Acquire);
    if state == ON {
        true
    } else {
        state != OFF && decide()
    }
}

/// Whether it is settled that this process is not metered and never will be.
#[inline(always)]
pub(crate) fn is_off() -> bool {
    !is_on() && STATE.load(Ordering::Acquire) == OFF
}

/// Books a new block of `size` bytes and returns the context for its trailer.
/// A layer that was set for the thread goes before `layer`.
#[inline(always)]
pub(crate) fn book_birth(layer: HookLayer, block: *mut u8, size: usize) -> u32 {
    THREAD.with(|thread| {
        thread.last.set(block);
        let layer = match thread.layer.get() {
            HookLayer::Native => layer,
            set => set,
        };
        birth(thread, layer, size)
    })
}

/// Books the release of a block.
#[inline(always)]
pub(crate) fn book_release(context: u32, size: usize) {
    THREAD.with(|thread| release(thread, context, size));
}

/// Books the release of a block that carries no trailer of ours.
#[cold]
pub(crate) fn book_foreign_release() {
    if let Some(header) = header() {
        header.foreign.fetch_add(1, Ordering::Relaxed);
    }
}

#[inline(always)]
fn birth(thread: &Thread, layer: HookLayer, size: usize) -> u32 {
    if thread.busy.get() {
        return direct_birth(thread, layer, size);
    }
    thread.busy.set(true);
    compiler_fence(Ordering::SeqCst);
    let Some(header) = header() else {
        thread.busy.set(false);
        return 0;
    };
    if thread.generation.get() != header.now.generation.load(Ordering::Relaxed) {
        forget_contexts(thread, header);
    }
    let mut context = thread.contexts[layer as usize & 3].get();
    if context == 0 {
        context = enter_context(thread, header, layer);
    }
    match entry(thread, context) {
        Some((shard, entry)) => {
            add_own(&entry.counts.allocated_blocks, 1);
            add_own(&entry.counts.allocated_bytes, size as u64);
            hold_back(
                header,
                shard,
                entry.cell.load(Ordering::Relaxed),
                size as i64,
            );
        }
        None => count_directly(header, context, size as i64),
    }
    compiler_fence(Ordering::SeqCst);
    thread.busy.set(false);
    context
}

#[inline(always)]
fn release(thread: &Thread, context: u32, size: usize) {
    if thread.busy.get() {
        if let Some(header) = header() {
            count_directly(header, context, -(size as i64) - 1);
        }
        return;
    }
    thread.busy.set(true);
    compiler_fence(Ordering::SeqCst);
    if let Some(header) = header() {
        match entry(thread, context) {
            Some((shard, entry)) => {
                add_own(&entry.counts.released_blocks, 1);
                add_own(&entry.counts.released_bytes, size as u64);
                hold_back(
                    header,
                    shard,
                    entry.cell.load(Ordering::Relaxed),
                    -(size as i64),
                );
            }
            None => count_directly(header, context, -(size as i64) - 1),
        }
    }
    compiler_fence(Ordering::SeqCst);
    thread.busy.set(false);
}

#[inline(always)]
fn header() -> Option<&'static Header> {
    // SAFETY: null, or the start of the mapping made by `attach`, which is never unmapped.
    unsafe { HEADER.load(Ordering::Relaxed).as_ref() }
}

/// The thread's entry for a context, which may first have to be made.
#[inline(always)]
fn entry(thread: &Thread, context: u32) -> Option<(&'static Shard, &'static Entry)> {
    // SAFETY: null, or a shard of the mapping, which is never unmapped.
    let shard = unsafe { thread.shard.get().as_ref() };
    if let Some(shard) = shard {
        let entry = &shard.entries[context as usize & (ENTRIES - 1)];
        if entry.context.load(Ordering::Relaxed) == context {
            return Some((shard, entry));
        }
    }
    find_entry(thread, context)
}

/// Keeps a change of live bytes to this thread until it is worth telling.
#[inline(always)]
fn hold_back(header: &Header, shard: &Shard, cell: u32, change: i64) {
    let Some(held_back) = shard.held_back.get(cell as usize) else {
        return;
    };
    let sum = add_own_signed(held_back, change);
    if sum >= FLUSH_BYTES || sum <= -FLUSH_BYTES {
        tell(header, held_back, cell);
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
    if cell & 3 != HookLayer::Meter as usize {
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
    if index == 0 || index >= CONTEXT_COUNT.load(Ordering::Relaxed) {
        return None;
    }
    let contexts = CONTEXTS.load(Ordering::Relaxed);
    if contexts.is_null() {
        return None;
    }
    // SAFETY: the mapping holds CONTEXT_COUNT contexts from here and is never unmapped.
    Some(unsafe { &*contexts.add(index as usize) })
}

/// The round or the inherited phase has changed: what was current is so no longer.
#[cold]
fn forget_contexts(thread: &Thread, header: &Header) {
    thread
        .generation
        .set(header.now.generation.load(Ordering::Acquire));
    for context in &thread.contexts {
        context.set(0);
    }
}

#[cold]
fn enter_context(thread: &Thread, header: &Header, layer: HookLayer) -> u32 {
    let context = current_context(thread, header, layer);
    thread.contexts[layer as usize & 3].set(context);
    context
}

/// The context that a block born now on this thread belongs to.
fn current_context(thread: &Thread, header: &Header, layer: HookLayer) -> u32 {
    let process = PROCESS.load(Ordering::Relaxed);
    if process == 0 {
        header.lost.fetch_add(1, Ordering::Relaxed);
        return 0;
    }
    let own = thread.place.get();
    let round = header.now.round.load(Ordering::Relaxed);
    let place = if own.phase() == 0 {
        let inherited = Place(header.now.inherited.load(Ordering::Relaxed));
        Place::new(inherited.phase(), own.item())
    } else {
        own
    };
    let index = intern(header, Key::new(process, round, place, layer));
    if index == 0 {
        header.lost.fetch_add(1, Ordering::Relaxed);
    }
    index
}

/// The index of a key's context, which is made if there is none. 0 if there is no room.
///
/// A lock-free push onto the bucket's list. When two threads make the same
/// context, the slower one finds the other's on its next look and leaves the
/// index that it had reserved unpublished.
fn intern(header: &Header, key: Key) -> u32 {
    let bucket = &header.buckets[key.bucket()];
    let mut reserved = 0;
    let mut head = bucket.load(Ordering::Acquire);
    let mut known = 0;
    loop {
        let mut index = head;
        while index != known {
            let Some(at) = context(index) else { break };
            if at.key.load(Ordering::Relaxed) == key.0 {
                return index;
            }
            index = at.next.load(Ordering::Relaxed);
        }
        if reserved == 0 {
            reserved = reserve_context(header);
            if reserved == 0 {
                return 0;
            }
        }
        let Some(new) = context(reserved) else {
            return 0;
        };
        new.next.store(head, Ordering::Relaxed);
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

/// Finds the thread's entry for a context: claims a shard if the thread has
/// none, and moves out what the entry held for another context.
#[cold]
fn find_entry(thread: &Thread, index: u32) -> Option<(&'static Shard, &'static Entry)> {
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
        begin_move(shard);
        move_out(entry);
        entry.cell.store(key.cell(), Ordering::Relaxed);
        entry.context.store(index, Ordering::Relaxed);
        end_move(shard);
    }
    Some((shard, entry))
}

fn begin_move(shard: &Shard) {
    shard.moving.fetch_add(1, Ordering::AcqRel);
}

fn end_move(shard: &Shard) {
    shard.moving.fetch_add(1, Ordering::AcqRel);
}

/// Moves an entry's counts into its context.
fn move_out(entry: &Entry) {
    // Entries of context 0 hold what was counted as lost already.
    let context = context(entry.context.load(Ordering::Relaxed));
    let take = |from: &AtomicU64, to: fn(&Counts) -> &AtomicU64| {
        let amount = from.load(Ordering::Relaxed);
        if amount != 0 {
            if let Some(context) = context {
                to(&context.counts).fetch_add(amount, Ordering::Relaxed);
            }
            from.store(0, Ordering::Relaxed);
        }
    };
    take(&entry.counts.allocated_blocks, |to| &to.allocated_blocks);
    take(&entry.counts.allocated_bytes, |to| &to.allocated_bytes);
    take(&entry.counts.released_blocks, |to| &to.released_blocks);
    take(&entry.counts.released_bytes, |to| &to.released_bytes);
    entry.context.store(0, Ordering::Relaxed);
}

fn shard(index: u32) -> Option<&'static Shard> {
    let shards = SHARDS.load(Ordering::Relaxed);
    if shards.is_null() || index >= SHARD_COUNT.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: the mapping holds SHARD_COUNT shards from here and is never unmapped.
    Some(unsafe { &*shards.add(index as usize) })
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
    let shard = pop_free_shard(header).or_else(|| new_shard(header))?;
    // SAFETY: gettid has no preconditions.
    let id = unsafe { libc::syscall(libc::SYS_gettid) };
    shard.thread.store(id as u32, Ordering::Relaxed);
    shard.process.store(process, Ordering::Release);
    header.threads.fetch_add(1, Ordering::Relaxed);
    thread.shard.set(shard);
    // SAFETY: the key was made by `attach` before the state became ON. Glibc may
    // allocate here; the thread is marked busy, so that is booked directly.
    unsafe {
        libc::pthread_setspecific(
            THREAD_END.load(Ordering::Relaxed),
            (&raw const *shard).cast(),
        );
    }
    Some(shard)
}

fn pop_free_shard(header: &Header) -> Option<&'static Shard> {
    let mut top = header.free_shards.0.load(Ordering::Acquire);
    loop {
        let shard = shard((top as u32).checked_sub(1)?)?;
        let next = u64::from(shard.next_free.load(Ordering::Relaxed));
        let changed = (top >> 32).wrapping_add(1) << 32 | next;
        match header.free_shards.0.compare_exchange_weak(
            top,
            changed,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return Some(shard),
            Err(now) => top = now,
        }
    }
}

fn push_free_shard(header: &Header, index: u32) {
    let Some(shard) = shard(index) else { return };
    let mut top = header.free_shards.0.load(Ordering::Relaxed);
    loop {
        shard.next_free.store(top as u32, Ordering::Relaxed);
        let changed = (top >> 32).wrapping_add(1) << 32 | u64::from(index + 1);
        match header.free_shards.0.compare_exchange_weak(
            top,
            changed,
            Ordering::AcqRel,
            Ordering::Relaxed,
        ) {
            Ok(_) => return,
            Err(now) => top = now,
        }
    }
}

fn new_shard(header: &Header) -> Option<&'static Shard> {
    let mut used = header.shards_used.0.load(Ordering::Relaxed);
    loop {
        let shard = shard(used)?;
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
    let _ = THREAD.try_with(|thread| {
        let passes = thread.end_passes.get();
        if passes < LAST_PASS {
            thread.end_passes.set(passes + 1);
            // SAFETY: the key exists as long as the process.
            unsafe { libc::pthread_setspecific(THREAD_END.load(Ordering::Relaxed), value) };
            return;
        }
        thread.busy.set(true);
        compiler_fence(Ordering::SeqCst);
        give_back_shard(thread);
        thread.ended.set(true);
        compiler_fence(Ordering::SeqCst);
        thread.busy.set(false);
    });
}

fn give_back_shard(thread: &Thread) {
    // SAFETY: null, or a shard of the mapping, which is never unmapped.
    let (Some(header), Some(shard)) = (header(), unsafe { thread.shard.get().as_ref() }) else {
        return;
    };
    thread.shard.set(null());
    begin_move(shard);
    for entry in &shard.entries {
        move_out(entry);
    }
    end_move(shard);
    for (cell, held_back) in shard.held_back.iter().enumerate() {
        if held_back.load(Ordering::Relaxed) != 0 {
            tell(header, held_back, cell as u32);
        }
    }
    shard.process.store(0, Ordering::Release);
    let first = SHARDS.load(Ordering::Relaxed);
    // SAFETY: both pointers are into the mapping's array of shards.
    let index = unsafe { (&raw const *shard).offset_from(first) };
    push_free_shard(header, index as u32);
}

/// Decides whether this process is metered. Returns whether it is.
#[cold]
fn decide() -> bool {
    // SAFETY: reads one pointer of the C library, which is null until its own
    // initialisation has run.
    if unsafe { environ.is_null() } {
        return false;
    }
    if STATE
        .compare_exchange(UNDECIDED, DECIDING, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        return STATE.load(Ordering::Acquire) == ON;
    }
    let on = attach();
    STATE.store(if on { ON } else { OFF }, Ordering::Release);
    on
}

unsafe extern "C" {
    static environ: *const *const libc::c_char;
}

/// Maps the ledger that the environment names, and takes a process slot in it.
fn attach() -> bool {
    let Some(fd) = ledger_fd() else { return false };
    let Some((header, capacity)) = map(fd) else {
        return false;
    };
    let base: *const u8 = (&raw const *header).cast();
    // SAFETY: `map` checked that the mapping is as large as the capacity says.
    let (contexts, shards) = unsafe {
        (
            base.add(capacity.contexts_offset()),
            base.add(capacity.shards_offset()),
        )
    };

    let process = claim_process(header);
    if !crate::glibc::layout_is_known() {
        if let Some(slot) = header.processes.get(process as usize) {
            slot.refused
                .store(Refused::UnknownAllocator as u32, Ordering::Release);
        }
        return false;
    }
    let mut key = 0;
    // SAFETY: plain calls of the C library with valid arguments. A failure
    // leaves the fork unnoticed or the thread's shard unreturned, nothing worse.
    unsafe {
        if libc::pthread_key_create(&raw mut key, Some(thread_ends)) != 0 {
            return false;
        }
        libc::pthread_atfork(None, None, Some(after_fork));
    }
    THREAD_END.store(key, Ordering::Relaxed);
    CONTEXT_COUNT.store(capacity.contexts, Ordering::Relaxed);
    SHARD_COUNT.store(capacity.shards, Ordering::Relaxed);
    PROCESS.store(process, Ordering::Relaxed);
    CONTEXTS.store(contexts.cast_mut().cast(), Ordering::Relaxed);
    SHARDS.store(shards.cast_mut().cast(), Ordering::Relaxed);
    HEADER.store((&raw const *header).cast_mut(), Ordering::Release);
    true
}

fn ledger_fd() -> Option<c_int> {
    // SAFETY: getenv of a C string; nobody changes the environment this early.
    let value = unsafe { libc::getenv(FD_VARIABLE.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returns a C string.
    let value = unsafe { CStr::from_ptr(value) }.to_bytes();
    let mut fd: c_int = 0;
    if value.is_empty() {
        return None;
    }
    for &digit in value {
        let digit = c_int::from(digit.wrapping_sub(b'0'));
        if digit > 9 {
            return None;
        }
        fd = fd.checked_mul(10)?.checked_add(digit)?;
    }
    Some(fd)
}

fn map(fd: c_int) -> Option<(&'static Header, Capacity)> {
    // SAFETY: `stat` is written by fstat before it is read; the mapping is
    // checked for its size before anything past the header is used.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &raw mut stat) != 0 {
            return None;
        }
        let bytes = usize::try_from(stat.st_size).ok()?;
        if bytes < size_of::<Header>() {
            return None;
        }
        let at = libc::mmap(
            null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            0,
        );
        if at == libc::MAP_FAILED {
            return None;
        }
        let header = &*at.cast::<Header>();
        let capacity = Capacity {
            contexts: header.contexts.load(Ordering::Acquire),
            shards: header.shards.load(Ordering::Acquire),
        };
        let ours = header.magic.load(Ordering::Acquire) == MAGIC
            && header.version.load(Ordering::Acquire) == VERSION
            && capacity.contexts <= Capacity::MAX_CONTEXTS
            && capacity.shards <= Capacity::MAX_SHARDS
            && capacity.bytes() == bytes;
        if !ours {
            libc::munmap(at, bytes);
            return None;
        }
        Some((header, capacity))
    }
}

fn claim_process(header: &Header) -> u32 {
    let index = header.processes_used.fetch_add(1, Ordering::AcqRel) + 1;
    if index as usize > PROCESSES {
        header.lost.fetch_add(1, Ordering::Relaxed);
        return 0;
    }
    // SAFETY: getpid has no preconditions.
    let pid = unsafe { libc::getpid() };
    header.processes[index as usize]
        .pid
        .store(pid as u32, Ordering::Release);
    index
}

/// In the child of a fork: what its thread had belongs to the parent.
unsafe extern "C" fn after_fork() {
    let Some(header) = header() else { return };
    PROCESS.store(claim_process(header), Ordering::Relaxed);
    THREAD.with(|thread| {
        thread.shard.set(null());
        thread.busy.set(false);
        for context in &thread.contexts {
            context.set(0);
        }
    });
}

/// Sets the calling thread's own place and returns the one before.
pub(crate) fn set_own_place(place: Place) -> Place {
    THREAD.with(|thread| {
        let before = thread.place.replace(place);
        for context in &thread.contexts {
            context.set(0);
        }
        before
    })
}

/// The calling thread's own place.
pub(crate) fn own_place() -> Place {
    THREAD.with(|thread| thread.place.get())
}

/// Sets the layer to book under on the calling thread and returns the one before.
#[inline(always)]
pub(crate) fn set_layer(layer: HookLayer) -> HookLayer {
    // The optimiser knows that malloc touches no memory of the program's and
    // would move this store past it, or drop it; the fences keep it here.
    compiler_fence(Ordering::SeqCst);
    let before = THREAD.with(|thread| thread.layer.replace(layer));
    compiler_fence(Ordering::SeqCst);
    before
}

/// The layer to book under on the calling thread.
#[inline(always)]
pub(crate) fn layer() -> HookLayer {
    THREAD.with(|thread| thread.layer.get())
}

/// The last block that the malloc family returned to this thread.
pub(crate) fn last_block() -> *mut u8 {
    THREAD.with(|thread| thread.last.get())
}

/// Begins a round: blocks born from now on belong to it.
pub(crate) fn begin_round(round: u32) {
    if let Some(header) = header() {
        header.now.round.store(round, Ordering::Relaxed);
        header
            .round_peak
            .store(header.live.0.load(Ordering::Relaxed), Ordering::Relaxed);
        header.now.generation.fetch_add(1, Ordering::AcqRel);
    }
}

/// Sets what threads without a place of their own are booked under.
pub(crate) fn set_inherited(place: Place) {
    if let Some(header) = header() {
        header.now.inherited.store(place.0, Ordering::Relaxed);
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
    let header = header()?;
    let kept = &name.as_bytes()[..name.len().min(crate::layout::NAME_BYTES)];
    if kept.is_empty() {
        return Some(0);
    }
    let used = (header.phases_used.load(Ordering::Acquire) as usize).min(PHASES - 1);
    for number in 1..=used {
        let known = &header.phase_names[number];
        if known.len.load(Ordering::Acquire) as usize == kept.len()
            && known
                .bytes
                .iter()
                .zip(kept)
                .all(|(a, b)| a.load(Ordering::Relaxed) == *b)
        {
            return Some(number as u8);
        }
    }
    // Two threads may name the same phase twice; the reader adds such twins up.
    let number = header.phases_used.fetch_add(1, Ordering::AcqRel) as usize + 1;
    let Some(new) = header.phase_names.get(number) else {
        header.phases_used.fetch_sub(1, Ordering::AcqRel);
        header.lost.fetch_add(1, Ordering::Relaxed);
        return Some(0);
    };
    for (to, from) in new.bytes.iter().zip(kept) {
        to.store(*from, Ordering::Relaxed);
    }
    new.len.store(kept.len() as u8, Ordering::Release);
    Some(number as u8)
}
