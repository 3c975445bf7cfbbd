//! What C and C++ programs call to say where they are; `include/tidegate.h` declares it.

use std::ffi::{CStr, c_char};

use crate::context::{self, Whereabouts};
use crate::ledger;

/// The item number that means none.
const NO_ITEM: u32 = u32::MAX;

/// Begins a round.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_begin_round(round: u32) {
    if ledger::is_on() {
        ledger::begin_round(round);
    }
}

/// Puts the calling thread into a phase (null: the one that it is in) and an item,
/// and returns where it was.
///
/// # Safety
/// `phase` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tidegate_enter_place(phase: *const c_char, item: u32) -> u64 {
    if !ledger::is_on() {
        return 0;
    }
    let phase = match phase.is_null() {
        true => None,
        // SAFETY: the caller's promise.
        false => unsafe { CStr::from_ptr(phase) }
            .to_str()
            .ok()
            .and_then(context::phase),
    };
    let item = (item != NO_ITEM).then_some(item);
    Whereabouts::changed(phase, item).replace().to_bits()
}

/// Puts the calling thread where `tidegate_enter_place` says that a thread was.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_return_to(place: u64) {
    if ledger::is_on() {
        Whereabouts::from_bits(place).replace();
    }
}

/// Counts items that a producer has finished.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_count_produced(items: u64) {
    if ledger::is_on() {
        context::produced(items);
    }
}

/// Counts items that a consumer has taken over.
#[unsafe(no_mangle)]
pub extern "C" fn tidegate_count_consumed(items: u64) {
    if ledger::is_on() {
        context::consumed(items);
    }
}
