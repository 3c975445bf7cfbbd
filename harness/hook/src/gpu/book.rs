//! Which birth an address or a handle is of.

use std::collections::{BTreeMap, HashMap};

use crate::layout::HookLayer;

/// What a number names. Numbers of different kinds are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// An address of the card: plain, from a pool, or managed.
    Memory,
    /// An address of page-locked memory that the driver made.
    Host,
    /// An address that was page-locked.
    Registered,
    Array,
    /// Physical memory that is to be mapped.
    Physical,
    Context,
    /// The primary context of a device, by the device's number.
    Primary,
    Stream,
    Event,
    Module,
    Library,
    Graph,
    Executable,
    Pool,
    /// An address of memory that another process shares.
    Shared,
    /// Memory of another interface, such as Vulkan.
    External,
    /// A semaphore of another interface.
    Semaphore,
}

/// A thing of the GPU.
pub(super) type Name = (Kind, u64);

/// Where births and releases are booked.
pub(super) trait Ledger {
    /// Books a birth, and returns the label of the account that it is in.
    fn birth(&self, layer: HookLayer, bytes: u64) -> u32;
    /// Books the release of what was born under this label.
    fn release(&self, label: u32, bytes: u64);
}

/// One thing that is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub layer: HookLayer,
    pub label: u32,
    pub bytes: u64,
    /// The context that it goes with, or 0.
    pub context: u64,
}

/// Physical memory: alive while a handle or a mapping refers to it.
#[derive(Debug)]
struct Physical {
    entry: Entry,
    handles: u32,
    maps: u32,
}

/// Memory that outlives the graph's launch, and what the launch frees that was there before.
#[derive(Clone, Debug, Default)]
struct Recording {
    takes: Vec<(u64, u64)>,
    frees: Vec<u64>,
}

impl Recording {
    fn take(&mut self, address: u64, bytes: u64) {
        self.takes.push((address, bytes));
    }

    fn free(&mut self, address: u64) {
        // What the graph took itself never outlives it.
        let before = self.takes.len();
        self.takes.retain(|(taken, _)| *taken != address);
        if self.takes.len() == before {
            self.frees.push(address);
        }
    }

    fn is_empty(&self) -> bool {
        self.takes.is_empty() && self.frees.is_empty()
    }
}

/// All that is alive.
#[derive(Debug, Default)]
pub(super) struct Book {
    live: HashMap<Name, Entry>,
    physical: HashMap<u64, Physical>,
    /// Mappings of physical memory, by address: length and handle.
    maps: BTreeMap<u64, (u64, u64)>,
    /// Primary contexts, by device: how often retained, and the context.
    primaries: HashMap<u64, (u32, u64)>,
    /// Streams whose work is being captured, with what was captured so far.
    capturing: HashMap<u64, Recording>,
    /// What graphs do with memory when they are launched, where it is anything.
    graphs: HashMap<u64, Recording>,
    executables: HashMap<u64, Recording>,
    /// Whether anything ever came from a pool.
    uses_pools: bool,
    /// Things that were born under a name that was taken: a release went unseen.
    pub replaced: u64,
    /// Releases of things that were never seen born.
    pub foreign: u64,
}

impl Book {
    /// Books something new.
    pub fn born(
        &mut self,
        ledger: &impl Ledger,
        (kind, number): Name,
        layer: HookLayer,
        bytes: u64,
        context: u64,
    ) {
        if number == 0 {
            return; // Of no bytes: the driver gives no address.
        }
        self.uses_pools |= matches!(layer, HookLayer::DevicePool | HookLayer::Pools);
        let label = ledger.birth(layer, bytes);
        let entry = Entry {
            layer,
            label,
            bytes,
            context,
        };
        let before = if kind == Kind::Physical {
            let new = Physical {
                entry,
                handles: 1,
                maps: 0,
            };
            self.physical.insert(number, new).map(|old| old.entry)
        } else {
            self.live.insert((kind, number), entry)
        };
        if let Some(before) = before {
            ledger.release(before.label, before.bytes);
            self.replaced += 1;
        }
    }

    /// What has this name.
    pub fn get(&self, name: Name) -> Option<Entry> {
        match name.0 {
            Kind::Physical => self.physical.get(&name.1).map(|held| held.entry),
            Kind::Primary => {
                let (_, context) = self.primaries.get(&name.1)?;
                self.live.get(&(Kind::Context, *context)).copied()
            }
            _ => self.live.get(&name).copied(),
        }
    }

    /// Takes out what is about to be released, before its name can be given to another
    /// thread. Nothing is booked yet: see [`released`](Self::released) and
    /// [`refused`](Self::refused).
    pub fn take(&mut self, name: Name) -> Option<Entry> {
        match name.0 {
            // Released when the last reference goes.
            Kind::Physical | Kind::Primary => self.get(name),
            _ => self.live.remove(&name),
        }
    }

    /// The release of what was [taken](Self::take) has succeeded.
    pub fn released(&mut self, ledger: &impl Ledger, name: Name, taken: Option<Entry>) {
        match name.0 {
            Kind::Physical => {
                if let Some(held) = self.physical.get_mut(&name.1) {
                    held.handles = held.handles.saturating_sub(1);
                }
                self.drop_physical(ledger, name.1);
            }
            Kind::Primary => self.primary_released(ledger, name.1),
            _ => {}
        }
        match taken {
            None if name.1 != 0 && name.0 != Kind::Primary => self.foreign += 1,
            None => {}
            Some(_) if matches!(name.0, Kind::Physical | Kind::Primary) => {}
            Some(entry) => {
                ledger.release(entry.label, entry.bytes);
                match name.0 {
                    Kind::Context => self.all_in_context_released(ledger, name.1),
                    Kind::Graph => drop(self.graphs.remove(&name.1)),
                    Kind::Executable => drop(self.executables.remove(&name.1)),
                    _ => {}
                }
            }
        }
    }

    /// The release of what was [taken](Self::take) was refused: it lives on.
    pub fn refused(&mut self, name: Name, taken: Option<Entry>) {
        if let Some(entry) = taken
            && !matches!(name.0, Kind::Physical | Kind::Primary)
        {
            self.live.insert(name, entry);
        }
    }

    fn all_in_context_released(&mut self, ledger: &impl Ledger, context: u64) {
        self.live.retain(|_, entry| {
            let goes = entry.context == context;
            if goes {
                ledger.release(entry.label, entry.bytes);
            }
            !goes
        });
    }

    /// The pools that the program made, if it uses any, its own or a device's. `None` too
    /// while a stream is captured, when not every call is allowed.
    pub fn pools(&self) -> Option<Vec<u64>> {
        let names = self.live.keys().filter(|name| name.0 == Kind::Pool);
        (self.uses_pools && self.capturing.is_empty()).then(|| names.map(|name| name.1).collect())
    }

    // ---- Primary contexts ------------------------------------------------------

    /// A device's primary context was retained once more.
    pub fn primary_retained(&mut self, ledger: &impl Ledger, device: u64, context: u64) {
        let (count, known) = self.primaries.entry(device).or_insert((0, context));
        *count += 1;
        let is_new = *count == 1 || *known != context;
        *known = context;
        if is_new && !self.live.contains_key(&(Kind::Context, context)) {
            self.born(
                ledger,
                (Kind::Context, context),
                HookLayer::Contexts,
                0,
                context,
            );
        }
    }

    fn primary_released(&mut self, ledger: &impl Ledger, device: u64) {
        let Some((count, _)) = self.primaries.get_mut(&device) else {
            return;
        };
        *count = count.saturating_sub(1);
        if *count == 0 {
            self.primary_reset(ledger, device);
        }
    }

    /// A device's primary context was destroyed.
    pub fn primary_reset(&mut self, ledger: &impl Ledger, device: u64) {
        if let Some((_, context)) = self.primaries.remove(&device) {
            // The context's own entry goes with it.
            self.all_in_context_released(ledger, context);
        }
    }

    // ---- Physical memory -------------------------------------------------------

    /// One more handle names physical memory.
    pub fn handle_retained(&mut self, handle: u64) {
        if let Some(held) = self.physical.get_mut(&handle) {
            held.handles += 1;
        }
    }

    /// Physical memory was mapped.
    pub fn mapped(&mut self, address: u64, bytes: u64, handle: u64) {
        if let Some(held) = self.physical.get_mut(&handle) {
            held.maps += 1;
            self.maps.insert(address, (bytes, handle));
        }
    }

    /// A range was unmapped, which may hold several mappings.
    pub fn unmapped(&mut self, ledger: &impl Ledger, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        let gone: Vec<(u64, u64)> = self
            .maps
            .range(address..end)
            .map(|(at, (_, handle))| (*at, *handle))
            .collect();
        for (at, handle) in gone {
            self.maps.remove(&at);
            if let Some(held) = self.physical.get_mut(&handle) {
                held.maps = held.maps.saturating_sub(1);
            }
            self.drop_physical(ledger, handle);
        }
    }

    fn drop_physical(&mut self, ledger: &impl Ledger, handle: u64) {
        let unused = |held: &Physical| held.handles == 0 && held.maps == 0;
        if self.physical.get(&handle).is_some_and(unused)
            && let Some(held) = self.physical.remove(&handle)
        {
            ledger.release(held.entry.label, held.entry.bytes);
        }
    }

    // ---- Graphs ----------------------------------------------------------------

    pub fn capture_begins(&mut self, stream: u64) {
        self.capturing.insert(stream, Recording::default());
    }

    /// What was captured is what this graph does.
    pub fn capture_ends(&mut self, stream: u64, graph: u64) {
        let recording = self.capturing.remove(&stream).unwrap_or_default();
        if !recording.is_empty() {
            self.graphs.insert(graph, recording);
        }
    }

    /// Whether what this stream is asked for is recorded for later; then memory that is
    /// asked for in it is noted for the graph.
    pub fn captures_birth(&mut self, stream: u64, address: u64, bytes: u64) -> bool {
        let recording = self.capturing.get_mut(&stream);
        recording.map(|it| it.take(address, bytes)).is_some()
    }

    /// The same of memory that is freed in the stream.
    pub fn captures_release(&mut self, stream: u64, address: u64) -> bool {
        let recording = self.capturing.get_mut(&stream);
        recording.map(|it| it.free(address)).is_some()
    }

    pub fn graph_takes(&mut self, graph: u64, address: u64, bytes: u64) {
        self.graphs.entry(graph).or_default().take(address, bytes);
    }

    pub fn graph_frees(&mut self, graph: u64, address: u64) {
        self.graphs.entry(graph).or_default().free(address);
    }

    pub fn graph_cloned(&mut self, clone: u64, original: u64) {
        if let Some(recording) = self.graphs.get(&original).cloned() {
            self.graphs.insert(clone, recording);
        }
    }

    pub fn graph_instantiated(&mut self, executable: u64, graph: u64) {
        if let Some(recording) = self.graphs.get(&graph).cloned() {
            self.executables.insert(executable, recording);
        }
    }

    /// A graph runs: it takes memory, unless what it took the last time is still there,
    /// and frees memory.
    pub fn graph_launched(&mut self, ledger: &impl Ledger, executable: u64) {
        let Some(recording) = self.executables.get(&executable).cloned() else {
            return;
        };
        for (address, bytes) in recording.takes {
            let name = (Kind::Memory, address);
            if !self.live.contains_key(&name) {
                self.born(ledger, name, HookLayer::DevicePool, bytes, 0);
            }
        }
        for address in recording.frees {
            let name = (Kind::Memory, address);
            if let Some(taken) = self.take(name) {
                self.released(ledger, name, Some(taken));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Live bytes and things by layer.
    #[derive(Default)]
    struct Sums(RefCell<HashMap<HookLayer, (i64, i64)>>);

    impl Sums {
        fn of(&self, layer: HookLayer) -> (i64, i64) {
            self.0.borrow().get(&layer).copied().unwrap_or_default()
        }

        fn add(&self, layer: HookLayer, bytes: i64, things: i64) {
            let mut sums = self.0.borrow_mut();
            let sum = sums.entry(layer).or_default();
            *sum = (sum.0 + bytes, sum.1 + things);
        }
    }

    impl Ledger for Sums {
        fn birth(&self, layer: HookLayer, bytes: u64) -> u32 {
            self.add(layer, bytes as i64, 1);
            layer as u32
        }

        fn release(&self, label: u32, bytes: u64) {
            self.add(HookLayer::ALL[label as usize], -(bytes as i64), -1);
        }
    }

    fn release(book: &mut Book, sums: &Sums, name: Name) {
        let taken = book.take(name);
        book.released(sums, name, taken);
    }

    #[test]
    fn a_release_that_is_refused_leaves_the_block_alive() {
        let (mut book, sums) = (Book::default(), Sums::default());
        let name = (Kind::Host, 0x1000);
        book.born(&sums, name, HookLayer::Pinned, 4096, 1);
        let taken = book.take(name);
        assert!(taken.is_some());
        book.refused(name, taken);
        assert_eq!(sums.of(HookLayer::Pinned), (4096, 1));
        release(&mut book, &sums, name);
        assert_eq!(sums.of(HookLayer::Pinned), (0, 0));
        assert_eq!((book.foreign, book.replaced), (0, 0));
    }

    #[test]
    fn an_address_that_is_given_out_again_before_its_release_is_told_is_no_mistake() {
        let (mut book, sums) = (Book::default(), Sums::default());
        let name = (Kind::Memory, 0x7000);
        book.born(&sums, name, HookLayer::Device, 512, 1);
        let taken = book.take(name);
        book.born(&sums, name, HookLayer::Device, 1024, 1);
        book.released(&sums, name, taken);
        assert_eq!(sums.of(HookLayer::Device), (1024, 1));
        assert_eq!(book.replaced, 0);
    }

    #[test]
    fn a_birth_under_a_name_that_is_taken_tells_of_an_unseen_release() {
        let (mut book, sums) = (Book::default(), Sums::default());
        let name = (Kind::Stream, 5);
        book.born(&sums, name, HookLayer::Streams, 0, 1);
        book.born(&sums, name, HookLayer::Streams, 0, 1);
        assert_eq!(sums.of(HookLayer::Streams), (0, 1));
        assert_eq!(book.replaced, 1);
    }

    #[test]
    fn what_was_never_seen_born_is_foreign_and_nothing_is_nothing() {
        let (mut book, sums) = (Book::default(), Sums::default());
        release(&mut book, &sums, (Kind::Memory, 0x9000));
        assert_eq!(book.foreign, 1);
        release(&mut book, &sums, (Kind::Memory, 0));
        book.born(&sums, (Kind::Memory, 0), HookLayer::Device, 0, 1);
        assert_eq!(book.foreign, 1);
        assert_eq!(sums.of(HookLayer::Device), (0, 0));
    }

    #[test]
    fn a_context_takes_along_what_was_made_in_it_and_nothing_else() {
        let (mut book, sums) = (Book::default(), Sums::default());
        for context in [1, 2] {
            book.born(
                &sums,
                (Kind::Context, context),
                HookLayer::Contexts,
                0,
                context,
            );
            book.born(
                &sums,
                (Kind::Memory, 0x100 * context),
                HookLayer::Device,
                64,
                context,
            );
            book.born(
                &sums,
                (Kind::Stream, 10 * context),
                HookLayer::Streams,
                0,
                context,
            );
        }
        book.born(&sums, (Kind::Pool, 77), HookLayer::Pools, 0, 0);
        release(&mut book, &sums, (Kind::Context, 1));
        assert_eq!(sums.of(HookLayer::Contexts), (0, 1));
        assert_eq!(sums.of(HookLayer::Device), (64, 1));
        assert_eq!(sums.of(HookLayer::Streams), (0, 1));
        assert_eq!(sums.of(HookLayer::Pools), (0, 1));
    }

    #[test]
    fn a_primary_context_lives_until_it_is_released_as_often_as_retained() {
        let (mut book, sums) = (Book::default(), Sums::default());
        book.primary_retained(&sums, 0, 9);
        book.primary_retained(&sums, 0, 9);
        book.born(&sums, (Kind::Memory, 0x100), HookLayer::Device, 64, 9);
        assert_eq!(sums.of(HookLayer::Contexts), (0, 1));
        release(&mut book, &sums, (Kind::Primary, 0));
        assert_eq!(sums.of(HookLayer::Contexts), (0, 1));
        release(&mut book, &sums, (Kind::Primary, 0));
        assert_eq!(sums.of(HookLayer::Contexts), (0, 0));
        assert_eq!(sums.of(HookLayer::Device), (0, 0));
        // And once more from the start; a reset ends it at once.
        book.primary_retained(&sums, 0, 9);
        book.primary_retained(&sums, 0, 9);
        book.primary_reset(&sums, 0);
        assert_eq!(sums.of(HookLayer::Contexts), (0, 0));
        release(&mut book, &sums, (Kind::Primary, 0));
        assert_eq!(book.foreign, 0);
    }

    #[test]
    fn physical_memory_lives_while_a_handle_or_a_mapping_does() {
        let device = |sums: &Sums| sums.of(HookLayer::Device).1;
        let name = |handle| (Kind::Physical, handle);
        // Released before it is unmapped; one call unmaps both.
        let (mut book, sums) = (Book::default(), Sums::default());
        for (handle, at) in [(1, 0x10_0000), (2, 0x20_0000)] {
            book.born(&sums, name(handle), HookLayer::Device, 0x10_0000, 0);
            book.mapped(at, 0x10_0000, handle);
            release(&mut book, &sums, name(handle));
        }
        assert_eq!(device(&sums), 2);
        book.unmapped(&sums, 0x10_0000, 0x20_0000);
        assert_eq!(device(&sums), 0);
        // Unmapped, and the handle kept.
        book.born(&sums, name(3), HookLayer::Device, 0x10_0000, 0);
        book.mapped(0x10_0000, 0x10_0000, 3);
        book.unmapped(&sums, 0x10_0000, 0x10_0000);
        assert_eq!(device(&sums), 1);
        // A handle that was taken twice is released twice.
        book.handle_retained(3);
        release(&mut book, &sums, name(3));
        assert_eq!(device(&sums), 1);
        release(&mut book, &sums, name(3));
        assert_eq!(device(&sums), 0);
        assert_eq!(book.foreign, 0);
    }

    #[test]
    fn pools_are_told_once_there_is_a_use_of_them_and_nothing_is_captured() {
        let (mut book, sums) = (Book::default(), Sums::default());
        book.born(&sums, (Kind::Memory, 0x100), HookLayer::Device, 64, 1);
        assert_eq!(book.pools(), None);
        book.born(&sums, (Kind::Memory, 0x200), HookLayer::DevicePool, 64, 0);
        assert_eq!(book.pools(), Some(Vec::new()));
        book.born(&sums, (Kind::Pool, 77), HookLayer::Pools, 0, 0);
        assert_eq!(book.pools(), Some(vec![77]));
        book.capture_begins(4);
        assert_eq!(book.pools(), None);
        book.capture_ends(4, 70);
        release(&mut book, &sums, (Kind::Pool, 77));
        assert_eq!(book.pools(), Some(Vec::new()));
    }

    #[test]
    fn names_are_told_apart_by_kind() {
        let (mut book, sums) = (Book::default(), Sums::default());
        book.born(&sums, (Kind::Stream, 7), HookLayer::Streams, 0, 1);
        release(&mut book, &sums, (Kind::Event, 7));
        assert_eq!(sums.of(HookLayer::Streams), (0, 1));
        assert_eq!(book.foreign, 1);
    }

    /// A graph with one block that it takes and does not free.
    fn graph_that_takes(book: &mut Book, sums: &Sums) -> u64 {
        book.capture_begins(4);
        assert!(book.captures_birth(4, 0x100, 64));
        assert!(book.captures_birth(4, 0x200, 32));
        assert!(book.captures_release(4, 0x200));
        book.capture_ends(4, 70);
        assert!(!book.captures_birth(4, 0x300, 1) && !book.captures_release(4, 0x300));
        book.graph_instantiated(80, 70);
        assert_eq!(sums.of(HookLayer::DevicePool), (0, 0), "not before it runs");
        80
    }

    #[test]
    fn memory_of_a_graph_lives_from_its_launch_until_it_is_freed() {
        let (mut book, sums) = (Book::default(), Sums::default());
        let executable = graph_that_takes(&mut book, &sums);
        for _ in 0..3 {
            book.graph_launched(&sums, executable);
            assert_eq!(sums.of(HookLayer::DevicePool), (64, 1));
            release(&mut book, &sums, (Kind::Memory, 0x100));
            assert_eq!(sums.of(HookLayer::DevicePool), (0, 0));
        }
        // Launched again before it was freed, it takes the same memory.
        book.graph_launched(&sums, executable);
        book.graph_launched(&sums, executable);
        assert_eq!(sums.of(HookLayer::DevicePool), (64, 1));
        assert_eq!((book.replaced, book.foreign), (0, 0));
    }

    #[test]
    fn a_graph_can_free_what_another_took() {
        let (mut book, sums) = (Book::default(), Sums::default());
        let executable = graph_that_takes(&mut book, &sums);
        book.graph_frees(71, 0x100);
        book.graph_cloned(72, 71);
        book.graph_instantiated(82, 72);
        book.graph_launched(&sums, executable);
        book.graph_launched(&sums, 82);
        assert_eq!(sums.of(HookLayer::DevicePool), (0, 0));
        assert_eq!(book.foreign, 0);
    }

    #[test]
    fn memory_outlives_the_graph_that_took_it() {
        let (mut book, sums) = (Book::default(), Sums::default());
        let executable = graph_that_takes(&mut book, &sums);
        book.born(
            &sums,
            (Kind::Executable, executable),
            HookLayer::Graphs,
            0,
            1,
        );
        book.graph_launched(&sums, executable);
        release(&mut book, &sums, (Kind::Executable, executable));
        assert_eq!(sums.of(HookLayer::Graphs), (0, 0));
        assert_eq!(sums.of(HookLayer::DevicePool), (64, 1));
        book.graph_launched(&sums, executable);
        assert!(book.executables.is_empty());
    }
}
