//! The slots of the processes that write to one ledger.
//!
//! A process takes a slot when it first allocates: after it was started, after
//! `exec` (which leaves nothing of what was there), and as the child of a fork. Its
//! contexts carry the slot's number. A process that has ended holds nothing any
//! more, so its books are *closed*: what its threads had in shards moves to its
//! contexts, the contexts' counts move to the account of ended processes, and
//! what it had not released leaves the live counters. Then slot, shards and
//! contexts are free for the next one, so that any number of processes fits, as
//! long as not too many live at one time.
//!
//! Whoever takes a slot first closes the books of those that have ended, and
//! the supervisor does so too. Nobody writes to a dead process's books, so
//! closing needs no care but that one does it at a time, and that a reader in
//! between notices ([`Header::closings`]).
//!
//! A forked child has blocks that its ancestors bore, with trailers that name the
//! ancestors' contexts. It never books their release (they are copies), which it
//! tells by the slot. Therefore a forked child must not get the slot of an ancestor
//! whose memory it has: see [`Ancestry`].

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::free_shards;
use crate::layout::{
    Context, Counts, Entry, Header, Key, LAYERS, PROCESSES, Process, Shard, layer_of,
};
use crate::ledger::sleep_a_moment;
use crate::moves::{self, move_count};

/// A mapped ledger. Both sides make one; what the other side wrote is not trusted.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub header: &'a Header,
    pub contexts: &'a [Context],
    pub shards: &'a [Shard],
}

/// Who a process is: its id, and the namespace in which that is its id. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity(u64);

impl Identity {
    /// The process `pid` of the same namespace.
    #[cfg(test)]
    pub const fn with_pid(self, pid: u32) -> Self {
        Self(self.0 & !0xffff_ffff | pid as u64)
    }

    /// The calling process.
    pub fn current() -> Self {
        // SAFETY: getpid has no preconditions; stat fills the struct before it is read.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            let namespace = match libc::stat(c"/proc/self/ns/pid".as_ptr(), &raw mut stat) {
                0 => stat.st_ino as u32,
                _ => 0,
            };
            Self(u64::from(namespace) << 32 | u64::from(libc::getpid() as u32))
        }
    }

    /// The process that has this slot.
    pub fn of(process: &Process) -> Self {
        Self(process.identity.load(Ordering::Acquire))
    }

    /// As it stands in the ledger.
    #[cfg(test)]
    pub const fn bits(self) -> u64 {
        self.0
    }

    pub const fn pid(self) -> u32 {
        self.0 as u32
    }

    const fn namespace(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether the two mean the same by a process's id.
    pub fn shares_namespace(self, other: Self) -> bool {
        self.namespace() != 0 && self.namespace() == other.namespace()
    }

    /// Whether no such process exists any more, as far as `asker` can know: in
    /// doubt it exists. A process that its parent has not waited for still exists.
    pub fn is_gone(self, asker: Self) -> bool {
        if !self.shares_namespace(asker) {
            return false;
        }
        // SAFETY: signal 0 is never delivered; it only asks.
        unsafe { libc::kill(self.pid() as i32, 0) != 0 && *libc::__errno_location() == libc::ESRCH }
    }
}

/// Sixteen bytes that the kernel gives each program that is executed, the first eight of them.
pub(crate) fn image() -> u64 {
    // SAFETY: the kernel passes the address of 16 bytes, or the entry is missing and 0.
    unsafe {
        let random = libc::getauxval(libc::AT_RANDOM) as *const u64;
        match random.is_null() {
            true => 0,
            false => random.read_unaligned(),
        }
    }
}

/// The slots of processes whose memory this process has copies of.
pub(crate) struct Ancestry([AtomicU64; (PROCESSES + 1).div_ceil(64)]);

impl Ancestry {
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; (PROCESSES + 1).div_ceil(64)])
    }

    pub fn add(&self, slot: u32) {
        if let Some(word) = self.0.get(slot as usize / 64) {
            word.fetch_or(1 << (slot % 64), Ordering::Relaxed);
        }
    }

    fn has(&self, slot: u32) -> bool {
        let word = self.0.get(slot as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (slot % 64) & 1 == 1)
    }
}

/// How a process came to need a slot.
#[derive(Clone, Copy)]
pub(crate) enum Arrival<'a> {
    /// It executes a program whose memory is all its own; with the program's [`image`].
    Executed(u64),
    /// It was forked off.
    Forked(&'a Ancestry),
}

/// What came of the wish for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// The slot, from 1.
    Slot(u32),
    /// Another copy of the hook keeps this process's books already.
    KeptByAnother,
    /// As many processes live as there are slots.
    Full,
}

/// Takes a slot for the calling process.
pub(crate) fn claim(view: View<'_>, me: Identity, arrival: Arrival<'_>) -> Claim {
    let header = view.header;
    if let Arrival::Executed(image) = arrival {
        let kept = used(header).any(|slot| {
            let process = &header.processes[slot as usize];
            process.identity.load(Ordering::Acquire) == me.0
                && process.image.load(Ordering::Acquire) == image
        });
        if kept {
            return Claim::KeptByAnother;
        }
    }
    // A process with my identity that is not me executed me, or had my id before me.
    close_ended(view, me, |other| other == me || other.is_gone(me));

    for slot in 1..=PROCESSES as u32 {
        if let Arrival::Forked(ancestry) = arrival
            && ancestry.has(slot)
        {
            continue;
        }
        let process = &header.processes[slot as usize];
        let taken = process.identity.load(Ordering::Relaxed) != 0
            || process
                .identity
                .compare_exchange(0, me.0, Ordering::AcqRel, Ordering::Relaxed)
                .is_err();
        if taken {
            continue;
        }
        #[cfg(feature = "gpu")]
        let begin_gpu = (crate::gpu::attach as fn() as *const ()).expose_provenance() as u64;
        #[cfg(not(feature = "gpu"))]
        let begin_gpu = 0;
        process.begin_gpu.store(begin_gpu, Ordering::Relaxed);
        process.block_mappings.store(0, Ordering::Relaxed);
        process.allocator_mappings.store(0, Ordering::Relaxed);
        let born = header.processes_born.fetch_add(1, Ordering::AcqRel) + 1;
        process.born.store(born, Ordering::Release);
        let image = match arrival {
            Arrival::Executed(image) => image,
            Arrival::Forked(_) => 0,
        };
        process.image.store(image, Ordering::Release);
        let root = &header.root;
        let _ = root.compare_exchange(0, me.0, Ordering::AcqRel, Ordering::Relaxed);
        header.processes_used.fetch_max(slot, Ordering::AcqRel);
        return Claim::Slot(slot);
    }
    header.lost.fetch_add(1, Ordering::Relaxed);
    Claim::Full
}

fn used(header: &Header) -> impl Iterator<Item = u32> {
    1..=header
        .processes_used
        .load(Ordering::Acquire)
        .min(PROCESSES as u32)
}

/// Where the process `me` has the function that begins the GPU's books, if it has one.
#[cfg(feature = "gpu")]
pub(crate) fn begin_gpu(header: &Header, me: Identity) -> Option<*const ()> {
    let mut mine = used(header).map(|slot| &header.processes[slot as usize]);
    let mine = mine.find(|process| Identity::of(process) == me)?;
    let begin = usize::try_from(mine.begin_gpu.load(Ordering::Acquire)).ok()?;
    (begin != 0).then(|| std::ptr::with_exposed_provenance(begin))
}

/// Closes the books of the processes that have `ended`, and returns how many
/// those were. Does nothing if someone else keeps doing so. Not to be called by
/// two threads of a process at one time, which look the same from outside.
///
/// The first process of all is kept until it executes another program: the
/// supervisor reads its books after its end.
pub(crate) fn close_ended(view: View<'_>, me: Identity, ended: impl Fn(Identity) -> bool) -> u32 {
    let header = view.header;
    let to_close = |slot: u32| {
        let process = &header.processes[slot as usize];
        let identity = Identity::of(process);
        identity.0 != 0
            && process.refused.load(Ordering::Acquire) == 0
            && (identity == me || identity.0 != header.root.load(Ordering::Acquire))
            && ended(identity)
    };
    // One that was killed at closing has left the books unreadable.
    let closer = Identity(header.closer.0.load(Ordering::Acquire));
    let broken_off = closer.0 != 0 && closer != me && ended(closer);
    if !(broken_off || used(header).any(to_close)) || !lock(header, me, &ended) {
        return 0;
    }
    let mut closed = 0;
    moves::begin(&header.closings);
    for slot in used(header) {
        if to_close(slot) {
            close(view, slot);
            closed += 1;
        }
    }
    moves::end(&header.closings);
    header.closer.0.store(0, Ordering::Release);
    closed
}

/// One closes at a time. A closer that was killed is relieved.
fn lock(header: &Header, me: Identity, ended: impl Fn(Identity) -> bool) -> bool {
    const TRIES: u32 = 100;
    let closer = &header.closer.0;
    for _ in 0..TRIES {
        match closer.compare_exchange(0, me.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            // A process closes on one thread at a time: mine is that of someone
            // who had my id before me.
            Err(holder) if Identity(holder) == me || ended(Identity(holder)) => {
                let relieved =
                    closer.compare_exchange(holder, me.0, Ordering::AcqRel, Ordering::Relaxed);
                if relieved.is_ok() {
                    return true;
                }
            }
            Err(_) => sleep_a_moment(),
        }
    }
    false
}

fn close(view: View<'_>, slot: u32) {
    let View {
        header,
        contexts,
        shards,
    } = view;
    let used = header.shards_used.0.load(Ordering::Acquire) as usize;
    for (index, shard) in shards.iter().enumerate().take(used) {
        if shard.process.load(Ordering::Acquire) == slot {
            empty_shard(contexts, shard);
            for (cell, held_back) in shard.held_back.iter().enumerate() {
                add_live(header, cell, held_back.swap(0, Ordering::Relaxed));
            }
            shard.process.store(0, Ordering::Release);
            free_shards::push(&header.free_shards.0, shards, index as u32);
        }
    }

    let process = &header.processes[slot as usize];
    let mut index = process.contexts.load(Ordering::Acquire);
    // Bounded, for the list could be a ring if someone wrote nonsense there.
    for _ in 0..contexts.len() {
        let Some(context) = contexts.get(index as usize).filter(|_| index != 0) else {
            break;
        };
        let key = Key(context.key.load(Ordering::Acquire));
        if key.process() == slot {
            close_context(header, key, &context.counts);
        }
        index = context.sibling.load(Ordering::Acquire);
    }
    header.ended_processes.fetch_add(1, Ordering::Relaxed);
    process.image.store(0, Ordering::Relaxed);
    process.identity.store(0, Ordering::Release);
}

/// Moves all counts of a shard to their contexts.
pub(crate) fn empty_shard(contexts: &[Context], shard: &Shard) {
    moves::begin(&shard.moving);
    for entry in &shard.entries {
        move_out(contexts, entry);
    }
    moves::end(&shard.moving);
}

/// Moves an entry's counts to its context.
pub(crate) fn move_out(contexts: &[Context], entry: &Entry) {
    let index = entry.context.load(Ordering::Relaxed) as usize;
    if index == 0 {
        return; // What had no context was counted as lost.
    }
    if let Some(context) = contexts.get(index) {
        move_counts(&entry.counts, &context.counts);
    }
    entry.context.store(0, Ordering::Relaxed);
}

fn move_counts(from: &Counts, to: &Counts) {
    move_count(&from.allocated_blocks, &to.allocated_blocks);
    move_count(&from.allocated_bytes, &to.allocated_bytes);
    move_count(&from.released_blocks, &to.released_blocks);
    move_count(&from.released_bytes, &to.released_bytes);
}

fn close_context(header: &Header, key: Key, counts: &Counts) {
    let alive = counts
        .allocated_bytes
        .load(Ordering::Relaxed)
        .wrapping_sub(counts.released_bytes.load(Ordering::Relaxed));
    move_counts(counts, &header.ended[key.layer() as usize % LAYERS]);
    add_live(header, key.cell() as usize, (alive as i64).wrapping_neg());
}

/// Changes the live counters, and no peak.
fn add_live(header: &Header, cell: usize, change: i64) {
    let add = |live: &AtomicI64| live.fetch_add(change, Ordering::Relaxed);
    if change == 0 {
        return;
    }
    if let Some(live) = header.cell_live.get(cell) {
        add(live);
        if layer_of(cell).is_host() {
            add(&header.live.0);
        }
    }
}
