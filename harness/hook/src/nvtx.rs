//! Phases from NVTX ranges, the marks that CUDA programs set for NVIDIA's profilers.
//!
//! A program that includes NVTX loads the library that `NVTX_INJECTION64_PATH` names at its
//! first mark, and hands it its function table. What is pushed on a thread is the thread's
//! phase until it is popped; ranges of all domains nest in one another. Ranges that start
//! on one thread and may end on another are not phases.
//!
//! The numbers and structures are those of NVTX 3's headers (`nvtxTypes.h`,
//! `nvtxImpl.h`), which are an interface between binaries and do not change.

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, PoisonError};

use crate::context::{self, Whereabouts, as_meter};
use crate::ledger;

/// Environment variable that names the library which NVTX loads.
pub const VARIABLE: &str = "NVTX_INJECTION64_PATH";

/// Ranges that may be open on a thread; deeper ones are no phases.
const DEPTH: usize = 64;

const EXPORT_TABLE_CALLBACKS: u32 = 1;
const MODULE_CORE: u32 = 1;
const MODULE_CORE2: u32 = 5;

const CORE_RANGE_PUSH_EX: usize = 8;
const CORE_RANGE_PUSH_A: usize = 9;
const CORE_RANGE_PUSH_W: usize = 10;
const CORE_RANGE_POP: usize = 11;
const CORE2_DOMAIN_RANGE_PUSH_EX: usize = 4;
const CORE2_DOMAIN_RANGE_POP: usize = 5;
const CORE2_DOMAIN_REGISTER_STRING_A: usize = 10;

const MESSAGE_ASCII: i32 = 1;
const MESSAGE_REGISTERED: i32 = 3;

/// A slot of a function table: where the program keeps the pointer that it calls.
type Slot = *mut *const c_void;
type GetExportTable = unsafe extern "C" fn(u32) -> *const c_void;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    struct_size: usize,
    module_table: Option<unsafe extern "C" fn(u32, *mut *mut Slot, *mut u32) -> c_int>,
}

/// `nvtxEventAttributes_v2`.
#[repr(C)]
struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: i32,
    color: u32,
    payload_type: i32,
    reserved: i32,
    payload: u64,
    message_type: i32,
    message: *const c_char,
}

/// What NVTX calls in the library that it loads. Returns 1 if ranges are phases from now on.
///
/// # Safety
/// `get_export_table` is NVTX's function of that name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(get_export_table: GetExportTable) -> c_int {
    if !ledger::is_on() {
        return 0;
    }
    let core = [
        (CORE_RANGE_PUSH_EX, push_ex as *const c_void),
        (CORE_RANGE_PUSH_A, push as *const c_void),
        (CORE_RANGE_PUSH_W, push_wide as *const c_void),
        (CORE_RANGE_POP, pop as *const c_void),
    ];
    let core2 = [
        (CORE2_DOMAIN_RANGE_PUSH_EX, domain_push_ex as *const c_void),
        (CORE2_DOMAIN_RANGE_POP, domain_pop as *const c_void),
        (
            CORE2_DOMAIN_REGISTER_STRING_A,
            register_string as *const c_void,
        ),
    ];
    // SAFETY: the caller's promise; the table is null or lives as long as the program.
    unsafe {
        let table = get_export_table(EXPORT_TABLE_CALLBACKS).cast::<Callbacks>();
        let Some(table) = table
            .as_ref()
            .filter(|table| table.struct_size >= size_of::<Callbacks>())
        else {
            return 0;
        };
        let filled = fill(table, MODULE_CORE, &core);
        fill(table, MODULE_CORE2, &core2);
        c_int::from(filled)
    }
}

/// Puts functions into a module's table. Returns whether it is there.
///
/// # Safety
/// `callbacks` is NVTX's, and the functions are of the types that their numbers say.
unsafe fn fill(callbacks: &Callbacks, module: u32, functions: &[(usize, *const c_void)]) -> bool {
    let Some(module_table) = callbacks.module_table else {
        return false;
    };
    let (mut slots, mut count) = (null_mut(), 0);
    // SAFETY: the caller's promise: the table has so many slots.
    unsafe {
        if module_table(module, &raw mut slots, &raw mut count) == 0 || slots.is_null() {
            return false;
        }
        for (number, function) in functions {
            if *number < count as usize
                && let Some(slot) = (*slots.add(*number)).as_mut()
            {
                *slot = *function;
            }
        }
    }
    true
}

// ---- What programs call --------------------------------------------------------

/// Where the thread was before each range that is open on it.
struct Ranges {
    depth: Cell<usize>,
    before: [Cell<u64>; DEPTH],
}

thread_local! {
    static RANGES: Ranges = const {
        Ranges { depth: Cell::new(0), before: [const { Cell::new(0) }; DEPTH] }
    };
}

/// Enters a range; without a name the phase stays. Returns the range's level, from 0.
fn enter(name: Option<&CStr>) -> c_int {
    RANGES.with(|ranges| {
        let depth = ranges.depth.get();
        ranges.depth.set(depth + 1);
        if let Some(before) = ranges.before.get(depth) {
            let phase = name
                .and_then(|name| name.to_str().ok())
                .and_then(context::phase);
            let place = Whereabouts::changed(phase, None);
            before.set(place.replace().to_bits());
        }
        c_int::try_from(depth).unwrap_or(c_int::MAX)
    })
}

/// Leaves the innermost range. Returns its level, or -2 where none is open, as NVTX does.
fn leave() -> c_int {
    RANGES.with(|ranges| {
        let Some(depth) = ranges.depth.get().checked_sub(1) else {
            return -2;
        };
        ranges.depth.set(depth);
        if let Some(before) = ranges.before.get(depth) {
            Whereabouts::from_bits(before.get()).replace();
        }
        c_int::try_from(depth).unwrap_or(c_int::MAX)
    })
}

unsafe extern "C" fn push(message: *const c_char) -> c_int {
    // SAFETY: null, or the program's C string.
    enter((!message.is_null()).then(|| unsafe { CStr::from_ptr(message) }))
}

unsafe extern "C" fn push_wide(_message: *const c_void) -> c_int {
    enter(None)
}

unsafe extern "C" fn push_ex(attributes: *const Attributes) -> c_int {
    // SAFETY: null, or the program's attributes, which say how long they are; a message
    // of these types is null or a C string (a registered one is what we made of it).
    unsafe {
        let whole =
            |attributes: &&Attributes| usize::from(attributes.size) >= size_of::<Attributes>();
        let Some(attributes) = attributes.as_ref().filter(whole) else {
            return enter(None);
        };
        match attributes.message_type {
            MESSAGE_ASCII | MESSAGE_REGISTERED => push(attributes.message),
            _ => enter(None),
        }
    }
}

extern "C" fn pop() -> c_int {
    leave()
}

unsafe extern "C" fn domain_push_ex(
    _domain: *const c_void,
    attributes: *const Attributes,
) -> c_int {
    // SAFETY: the same attributes.
    unsafe { push_ex(attributes) }
}

extern "C" fn domain_pop(_domain: *const c_void) -> c_int {
    leave()
}

/// Keeps a string that is used often. The handle is the string itself, for good.
unsafe extern "C" fn register_string(_domain: *const c_void, text: *const c_char) -> *const c_char {
    static KNOWN: Mutex<Option<HashSet<&'static CStr>>> = Mutex::new(None);
    if text.is_null() {
        return null();
    }
    let _meter = as_meter();
    // SAFETY: the program's C string.
    let text = unsafe { CStr::from_ptr(text) };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if let Some(text) = known.get(text) {
        return text.as_ptr();
    }
    let kept: &'static CStr = Box::leak(text.to_owned().into_boxed_c_str());
    known.insert(kept);
    kept.as_ptr()
}
