//! Mappings: what of a process's resident memory lies where, by the kernel's own
//! account, so that growth which no ledger books can be named.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use object::elf::{PF_W, PT_LOAD};
use object::read::elf::{ElfFile64, ProgramHeader as _};
use object::{Endianness, ReadCache};
use procfs::process::Process;

use crate::books::{MapKind, MapSeries};
use crate::reconcile::Pages;

/// Resident bytes by who made the mapping and by its name.
type Resident = BTreeMap<(MapKind, String), u64>;

/// Readings take no more than one part in so many of the time between them.
const SHARE: u32 = 20;

/// The mappings after each round.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    rounds: Vec<Resident>,
    last: Option<(Instant, Duration)>,
    /// Whether one of the processes ever had the GPU's driver mapped.
    saw_gpu: bool,
    zeroed: Zeroed,
}

/// By a program's or library's file, how many bytes its data that begin as zeros take
/// beyond what is in the file (`.bss`).
type Zeroed = HashMap<String, u64>;

/// One look at what is resident in some processes.
#[derive(Debug, Default)]
pub(crate) struct Look {
    by_name: Resident,
    /// The same by what it is for.
    pub pages: Pages,
    /// Resident bytes by the kernel's counters, huge pages included.
    pub resident: u64,
}

/// Resident bytes of a process by the kernel's counters.
fn resident(pid: i32) -> Option<u64> {
    let status = Process::new(pid).ok()?.status().ok()?;
    Some((status.vmrss? + status.hugetlbpages.unwrap_or(0)) * 1024)
}

impl Maps {
    /// Reads the mappings of these processes. The kernel walks every page for that, which
    /// takes a second or so for a process of a terabyte.
    pub fn look(&mut self, processes: impl Iterator<Item = u32>) -> Look {
        let mut look = Look::default();
        for pid in processes {
            // A process that is gone has neither.
            let (Ok(text), Some(resident)) = (
                fs::read(format!("/proc/{pid}/smaps")),
                i32::try_from(pid).ok().and_then(resident),
            ) else {
                continue;
            };
            let text = String::from_utf8_lossy(&text);
            self.saw_gpu |= text.contains(" /dev/nvidia");
            look.resident += resident;
            let memory = File::open(format!("/proc/{pid}/mem")).ok();
            let places = places(&text, |at| is_heap(memory.as_ref()?, at));
            add_all(&mut look.by_name, &places);
            lay_out(&mut look.pages, &places, |file| {
                if let Some(known) = self.zeroed.get(file) {
                    return *known;
                }
                let bytes = zeroed_data(file).unwrap_or(0);
                self.zeroed.insert(file.to_owned(), bytes);
                bytes
            });
        }
        look
    }

    /// Reads the mappings of these processes, as a round has ended, and returns what
    /// was seen.
    ///
    /// Where that would take too large a part of the run, the last reading stands, and
    /// nothing is returned.
    pub fn round_ended(&mut self, processes: impl Iterator<Item = u32>) -> Option<Look> {
        let begun = Instant::now();
        let too_soon = self
            .last
            .is_some_and(|(at, took)| begun.duration_since(at) < took * SHARE);
        if too_soon && took_long(self.last) {
            let before = self.rounds.last().cloned().unwrap_or_default();
            self.rounds.push(before);
            return None;
        }
        let mut look = self.look(processes);
        self.rounds.push(std::mem::take(&mut look.by_name));
        let now = Instant::now();
        self.last = Some((now, now.duration_since(begun)));
        Some(look)
    }

    /// Leaves every second reading out.
    pub fn thin(&mut self) {
        let mut is_kept = false;
        self.rounds.retain(|_| {
            is_kept = !is_kept;
            is_kept
        });
    }

    /// Whether one of the processes uses a GPU: its driver's devices are mapped then.
    pub fn saw_gpu(&self) -> bool {
        self.saw_gpu
    }

    /// What grew or shrank, as series of one value for each round.
    pub fn series(&self) -> Vec<MapSeries> {
        let all: BTreeSet<&(MapKind, String)> =
            self.rounds.iter().flat_map(BTreeMap::keys).collect();
        all.into_iter()
            .map(|key| MapSeries {
                kind: key.0,
                name: key.1.clone(),
                resident: self
                    .rounds
                    .iter()
                    .map(|resident| resident.get(key).copied().unwrap_or(0))
                    .collect(),
            })
            .filter(|series| series.resident.windows(2).any(|pair| pair[0] != pair[1]))
            .collect()
    }
}

fn took_long(last: Option<(Instant, Duration)>) -> bool {
    last.is_some_and(|(_, took)| took > Duration::from_millis(5))
}

/// One mapping of `/proc/PID/smaps`; sizes in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Mapping<'a> {
    start: u64,
    end: u64,
    permissions: &'a str,
    name: &'a str,
    rss: u64,
    anonymous: u64,
    /// Pages of hugetlbfs, which are no part of the two above.
    huge_private: u64,
    huge_shared: u64,
}

impl Mapping<'_> {
    fn is_reserved(&self) -> bool {
        self.permissions.starts_with("---") && self.name.is_empty()
    }
}

/// A mapping and its neighbours, which tell what an unnamed one is for.
struct Place<'a> {
    mapping: Mapping<'a>,
    below: Option<Mapping<'a>>,
    /// Whether it is malloc's, for blocks of threads other than the first.
    is_arena: bool,
}

fn mappings(text: &str) -> Vec<Mapping<'_>> {
    let mut all: Vec<Mapping<'_>> = Vec::new();
    for line in text.lines() {
        if let Some(next) = header(line) {
            all.push(next);
        } else if let Some(last) = all.last_mut()
            && let Some((field, size)) = line.split_once(':')
        {
            match field {
                "Rss" => last.rss = bytes(size),
                "Anonymous" => last.anonymous = bytes(size),
                "Private_Hugetlb" => last.huge_private = bytes(size),
                "Shared_Hugetlb" => last.huge_shared = bytes(size),
                _ => {}
            }
        }
    }
    all
}

/// `is_heap` says whether a heap of an arena begins at an address, where that can be known.
fn places(text: &str, is_heap: impl Fn(u64) -> Option<bool>) -> Vec<Place<'_>> {
    let all = mappings(text);
    let place = |at: usize| {
        let mapping = all[at];
        let below = at.checked_sub(1).map(|below| all[below]);
        let above = all.get(at + 1).copied();
        let above = above.filter(|above| above.start == mapping.end);
        Place {
            mapping,
            below: below.filter(|below| below.end == mapping.start),
            is_arena: lies_as_arena(&mapping, above)
                && (mapping.start..mapping.end)
                    .step_by(HEAP_BYTES as usize)
                    .all(|heap| is_heap(heap) != Some(false)),
        }
    };
    (0..all.len()).map(place).collect()
}

/// A mapping's first line, `START-END PERMISSIONS OFFSET DEVICE INODE NAME`.
fn header(line: &str) -> Option<Mapping<'_>> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let permissions = rest.split(' ').next()?;
    // The name may hold spaces: it is what follows the fourth field after the range.
    let mut name = rest;
    for _ in 0..4 {
        name = name
            .trim_start()
            .split_once(' ')
            .map_or("", |(_, rest)| rest);
    }
    Some(Mapping {
        start,
        end,
        permissions,
        name: name.trim(),
        ..Mapping::default()
    })
}

/// "   1024 kB" in bytes.
fn bytes(size: &str) -> u64 {
    let number = size.trim().strip_suffix(" kB").unwrap_or("0");
    number.trim().parse::<u64>().unwrap_or(0) * 1024
}

/// The ledger's own pages are no doing of the workload's.
const LEDGER: &str = "/memfd:tidegate";

fn add_all(resident: &mut Resident, places: &[Place<'_>]) {
    for place in places {
        for (key, bytes) in parts(place) {
            if bytes > 0 {
                *resident.entry(key).or_default() += bytes;
            }
        }
    }
}

/// What of a mapping is whose: its anonymous pages, and those of a file or of shared memory.
fn parts(place: &Place<'_>) -> Vec<((MapKind, String), u64)> {
    let Mapping {
        name,
        rss,
        anonymous,
        ..
    } = place.mapping;
    let others = rss.saturating_sub(anonymous);
    let mut parts = Vec::new();
    if !name.starts_with(LEDGER) && !name.is_empty() && !name.starts_with('[') {
        let kind = if is_shmem(name) {
            MapKind::Shmem
        } else {
            MapKind::File
        };
        let private = format!("written copies of {name}");
        parts.push(((kind, name.to_owned()), others));
        parts.push(((MapKind::Anon, private), anonymous));
        return parts;
    }
    let (kind, name) = match name {
        "[heap]" => (MapKind::Allocator, "[heap]"),
        _ if name.starts_with("[stack") => (MapKind::Stack, "[stack]"),
        "" if place.is_arena => (MapKind::Allocator, "an arena of malloc"),
        "" if is_stack(place) => (MapKind::Stack, "a thread's stack"),
        "" => (MapKind::Anon, "anonymous mappings"),
        _ if name.starts_with("[anon") => (MapKind::Anon, name),
        _ => return parts,
    };
    parts.push(((kind, name.to_owned()), rss));
    parts
}

/// Adds the pages of one process to what lies where. `zeroed` says of a file how many bytes
/// its data that begin as zeros take.
fn lay_out(pages: &mut Pages, places: &[Place<'_>], mut zeroed: impl FnMut(&str) -> u64) {
    for place in places {
        let Mapping {
            name,
            rss,
            anonymous,
            huge_private,
            huge_shared,
            ..
        } = place.mapping;
        let others = rss.saturating_sub(anonymous);
        pages.anon += huge_private;
        pages.shmem += huge_shared;
        match name {
            _ if name.starts_with(LEDGER) => pages.ledger += rss,
            "[heap]" => pages.allocator += rss,
            _ if name.starts_with("[stack") => pages.stacks += rss,
            "" if place.is_arena => pages.allocator += rss,
            "" if is_stack(place) => pages.stacks += rss,
            "" => {
                // Another mapping may go on where they end, and be one with them.
                let theirs = written_file_below(place).map_or(0, &mut zeroed);
                pages.copies += rss.min(theirs);
                pages.anon += rss.saturating_sub(theirs);
            }
            _ if name.starts_with("[anon") => pages.anon += rss,
            _ => {
                pages.copies += anonymous;
                if is_shmem(name) {
                    pages.shmem += others;
                } else {
                    pages.files += others;
                }
            }
        }
    }
}

fn is_shmem(name: &str) -> bool {
    ["/memfd:", "/dev/zero", "/dev/shm/", "/SYSV"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// Whether an unnamed mapping lies above a guard, as a thread's stack does.
fn is_stack(place: &Place<'_>) -> bool {
    place.below.is_some_and(|below| below.is_reserved())
}

/// The largest heap that glibc makes, which begins at a multiple of it.
const HEAP_BYTES: u64 = 64 << 20;

/// Whether an unnamed mapping lies as glibc lays the heaps of its arenas: from a multiple
/// of their size on, with all that is left to the next one reserved. Where two lie side by
/// side and the first is full, the kernel makes them one.
fn lies_as_arena(mapping: &Mapping<'_>, above: Option<Mapping<'_>>) -> bool {
    let Mapping { start, end, .. } = *mapping;
    let reserved_up_to = |next: u64| {
        let reserved = |above: Mapping<'_>| above.is_reserved() && above.end >= next;
        end == next || above.is_some_and(reserved)
    };
    mapping.name.is_empty()
        && mapping.permissions.starts_with("rw-p")
        && start.is_multiple_of(HEAP_BYTES)
        && end
            .checked_next_multiple_of(HEAP_BYTES)
            .is_some_and(reserved_up_to)
}

/// Whether a process's memory begins there as a heap of glibc's does (`heap_info` of its
/// `arena.c`): with where the arena is, the heap before this one, and the bytes in use and
/// ever given access to. Another allocator's reserve may lie alike. `None` if it cannot be read.
fn is_heap(memory: &File, at: u64) -> Option<bool> {
    let mut head = [[0; 8]; 4];
    memory.read_exact_at(head.as_flattened_mut(), at).ok()?;
    let [arena, before, used, usable] = head.map(u64::from_ne_bytes);
    let follows = match before {
        // The first heap has the arena itself, behind these words.
        0 => arena > at && arena - at <= 128,
        _ => before.is_multiple_of(HEAP_BYTES) && arena != 0,
    };
    Some(follows && 0 < used && used <= usable && usable <= HEAP_BYTES)
}

/// The file whose data end where this mapping begins: what the program or library
/// begins with as zeros follows there.
fn written_file_below<'a>(place: &Place<'a>) -> Option<&'a str> {
    let below = place.below?;
    (below.permissions == "rw-p" && below.name.starts_with('/')).then_some(below.name)
}

/// Bytes that a program's or library's writable part has in memory beyond what is in the file.
fn zeroed_data(file: &str) -> Option<u64> {
    let file = ReadCache::new(File::open(file).ok()?);
    let elf = ElfFile64::<Endianness, _>::parse(&file).ok()?;
    let endian = elf.endian();
    let parts = elf.elf_program_headers().iter();
    let beyond = parts
        .filter(|part| part.p_type(endian) == PT_LOAD && part.p_flags(endian).contains(PF_W))
        .map(|part| part.p_memsz(endian).saturating_sub(part.p_filesz(endian)));
    Some(beyond.sum::<u64>().next_multiple_of(procfs::page_size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
Rss:                 100 kB
Anonymous:           100 kB
7f5a00000000-7f5a00800000 rw-p 00000000 00:00 0 
Rss:                 640 kB
Anonymous:           640 kB
7f5a00800000-7f5a04000000 ---p 00000000 00:00 0 
Rss:                   0 kB
Anonymous:             0 kB
7f5a08000000-7f5a08800000 rw-p 00000000 00:00 0 
Rss:                 256 kB
Anonymous:           256 kB
7f5a10000000-7f5a10001000 ---p 00000000 00:00 0 
Rss:                   0 kB
7f5a10001000-7f5a10801000 rw-p 00000000 00:00 0 
Rss:                  12 kB
Anonymous:            12 kB
7f5a20123000-7f5a20323000 rw-p 00000000 00:00 0 
Rss:                2048 kB
Anonymous:          2048 kB
7f5a30000000-7f5a30100000 rw-p 00000000 08:01 77                         /tmp/a file (deleted)
Rss:                1024 kB
Anonymous:           512 kB
7f5a30100000-7f5a30200000 rw-p 00000000 00:00 0 
Rss:                  24 kB
Anonymous:            24 kB
7f5a40000000-7f5a40100000 rw-s 00000000 00:01 9                          /dev/zero (deleted)
Rss:                1024 kB
Anonymous:             0 kB
7f5a50000000-7f5a50100000 rw-s 00000000 00:01 9                          /memfd:tidegate-ledger (deleted)
Rss:                1024 kB
Anonymous:             0 kB
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
Rss:                  16 kB
Anonymous:            16 kB
";

    #[test]
    fn each_mapping_is_told_by_who_made_it() {
        let mut resident = Resident::new();
        add_all(&mut resident, &places(SMAPS, |_| None));
        let told: Vec<(MapKind, &str, u64)> = resident
            .iter()
            .map(|((kind, name), bytes)| (*kind, name.as_str(), bytes / 1024))
            .collect();
        assert_eq!(
            told,
            [
                (MapKind::Allocator, "[heap]", 100),
                (MapKind::Allocator, "an arena of malloc", 640),
                (MapKind::Stack, "[stack]", 16),
                (MapKind::Stack, "a thread's stack", 12),
                (MapKind::File, "/tmp/a file (deleted)", 512),
                (MapKind::Shmem, "/dev/zero (deleted)", 1024),
                (MapKind::Anon, "anonymous mappings", 2048 + 256 + 24),
                (
                    MapKind::Anon,
                    "written copies of /tmp/a file (deleted)",
                    512
                ),
            ]
        );
    }

    #[test]
    fn each_page_is_laid_out_by_what_it_is_for() {
        let mut pages = Pages::default();
        let huge = "7f5a60000000-7f5a60400000 rw-p 00000000 00:0f 5   /anon_hugepage (deleted)\n\
                    Rss:                   0 kB\nPrivate_Hugetlb:    2048 kB\n";
        let zeroed = |file: &str| {
            assert_eq!(file, "/tmp/a file (deleted)");
            20 << 10
        };
        let text = format!("{SMAPS}{huge}");
        lay_out(&mut pages, &places(&text, |_| Some(true)), zeroed);
        let kib = 1 << 10;
        assert_eq!(
            pages,
            Pages {
                allocator: (100 + 640) * kib,
                anon: (2048 + 256 + 4 + 2048) * kib,
                stacks: (16 + 12) * kib,
                files: 512 * kib,
                copies: (512 + 20) * kib,
                shmem: 1024 * kib,
                ledger: 1024 * kib,
            }
        );
    }

    #[test]
    fn what_lies_as_an_arena_and_does_not_begin_as_one_is_none() {
        let is_arena = |is_heap: fn(u64) -> Option<bool>| -> Vec<u64> {
            let arenas = places(SMAPS, is_heap).into_iter();
            arenas
                .filter(|place| place.is_arena)
                .map(|place| place.mapping.start)
                .collect()
        };
        assert_eq!(is_arena(|_| Some(true)), [0x7f5a_0000_0000]);
        assert!(is_arena(|at| Some(at != 0x7f5a_0000_0000)).is_empty());
        // Of several that the kernel made one, each must.
        let three = "7f5a00000000-7f5a0c000000 rw-p 00000000 00:00 0 \nRss: 640 kB\n";
        assert!(places(three, |_| Some(true))[0].is_arena);
        assert!(!places(three, |at| Some(at != 0x7f5a_0800_0000))[0].is_arena);
    }

    #[test]
    fn a_heap_of_malloc_is_known_by_how_it_begins() {
        let memory = File::open("/proc/self/mem").unwrap();
        let begins = |at: *const u8| at as u64 / HEAP_BYTES * HEAP_BYTES;
        std::thread::spawn(move || {
            // Too large for what the thread may have of the first one's blocks.
            let block = vec![7_u8; 50_000];
            let at = begins(block.as_ptr());
            assert_eq!(is_heap(&memory, at), Some(true));
            // Of ones and of zeros.
            for byte in [1_u8, 0] {
                let mut large = vec![byte; 3 * HEAP_BYTES as usize];
                let inside = begins(large.as_ptr()) + HEAP_BYTES;
                large[HEAP_BYTES as usize] = byte;
                assert_eq!(is_heap(&memory, inside), Some(false));
            }
            assert_eq!(is_heap(&memory, 0), None);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_programs_zeroed_data_are_as_large_as_its_file_says() {
        static ZEROS: [std::sync::atomic::AtomicU8; 5 << 20] =
            [const { std::sync::atomic::AtomicU8::new(0) }; 5 << 20];
        // So that the compiler keeps them all.
        std::hint::black_box(&ZEROS);
        let this = std::env::current_exe().unwrap();
        let bytes = zeroed_data(this.to_str().unwrap()).unwrap();
        assert!(bytes > 5 << 20 && bytes.is_multiple_of(4096), "{bytes}");
        assert_eq!(zeroed_data("/proc/self/status"), None);
    }

    #[test]
    fn a_mapping_of_this_process_is_read_and_its_growth_told() {
        let mut maps = Maps::default();
        // As `round_ended` does it, which may take its time in between.
        let read = |maps: &mut Maps| {
            let look = maps.look(std::iter::once(std::process::id()));
            maps.rounds.push(look.by_name);
        };
        read(&mut maps);
        let large = vec![1_u8; 48 << 20];
        read(&mut maps);
        let grown = |series: &MapSeries| series.resident[1].saturating_sub(series.resident[0]);
        let series = maps.series();
        let most = series.iter().max_by_key(|series| grown(series)).unwrap();
        assert_eq!(most.kind, MapKind::Anon, "{series:?}");
        assert!(grown(most) >= 48 << 20, "{most:?}");
        drop(large);
    }
}
