//! The global allocator that tags Rust's blocks.

use std::alloc::{GlobalAlloc, Layout, System};
use std::any::TypeId;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::arch::PAGE;
use crate::layout::HookLayer;
use crate::trailer::{self, Maker};
use crate::{glibc, ledger, malloc};

/// Wraps a global allocator so that its blocks are booked as `rust-heap`.
///
/// ```
/// #[global_allocator]
/// static ALLOC: tidegate_hook::Alloc = tidegate_hook::Alloc::system();
/// # fn main() {}
/// ```
///
/// # Implementation
///
/// Over [`System`], a block comes straight from this crate's malloc family, booked
/// as Rust's. An allocator that does not use malloc (jemalloc, mimalloc) gets eight bytes more
/// to allocate and the wrapper books the block itself. One that uses malloc and
/// does something of its own besides (`dhat::Alloc`) is asked for exactly the
/// program's layout; what it allocates for itself is booked apart and not judged,
/// and so is what an allocator of its own maps from the system.
/// Which of the two it is, is tried once with a small block.
#[derive(Debug)]
pub struct Alloc<A = System> {
    inner: A,
    way: AtomicU8,
}

/// Not tried yet.
const UNTRIED: u8 = 0;
/// The inner allocator's blocks come from the malloc family.
const THROUGH_MALLOC: u8 = 1;
/// They do not.
const ON_ITS_OWN: u8 = 2;

impl Alloc {
    /// Over the system's allocator.
    pub const fn system() -> Self {
        Self::new(System)
    }
}

impl<A> Alloc<A> {
    /// Over the allocator `inner`.
    pub const fn new(inner: A) -> Self {
        Self {
            inner,
            way: AtomicU8::new(UNTRIED),
        }
    }
}

/// Books under another layer until dropped.
struct Under(HookLayer);

impl Under {
    #[inline(always)]
    fn layer(layer: HookLayer) -> Self {
        Self(ledger::set_layer(layer))
    }

    /// What an inner allocator does for itself.
    #[inline(always)]
    fn inner() -> Self {
        Self::layer(match ledger::layer() {
            HookLayer::Native => HookLayer::Meter,
            other => other,
        })
    }
}

impl Drop for Under {
    #[inline(always)]
    fn drop(&mut self) {
        ledger::set_layer(self.0);
    }
}

impl<A: GlobalAlloc + 'static> Alloc<A> {
    /// Whether `A` is known, when this is compiled, to be nothing but malloc.
    #[inline(always)]
    fn is_plain_malloc() -> bool {
        TypeId::of::<A>() == TypeId::of::<System>()
    }

    #[inline(always)]
    fn goes_through_malloc(&self) -> bool {
        match self.way.load(Ordering::Relaxed) {
            UNTRIED => self.try_way(),
            way => way == THROUGH_MALLOC,
        }
    }

    #[cold]
    fn try_way(&self) -> bool {
        let _under = Under::layer(HookLayer::Meter);
        let layout = Layout::new::<[u64; 4]>();
        ledger::take_last_block();
        // SAFETY: the layout is not empty; the block is given back with the same one.
        let through = unsafe {
            let block = self.inner.alloc(layout);
            let through = !block.is_null() && ledger::take_last_block() == block;
            if !block.is_null() {
                self.inner.dealloc(block, layout);
            }
            through
        };
        let way = if through { THROUGH_MALLOC } else { ON_ITS_OWN };
        self.way.store(way, Ordering::Relaxed);
        through
    }

    /// Asks the inner allocator for a block through malloc, and books that block
    /// alone as Rust's.
    #[inline(always)]
    unsafe fn through_malloc(&self, ask: impl FnOnce(&A) -> *mut u8) -> *mut u8 {
        if ledger::layer() != HookLayer::Native {
            return ask(&self.inner); // Asked for by an inner allocator, or by the meter.
        }
        let block = {
            let _under = Under::layer(HookLayer::Meter);
            ask(&self.inner)
        };
        if !block.is_null() && ledger::is_on() {
            // SAFETY: the block came from the malloc family, as `way` says.
            unsafe {
                let usable = glibc::usable_size(block.cast());
                if let Some(meter) = trailer::read(Maker::Malloc, block, usable) {
                    ledger::book_release(meter.context, meter.size);
                    let context = ledger::book_birth(HookLayer::Rust, block, meter.size);
                    trailer::write(Maker::Malloc, block, usable, meter.size, context);
                }
            }
        }
        block
    }

    /// Allocates with room for a trailer and books the block here.
    unsafe fn with_trailer(
        &self,
        layout: Layout,
        ask: impl FnOnce(&A, Layout) -> *mut u8,
    ) -> *mut u8 {
        let Some(larger) = room_for_trailer(layout) else {
            return std::ptr::null_mut();
        };
        let block = {
            let _under = Under::inner();
            ask(&self.inner, larger)
        };
        if !block.is_null() {
            // SAFETY: the block has `larger.size()` bytes.
            unsafe { self.book(block, layout.size()) };
        }
        block
    }

    /// # Safety
    /// `block` has `size` bytes and room for a trailer.
    unsafe fn book(&self, block: *mut u8, size: usize) {
        let context = if ledger::is_on() {
            ledger::book_birth(HookLayer::Rust, block, size)
        } else {
            0
        };
        // SAFETY: the caller's promise.
        unsafe { trailer::write(Maker::Wrapped, block, size + trailer::BYTES, size, context) };
    }

    /// # Safety
    /// `block` is a live block made by `with_trailer` for `size` bytes.
    unsafe fn unbook(&self, block: *mut u8, size: usize) {
        if !ledger::is_on() {
            return;
        }
        // SAFETY: the caller's promise.
        match unsafe { trailer::read(Maker::Wrapped, block, size + trailer::BYTES) } {
            Some(known) => ledger::book_release(known.context, known.size),
            // SAFETY: the caller's promise.
            None => unsafe { book_unknown(block, size) },
        }
    }
}

/// Books that a block was given back here which carries no trailer of this
/// allocator's. One that malloc made stays booked: malloc never gets it back.
///
/// # Safety
/// `block` has `size` bytes.
#[cold]
unsafe fn book_unknown(block: *mut u8, size: usize) {
    // SAFETY: the caller's promise.
    if unsafe { is_mallocs(block, size) } {
        ledger::book_crossed();
    } else {
        ledger::book_foreign_release();
    }
}

/// Whether malloc made a block of `size` bytes or more, as far as can be told
/// without reading where nothing may be mapped.
///
/// # Safety
/// `block` has `size` bytes.
unsafe fn is_mallocs(block: *mut u8, size: usize) -> bool {
    let at = block as usize;
    if !at.is_multiple_of(MALLOC_ALIGN) || at.is_multiple_of(PAGE) {
        return false; // On a page's start, what is before may not be readable.
    }
    // SAFETY: the word before is on a page of the block's. A chunk header that
    // says so little more than `size` is one, or the last bytes of a neighbour
    // that look like it; then the few bytes past the block are its neighbour's.
    unsafe {
        let usable = glibc::usable_size(block.cast());
        let slack = match (usable + 16).is_multiple_of(PAGE) {
            true => PAGE + 32, // A chunk of its own mapping.
            false => 64,
        };
        (size + trailer::BYTES..=size + trailer::BYTES + slack).contains(&usable)
            && trailer::read(Maker::Malloc, block, usable).is_some_and(|known| known.size >= size)
    }
}

fn room_for_trailer(layout: Layout) -> Option<Layout> {
    let size = layout.size().checked_add(trailer::BYTES)?;
    Layout::from_size_align(size, layout.align()).ok()
}

/// The alignment that malloc gives every block.
const MALLOC_ALIGN: usize = 16;

// SAFETY: every block comes from `inner` with the layout asked for, or with a
// larger one that `dealloc` and `realloc` give back as it was, or (over `System`)
// from the malloc family with the same calls as `System` makes; the way a block
// was made never changes, because `way` is set before the first block and a
// process that is off stays off.
unsafe impl<A: GlobalAlloc + 'static> GlobalAlloc for Alloc<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe {
            if Self::is_plain_malloc() {
                if layout.align() <= MALLOC_ALIGN && layout.align() <= layout.size() {
                    malloc::malloc_in(HookLayer::Rust, layout.size()).cast()
                } else {
                    malloc::memalign_in(HookLayer::Rust, layout.align(), layout.size()).cast()
                }
            } else if self.goes_through_malloc() {
                self.through_malloc(|inner| inner.alloc(layout))
            } else if ledger::is_off() {
                self.inner.alloc(layout)
            } else {
                self.with_trailer(layout, |inner, larger| inner.alloc(larger))
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe {
            if Self::is_plain_malloc() {
                if layout.align() <= MALLOC_ALIGN && layout.align() <= layout.size() {
                    malloc::calloc_in(HookLayer::Rust, 1, layout.size()).cast()
                } else {
                    let block = self.alloc(layout);
                    if !block.is_null() {
                        block.write_bytes(0, layout.size());
                    }
                    block
                }
            } else if self.goes_through_malloc() {
                self.through_malloc(|inner| inner.alloc_zeroed(layout))
            } else if ledger::is_off() {
                self.inner.alloc_zeroed(layout)
            } else {
                self.with_trailer(layout, |inner, larger| inner.alloc_zeroed(larger))
            }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise; the layout is the one the block was made with.
        unsafe {
            if Self::is_plain_malloc() {
                malloc::free(block.cast());
            } else if self.goes_through_malloc() {
                let _under = Under::inner();
                self.inner.dealloc(block, layout);
            } else if ledger::is_off() {
                self.inner.dealloc(block, layout);
            } else {
                self.unbook(block, layout.size());
                let _under = Under::inner();
                self.inner.dealloc(block, with_room_for_trailer(layout));
            }
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise; the layout is the one the block was made with.
        unsafe {
            if Self::is_plain_malloc() {
                if layout.align() <= MALLOC_ALIGN && layout.align() <= size {
                    return malloc::realloc_in(HookLayer::Rust, block.cast(), size).cast();
                }
                let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
                if !new.is_null() {
                    new.copy_from_nonoverlapping(block, layout.size().min(size));
                    self.dealloc(block, layout);
                }
                return new;
            }
            if self.goes_through_malloc() {
                return self.through_malloc(|inner| inner.realloc(block, layout, size));
            }
            if ledger::is_off() {
                return self.inner.realloc(block, layout, size);
            }
            let Some(total) = size.checked_add(trailer::BYTES) else {
                return std::ptr::null_mut();
            };
            let old = with_room_for_trailer(layout);
            let known = trailer::read(Maker::Wrapped, block, old.size());
            let mallocs = known.is_none() && is_mallocs(block, layout.size());
            let new = {
                let _under = Under::inner();
                self.inner.realloc(block, old, total)
            };
            if new.is_null() {
                return new;
            }
            if ledger::is_on() {
                match known {
                    Some(known) => ledger::book_release(known.context, known.size),
                    None if mallocs => ledger::book_crossed(),
                    None => ledger::book_foreign_release(),
                }
            }
            self.book(new, size);
            new
        }
    }
}

/// The layout that a live block of `layout` was really made with.
///
/// # Safety
/// `with_trailer` made a block for `layout`, so the larger one is valid too.
unsafe fn with_room_for_trailer(layout: Layout) -> Layout {
    // SAFETY: the caller's promise.
    unsafe { Layout::from_size_align_unchecked(layout.size() + trailer::BYTES, layout.align()) }
}
