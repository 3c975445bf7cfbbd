//! Rounds, phases and items: what a block is booked under when it is born.
//!
//! A thread that has entered a phase books under it. A thread that has not
//! inherits the only active phase, if exactly one is active in the process; else
//! its blocks are [`UNATTRIBUTED`](crate::UNATTRIBUTED). Items are not inherited:
//! what a pool's thread keeps for itself is nobody's item.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::layout::{HookLayer, PHASES, Place};
use crate::ledger;

/// A phase's number in the ledger of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseNumber(u8);

/// Gives the phase called `name` a number. `None` if this process is not metered.
///
/// Names are told apart by their first 63 bytes, and a ledger has room for 255;
/// what is named past that is booked as unattributed and counted as lost.
pub fn phase(name: &str) -> Option<PhaseNumber> {
    ledger::phase_number(name).map(PhaseNumber)
}

/// Whether this process is metered.
pub fn is_metered() -> bool {
    ledger::is_on()
}

/// Begins round `round`: blocks that are born from now on belong to it.
pub fn begin_round(round: u32) {
    ledger::begin_round(round);
}

/// Says that a producer has finished `items` items and hands them over.
pub fn produced(items: u64) {
    ledger::count_produced(items);
}

/// Says that a consumer has taken over `items` items.
pub fn consumed(items: u64) {
    ledger::count_consumed(items);
}

/// Books what this thread allocates as the meter's own until the guard is dropped.
#[must_use = "booking goes back to normal when the guard is dropped"]
pub fn as_meter() -> AsMeter {
    AsMeter {
        before: ledger::set_layer(HookLayer::Meter),
        not_send: PhantomData,
    }
}

/// Guard of [`as_meter`].
#[derive(Debug)]
pub struct AsMeter {
    before: HookLayer,
    not_send: PhantomData<*const ()>,
}

impl Drop for AsMeter {
    fn drop(&mut self) {
        ledger::set_layer(self.before);
    }
}

/// Where a thread is: phase and item. Carry it into another thread to have that
/// thread's blocks booked here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Whereabouts(Place);

impl Whereabouts {
    /// Where the calling thread is.
    pub fn current() -> Self {
        Self(ledger::own_place())
    }

    /// The calling thread's place, changed: what is `None` stays as it is.
    pub fn changed(phase: Option<PhaseNumber>, item: Option<u32>) -> Self {
        let own = ledger::own_place();
        let phase = phase.map_or(own.phase(), |phase| phase.0);
        Self(Place::new(phase, item.or(own.item())))
    }

    /// As one number, for C.
    pub(crate) const fn to_bits(self) -> u64 {
        self.0.0
    }

    /// From [`to_bits`](Self::to_bits); what such a number cannot hold is left out.
    pub(crate) const fn from_bits(bits: u64) -> Self {
        let place = Place(bits);
        Self(Place::new(place.phase(), place.item()))
    }

    /// Puts the calling thread here until the guard is dropped.
    #[must_use = "the thread goes back when the guard is dropped"]
    pub fn enter(self) -> Entered {
        Entered {
            before: self.replace(),
            not_send: PhantomData,
        }
    }

    /// Puts the calling thread here, and returns where it was.
    pub fn replace(self) -> Self {
        // In the child of a fork, this first has the threads of the parent forgotten.
        ledger::is_on();
        let before = ledger::set_own_place(self.0);
        if before.phase() != self.0.phase() {
            ACTIVE.with(|active| active.change(before, self.0));
        }
        Self(before)
    }
}

/// Guard of [`Whereabouts::enter`].
#[derive(Debug)]
pub struct Entered {
    before: Whereabouts,
    not_send: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.before.replace();
    }
}

/// In the child of a fork: of all threads, only the calling one is there.
pub(crate) fn forget_other_threads() {
    // Another thread of the parent's may have been in here.
    ACTIVE.locked.store(false, Ordering::Release);
    ACTIVE.with(|active| {
        *active = Active::new();
        active.inherited = ledger::inherited();
        active.change(Place(0), ledger::own_place());
    });
}

/// Which phases have threads in them. Not on the allocation path: taken when a
/// thread enters or leaves a phase.
static ACTIVE: Lock = Lock {
    locked: AtomicBool::new(false),
    active: UnsafeCell::new(Active::new()),
};

/// A lock that the child of a fork can take when a thread that it does not have
/// held it.
struct Lock {
    locked: AtomicBool,
    active: UnsafeCell<Active>,
}

// SAFETY: `active` is only used by who has set `locked`.
unsafe impl Sync for Lock {}

impl Lock {
    fn with(&self, act: impl FnOnce(&mut Active)) {
        let exchange = |from, to| {
            self.locked
                .compare_exchange_weak(from, to, Ordering::Acquire, Ordering::Relaxed)
        };
        let mut tries = 0_u32;
        while exchange(false, true).is_err() {
            tries += 1;
            match tries < 100 {
                true => std::hint::spin_loop(),
                false => std::thread::yield_now(),
            }
        }
        // SAFETY: locked just now, until the store below; `act` does not panic.
        act(unsafe { &mut *self.active.get() });
        self.locked.store(false, Ordering::Release);
    }
}

struct Active {
    /// Threads by phase.
    threads: [u32; PHASES],
    /// Phases that have threads.
    phases: u32,
    inherited: Place,
}

impl Active {
    const fn new() -> Self {
        Self {
            threads: [0; PHASES],
            phases: 0,
            inherited: Place(0),
        }
    }

    fn change(&mut self, left: Place, entered: Place) {
        self.leave(left.phase());
        self.enter(entered.phase());
        let only = |threads: &[u32; PHASES]| threads.iter().position(|threads| *threads != 0);
        let inherited = match self.phases {
            1 => only(&self.threads).map_or(Place(0), |phase| Place::new(phase as u8, None)),
            _ => Place(0),
        };
        if inherited != self.inherited {
            self.inherited = inherited;
            ledger::set_inherited(inherited);
        }
    }

    fn enter(&mut self, phase: u8) {
        let threads = &mut self.threads[usize::from(phase)];
        if phase != 0 {
            *threads += 1;
            self.phases += u32::from(*threads == 1);
        }
    }

    fn leave(&mut self, phase: u8) {
        let threads = &mut self.threads[usize::from(phase)];
        if phase != 0 && *threads != 0 {
            *threads -= 1;
            self.phases -= u32::from(*threads == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_active_phase_is_inherited_without_its_item_and_two_are_not() {
        let [a0, a1, b] = [
            Place::new(1, Some(0)),
            Place::new(1, Some(1)),
            Place::new(2, None),
        ];
        let (a, none) = (Place::new(1, None), Place(0));
        let mut active = Active::new();
        active.change(none, a0);
        assert_eq!(active.inherited, a);
        active.change(none, a1);
        assert_eq!(
            active.inherited, a,
            "two threads in one phase are one phase"
        );
        active.change(none, b);
        assert_eq!(active.inherited, none);
        active.change(b, none);
        assert_eq!(active.inherited, a);
        active.change(a0, none);
        active.change(a1, none);
        assert_eq!((active.inherited, active.phases), (none, 0));
    }
}
