//! The way to CUPTI: finding it, subscribing, and what happens in its callbacks.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::transmute;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use cudarc::cupti::sys::CUpti_CallbackData;

use super::book::{Book, Entry, Kind, Ledger};
use super::calls::{self, Made};
use super::pools;
use crate::context::as_meter;
use crate::layout::HookLayer;
use crate::ledger;
use crate::reader::GpuFailure;
use crate::reader::gpu_failure::{CUPTI_SAID, NO_LIBRARY, NOT_CUPTI};

/// Environment variable that names CUPTI's library, where it is not found by itself.
const LIBRARY_VARIABLE: &str = "TIDEGATE_CUPTI";

/// Names under which the loader may find it, the newest first.
const NAMES: [&CStr; 3] = [c"libcupti.so.13", c"libcupti.so.12", c"libcupti.so"];

/// Where toolkits keep it, below their own folder.
const FOLDERS: [&str; 4] = [
    "extras/CUPTI/lib64",
    "lib64",
    "lib",
    "targets/x86_64-linux/lib",
];

const DRIVER_API: u32 = 1;
const RUNTIME_API: u32 = 2;
const ENTER: u32 = 0;
const SUCCESS: u32 = 0;
/// The driver is shutting down, and with it goes everything.
const DEINITIALIZED: u32 = 4;

type Subscriber = *mut c_void;
type Callback = unsafe extern "C" fn(*mut c_void, u32, u32, *const c_void);
type Subscribe = unsafe extern "C" fn(*mut Subscriber, Callback, *mut c_void) -> u32;
type EnableDomain = unsafe extern "C" fn(u32, Subscriber, u32) -> u32;

/// Keeps books of the GPU in this process from now on; once is enough.
///
/// Does nothing in a process that has no ledger. That CUPTI could not be had is
/// kept in the ledger ([`GpuState::failed`](crate::GpuState)).
pub fn attach() {
    static ATTACHED: AtomicBool = AtomicBool::new(false);
    if !ledger::is_on() || ATTACHED.swap(true, Ordering::AcqRel) {
        return;
    }
    // What CUPTI takes to work is the meter's.
    let _meter = as_meter();
    let result = subscribe();
    if let Some(header) = ledger::header() {
        match result {
            Ok(()) => header.gpu.attached.fetch_add(1, Ordering::Release),
            Err(why) => {
                header.gpu.failure.store(why, Ordering::Relaxed);
                header.gpu.failed.fetch_add(1, Ordering::Release)
            }
        };
    }
}

/// What the driver calls in the library that `CUDA_INJECTION64_PATH` names, when a
/// program initialises CUDA.
///
/// The program may have been built with this crate: then its copy keeps the books, and
/// not the one in the library.
#[unsafe(no_mangle)]
pub extern "C" fn InitializeInjection() -> i32 {
    if ledger::is_on() {
        attach();
    } else if let Some(attach) = crate::attach::begin_gpu_of_keeper() {
        attach();
    }
    1
}

/// Looks whether CUPTI can be had, without taking it.
///
/// # Errors
/// Why it cannot.
pub fn find() -> Result<(), GpuFailure> {
    functions().map(drop).map_err(GpuFailure::of)
}

/// CUPTI's functions to subscribe and to ask for callbacks.
fn functions() -> Result<(Subscribe, EnableDomain), u32> {
    let library = open().ok_or(NO_LIBRARY)?;
    let symbol = |name: &CStr| {
        // SAFETY: an open library and a C string.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        if found.is_null() {
            Err(NOT_CUPTI)
        } else {
            Ok(found)
        }
    };
    // SAFETY: CUPTI's functions of these names have these types; its enumerations are
    // 32-bit integers.
    Ok(unsafe {
        (
            transmute::<*mut c_void, Subscribe>(symbol(c"cuptiSubscribe")?),
            transmute::<*mut c_void, EnableDomain>(symbol(c"cuptiEnableDomain")?),
        )
    })
}

fn subscribe() -> Result<(), u32> {
    let (subscribe, enable) = functions()?;
    let said = |status| match status {
        SUCCESS => Ok(()),
        error => Err(CUPTI_SAID + error),
    };
    let mut subscriber = null_mut();
    // SAFETY: a place for the handle, and a callback of CUPTI's type that stays.
    unsafe {
        said(subscribe(&raw mut subscriber, on_call, null_mut()))?;
        said(enable(1, subscriber, DRIVER_API))?;
        said(enable(1, subscriber, RUNTIME_API))
    }
}

/// Opens CUPTI's library, for good.
fn open() -> Option<*mut c_void> {
    let open = |name: &CStr| {
        // SAFETY: a C string. CUPTI's initialisers run, as in every program that uses it.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        (!library.is_null()).then_some(library)
    };
    let open_file = |path: PathBuf| open(&CString::new(path.into_os_string().into_vec()).ok()?);
    if let Some(named) = std::env::var_os(LIBRARY_VARIABLE).filter(|named| !named.is_empty()) {
        return open_file(named.into());
    }
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].map(std::env::var_os);
    let roots = toolkits.into_iter().flatten().map(PathBuf::from);
    let roots = roots.chain([PathBuf::from("/usr/local/cuda")]);
    let files = roots.flat_map(|root| FOLDERS.map(|folder| root.join(folder).join("libcupti.so")));
    NAMES
        .into_iter()
        .find_map(open)
        .or_else(|| files.into_iter().find_map(open_file))
}

// ---- In the callbacks ----------------------------------------------------------

static BOOK: LazyLock<Mutex<Book>> = LazyLock::new(Mutex::default);

fn book() -> MutexGuard<'static, Book> {
    BOOK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a thread knows of the calls that it is in.
struct Calls {
    depth: Cell<u32>,
    /// The layer that was set before the outermost.
    before: Cell<HookLayer>,
    /// Releases of the driver's interface that were begun.
    releases: Cell<u64>,
}

thread_local! {
    static CALLS: Calls = const {
        Calls { depth: Cell::new(0), before: Cell::new(HookLayer::Native), releases: Cell::new(0) }
    };
}

struct Shared;

impl Ledger for Shared {
    fn birth(&self, layer: HookLayer, bytes: u64) -> u32 {
        ledger::book_thing(layer, bytes)
    }

    fn release(&self, label: u32, bytes: u64) {
        ledger::book_thing_release(label, bytes);
    }
}

/// What CUPTI calls at the begin and the end of every call.
unsafe extern "C" fn on_call(_: *mut c_void, domain: u32, id: u32, data: *const c_void) {
    let data = data.cast::<CUpti_CallbackData>();
    if data.is_null() || !matches!(domain, DRIVER_API | RUNTIME_API) {
        return;
    }
    // SAFETY: in these domains the data is this struct, and lives as long as the
    // callback; which site it is, is read as the integer that C has there.
    let (call, begins) = unsafe {
        let site = (&raw const (*data).callbackSite).cast::<u32>().read();
        (Call::of(&raw const *data), site == ENTER)
    };
    CALLS.with(|calls| {
        if begins {
            begin_call(calls);
        }
        let meter = as_meter();
        if begins {
            ask_pools_of_the_round_that_ended();
        }
        // SAFETY: the parameters are those of this call, and when it has ended with
        // success it has filled in what it gives back.
        unsafe {
            match (domain, begins) {
                (DRIVER_API, true) => driver_begins(calls, id, &call),
                (DRIVER_API, false) => driver_ends(id, &call),
                (_, true) => runtime_begins(calls, id, &call),
                (_, false) => runtime_ends(calls, id, &call),
            }
        }
        drop(meter);
        if !begins {
            end_call(calls);
        }
    });
}

/// At the first call of a round: what pools hold as the one before has left them.
fn ask_pools_of_the_round_that_ended() {
    static BEGUN: AtomicU32 = AtomicU32::new(0);
    let Some(header) = ledger::header() else {
        return;
    };
    let round = header.now.round.load(Ordering::Relaxed);
    // Asking calls back here, and finds that it has been done.
    if BEGUN.load(Ordering::Relaxed) != round && BEGUN.swap(round, Ordering::Relaxed) != round {
        ask_pools(round.saturating_sub(1));
    }
}

/// Asks the driver what its pools hold, as round `after` has left them, and keeps the
/// answer in the ledger. Does nothing where nothing comes from pools.
pub fn ask_pools(after: u32) {
    let Some(header) = ledger::header() else {
        return;
    };
    let _meter = as_meter();
    let pools = { book().pools() };
    if let Some(held) = pools.and_then(|pools| pools::held(&pools)) {
        let gpu = &header.gpu;
        gpu.pools_reserved.store(held.reserved, Ordering::Relaxed);
        gpu.pools_used.store(held.used, Ordering::Relaxed);
        gpu.pools_asked
            .store(after.saturating_add(1), Ordering::Release);
    }
}

/// Blocks of malloc's are the driver's from here to [`end_call`].
fn begin_call(calls: &Calls) {
    if calls.depth.get() == 0 {
        let before = ledger::layer();
        calls.before.set(before);
        if before == HookLayer::Native {
            ledger::set_layer(HookLayer::Driver);
        }
    }
    calls.depth.set(calls.depth.get() + 1);
}

fn end_call(calls: &Calls) {
    // The first end may be of a call that began before the callbacks did.
    let depth = calls.depth.get();
    calls.depth.set(depth.saturating_sub(1));
    if depth == 1 {
        ledger::set_layer(calls.before.get());
    }
}

/// One call, as CUPTI tells of it.
struct Call {
    params: *const c_void,
    /// What it returned; `None` where it returns nothing, or has not yet.
    result: *const u32,
    function: *const c_char,
    context: u64,
    /// A word that is kept from the call's begin to its end.
    kept: *mut u64,
}

impl Call {
    /// # Safety
    /// `data` is what CUPTI gave a callback of the driver's or the runtime's interface.
    unsafe fn of(data: *const CUpti_CallbackData) -> Self {
        // SAFETY: the caller's promise.
        let data = unsafe { &*data };
        Self {
            params: data.functionParams,
            result: data.functionReturnValue.cast_const().cast(),
            function: data.functionName,
            context: data.context as u64,
            kept: data.correlationData,
        }
    }

    /// # Safety
    /// The call has ended.
    unsafe fn status(&self) -> Option<u32> {
        // SAFETY: null, or the result, which is an enumeration of 32 bits.
        unsafe { self.result.as_ref().copied() }
    }

    fn keep(&self, word: u64) {
        // SAFETY: null, or CUPTI's word for this call.
        if let Some(kept) = unsafe { self.kept.as_mut() } {
            *kept = word;
        }
    }

    /// The word that was kept, which is 0 from here on.
    fn take_kept(&self) -> u64 {
        // SAFETY: null, or CUPTI's word for this call.
        unsafe { self.kept.as_mut() }.map_or(0, std::mem::take)
    }
}

/// # Safety
/// `call` is the call `id` of the driver's interface, which begins.
unsafe fn driver_begins(calls: &Calls, id: u32, call: &Call) {
    // SAFETY: the caller's promise.
    if let Some(name) = unsafe { calls::releases(id, call.params) } {
        calls.releases.set(calls.releases.get() + 1);
        // SAFETY: as above.
        let stream = unsafe { calls::frees_in_stream(id, call.params) };
        let mut book = book();
        if stream.is_some_and(|stream| book.captures_release(stream, name.1)) {
            return; // Nothing is freed now, and `driver_ends` finds nothing kept.
        }
        let taken = Box::new(book.take(name));
        drop(book);
        call.keep(Box::into_raw(taken).expose_provenance() as u64);
    }
}

/// # Safety
/// `call` is the call `id` of the driver's interface, which ends.
unsafe fn driver_ends(id: u32, call: &Call) {
    // SAFETY: the caller's promise.
    let (status, name) = unsafe { (call.status(), calls::releases(id, call.params)) };
    if let Some(name) = name {
        let taken = match call.take_kept() {
            0 => return,
            // SAFETY: the box that `driver_begins` made for this very call.
            address => *unsafe {
                Box::from_raw(with_exposed_provenance_mut::<Option<Entry>>(
                    address as usize,
                ))
            },
        };
        match status {
            Some(SUCCESS) => with_book(|book| book.released(&Shared, name, taken)),
            status => {
                book().refused(name, taken);
                if let Some(entry) = taken {
                    note_refusal(entry, status, call);
                }
            }
        }
    } else if status == Some(SUCCESS) {
        // SAFETY: the caller's promise.
        let made = unsafe { calls::made(id, call.params) };
        if made != Made::Nothing {
            with_book(|book| book_made(book, made, call.context));
        }
    }
}

fn book_made(book: &mut Book, made: Made, context: u64) {
    match made {
        Made::Nothing => {}
        Made::One { name, layer, bytes } => {
            // A context goes with itself, and these go with no context.
            let context = match name.0 {
                Kind::Context => name.1,
                Kind::Pool | Kind::Physical | Kind::Library | Kind::Graph => 0,
                _ => context,
            };
            book.born(&Shared, name, layer, bytes, context);
        }
        Made::InStream {
            stream,
            name,
            bytes,
        } => {
            if !book.captures_birth(stream, name.1, bytes) {
                // It goes with its pool, whatever becomes of the context.
                book.born(&Shared, name, HookLayer::DevicePool, bytes, 0);
            }
        }
        Made::PrimaryRetained { device, context } => {
            book.primary_retained(&Shared, device, context);
        }
        Made::PrimaryReset { device } => book.primary_reset(&Shared, device),
        Made::HandleRetained { handle } => book.handle_retained(handle),
        Made::Mapped {
            address,
            bytes,
            handle,
        } => book.mapped(address, bytes, handle),
        Made::Unmapped { address, bytes } => book.unmapped(&Shared, address, bytes),
        Made::GraphTakes {
            graph,
            address,
            bytes,
        } => book.graph_takes(graph, address, bytes),
        Made::GraphFrees { graph, address } => book.graph_frees(graph, address),
        Made::GraphCloned { clone, original } => {
            book.graph_cloned(clone, original);
            book.born(&Shared, (Kind::Graph, clone), HookLayer::Graphs, 0, 0);
        }
        Made::GraphInstantiated { executable, graph } => {
            book.graph_instantiated(executable, graph);
            let name = (Kind::Executable, executable);
            book.born(&Shared, name, HookLayer::Graphs, 0, context);
        }
        Made::GraphLaunched { executable } => book.graph_launched(&Shared, executable),
        Made::CaptureBegan { stream } => book.capture_begins(stream),
        Made::CaptureEnded { stream, graph } => {
            book.capture_ends(stream, graph);
            book.born(&Shared, (Kind::Graph, graph), HookLayer::Graphs, 0, 0);
        }
    }
}

/// # Safety
/// `call` is the call `id` of the runtime's interface, which begins.
unsafe fn runtime_begins(calls: &Calls, id: u32, call: &Call) {
    // SAFETY: the caller's promise.
    if unsafe { calls::runtime_releases(id, call.params) }.is_some() {
        call.keep(calls.releases.get() + 1);
    }
}

/// Looks at releases that ended before they came to the driver's interface.
///
/// # Safety
/// `call` is the call `id` of the runtime's interface, which ends.
unsafe fn runtime_ends(calls: &Calls, id: u32, call: &Call) {
    // SAFETY: the caller's promise.
    let (status, name) = unsafe { (call.status(), calls::runtime_releases(id, call.params)) };
    let Some(name) = name else { return };
    if call.take_kept() != calls.releases.get() + 1 {
        return; // The driver's callback has booked it.
    }
    match status {
        Some(SUCCESS) => with_book(|book| {
            // The runtime may have had a way of its own.
            if let Some(taken) = book.take(name) {
                book.released(&Shared, name, Some(taken));
            }
        }),
        None => {}
        status => {
            if let Some(entry) = { book().get(name) } {
                note_refusal(entry, status, call);
            }
        }
    }
}

/// Changes the book, and tells the shared memory what it could not account for.
fn with_book(change: impl FnOnce(&mut Book)) {
    let mut book = book();
    change(&mut book);
    let (unseen, foreign) = (
        std::mem::take(&mut book.replaced),
        std::mem::take(&mut book.foreign),
    );
    drop(book);
    if (unseen, foreign) != (0, 0)
        && let Some(header) = ledger::header()
    {
        header.gpu.unseen.fetch_add(unseen, Ordering::Relaxed);
        header.gpu.foreign.fetch_add(foreign, Ordering::Relaxed);
    }
}

fn note_refusal(entry: Entry, status: Option<u32>, call: &Call) {
    let Some(status) = status.filter(|status| *status != DEINITIALIZED) else {
        return;
    };
    let name = if call.function.is_null() {
        c"?"
    } else {
        // SAFETY: CUPTI's name of the function, a C string that stays.
        unsafe { CStr::from_ptr(call.function) }
    };
    ledger::note_refusal(entry.layer, name.to_bytes(), status, call.context != 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_ledger_nothing_is_attached() {
        attach();
        assert!(ledger::header().is_none());
        assert_eq!(InitializeInjection(), 1);
    }
}
