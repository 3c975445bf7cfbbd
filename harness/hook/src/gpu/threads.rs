//! Threads that NVIDIA's driver starts for itself, and the blocks that it takes there.
//!
//! What the driver takes from malloc within a call of the application's is told by that
//! call. Its own threads are in no call. So `pthread_create` is defined here, and a
//! thread whose first function lies in one of NVIDIA's objects is marked. On such a
//! thread alone, every birth goes the slow way and its caller is looked for on the
//! stack: a block that NVIDIA's code asked for, or the C or C++ library on its
//! behalf, is the [driver's](crate::HookLayer::Driver). A function of the
//! application's that the driver calls there (a host function, a callback) is the
//! application's, and so are its blocks.
//!
//! A thread of the application's is started exactly as without this, and what the
//! driver leaves on one outside of its calls is not told from the application's.

use std::ffi::{CStr, c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{pthread_attr_t, pthread_t};

use crate::context::as_meter;
use crate::ledger;
use crate::malloc::{self, free};
use crate::sites::DRIVER_OBJECTS;
use crate::unwind::{self, Object, Step};

/// The C and the C++ library, which allocate on somebody's behalf.
const ON_BEHALF: [&str; 7] = [
    "libc.so",
    "ld-linux",
    "libpthread.so",
    "libdl.so",
    "libm.so",
    "libgcc_s.so",
    "libstdc++.so",
];

// Both unwind where a thread is cancelled or ends itself.
type Start = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, Start, *mut c_void) -> c_int;

/// What a marked thread is to do.
struct Order {
    start: Start,
    argument: *mut c_void,
}

static CREATE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Finds what is needed for it, while no lock of the loader's is in the way.
pub(crate) fn prepare() {
    create();
    unwind::prepare();
}

/// The C library's own `pthread_create`.
fn create() -> Option<Create> {
    let mut known = CREATE.load(Ordering::Acquire);
    if known.is_null() {
        // SAFETY: dlsym with a C string.
        known = unsafe { libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr()) };
        CREATE.store(known, Ordering::Release);
    }
    // SAFETY: null, or the function of this name, which has this type.
    (!known.is_null()).then(|| unsafe { transmute::<*mut c_void, Create>(known) })
}

/// Defines `pthread_create`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let Some(create) = create() else {
        return libc::ENOSYS;
    };
    // SAFETY: the caller's arguments; a block that is written before it is read, and
    // freed by the thread, or here where there is none.
    unsafe {
        if !ledger::is_on() || !is_drivers(start as usize) {
            return create(thread, attributes, start, argument);
        }
        let order = {
            let _meter = as_meter();
            malloc::malloc(size_of::<Order>()).cast::<Order>()
        };
        if order.is_null() {
            return create(thread, attributes, start, argument);
        }
        order.write(Order { start, argument });
        let status = create(thread, attributes, begin_marked, order.cast());
        if status != 0 {
            free(order.cast());
        }
        status
    }
}

/// The first function of a thread of the driver's.
unsafe extern "C-unwind" fn begin_marked(order: *mut c_void) -> *mut c_void {
    // SAFETY: `pthread_create` wrote it for this thread alone.
    let Order { start, argument } = unsafe {
        let read = order.cast::<Order>().read();
        free(order);
        read
    };
    ledger::ask_who_allocates();
    // SAFETY: the caller of `pthread_create` promises it.
    unsafe { start(argument) }
}

/// Whether the driver asked for the block that is being born on this thread: the first
/// frame beyond the malloc family's that is not of the C or the C++ library is its.
#[cold]
#[inline(never)]
pub(crate) fn is_asked_by_driver() -> bool {
    let mut is_driver = false;
    let mut is_past_ours = false;
    unwind::walk(|step: Step<'_>| {
        if is_entry(&step) {
            is_past_ours = true;
            return true;
        }
        // Up to the entry, the frames are the ledger's.
        if !is_past_ours || is_one_of(step.object, &ON_BEHALF) {
            return true;
        }
        is_driver = is_one_of(step.object, &DRIVER_OBJECTS);
        false
    });
    is_driver
}

/// Whether a frame is of a function that others call here.
fn is_entry(step: &Step<'_>) -> bool {
    let start = unwind::function_at(step.address, step.object);
    start.is_some_and(|start| {
        start == pthread_create as *const () as usize || malloc::is_entry(start)
    })
}

fn is_drivers(address: usize) -> bool {
    unwind::object_at(address).is_some_and(|object| is_one_of(&object, &DRIVER_OBJECTS))
}

/// Whether an object's file has a name that begins with one of these.
fn is_one_of(object: &Object, names: &[&str]) -> bool {
    // SAFETY: the loader's record of an object that is loaded; its name is a C string,
    // or null.
    let name = unsafe {
        let Some(record) = object.link_map.as_ref() else {
            return false;
        };
        if record.name.is_null() {
            return false;
        }
        CStr::from_ptr(record.name).to_bytes()
    };
    let file = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
    names.iter().any(|name| file.starts_with(name.as_bytes()))
}
