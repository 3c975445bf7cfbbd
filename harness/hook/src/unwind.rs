//! Walks the calling thread's stack, in x86-64 code that carries unwind tables.
//!
//! Made to be called from inside `malloc`: it allocates nothing, takes no lock
//! (`_dl_find_object` is lock-free and async-signal-safe, unlike the walk over
//! the loader's list that `dl_iterate_phdr` does under a lock), and uses some
//! 3 KiB of stack.
//!
//! # Implementation
//!
//! What the tables say about one instruction is nearly always: the frame's end
//! (the *canonical frame address*) is a register plus a constant, the return
//! address lies just below it, and `rbp` and `rbx` are either unchanged or saved
//! at a constant distance from it. That is a [`Rule`] of one word, and rules are
//! kept in a table of the process by address. The first visit to a call site
//! costs a search and an interpretation by `gimli`, every later one two loads.
//!
//! Nothing else is needed to go up: no other register is ever the base of a
//! frame in code that compilers write, and frames that say something different
//! end the walk. A signal's frame is recognised by its augmentation, and the
//! registers are taken from the context that the kernel saved there.

use std::arch::asm;
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, EhFrameOffset, EndianSlice, NativeEndian,
    Register, RegisterRule, UnwindContext, UnwindContextStorage, UnwindSection, UnwindTableRow,
};

/// A loaded object (the program, a library), as the loader knows it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Object {
    flags: u64,
    /// Where its mapping begins.
    pub start: usize,
    /// Where its mapping ends.
    pub end: usize,
    /// The loader's own record of it.
    pub link_map: *const LinkMap,
    /// Its table of unwind information (`.eh_frame_hdr`).
    pub unwind_table: usize,
    reserved: [u64; 7],
}

/// The public beginning of the loader's record of an object.
#[repr(C)]
pub(crate) struct LinkMap {
    /// What is added to the file's addresses.
    pub bias: usize,
    /// The file's path; empty for the program itself.
    pub name: *const c_char,
}

/// One step of a walk.
pub(crate) struct Step<'a> {
    /// An address inside the instruction that was going on: the call, or, for a
    /// frame that a signal interrupted, that instruction.
    pub address: usize,
    /// The object that the address lies in.
    pub object: &'a Object,
}

type FindObject = unsafe extern "C" fn(*const c_void, *mut Object) -> c_int;

static FIND_OBJECT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Gets ready to walk. Returns whether this C library lets us (glibc from 2.35 on).
///
/// To be called once, before the first walk, outside of signal handlers.
pub(crate) fn prepare() -> bool {
    // Looked up and not linked to: the program must still start on an older glibc.
    // SAFETY: dlsym with a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    FIND_OBJECT.store(found, Ordering::Release);
    !found.is_null()
}

/// The object that an address lies in.
#[inline]
pub(crate) fn object_at(address: usize) -> Option<Object> {
    let found = FIND_OBJECT.load(Ordering::Relaxed);
    if found.is_null() {
        return None;
    }
    let mut object = MaybeUninit::<Object>::uninit();
    // SAFETY: the symbol has this type since it exists (glibc 2.35); it fills the
    // struct when it returns 0, and any address may be asked for.
    unsafe {
        let find = std::mem::transmute::<*mut c_void, FindObject>(found);
        (find(address as *const c_void, object.as_mut_ptr()) == 0).then(|| object.assume_init())
    }
}

#[derive(Clone, Copy)]
struct Registers {
    pc: usize,
    sp: usize,
    bp: usize,
    bx: usize,
}

/// Calls `visit` for each frame from the caller's on, innermost first, until it
/// says `false` or the stack ends. Returns whether the end was reached or the
/// unwind information gave out, rather than `visit` having stopped the walk.
#[inline(never)]
pub(crate) fn walk(mut visit: impl FnMut(Step<'_>) -> bool) -> bool {
    let (pc, sp, bp, bx): (usize, usize, usize, usize);
    // SAFETY: copies four registers; what the tables say about `pc` holds for them,
    // because the stack pointer does not move inside.
    unsafe {
        asm!(
            // Registers by name: one of the compiler's choice can be `rbp` or `rbx`, which
            // would be written before it is read.
            "lea rax, [rip]",
            "mov rcx, rsp",
            "mov rdx, rbp",
            "mov rsi, rbx",
            out("rax") pc,
            out("rcx") sp,
            out("rdx") bp,
            out("rsi") bx,
            options(nomem, nostack, preserves_flags),
        );
    }
    let mut registers = Registers { pc, sp, bp, bx };
    // Whether `pc` is the very instruction, and not the one after a call.
    let mut exact = true;
    let mut first = true;
    let mut last: Option<Object> = None;
    loop {
        let address = registers.pc - usize::from(!exact);
        // A caller is mostly in the same object as its callee.
        let object = match last {
            Some(object) if (object.start..object.end).contains(&address) => object,
            _ => match object_at(address) {
                Some(object) => object,
                None => return true,
            },
        };
        last = Some(object);
        if !first
            && !visit(Step {
                address,
                object: &object,
            })
        {
            return false;
        }
        first = false;
        let rule = rule_at(address, &object);
        // SAFETY: the rule is the tables' for this address, the registers are those
        // of this thread's frame there.
        let Some(caller) = (unsafe { rule.apply(registers) }) else {
            return true;
        };
        exact = rule.kind() == Rule::SIGNAL;
        if caller.pc < 4096 {
            return true;
        }
        registers = caller;
    }
}

/// How to get from a frame to its caller's: what is the base of the frame's end
/// (3 bits), the constant (28 bits, bytes), where `rbp` and `rbx` were saved
/// below the end (16 bits each, in words; 0: not saved). In a realigned frame
/// they count from `rbp`, and `rbp` itself is always saved.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Rule(u64);

impl Rule {
    const FROM_SP: u64 = 1;
    const FROM_BP: u64 = 2;
    const FROM_BX: u64 = 3;
    /// The frame's end is stored at `rbp` plus the constant: a realigned stack.
    const AT_BP: u64 = 4;
    const SIGNAL: u64 = 5;
    /// There is no caller, or none that can be found.
    const END: u64 = 6;

    /// No frame is larger.
    const LARGEST_FRAME: usize = 64 << 20;

    fn new(kind: u64, offset: i64, bp: i64, bx: i64) -> Option<Self> {
        let offset_fits = (-(1 << 27)..1 << 27).contains(&offset);
        let saved_fits = |at: i64| at % 8 == 0 && (-(1 << 15)..1 << 15).contains(&(at / 8));
        if !offset_fits || !saved_fits(bp) || !saved_fits(bx) {
            return None;
        }
        Some(Self(
            kind | (offset as u64 & 0xfff_ffff) << 3
                | ((bp / 8) as u64 & 0xffff) << 31
                | ((bx / 8) as u64 & 0xffff) << 47,
        ))
    }

    const fn kind(self) -> u64 {
        self.0 & 7
    }

    const fn offset(self) -> isize {
        ((self.0 << 33) as i64 >> 36) as isize
    }

    const fn bp(self) -> isize {
        ((self.0 << 17) as i64 >> 48) as isize * 8
    }

    const fn bx(self) -> isize {
        ((self.0 << 1) as i64 >> 48) as isize * 8
    }

    /// The caller's registers.
    ///
    /// # Safety
    /// `at` are the registers of a live frame for which this is the rule.
    #[inline]
    unsafe fn apply(self, at: Registers) -> Option<Registers> {
        // SAFETY: the tables of the code that set up the frame say that these words
        // of the thread's own stack are there; the ends are checked for sense first.
        unsafe {
            let word = |address: usize| (address as *const usize).read_unaligned();
            let end = match self.kind() {
                Self::FROM_SP => at.sp.wrapping_add_signed(self.offset()),
                Self::FROM_BP => at.bp.wrapping_add_signed(self.offset()),
                Self::FROM_BX => at.bx.wrapping_add_signed(self.offset()),
                Self::AT_BP => {
                    let stored = at.bp.wrapping_add_signed(self.offset());
                    if !is_near(at.sp, stored) {
                        return None;
                    }
                    word(stored)
                }
                Self::SIGNAL => {
                    // The stack pointer is at a `ucontext_t`; its registers begin 40
                    // bytes in. In their order, rbp, rbx, rsp, rip are these.
                    let saved = |index: usize| word(at.sp + 40 + 8 * index);
                    return Some(Registers {
                        bp: saved(10),
                        bx: saved(11),
                        sp: saved(15),
                        pc: saved(16),
                    });
                }
                _ => return None,
            };
            if !is_near(at.sp, end) || end == at.sp {
                return None;
            }
            let realigned = self.kind() == Self::AT_BP;
            let base = if realigned { at.bp } else { end };
            let saved = |offset: isize| word(base.wrapping_add_signed(offset));
            Some(Registers {
                pc: word(end - 8),
                sp: end,
                bp: match self.bp() {
                    0 if !realigned => at.bp,
                    offset => saved(offset),
                },
                bx: match self.bx() {
                    0 => at.bx,
                    offset => saved(offset),
                },
            })
        }
    }
}

/// Whether an address can be in the frame whose stack pointer this is.
fn is_near(sp: usize, address: usize) -> bool {
    address.wrapping_sub(sp) <= Rule::LARGEST_FRAME && address.is_multiple_of(8)
}

/// Slots of the table of rules; a power of two. 64 KiB, touched as used.
const SLOTS: usize = 4096;

/// One known rule. The key is stored mixed with the rule, so that a slot that is
/// being overwritten by another thread looks like one of another address.
struct Slot {
    mixed: AtomicU64,
    rule: AtomicU64,
}

static RULES: [Slot; SLOTS] = [const {
    Slot {
        mixed: AtomicU64::new(0),
        rule: AtomicU64::new(0),
    }
}; SLOTS];

fn rule_at(address: usize, object: &Object) -> Rule {
    // The table's address is in the key because a library can be unloaded and
    // another take its place.
    let key = address as u64 ^ (object.unwind_table as u64).rotate_left(32);
    let slot = &RULES[(address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 52];
    let rule = slot.rule.load(Ordering::Relaxed);
    if slot.mixed.load(Ordering::Relaxed) == key ^ rule && rule != 0 {
        return Rule(rule);
    }
    let rule = derive(address, object).unwrap_or(Rule(Rule::END));
    slot.rule.store(rule.0, Ordering::Relaxed);
    slot.mixed.store(key ^ rule.0, Ordering::Relaxed);
    rule
}

/// Room for what one function's unwind information may say.
struct OnStack;

impl UnwindContextStorage<usize> for OnStack {
    type Rules = [(Register, RegisterRule<usize>); 20];
    type Stack = [UnwindTableRow<usize, Self>; 3];
}

type Reader = EndianSlice<'static, NativeEndian>;

const RBX: Register = Register(3);
const RBP: Register = Register(6);
const RSP: Register = Register(7);
const RETURN_ADDRESS: Register = Register(16);

/// Where the function begins that an address lies in, if the object's tables say so.
#[cfg(feature = "gpu")]
#[cold]
pub(crate) fn function_at(address: usize, object: &Object) -> Option<usize> {
    let (entry, ..) = entry_at(address, object)?;
    usize::try_from(entry.initial_address()).ok()
}

/// What an object's tables have on the function that an address lies in.
type Entry = (
    gimli::FrameDescriptionEntry<Reader>,
    EhFrame<Reader>,
    BaseAddresses,
);

/// Finds it.
fn entry_at(address: usize, object: &Object) -> Option<Entry> {
    // SAFETY: the object stays loaded while a frame of this thread is in it, and
    // its tables lie within its mapping. They are its linker's; gimli checks what
    // it reads against the slices' ends.
    let slice = |from: usize| unsafe {
        let length = object.end.checked_sub(from)?;
        Some(std::slice::from_raw_parts(from as *const u8, length))
    };
    if object.unwind_table < object.start {
        return None;
    }
    let bases = BaseAddresses::default().set_eh_frame_hdr(object.unwind_table as u64);
    let header = EhFrameHdr::new(slice(object.unwind_table)?, NativeEndian);
    let header = header.parse(&bases, 8).ok()?;
    let frames = header.eh_frame_ptr().direct().ok()? as usize;
    if frames < object.start {
        return None;
    }
    let bases = bases.set_eh_frame(frames as u64);
    let frames: EhFrame<Reader> = EhFrame::new(slice(frames)?, NativeEndian);
    let entry = header
        .table()?
        .fde_for_address(
            &frames,
            &bases,
            address as u64,
            |section: &EhFrame<Reader>, bases, offset: EhFrameOffset<usize>| {
                section.cie_from_offset(bases, offset)
            },
        )
        .ok()?;
    Some((entry, frames, bases))
}

/// What the object's tables say about an address, if a [`Rule`] can say it too.
#[cold]
#[inline(never)]
fn derive(address: usize, object: &Object) -> Option<Rule> {
    let (entry, frames, bases) = entry_at(address, object)?;
    if entry.is_signal_trampoline() {
        return Rule::new(Rule::SIGNAL, 0, 0, 0);
    }
    let mut context = UnwindContext::<usize, OnStack>::new_in();
    let row = entry
        .unwind_info_for_address(&frames, &bases, &mut context, address as u64)
        .ok()?;

    if !matches!(row.register(RETURN_ADDRESS), Some(RegisterRule::Offset(-8))) {
        return None; // Undefined is how the outermost frame is marked.
    }
    let saved = |register| match row.register(register) {
        None | Some(RegisterRule::SameValue | RegisterRule::Undefined) => Some(0),
        Some(RegisterRule::Offset(offset)) => Some(offset),
        Some(RegisterRule::Expression(at)) => match from_bp(at.get(&frames).ok()?.0.slice())? {
            (offset, []) => Some(offset),
            _ => None,
        },
        Some(_) => None,
    };
    match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => {
            let kind = match *register {
                RSP => Rule::FROM_SP,
                RBP => Rule::FROM_BP,
                RBX => Rule::FROM_BX,
                _ => return None,
            };
            Rule::new(kind, *offset, saved(RBP)?, saved(RBX)?)
        }
        CfaRule::Expression(expression) => {
            const DEREF: u8 = 0x06;
            match from_bp(expression.get(&frames).ok()?.0.slice())? {
                (offset, [DEREF]) => Rule::new(Rule::AT_BP, offset, saved(RBP)?, saved(RBX)?),
                _ => None,
            }
        }
    }
}

/// The constant of an expression that begins with `rbp` plus a constant, and the rest.
fn from_bp(code: &[u8]) -> Option<(i64, &[u8])> {
    const BREG_6: u8 = 0x76;
    let (&BREG_6, mut rest) = code.split_first()? else {
        return None;
    };
    let (mut value, mut shift) = (0_i64, 0_u32);
    loop {
        let byte;
        (byte, rest) = rest.split_first()?;
        value |= i64::from(byte & 0x7f).checked_shl(shift)?;
        shift += 7;
        if byte & 0x80 == 0 {
            let unused = 64_u32.checked_sub(shift)?;
            return Some((value << unused >> unused, rest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_gives_back_what_it_was_made_of() {
        for (kind, offset, bp, bx) in [
            (Rule::FROM_SP, 8, 0, 0),
            (Rule::FROM_BP, 16, -16, -24),
            (Rule::FROM_BX, -(1 << 27), -(1 << 18), 8),
            (Rule::AT_BP, (1 << 27) - 1, 8, -(1 << 18)),
        ] {
            let rule = Rule::new(kind, offset, bp, bx).unwrap();
            assert_eq!(rule.kind(), kind);
            let parts = (rule.offset() as i64, rule.bp() as i64, rule.bx() as i64);
            assert_eq!(parts, (offset, bp, bx));
        }
        assert!(Rule::new(Rule::FROM_SP, 1 << 27, 0, 0).is_none());
        assert!(Rule::new(Rule::FROM_SP, 8, -4, 0).is_none());
    }

    #[test]
    fn an_expression_over_rbp_is_read_with_its_sign() {
        assert_eq!(from_bp(&[0x76, 0x78, 0x06]), Some((-8, &[0x06][..])));
        assert_eq!(from_bp(&[0x76, 0x00]), Some((0, &[][..])));
        assert_eq!(from_bp(&[0x76, 0x90, 0x7f]), Some((-112, &[][..])));
        assert_eq!(from_bp(&[0x77, 0x08]), None);
        assert_eq!(from_bp(&[0x76, 0x80]), None);
    }
}
