//! Phases and items: where in a round an allocation belongs.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use tidegate_hook::{PhaseNumber, Whereabouts, as_meter};
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// Enters the phase `name` on this thread until the guard is dropped.
///
/// Phases nest; the innermost counts. Outside a metered run this does nothing.
///
/// ```
/// let _phase = tidegate::phase("synthesis");
/// ```
#[must_use = "the phase ends when the guard is dropped"]
pub fn phase(name: &'static str) -> Guard {
    Guard::enter(Some(name), None)
}

/// Enters item number `item` (for a prover: a partition) on this thread until
/// the guard is dropped. The phase stays what it is.
#[must_use = "the item ends when the guard is dropped"]
pub fn item(item: u32) -> Guard {
    Guard::enter(None, Some(item))
}

/// A thread's place in a round, to be carried to where its work goes on.
///
/// ```
/// let here = tidegate::Place::current();
/// std::thread::spawn(move || {
///     let _here = here.enter();
///     // What is allocated here is booked under the phase and item of the thread
///     // that took `here`.
/// });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place(Whereabouts);

impl Place {
    /// The calling thread's place.
    pub fn current() -> Self {
        Self(Whereabouts::current())
    }

    /// Puts the calling thread here until the guard is dropped.
    #[must_use = "the thread goes back when the guard is dropped"]
    pub fn enter(self) -> Guard {
        if tidegate_hook::is_metered() {
            Guard::at(self.0)
        } else {
            Guard::nowhere()
        }
    }

    /// Wraps a closure so that it runs here, on whichever thread: for rayon's
    /// `spawn`, tokio's `spawn_blocking`, `thread::spawn`.
    pub fn carry<R>(self, work: impl FnOnce() -> R) -> impl FnOnce() -> R {
        move || {
            let _here = self.enter();
            work()
        }
    }
}

/// Guard of a phase, an item or a place. Guards may be dropped in any order.
#[derive(Debug)]
#[must_use = "the thread goes back when the guard is dropped"]
pub struct Guard {
    /// The stay that ends with this guard; `None` outside a metered run.
    stay: Option<Stay>,
    /// A stay belongs to the thread that it began on.
    not_send: PhantomData<*const ()>,
}

impl Guard {
    const fn nowhere() -> Self {
        Self {
            stay: None,
            not_send: PhantomData,
        }
    }

    fn at(place: Whereabouts) -> Self {
        let number = GUARDS.with(|guards| {
            guards.set(guards.get().wrapping_add(1));
            guards.get()
        });
        let stay = Stay::Guard(number);
        begin(stay, place);
        Self {
            stay: Some(stay),
            not_send: PhantomData,
        }
    }

    fn enter(name: Option<&'static str>, item: Option<u32>) -> Self {
        if !tidegate_hook::is_metered() {
            return Self::nowhere();
        }
        let number = name.and_then(phase_number);
        Self::at(Whereabouts::changed(number, item))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(stay) = self.stay {
            end(stay);
        }
    }
}

/// What a thread is somewhere for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stay {
    /// A guard, by its number on this thread.
    Guard(u64),
    /// A span, by its id.
    Span(u64),
}

thread_local! {
    static GUARDS: Cell<u64> = const { Cell::new(0) };
    /// The stays of this thread, with where it was before each.
    static INSIDE: RefCell<Vec<(Stay, Whereabouts)>> = const { RefCell::new(Vec::new()) };
}

/// Puts the thread at a place for a stay.
fn begin(stay: Stay, place: Whereabouts) {
    let _meter = as_meter();
    let before = place.replace();
    // Gone already where the thread is ending: then there is nothing to go back to.
    let _ = INSIDE.try_with(|inside| inside.borrow_mut().push((stay, before)));
}

/// Ends a stay. If it is the last one, the thread goes back to where it was; one
/// that others have been begun in is taken out from under them.
fn end(stay: Stay) {
    let _meter = as_meter();
    let _ = INSIDE.try_with(|inside| {
        let mut inside = inside.borrow_mut();
        let Some(at) = inside.iter().rposition(|(open, _)| *open == stay) else {
            return;
        };
        let (_, before) = inside.remove(at);
        match inside.get_mut(at) {
            Some(later) => later.1 = before,
            None => {
                before.replace();
            }
        }
    });
}

/// A phase's number. Names are remembered by address, so that a phase that is
/// entered often costs one look-up.
fn phase_number(name: &'static str) -> Option<PhaseNumber> {
    static KNOWN: Mutex<Option<HashMap<usize, PhaseNumber>>> = Mutex::new(None);
    let _meter = as_meter();
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_with(HashMap::new);
    if let Some(number) = known.get(&(name.as_ptr() as usize)) {
        return Some(*number);
    }
    let number = tidegate_hook::phase(name)?;
    known.insert(name.as_ptr() as usize, number);
    Some(number)
}

/// A `tracing` layer that turns spans into phases and one of their fields into items.
///
/// A thread that enters a span is in the phase of that name. The field
/// `partition` (or the one named with [`item_field`](Self::item_field)) gives the
/// item, and passes on to spans inside. The layer's own memory is booked as the
/// meter's and not judged.
///
/// ```
/// use tracing_subscriber::prelude::*;
/// let _ = tracing_subscriber::registry().with(tidegate::PhaseLayer::new()).try_init();
/// ```
#[derive(Debug)]
pub struct PhaseLayer {
    item_field: &'static str,
}

impl Default for PhaseLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl PhaseLayer {
    /// Takes items from the field `partition`.
    pub const fn new() -> Self {
        Self {
            item_field: "partition",
        }
    }

    /// Takes items from the field `name`.
    #[must_use]
    pub const fn item_field(mut self, name: &'static str) -> Self {
        self.item_field = name;
        self
    }
}

/// What is remembered with a span.
#[derive(Clone, Copy)]
struct Spot {
    phase: Option<PhaseNumber>,
    item: Option<u32>,
}

struct FindItem {
    field: &'static str,
    item: Option<u32>,
}

impl Visit for FindItem {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == self.field {
            self.item = u32::try_from(value).ok();
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        if let Ok(value) = u64::try_from(value) {
            self.record_u64(field, value);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> tracing_subscriber::Layer<S> for PhaseLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if !tidegate_hook::is_metered() {
            return;
        }
        let _meter = as_meter();
        let Some(span) = context.span(id) else { return };
        let mut found = FindItem {
            field: self.item_field,
            item: None,
        };
        attributes.record(&mut found);
        let above = || span.parent()?.extensions().get::<Spot>()?.item;
        let item = found.item.or_else(above);
        let phase = phase_number(attributes.metadata().name());
        span.extensions_mut().insert(Spot { phase, item });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut found = FindItem {
            field: self.item_field,
            item: None,
        };
        values.record(&mut found);
        if let (Some(item), Some(spot)) = (found.item, span.extensions_mut().get_mut::<Spot>()) {
            spot.item = Some(item);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let Some(spot) = context
            .span(id)
            .and_then(|span| span.extensions().get::<Spot>().copied())
        else {
            return;
        };
        begin(
            Stay::Span(id.into_u64()),
            Whereabouts::changed(spot.phase, spot.item),
        );
    }

    fn on_exit(&self, id: &Id, _: Context<'_, S>) {
        if tidegate_hook::is_metered() {
            end(Stay::Span(id.into_u64()));
        }
    }
}
