//! What pools of the card's memory hold, and what of it is in use: asked of the driver.
//!
//! A pool keeps what was freed, for whom it is asked of next; that is on the card and in
//! no book. The attributes of pools and of graphs' memory are read where no work waits
//! for them, and need no context.

use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::sync::LazyLock;

const SUCCESS: u32 = 0;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` and `…_USED_MEM_CURRENT`.
const OF_POOL: [u32; 2] = [5, 7];
/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT` and `…_USED_MEM_CURRENT`.
const OF_GRAPHS: [u32; 2] = [2, 0];

/// Bytes that pools hold, and bytes of these that are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub reserved: u64,
    pub used: u64,
}

/// The driver's functions that tell; its enumerations are integers of 32 bits.
struct Driver {
    devices: unsafe extern "C" fn(*mut i32) -> u32,
    default_pool: unsafe extern "C" fn(*mut u64, i32) -> u32,
    of_pool: unsafe extern "C" fn(u64, u32, *mut c_void) -> u32,
    of_graphs: unsafe extern "C" fn(i32, u32, *mut c_void) -> u32,
}

/// What the default pools, these pools and graphs hold. `None` if the driver cannot say.
pub(super) fn held(pools: &[u64]) -> Option<Held> {
    static DRIVER: LazyLock<Option<Driver>> = LazyLock::new(Driver::loaded);
    DRIVER.as_ref()?.held(pools)
}

impl Driver {
    /// The driver that this process has loaded; never loads one.
    fn loaded() -> Option<Self> {
        let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD;
        // SAFETY: a C string; nothing is loaded, so no initialiser runs.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), flags) };
        if library.is_null() {
            return None;
        }
        let symbol = |name: &CStr| {
            // SAFETY: an open library and a C string.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        // SAFETY: the driver's functions of these names have these types.
        unsafe {
            Some(Self {
                devices: transmute::<*mut c_void, unsafe extern "C" fn(*mut i32) -> u32>(symbol(
                    c"cuDeviceGetCount",
                )?),
                default_pool: transmute::<*mut c_void, unsafe extern "C" fn(*mut u64, i32) -> u32>(
                    symbol(c"cuDeviceGetDefaultMemPool")?,
                ),
                of_pool: transmute::<*mut c_void, unsafe extern "C" fn(u64, u32, *mut c_void) -> u32>(
                    symbol(c"cuMemPoolGetAttribute")?,
                ),
                of_graphs: transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(i32, u32, *mut c_void) -> u32,
                >(symbol(c"cuDeviceGetGraphMemAttribute")?),
            })
        }
    }

    fn held(&self, pools: &[u64]) -> Option<Held> {
        let mut sum = Held::default();
        let mut devices = 0;
        // SAFETY: a place for the answer.
        if unsafe { (self.devices)(&raw mut devices) } != SUCCESS {
            return None;
        }
        for device in 0..devices {
            let mut pool = 0;
            // SAFETY: as above. A device without pools refuses.
            if unsafe { (self.default_pool)(&raw mut pool, device) } == SUCCESS {
                let of_pool = |attribute, value| {
                    // SAFETY: a pool of the driver's, and a place for 64 bits.
                    unsafe { (self.of_pool)(pool, attribute, value) }
                };
                sum.add(read(OF_POOL, of_pool)?);
                let of_graphs = |attribute, value| {
                    // SAFETY: a device, and a place for 64 bits.
                    unsafe { (self.of_graphs)(device, attribute, value) }
                };
                sum.add(read(OF_GRAPHS, of_graphs)?);
            }
        }
        for pool in pools {
            // SAFETY: a pool that the program made and has not destroyed, as far as we
            // know; the driver refuses what is none.
            let of_pool = |attribute, value| unsafe { (self.of_pool)(*pool, attribute, value) };
            sum.add(read(OF_POOL, of_pool)?);
        }
        Some(sum)
    }
}

impl Held {
    fn add(&mut self, other: Self) {
        self.reserved = self.reserved.saturating_add(other.reserved);
        self.used = self.used.saturating_add(other.used);
    }
}

/// The values of two attributes: reserved, used.
fn read(attributes: [u32; 2], ask: impl Fn(u32, *mut c_void) -> u32) -> Option<Held> {
    let one = |attribute| {
        let mut value = 0_u64;
        (ask(attribute, (&raw mut value).cast()) == SUCCESS).then_some(value)
    };
    Some(Held {
        reserved: one(attributes[0])?,
        used: one(attributes[1])?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn two_devices(count: *mut i32) -> u32 {
        // SAFETY: the caller's place.
        unsafe { *count = 2 };
        SUCCESS
    }

    /// The second device has no pools.
    unsafe extern "C" fn pool_of(pool: *mut u64, device: i32) -> u32 {
        // SAFETY: the caller's place.
        unsafe { *pool = 100 };
        if device == 0 { SUCCESS } else { 801 }
    }

    unsafe extern "C" fn of_pool(pool: u64, attribute: u32, value: *mut c_void) -> u32 {
        let (reserved, used) = match pool {
            100 => (32 << 20, 1 << 20),
            7 => (64 << 20, 0),
            _ => return 1,
        };
        // SAFETY: the caller's place.
        unsafe { *value.cast::<u64>() = if attribute == 5 { reserved } else { used } };
        SUCCESS
    }

    unsafe extern "C" fn of_graphs(_: i32, attribute: u32, value: *mut c_void) -> u32 {
        // SAFETY: the caller's place.
        unsafe { *value.cast::<u64>() = if attribute == 2 { 4096 } else { 96 } };
        SUCCESS
    }

    const DRIVER: Driver = Driver {
        devices: two_devices,
        default_pool: pool_of,
        of_pool,
        of_graphs,
    };

    #[test]
    fn all_pools_and_graphs_are_added_up() {
        let held = DRIVER.held(&[7]);
        let reserved = (96 << 20) + 4096;
        let used = (1 << 20) + 96;
        assert_eq!(held, Some(Held { reserved, used }));
    }

    #[test]
    fn a_pool_that_cannot_be_read_makes_the_sum_unknown() {
        assert_eq!(DRIVER.held(&[7, 8]), None);
    }
}
