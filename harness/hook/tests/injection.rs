//! The GPU's books of a program that was built with this crate and has it preloaded too: the
//! driver calls the preloaded copy, and the program's own keeps the books.
#![cfg(feature = "gpu")]

mod metered;

use std::ffi::{CString, c_void};
use std::os::unix::ffi::OsStrExt;

use metered::{again_with, in_child};
use tidegate_hook::{Alloc, Capacity, library, preload};

#[global_allocator]
static ALLOC: Alloc = Alloc::system();

/// What the driver does with the library that `CUDA_INJECTION64_PATH` names.
fn inject() {
    let library = library().unwrap();
    let library = CString::new(library.as_os_str().as_bytes()).unwrap();
    // SAFETY: the hook's own library, and the type that the driver expects of its function.
    unsafe {
        let library = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
        let initialize = libc::dlsym(library, c"InitializeInjection".as_ptr());
        assert!(!initialize.is_null());
        let initialize = std::mem::transmute::<*mut c_void, extern "C" fn() -> i32>(initialize);
        assert_eq!(initialize(), 1);
    }
}

#[test]
fn the_copy_that_keeps_the_books_is_told_of_the_gpu() {
    if in_child() {
        return inject();
    }
    let name = "the_copy_that_keeps_the_books_is_told_of_the_gpu";
    let gpu = |is_preloaded: bool| {
        let ledger = again_with(name, Capacity::default(), |command| {
            // Where no CUPTI is, the attempt is what can be seen.
            command.env("TIDEGATE_CUPTI", "/nowhere/libcupti.so");
            if is_preloaded {
                command.env("LD_PRELOAD", preload(&library().unwrap(), None).unwrap());
            }
        });
        ledger.snapshot().gpu
    };
    for is_preloaded in [true, false] {
        let gpu = gpu(is_preloaded);
        let told = (gpu.attached + gpu.failed, gpu.unseen, gpu.foreign);
        assert_eq!(told, (1, 0, 0), "preloaded: {is_preloaded}");
    }
}
