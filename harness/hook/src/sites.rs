//! Call stacks of allocations, where the supervisor asked for them.
//!
//! A gate's ledger has no room for stacks and this module costs it nothing. The
//! ledger of an *explain* run has a table of sites behind its shards, and says
//! for each phase and layer which sizes of block are wanted. The stack of such a
//! block is taken when it is born; its site becomes a part of the block's context,
//! so that the ledger's own counts of births and releases are exact by site.
//!
//! ```text
//! SiteHeader │ Site × sites
//! ```
//!
//! A site is one stack in one process. Its frames are kept as an object (the
//! program, a library) and an address in that object's file, found out when the
//! stack is first seen: a library that is unloaded later can still be named.

use std::ffi::CStr;
use std::mem::size_of;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::layout::{CELLS, Capacity, HookLayer, Line, cell};
use crate::unwind::{self, LinkMap, Object, Step};

/// Where this crate's own source is, as debug information names it: frames from
/// there are the meter's.
pub const SOURCE_FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// Objects of NVIDIA's driver and of the CUDA runtime, by the beginning of their names.
pub const DRIVER_OBJECTS: [&str; 6] = [
    "libcuda.so",
    "libcudart.so",
    "libcupti.so",
    "libnvidia-",
    "libnvrtc",
    "libnvJitLink",
];

/// Frames of a stack that are kept, from the innermost.
pub const DEPTH: usize = 64;
/// Buckets of the index of sites; a power of two.
const BUCKETS: usize = 16 * 1024;
/// Objects that can be told apart, over all processes.
const OBJECTS: usize = 1024;
/// Bytes of an object's path that are kept.
const PATH_BYTES: usize = 512;
/// Bytes of a build id that are kept.
const ID_BYTES: usize = 32;
/// Bits of a frame's address; the rest is its object's number.
const ADDRESS_BITS: u32 = 48;

/// What stands before the sites.
#[repr(C, align(64))]
pub struct SiteHeader {
    used: Line<AtomicU32>,
    objects_used: AtomicU32,
    /// Stacks that were taken.
    captures: Line<AtomicU64>,
    /// Stacks that the table had no room for.
    dropped: AtomicU64,
    /// Sizes that are wanted, by phase and layer.
    wanted: [Sizes; CELLS],
    buckets: [AtomicU32; BUCKETS],
    objects: [SharedObject; OBJECTS],
}

/// Sizes of block from one up to another, which is not one of them.
#[repr(C)]
struct Sizes {
    from: AtomicU64,
    below: AtomicU64,
}

/// One stack.
#[repr(C, align(64))]
pub struct Site {
    /// Hash of the stack and the process; written last but for the bucket's list.
    hash: AtomicU64,
    /// Index of the next site in the same bucket, or 0.
    next: AtomicU32,
    process: AtomicU32,
    depth: AtomicU32,
    /// Whether there were more frames than are kept.
    cut: AtomicU32,
    frames: [AtomicU64; DEPTH],
}

/// An object of a process; the start is written last.
#[repr(C)]
struct SharedObject {
    start: AtomicU64,
    unwind_table: AtomicU64,
    bias: AtomicU64,
    process: AtomicU32,
    path_len: AtomicU16,
    id_len: AtomicU16,
    id: [AtomicU8; ID_BYTES],
    path: [AtomicU8; PATH_BYTES],
}

/// Bytes of the table behind the shards.
pub(crate) const fn table_bytes(sites: u32) -> usize {
    if sites == 0 {
        0
    } else {
        size_of::<SiteHeader>() + sites as usize * size_of::<Site>()
    }
}

/// The most sites that a layout is made for.
pub(crate) const MAX_SITES: u32 = 1 << 22;

static TABLE: AtomicPtr<SiteHeader> = AtomicPtr::new(null_mut());
static COUNT: AtomicU32 = AtomicU32::new(0);

// ---- The workload's side -------------------------------------------------------

/// Takes the table into use, if the ledger has one.
///
/// # Safety
/// `base` is the start of a ledger's mapping of this capacity, which is never unmapped.
pub(crate) unsafe fn attach(base: *const u8, capacity: Capacity) {
    if capacity.sites != 0 && unwind::prepare() {
        COUNT.store(capacity.sites, Ordering::Relaxed);
        // SAFETY: the table begins there, as the capacity says.
        let table = unsafe { base.add(capacity.sites_offset()) };
        TABLE.store(table.cast_mut().cast(), Ordering::Release);
    }
}

/// The site of a block that is being born, if stacks of its phase and layer are
/// wanted: 0 if not of its size, or if there is no room. `None`: not wanted at all.
#[inline]
pub(crate) fn of_birth(cell: u32, size: usize, process: u32) -> Option<u32> {
    // SAFETY: null, or the start of the table, which is never unmapped.
    let table = unsafe { TABLE.load(Ordering::Relaxed).as_ref() }?;
    let sizes = table.wanted.get(cell as usize)?;
    let below = sizes.below.load(Ordering::Relaxed);
    if below == 0 {
        return None;
    }
    let wanted = (sizes.from.load(Ordering::Relaxed)..below).contains(&(size as u64));
    Some(if wanted { capture(table, process) } else { 0 })
}

#[cold]
#[inline(never)]
fn capture(table: &SiteHeader, process: u32) -> u32 {
    let mut addresses = [0_usize; DEPTH];
    let mut depth = 0;
    let mut hash = u64::from(process) + 1;
    let cut = !unwind::walk(|step: Step<'_>| {
        let Some(slot) = addresses.get_mut(depth) else {
            return false;
        };
        *slot = step.address;
        depth += 1;
        // With the object's table, for an address that another library has taken over.
        let mixed = hash ^ step.address as u64 ^ (step.object.unwind_table as u64) << 20;
        hash = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        true
    });
    table.captures.0.fetch_add(1, Ordering::Relaxed);
    let site = intern(table, hash.max(1), process, &addresses[..depth], cut);
    if site == 0 {
        table.dropped.fetch_add(1, Ordering::Relaxed);
    }
    site
}

fn site(index: u32) -> Option<&'static Site> {
    if index == 0 || index >= COUNT.load(Ordering::Relaxed) {
        return None;
    }
    let table = TABLE.load(Ordering::Relaxed);
    if table.is_null() {
        return None;
    }
    // SAFETY: COUNT sites lie behind the header in the mapping, which is never unmapped.
    Some(unsafe { &*table.add(1).cast::<Site>().add(index as usize) })
}

/// The index of a stack's site, which is made if there is none; 0 if there is no room.
///
/// Stacks are told apart by 64 bits of hash: of a million, two are taken for one
/// with a probability of 2⁻²⁵. The lists are as those of contexts are (see `ledger`).
fn intern(table: &SiteHeader, hash: u64, process: u32, addresses: &[usize], cut: bool) -> u32 {
    let bucket = &table.buckets[hash as usize >> 8 & (BUCKETS - 1)];
    let mut reserved = 0;
    let mut head = bucket.load(Ordering::Acquire);
    let mut known = 0;
    loop {
        let mut index = head;
        while index != known {
            let Some(at) = site(index) else { break };
            if at.hash.load(Ordering::Relaxed) == hash {
                return index;
            }
            index = at.next.load(Ordering::Relaxed);
        }
        if reserved == 0 {
            reserved = table.used.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            let Some(new) = site(reserved) else {
                table.used.0.fetch_sub(1, Ordering::Relaxed);
                return 0;
            };
            describe(table, new, process, addresses, cut);
        }
        let Some(new) = site(reserved) else { return 0 };
        new.next.store(head, Ordering::Relaxed);
        new.hash.store(hash, Ordering::Relaxed);
        match bucket.compare_exchange(head, reserved, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return reserved,
            Err(moved) => {
                new.hash.store(0, Ordering::Relaxed);
                known = head;
                head = moved;
            }
        }
    }
}

fn describe(table: &SiteHeader, new: &Site, process: u32, addresses: &[usize], cut: bool) {
    for (frame, &address) in new.frames.iter().zip(addresses) {
        let (number, bias) = match unwind::object_at(address) {
            Some(object) => number_of(table, &object, process),
            None => (0, 0),
        };
        let address = address.wrapping_sub(bias) as u64 & ((1 << ADDRESS_BITS) - 1);
        frame.store(
            u64::from(number) << ADDRESS_BITS | address,
            Ordering::Relaxed,
        );
    }
    new.process.store(process, Ordering::Relaxed);
    new.cut.store(u32::from(cut), Ordering::Relaxed);
    new.depth.store(addresses.len() as u32, Ordering::Release);
}

/// The object's number in the table, from 1, and its bias. Number 0: no room.
fn number_of(table: &SiteHeader, object: &Object, process: u32) -> (u16, usize) {
    // SAFETY: the loader's record lives as long as the object is loaded, which it
    // is while a frame of this thread is in it.
    let link_map: &LinkMap = unsafe { &*object.link_map };
    let used = (table.objects_used.load(Ordering::Acquire) as usize).min(OBJECTS);
    for (index, known) in table.objects[..used].iter().enumerate() {
        if known.start.load(Ordering::Acquire) == object.start as u64
            && known.unwind_table.load(Ordering::Relaxed) == object.unwind_table as u64
            && known.process.load(Ordering::Relaxed) == process
        {
            return (index as u16 + 1, link_map.bias);
        }
    }
    // Two threads may enter the same object twice; the reader takes both for what they are.
    let index = table.objects_used.fetch_add(1, Ordering::AcqRel) as usize;
    let Some(new) = table.objects.get(index) else {
        table.objects_used.fetch_sub(1, Ordering::AcqRel);
        return (0, 0);
    };
    new.unwind_table
        .store(object.unwind_table as u64, Ordering::Relaxed);
    new.bias.store(link_map.bias as u64, Ordering::Relaxed);
    new.process.store(process, Ordering::Relaxed);
    store_path(new, link_map);
    store_build_id(new, object);
    new.start.store(object.start as u64, Ordering::Release);
    (index as u16 + 1, link_map.bias)
}

fn store_path(new: &SharedObject, link_map: &LinkMap) {
    let mut program = [0_u8; PATH_BYTES];
    // SAFETY: the name is a C string that lives as long as the record; readlink
    // writes within the array, whose last byte stays the string's end.
    let path = unsafe {
        if link_map.name.is_null() || *link_map.name == 0 {
            let link = c"/proc/self/exe".as_ptr();
            libc::readlink(link, program.as_mut_ptr().cast(), PATH_BYTES - 1);
            CStr::from_ptr(program.as_ptr().cast())
        } else {
            CStr::from_ptr(link_map.name)
        }
    };
    let path = path.to_bytes();
    for (to, from) in new.path.iter().zip(path) {
        to.store(*from, Ordering::Relaxed);
    }
    new.path_len
        .store(path.len().min(PATH_BYTES) as u16, Ordering::Relaxed);
}

/// Finds the note with the build id through the ELF header, which linkers put at
/// the start of the first segment.
fn store_build_id(new: &SharedObject, object: &Object) {
    // SAFETY: a loaded object's first page is readable; what the header says of it
    // is checked to lie within the object before it is read.
    unsafe {
        let within = |at: usize, bytes: usize| {
            at >= object.start && at.checked_add(bytes).is_some_and(|end| end <= object.end)
        };
        if !within(object.start, size_of::<libc::Elf64_Ehdr>()) {
            return;
        }
        let header = &*(object.start as *const libc::Elf64_Ehdr);
        if !header.e_ident.starts_with(b"\x7fELF") {
            return;
        }
        let segments = object.start.wrapping_add(header.e_phoff as usize);
        let count = usize::from(header.e_phnum);
        if !within(segments, count * size_of::<libc::Elf64_Phdr>()) {
            return;
        }
        let bias = (*object.link_map).bias;
        for index in 0..count {
            let segment = &*(segments as *const libc::Elf64_Phdr).add(index);
            if segment.p_type != libc::PT_NOTE {
                continue;
            }
            let mut note = bias.wrapping_add(segment.p_vaddr as usize);
            let end = note.wrapping_add(segment.p_memsz as usize);
            if !within(note, segment.p_memsz as usize) {
                continue;
            }
            // Name length, description length, type; then both, padded to 4 bytes.
            while note + 12 <= end {
                let word = |at: usize| (at as *const u32).read_unaligned() as usize;
                let (name, description) = (word(note), word(note + 4));
                let at = note + 12 + name.next_multiple_of(4);
                let next = at.wrapping_add(description.next_multiple_of(4));
                if next > end || next <= note {
                    break;
                }
                const BUILD_ID: usize = 3;
                if word(note + 8) == BUILD_ID && name == 4 {
                    let length = description.min(ID_BYTES);
                    for (offset, to) in new.id[..length].iter().enumerate() {
                        to.store(*((at + offset) as *const u8), Ordering::Relaxed);
                    }
                    new.id_len.store(length as u16, Ordering::Relaxed);
                    return;
                }
                note = next;
            }
        }
    }
}

// ---- The supervisor's side -----------------------------------------------------

/// The stacks of a ledger.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Sites {
    /// Stacks by site number; number 0 is none.
    pub stacks: Vec<Stack>,
    /// The objects that frames lie in.
    pub objects: Vec<LoadedObject>,
    /// How often a stack was taken.
    pub captures: u64,
    /// Stacks that the table had no room for: their blocks are booked without a site.
    pub dropped: u64,
}

/// One stack, the innermost frame first.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Stack {
    /// The slot of the process it was taken in.
    pub process: u32,
    /// Its frames, at most [`DEPTH`].
    pub frames: Vec<StackFrame>,
    /// Whether there were more.
    pub cut: bool,
}

/// One frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackFrame {
    /// Index into [`Sites::objects`]; `None` where no loaded object was there.
    pub object: Option<usize>,
    /// An address of the object's file, within the instruction that made the call.
    pub address: u64,
}

/// An object that was loaded.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct LoadedObject {
    /// Its file.
    pub path: PathBuf,
    /// Its build id; empty if it has none.
    pub build_id: Vec<u8>,
}

/// The table in a supervisor's own mapping.
pub(crate) struct Table<'a> {
    header: &'a SiteHeader,
    sites: &'a [Site],
}

impl<'a> Table<'a> {
    /// # Safety
    /// `base` is the start of a ledger's mapping of this capacity, mapped for `'a`.
    pub(crate) unsafe fn at(base: *const u8, capacity: Capacity) -> Option<Self> {
        if capacity.sites == 0 {
            return None;
        }
        // SAFETY: the table begins there and has so many sites, as the capacity says.
        unsafe {
            let header = base.add(capacity.sites_offset()).cast::<SiteHeader>();
            let sites = header.add(1).cast::<Site>();
            Some(Self {
                header: &*header,
                sites: std::slice::from_raw_parts(sites, capacity.sites as usize),
            })
        }
    }

    /// Asks for the stacks of blocks of these sizes, born in this phase and layer.
    pub(crate) fn want(&self, phase: usize, layer: HookLayer, sizes: &std::ops::Range<u64>) {
        if let Some(wanted) = self.header.wanted.get(cell(layer as usize, phase)) {
            wanted.from.store(sizes.start, Ordering::Relaxed);
            wanted.below.store(sizes.end, Ordering::Release);
        }
    }

    /// Everything in the table. Nothing is trusted: the workload could write here.
    pub(crate) fn read(&self) -> Sites {
        let used = self.header.used.0.load(Ordering::Acquire) as usize;
        let used = used.saturating_add(1).min(self.sites.len());
        let objects = self.header.objects_used.load(Ordering::Acquire) as usize;
        let objects: Vec<_> = self.header.objects[..objects.min(OBJECTS)]
            .iter()
            .map(read_object)
            .collect();
        Sites {
            stacks: self.sites[..used]
                .iter()
                .map(|site| read_site(site, objects.len()))
                .collect(),
            objects,
            captures: self.header.captures.0.load(Ordering::Relaxed),
            dropped: self.header.dropped.load(Ordering::Relaxed),
        }
    }
}

fn read_site(site: &Site, objects: usize) -> Stack {
    let depth = (site.depth.load(Ordering::Acquire) as usize).min(DEPTH);
    let frame = |word: &AtomicU64| {
        let word = word.load(Ordering::Relaxed);
        StackFrame {
            object: (word >> ADDRESS_BITS)
                .checked_sub(1)
                .map(|index| index as usize)
                .filter(|index| *index < objects),
            address: word & ((1 << ADDRESS_BITS) - 1),
        }
    };
    Stack {
        process: site.process.load(Ordering::Relaxed),
        frames: site.frames[..depth].iter().map(frame).collect(),
        cut: site.cut.load(Ordering::Relaxed) != 0,
    }
}

fn read_object(object: &SharedObject) -> LoadedObject {
    use std::os::unix::ffi::OsStringExt;
    let bytes = |from: &[AtomicU8], length: &AtomicU16| -> Vec<u8> {
        let length = usize::from(length.load(Ordering::Acquire)).min(from.len());
        let from = from[..length].iter();
        from.map(|byte| byte.load(Ordering::Relaxed)).collect()
    };
    LoadedObject {
        path: std::ffi::OsString::from_vec(bytes(&object.path, &object.path_len)).into(),
        build_id: bytes(&object.id, &object.id_len),
    }
}
