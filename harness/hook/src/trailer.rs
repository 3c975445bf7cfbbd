//! The eight bytes at the end of every metered block.
//!
//! ```text
//! 63          29 28   24 23            0
//! ┌─────────────┬───────┬───────────────┐
//! │ check       │ slack │ context       │
//! └─────────────┴───────┴───────────────┘
//! ```
//!
//! The allocator is asked for `size + 8` bytes and gives `usable` of them. The
//! trailer lies in the last eight usable bytes, where it can be found again from
//! the pointer and the usable size. *Slack* is what lies between the end of what
//! the program asked for and the trailer. Small slacks (the common case) are
//! kept in the trailer; a slack of 31 or more leaves room for the size itself in
//! the eight bytes before it.
//!
//! The check binds the trailer to the block's address. It recognises blocks that
//! were born before the ledger or in another allocator: such a block passes for
//! ours with a probability of 2⁻³⁵.

/// Bytes that the trailer adds to a block.
pub(crate) const BYTES: usize = 8;

const CONTEXT_BITS: u32 = 24;
const SLACK_BITS: u32 = 5;
const LOW_BITS: u32 = CONTEXT_BITS + SLACK_BITS;
const LOW: u64 = (1 << LOW_BITS) - 1;
const SLACK_ELSEWHERE: u64 = (1 << SLACK_BITS) - 1;

/// Whose blocks are read or written: a trailer of one maker's is none to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Maker {
    /// The malloc family.
    Malloc,
    /// An allocator of its own under [`Alloc`](crate::Alloc).
    Wrapped,
}

impl Maker {
    #[inline(always)]
    const fn salt(self) -> usize {
        match self {
            Self::Malloc => 0,
            Self::Wrapped => 0x5bd1_e995_0000,
        }
    }
}

/// What a trailer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Index of the context that bore the block.
    pub context: u32,
    /// Bytes that the program asked for.
    pub size: usize,
}

#[inline(always)]
fn check(maker: Maker, address: usize, low: u64) -> u64 {
    let address = address ^ maker.salt();
    // Multiplicative hashing; the bits kept are the product's upper ones, which
    // depend on all of the input.
    let mixed = (address as u64 ^ low << 35).wrapping_add(low);
    mixed.wrapping_mul(0xd6e8_feb8_6659_fd93) & !LOW
}

/// Writes the trailer of a block.
///
/// # Safety
/// `block` points to `usable` writable bytes, `usable` is at least `size + 8`.
#[inline(always)]
pub(crate) unsafe fn write(maker: Maker, block: *mut u8, usable: usize, size: usize, context: u32) {
    let slack = (usable - BYTES - size) as u64;
    let slack_code = if slack < SLACK_ELSEWHERE {
        slack
    } else {
        // SAFETY: a slack of 31 or more leaves these eight bytes free.
        unsafe {
            block
                .add(usable - 2 * BYTES)
                .cast::<u64>()
                .write_unaligned(size as u64)
        };
        SLACK_ELSEWHERE
    };
    let low = slack_code << CONTEXT_BITS | u64::from(context);
    let word = check(maker, block as usize, low) | low;
    // SAFETY: the last eight usable bytes are within the block.
    unsafe {
        block
            .add(usable - BYTES)
            .cast::<u64>()
            .write_unaligned(word)
    };
}

/// Reads a trailer; `None` if the block carries none of ours.
///
/// # Safety
/// `block` points to `usable` readable bytes.
#[inline(always)]
pub(crate) unsafe fn read(maker: Maker, block: *const u8, usable: usize) -> Option<Block> {
    if usable < BYTES {
        return None;
    }
    // SAFETY: the last eight usable bytes are within the block.
    let word = unsafe { block.add(usable - BYTES).cast::<u64>().read_unaligned() };
    let low = word & LOW;
    if check(maker, block as usize, low) != word & !LOW {
        return None;
    }
    let context = (low & ((1 << CONTEXT_BITS) - 1)) as u32;
    let slack = low >> CONTEXT_BITS;
    let size = if slack != SLACK_ELSEWHERE {
        (usable - BYTES).checked_sub(slack as usize)?
    } else if usable >= 2 * BYTES {
        // SAFETY: within the block; the check says that the size was written here.
        let size = unsafe { block.add(usable - 2 * BYTES).cast::<u64>().read_unaligned() as usize };
        if size > usable - 2 * BYTES {
            return None;
        }
        size
    } else {
        return None;
    };
    Some(Block { context, size })
}

/// Makes the block's trailer invalid, so that what is left in freed memory is never read as one.
///
/// # Safety
/// `block` points to `usable` writable bytes, `usable` is at least 8.
#[inline(always)]
pub(crate) unsafe fn erase(block: *mut u8, usable: usize) {
    // SAFETY: the last eight usable bytes are within the block.
    unsafe { block.add(usable - BYTES).cast::<u64>().write_unaligned(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(size: usize, usable: usize, context: u32) -> Option<Block> {
        let mut memory = vec![0xa5_u8; usable];
        // SAFETY: the vector has `usable` bytes.
        unsafe {
            write(Maker::Malloc, memory.as_mut_ptr(), usable, size, context);
            read(Maker::Malloc, memory.as_ptr(), usable)
        }
    }

    #[test]
    fn every_slack_gives_the_size_back() {
        // Miri interprets each of them.
        let sizes = if cfg!(miri) { 98..102 } else { 0..200 };
        for size in sizes {
            for slack in 0..100 {
                let block = round_trip(size, size + BYTES + slack, 0xff_ffff - size as u32);
                let context = 0xff_ffff - size as u32;
                assert_eq!(
                    block,
                    Some(Block { context, size }),
                    "size {size} slack {slack}"
                );
            }
        }
    }

    #[test]
    fn what_the_program_wrote_stays_whole() {
        for slack in [0, 1, 30, 31, 32, 5000] {
            let size = 100;
            let usable = size + BYTES + slack;
            let mut memory = vec![0xa5_u8; usable];
            // SAFETY: the vector has `usable` bytes.
            unsafe { write(Maker::Malloc, memory.as_mut_ptr(), usable, size, 7) };
            assert!(memory[..size].iter().all(|b| *b == 0xa5), "slack {slack}");
        }
    }

    #[test]
    fn an_erased_or_moved_trailer_is_not_ours() {
        let mut memory = vec![0_u8; 64];
        // SAFETY: the vector has 64 bytes; the moved copy too.
        unsafe {
            write(Maker::Malloc, memory.as_mut_ptr(), 64, 40, 9);
            let moved = memory.clone();
            assert_eq!(read(Maker::Malloc, moved.as_ptr(), 64), None);
            erase(memory.as_mut_ptr(), 64);
            assert_eq!(read(Maker::Malloc, memory.as_ptr(), 64), None);
        }
    }

    #[test]
    fn a_trailer_of_one_maker_is_none_to_the_other() {
        let mut memory = vec![0_u8; 64];
        for (maker, other) in [
            (Maker::Malloc, Maker::Wrapped),
            (Maker::Wrapped, Maker::Malloc),
        ] {
            // SAFETY: the vector has 64 bytes.
            unsafe {
                write(maker, memory.as_mut_ptr(), 64, 40, 9);
                assert!(read(maker, memory.as_ptr(), 64).is_some());
                assert_eq!(read(other, memory.as_ptr(), 64), None);
            }
        }
    }

    #[test]
    fn random_bytes_are_not_taken_for_a_trailer() {
        let mut state = 0x1234_5678_9abc_def0_u64;
        let mut memory = [0_u8; 32];
        let times = if cfg!(miri) { 1000 } else { 1_000_000 };
        for _ in 0..times {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            memory[24..].copy_from_slice(&state.to_le_bytes());
            // SAFETY: the vector has 32 bytes.
            assert_eq!(unsafe { read(Maker::Malloc, memory.as_ptr(), 32) }, None);
        }
    }
}
