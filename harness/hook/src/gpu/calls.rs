//! What each call of the driver's and the runtime's interface makes or releases.
//!
//! The names and the parameters are those of CUPTI's headers, as `cudarc` has them;
//! both are fixed for good once they have been in a release. Calls that are not listed
//! make and release nothing that is booked.

use std::ffi::c_void;

use cudarc::cupti::sys;
use cudarc::cupti::sys::CUpti_driver_api_trace_cbid as Driver;
use cudarc::cupti::sys::CUpti_runtime_api_trace_cbid as Runtime;

use super::book::{Kind, Name};
use crate::layout::HookLayer;

/// What a call has made, or what else it has changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Made {
    Nothing,
    One {
        name: Name,
        layer: HookLayer,
        bytes: u64,
    },
    /// The same, unless what this stream is asked for is only recorded.
    InStream {
        stream: u64,
        name: Name,
        bytes: u64,
    },
    PrimaryRetained {
        device: u64,
        context: u64,
    },
    PrimaryReset {
        device: u64,
    },
    HandleRetained {
        handle: u64,
    },
    Mapped {
        address: u64,
        bytes: u64,
        handle: u64,
    },
    Unmapped {
        address: u64,
        bytes: u64,
    },
    /// Memory that a graph takes when it is launched.
    GraphTakes {
        graph: u64,
        address: u64,
        bytes: u64,
    },
    /// Memory that a graph frees when it is launched.
    GraphFrees {
        graph: u64,
        address: u64,
    },
    GraphCloned {
        clone: u64,
        original: u64,
    },
    GraphInstantiated {
        executable: u64,
        graph: u64,
    },
    GraphLaunched {
        executable: u64,
    },
    CaptureBegan {
        stream: u64,
    },
    CaptureEnded {
        stream: u64,
        graph: u64,
    },
}

macro_rules! ids {
    ($of:ident: $($short:ident = $long:ident,)*) => {
        $(const $short: u32 = $of::$long as u32;)*
    };
}

ids! { Driver:
    MEM_ALLOC = CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2,
    MEM_ALLOC_PITCH = CUPTI_DRIVER_TRACE_CBID_cuMemAllocPitch_v2,
    MEM_ALLOC_MANAGED = CUPTI_DRIVER_TRACE_CBID_cuMemAllocManaged,
    MEM_ALLOC_ASYNC = CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync,
    MEM_ALLOC_ASYNC_PTSZ = CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync_ptsz,
    MEM_ALLOC_FROM_POOL = CUPTI_DRIVER_TRACE_CBID_cuMemAllocFromPoolAsync,
    MEM_ALLOC_FROM_POOL_PTSZ = CUPTI_DRIVER_TRACE_CBID_cuMemAllocFromPoolAsync_ptsz,
    MEM_FREE = CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2,
    MEM_FREE_ASYNC = CUPTI_DRIVER_TRACE_CBID_cuMemFreeAsync,
    MEM_FREE_ASYNC_PTSZ = CUPTI_DRIVER_TRACE_CBID_cuMemFreeAsync_ptsz,
    MEM_HOST_ALLOC = CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc,
    MEM_HOST_ALLOC_V2 = CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc_v2,
    MEM_ALLOC_HOST = CUPTI_DRIVER_TRACE_CBID_cuMemAllocHost,
    MEM_ALLOC_HOST_V2 = CUPTI_DRIVER_TRACE_CBID_cuMemAllocHost_v2,
    MEM_FREE_HOST = CUPTI_DRIVER_TRACE_CBID_cuMemFreeHost,
    MEM_HOST_REGISTER = CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister,
    MEM_HOST_REGISTER_V2 = CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister_v2,
    MEM_HOST_UNREGISTER = CUPTI_DRIVER_TRACE_CBID_cuMemHostUnregister,
    MEM_CREATE = CUPTI_DRIVER_TRACE_CBID_cuMemCreate,
    MEM_RELEASE = CUPTI_DRIVER_TRACE_CBID_cuMemRelease,
    MEM_MAP = CUPTI_DRIVER_TRACE_CBID_cuMemMap,
    MEM_UNMAP = CUPTI_DRIVER_TRACE_CBID_cuMemUnmap,
    MEM_RETAIN_HANDLE = CUPTI_DRIVER_TRACE_CBID_cuMemRetainAllocationHandle,
    ARRAY_CREATE = CUPTI_DRIVER_TRACE_CBID_cuArrayCreate_v2,
    ARRAY_3D_CREATE = CUPTI_DRIVER_TRACE_CBID_cuArray3DCreate_v2,
    MIPMAPPED_ARRAY_CREATE = CUPTI_DRIVER_TRACE_CBID_cuMipmappedArrayCreate,
    ARRAY_DESTROY = CUPTI_DRIVER_TRACE_CBID_cuArrayDestroy,
    MIPMAPPED_ARRAY_DESTROY = CUPTI_DRIVER_TRACE_CBID_cuMipmappedArrayDestroy,
    IPC_OPEN = CUPTI_DRIVER_TRACE_CBID_cuIpcOpenMemHandle,
    IPC_OPEN_V2 = CUPTI_DRIVER_TRACE_CBID_cuIpcOpenMemHandle_v2,
    IPC_CLOSE = CUPTI_DRIVER_TRACE_CBID_cuIpcCloseMemHandle,
    IPC_OPEN_EVENT = CUPTI_DRIVER_TRACE_CBID_cuIpcOpenEventHandle,
    IMPORT_EXTERNAL = CUPTI_DRIVER_TRACE_CBID_cuImportExternalMemory,
    DESTROY_EXTERNAL = CUPTI_DRIVER_TRACE_CBID_cuDestroyExternalMemory,
    IMPORT_SEMAPHORE = CUPTI_DRIVER_TRACE_CBID_cuImportExternalSemaphore,
    DESTROY_SEMAPHORE = CUPTI_DRIVER_TRACE_CBID_cuDestroyExternalSemaphore,
    CTX_CREATE = CUPTI_DRIVER_TRACE_CBID_cuCtxCreate_v2,
    CTX_CREATE_V3 = CUPTI_DRIVER_TRACE_CBID_cuCtxCreate_v3,
    CTX_CREATE_V4 = CUPTI_DRIVER_TRACE_CBID_cuCtxCreate_v4,
    CTX_DESTROY = CUPTI_DRIVER_TRACE_CBID_cuCtxDestroy,
    CTX_DESTROY_V2 = CUPTI_DRIVER_TRACE_CBID_cuCtxDestroy_v2,
    GREEN_CTX_CREATE = CUPTI_DRIVER_TRACE_CBID_cuGreenCtxCreate,
    GREEN_CTX_DESTROY = CUPTI_DRIVER_TRACE_CBID_cuGreenCtxDestroy,
    PRIMARY_RETAIN = CUPTI_DRIVER_TRACE_CBID_cuDevicePrimaryCtxRetain,
    PRIMARY_RELEASE = CUPTI_DRIVER_TRACE_CBID_cuDevicePrimaryCtxRelease,
    PRIMARY_RELEASE_V2 = CUPTI_DRIVER_TRACE_CBID_cuDevicePrimaryCtxRelease_v2,
    PRIMARY_RESET = CUPTI_DRIVER_TRACE_CBID_cuDevicePrimaryCtxReset,
    PRIMARY_RESET_V2 = CUPTI_DRIVER_TRACE_CBID_cuDevicePrimaryCtxReset_v2,
    STREAM_CREATE = CUPTI_DRIVER_TRACE_CBID_cuStreamCreate,
    STREAM_CREATE_PRIORITY = CUPTI_DRIVER_TRACE_CBID_cuStreamCreateWithPriority,
    GREEN_STREAM_CREATE = CUPTI_DRIVER_TRACE_CBID_cuGreenCtxStreamCreate,
    STREAM_DESTROY = CUPTI_DRIVER_TRACE_CBID_cuStreamDestroy,
    STREAM_DESTROY_V2 = CUPTI_DRIVER_TRACE_CBID_cuStreamDestroy_v2,
    STREAM_BEGIN_CAPTURE = CUPTI_DRIVER_TRACE_CBID_cuStreamBeginCapture,
    STREAM_BEGIN_CAPTURE_PTSZ = CUPTI_DRIVER_TRACE_CBID_cuStreamBeginCapture_ptsz,
    STREAM_BEGIN_CAPTURE_V2 = CUPTI_DRIVER_TRACE_CBID_cuStreamBeginCapture_v2,
    STREAM_BEGIN_CAPTURE_V2_PTSZ = CUPTI_DRIVER_TRACE_CBID_cuStreamBeginCapture_v2_ptsz,
    STREAM_END_CAPTURE = CUPTI_DRIVER_TRACE_CBID_cuStreamEndCapture,
    STREAM_END_CAPTURE_PTSZ = CUPTI_DRIVER_TRACE_CBID_cuStreamEndCapture_ptsz,
    EVENT_CREATE = CUPTI_DRIVER_TRACE_CBID_cuEventCreate,
    EVENT_DESTROY = CUPTI_DRIVER_TRACE_CBID_cuEventDestroy,
    EVENT_DESTROY_V2 = CUPTI_DRIVER_TRACE_CBID_cuEventDestroy_v2,
    MODULE_LOAD = CUPTI_DRIVER_TRACE_CBID_cuModuleLoad,
    MODULE_LOAD_DATA = CUPTI_DRIVER_TRACE_CBID_cuModuleLoadData,
    MODULE_LOAD_DATA_EX = CUPTI_DRIVER_TRACE_CBID_cuModuleLoadDataEx,
    MODULE_LOAD_FAT_BINARY = CUPTI_DRIVER_TRACE_CBID_cuModuleLoadFatBinary,
    MODULE_UNLOAD = CUPTI_DRIVER_TRACE_CBID_cuModuleUnload,
    LIBRARY_LOAD_DATA = CUPTI_DRIVER_TRACE_CBID_cuLibraryLoadData,
    LIBRARY_LOAD_FILE = CUPTI_DRIVER_TRACE_CBID_cuLibraryLoadFromFile,
    LIBRARY_UNLOAD = CUPTI_DRIVER_TRACE_CBID_cuLibraryUnload,
    GRAPH_CREATE = CUPTI_DRIVER_TRACE_CBID_cuGraphCreate,
    GRAPH_CLONE = CUPTI_DRIVER_TRACE_CBID_cuGraphClone,
    GRAPH_DESTROY = CUPTI_DRIVER_TRACE_CBID_cuGraphDestroy,
    GRAPH_INSTANTIATE = CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiate,
    GRAPH_INSTANTIATE_V2 = CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiate_v2,
    GRAPH_INSTANTIATE_FLAGS = CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithFlags,
    GRAPH_INSTANTIATE_PARAMS = CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams,
    GRAPH_INSTANTIATE_PARAMS_PTSZ = CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams_ptsz,
    GRAPH_EXEC_DESTROY = CUPTI_DRIVER_TRACE_CBID_cuGraphExecDestroy,
    GRAPH_LAUNCH = CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch,
    GRAPH_LAUNCH_PTSZ = CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz,
    GRAPH_ADD_ALLOC = CUPTI_DRIVER_TRACE_CBID_cuGraphAddMemAllocNode,
    GRAPH_ADD_FREE = CUPTI_DRIVER_TRACE_CBID_cuGraphAddMemFreeNode,
    POOL_CREATE = CUPTI_DRIVER_TRACE_CBID_cuMemPoolCreate,
    POOL_DESTROY = CUPTI_DRIVER_TRACE_CBID_cuMemPoolDestroy,
}

ids! { Runtime:
    RUNTIME_FREE = CUPTI_RUNTIME_TRACE_CBID_cudaFree_v3020,
    RUNTIME_FREE_ASYNC = CUPTI_RUNTIME_TRACE_CBID_cudaFreeAsync_v11020,
    RUNTIME_FREE_ASYNC_PTSZ = CUPTI_RUNTIME_TRACE_CBID_cudaFreeAsync_ptsz_v11020,
    RUNTIME_FREE_HOST = CUPTI_RUNTIME_TRACE_CBID_cudaFreeHost_v3020,
    RUNTIME_FREE_ARRAY = CUPTI_RUNTIME_TRACE_CBID_cudaFreeArray_v3020,
    RUNTIME_FREE_MIPMAPPED = CUPTI_RUNTIME_TRACE_CBID_cudaFreeMipmappedArray_v5000,
    RUNTIME_HOST_UNREGISTER = CUPTI_RUNTIME_TRACE_CBID_cudaHostUnregister_v4000,
    RUNTIME_STREAM_DESTROY = CUPTI_RUNTIME_TRACE_CBID_cudaStreamDestroy_v5050,
    RUNTIME_EVENT_DESTROY = CUPTI_RUNTIME_TRACE_CBID_cudaEventDestroy_v3020,
    RUNTIME_GRAPH_DESTROY = CUPTI_RUNTIME_TRACE_CBID_cudaGraphDestroy_v10000,
    RUNTIME_GRAPH_EXEC_DESTROY = CUPTI_RUNTIME_TRACE_CBID_cudaGraphExecDestroy_v10000,
    RUNTIME_POOL_DESTROY = CUPTI_RUNTIME_TRACE_CBID_cudaMemPoolDestroy_v11020,
    RUNTIME_IPC_CLOSE = CUPTI_RUNTIME_TRACE_CBID_cudaIpcCloseMemHandle_v4010,
    RUNTIME_DESTROY_EXTERNAL = CUPTI_RUNTIME_TRACE_CBID_cudaDestroyExternalMemory_v10000,
    RUNTIME_DESTROY_SEMAPHORE = CUPTI_RUNTIME_TRACE_CBID_cudaDestroyExternalSemaphore_v10000,
}

/// What a call of the driver's is about to release.
///
/// # Safety
/// `params` are CUPTI's parameters of the call `id` of the driver's interface.
pub(super) unsafe fn releases(id: u32, params: *const c_void) -> Option<Name> {
    let kind = match id {
        MEM_FREE | MEM_FREE_ASYNC | MEM_FREE_ASYNC_PTSZ => Kind::Memory,
        MEM_FREE_HOST => Kind::Host,
        MEM_HOST_UNREGISTER => Kind::Registered,
        MEM_RELEASE => Kind::Physical,
        ARRAY_DESTROY | MIPMAPPED_ARRAY_DESTROY => Kind::Array,
        IPC_CLOSE => Kind::Shared,
        DESTROY_EXTERNAL => Kind::External,
        DESTROY_SEMAPHORE => Kind::Semaphore,
        CTX_DESTROY | CTX_DESTROY_V2 | GREEN_CTX_DESTROY => Kind::Context,
        STREAM_DESTROY | STREAM_DESTROY_V2 => Kind::Stream,
        EVENT_DESTROY | EVENT_DESTROY_V2 => Kind::Event,
        MODULE_UNLOAD => Kind::Module,
        LIBRARY_UNLOAD => Kind::Library,
        GRAPH_DESTROY => Kind::Graph,
        GRAPH_EXEC_DESTROY => Kind::Executable,
        POOL_DESTROY => Kind::Pool,
        PRIMARY_RELEASE | PRIMARY_RELEASE_V2 => {
            // SAFETY: the caller's promise; the only parameter is the device.
            let device = unsafe { params.cast::<i32>().read_unaligned() };
            return Some((Kind::Primary, device as u64));
        }
        _ => return None,
    };
    // SAFETY: the caller's promise; the first parameter of each is an address or a handle.
    Some((kind, unsafe { first_word(params) }))
}

/// The stream in which a call of the driver's is to free memory.
///
/// # Safety
/// `params` are CUPTI's parameters of the call `id` of the driver's interface.
pub(super) unsafe fn frees_in_stream(id: u32, params: *const c_void) -> Option<u64> {
    if !matches!(id, MEM_FREE_ASYNC | MEM_FREE_ASYNC_PTSZ) {
        return None;
    }
    // SAFETY: the caller's promise.
    let params = unsafe { &*params.cast::<sys::cuMemFreeAsync_params_st>() };
    Some(params.hStream as u64)
}

/// What a call of the runtime's is about to release.
///
/// # Safety
/// `params` are CUPTI's parameters of the call `id` of the runtime's interface.
pub(super) unsafe fn runtime_releases(id: u32, params: *const c_void) -> Option<Name> {
    let kind = match id {
        RUNTIME_FREE | RUNTIME_FREE_ASYNC | RUNTIME_FREE_ASYNC_PTSZ => Kind::Memory,
        RUNTIME_FREE_HOST => Kind::Host,
        RUNTIME_FREE_ARRAY | RUNTIME_FREE_MIPMAPPED => Kind::Array,
        RUNTIME_HOST_UNREGISTER => Kind::Registered,
        RUNTIME_STREAM_DESTROY => Kind::Stream,
        RUNTIME_EVENT_DESTROY => Kind::Event,
        RUNTIME_GRAPH_DESTROY => Kind::Graph,
        RUNTIME_GRAPH_EXEC_DESTROY => Kind::Executable,
        RUNTIME_POOL_DESTROY => Kind::Pool,
        RUNTIME_IPC_CLOSE => Kind::Shared,
        RUNTIME_DESTROY_EXTERNAL => Kind::External,
        RUNTIME_DESTROY_SEMAPHORE => Kind::Semaphore,
        _ => return None,
    };
    // SAFETY: the caller's promise; the first parameter of each is an address or a handle.
    Some((kind, unsafe { first_word(params) }))
}

/// # Safety
/// `params` begin with a word.
unsafe fn first_word(params: *const c_void) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { params.cast::<u64>().read_unaligned() }
}

/// What a call of the driver's has made, now that it has succeeded.
///
/// # Safety
/// `params` are CUPTI's parameters of the call `id` of the driver's interface, which
/// has returned success: what it was to fill in is filled in.
pub(super) unsafe fn made(id: u32, params: *const c_void) -> Made {
    use HookLayer as L;
    use Kind as K;

    /// The parameters, as CUPTI's struct for the call.
    macro_rules! of {
        ($name:ident) => {
            // SAFETY: the caller's promise.
            unsafe { &*params.cast::<sys::$name>() }
        };
    }
    /// What an out-parameter points to, as a number.
    macro_rules! out {
        ($pointer:expr) => {{
            let pointer = $pointer;
            if pointer.is_null() {
                return Made::Nothing;
            }
            // SAFETY: the call has succeeded, so it could write there.
            unsafe { pointer.cast::<u64>().read_unaligned() }
        }};
    }
    let one = |kind, number, layer, bytes| Made::One {
        name: (kind, number),
        layer,
        bytes,
    };
    match id {
        MEM_ALLOC => {
            let p = of!(cuMemAlloc_v2_params_st);
            one(K::Memory, out!(p.dptr), L::Device, p.bytesize as u64)
        }
        MEM_ALLOC_PITCH => {
            let p = of!(cuMemAllocPitch_v2_params_st);
            let pitch = out!(p.pPitch);
            one(
                K::Memory,
                out!(p.dptr),
                L::Device,
                pitch.saturating_mul(p.Height as u64),
            )
        }
        MEM_ALLOC_MANAGED => {
            let p = of!(cuMemAllocManaged_params_st);
            one(K::Memory, out!(p.dptr), L::Managed, p.bytesize as u64)
        }
        MEM_ALLOC_ASYNC | MEM_ALLOC_ASYNC_PTSZ => {
            let p = of!(cuMemAllocAsync_params_st);
            Made::InStream {
                stream: p.hStream as u64,
                name: (K::Memory, out!(p.dptr)),
                bytes: p.bytesize as u64,
            }
        }
        MEM_ALLOC_FROM_POOL | MEM_ALLOC_FROM_POOL_PTSZ => {
            let p = of!(cuMemAllocFromPoolAsync_params_st);
            Made::InStream {
                stream: p.hStream as u64,
                name: (K::Memory, out!(p.dptr)),
                bytes: p.bytesize as u64,
            }
        }
        MEM_HOST_ALLOC | MEM_HOST_ALLOC_V2 => {
            let p = of!(cuMemHostAlloc_params_st);
            one(K::Host, out!(p.pp), L::Pinned, p.bytesize as u64)
        }
        MEM_ALLOC_HOST | MEM_ALLOC_HOST_V2 => {
            let p = of!(cuMemAllocHost_v2_params_st);
            one(K::Host, out!(p.pp), L::Pinned, p.bytesize as u64)
        }
        MEM_HOST_REGISTER | MEM_HOST_REGISTER_V2 => {
            let p = of!(cuMemHostRegister_v2_params_st);
            one(K::Registered, p.p as u64, L::Registered, p.bytesize as u64)
        }
        MEM_CREATE => {
            let p = of!(cuMemCreate_params_st);
            one(K::Physical, out!(p.handle), L::Device, p.size as u64)
        }
        MEM_RETAIN_HANDLE => {
            let p = of!(cuMemRetainAllocationHandle_params_st);
            Made::HandleRetained {
                handle: out!(p.handle),
            }
        }
        MEM_MAP => {
            let p = of!(cuMemMap_params_st);
            Made::Mapped {
                address: p.ptr,
                bytes: p.size as u64,
                handle: p.handle,
            }
        }
        MEM_UNMAP => {
            let p = of!(cuMemUnmap_params_st);
            Made::Unmapped {
                address: p.ptr,
                bytes: p.size as u64,
            }
        }
        ARRAY_CREATE => {
            let p = of!(cuArrayCreate_v2_params_st);
            // SAFETY: the call has succeeded, so it could read the description.
            let Some(d) = (unsafe { p.pAllocateArray.as_ref() }) else {
                return Made::Nothing;
            };
            let elements = (d.Width as u64).saturating_mul(d.Height.max(1) as u64);
            let each = bytes_of(d.Format as u32) * u64::from(d.NumChannels);
            one(
                K::Array,
                out!(p.pHandle),
                L::Device,
                elements.saturating_mul(each),
            )
        }
        ARRAY_3D_CREATE | MIPMAPPED_ARRAY_CREATE => {
            let p = of!(cuArray3DCreate_v2_params_st);
            // SAFETY: the call has succeeded, so it could read the description, which
            // is the second parameter of both.
            let Some(d) = (unsafe { p.pAllocateArray.as_ref() }) else {
                return Made::Nothing;
            };
            let levels = if id == MIPMAPPED_ARRAY_CREATE {
                of!(cuMipmappedArrayCreate_params_st).numMipmapLevels
            } else {
                1
            };
            let each = bytes_of(d.Format as u32) * u64::from(d.NumChannels);
            let of_level = |level: u32| {
                [d.Width, d.Height, d.Depth]
                    .into_iter()
                    .map(|side| (side as u64 >> level.min(63)).max(1))
                    .fold(each, u64::saturating_mul)
            };
            let bytes = (0..levels.clamp(1, 32))
                .map(of_level)
                .fold(0, u64::saturating_add);
            one(K::Array, out!(p.pHandle), L::Device, bytes)
        }
        IPC_OPEN | IPC_OPEN_V2 => {
            let p = of!(cuIpcOpenMemHandle_v2_params_st);
            one(K::Shared, out!(p.pdptr), L::Imports, 0)
        }
        IMPORT_EXTERNAL => {
            let p = of!(cuImportExternalMemory_params_st);
            one(K::External, out!(p.extMem_out), L::Imports, 0)
        }
        IMPORT_SEMAPHORE => {
            let p = of!(cuImportExternalSemaphore_params_st);
            one(K::Semaphore, out!(p.extSem_out), L::Imports, 0)
        }
        // The handle that is made is the first parameter of each of these.
        CTX_CREATE | CTX_CREATE_V3 | CTX_CREATE_V4 | GREEN_CTX_CREATE => {
            let p = of!(cuCtxCreate_v4_params_st);
            one(K::Context, out!(p.pctx), L::Contexts, 0)
        }
        STREAM_CREATE | STREAM_CREATE_PRIORITY | GREEN_STREAM_CREATE => {
            let p = of!(cuStreamCreate_params_st);
            one(K::Stream, out!(p.phStream), L::Streams, 0)
        }
        EVENT_CREATE => {
            let p = of!(cuEventCreate_params_st);
            one(K::Event, out!(p.phEvent), L::Events, 0)
        }
        // An event of another process; it is destroyed like one of this process's own.
        IPC_OPEN_EVENT => {
            let p = of!(cuIpcOpenEventHandle_params_st);
            one(K::Event, out!(p.phEvent), L::Events, 0)
        }
        MODULE_LOAD | MODULE_LOAD_DATA | MODULE_LOAD_DATA_EX | MODULE_LOAD_FAT_BINARY => {
            let p = of!(cuModuleLoad_params_st);
            one(K::Module, out!(p.module), L::Modules, 0)
        }
        LIBRARY_LOAD_DATA | LIBRARY_LOAD_FILE => {
            let p = of!(cuLibraryLoadData_params_st);
            one(K::Library, out!(p.library), L::Modules, 0)
        }
        GRAPH_CREATE => {
            let p = of!(cuGraphCreate_params_st);
            one(K::Graph, out!(p.phGraph), L::Graphs, 0)
        }
        GRAPH_CLONE => {
            let p = of!(cuGraphClone_params_st);
            Made::GraphCloned {
                clone: out!(p.phGraphClone),
                original: p.originalGraph as u64,
            }
        }
        GRAPH_LAUNCH | GRAPH_LAUNCH_PTSZ => Made::GraphLaunched {
            executable: of!(cuGraphLaunch_params_st).hGraph as u64,
        },
        GRAPH_ADD_ALLOC => {
            let p = of!(cuGraphAddMemAllocNode_params_st);
            // SAFETY: the call has succeeded, so it could write there.
            match unsafe { p.nodeParams.as_ref() } {
                Some(node) => Made::GraphTakes {
                    graph: p.hGraph as u64,
                    address: node.dptr,
                    bytes: node.bytesize as u64,
                },
                None => Made::Nothing,
            }
        }
        GRAPH_ADD_FREE => {
            let p = of!(cuGraphAddMemFreeNode_params_st);
            Made::GraphFrees {
                graph: p.hGraph as u64,
                address: p.dptr,
            }
        }
        GRAPH_INSTANTIATE
        | GRAPH_INSTANTIATE_V2
        | GRAPH_INSTANTIATE_FLAGS
        | GRAPH_INSTANTIATE_PARAMS
        | GRAPH_INSTANTIATE_PARAMS_PTSZ => {
            let p = of!(cuGraphInstantiateWithFlags_params_st);
            Made::GraphInstantiated {
                executable: out!(p.phGraphExec),
                graph: p.hGraph as u64,
            }
        }
        POOL_CREATE => {
            let p = of!(cuMemPoolCreate_params_st);
            one(K::Pool, out!(p.pool), L::Pools, 0)
        }
        PRIMARY_RETAIN => {
            let p = of!(cuDevicePrimaryCtxRetain_params_st);
            Made::PrimaryRetained {
                device: p.dev as u64,
                context: out!(p.pctx),
            }
        }
        PRIMARY_RESET | PRIMARY_RESET_V2 => {
            let p = of!(cuDevicePrimaryCtxReset_v2_params_st);
            Made::PrimaryReset {
                device: p.dev as u64,
            }
        }
        STREAM_BEGIN_CAPTURE
        | STREAM_BEGIN_CAPTURE_PTSZ
        | STREAM_BEGIN_CAPTURE_V2
        | STREAM_BEGIN_CAPTURE_V2_PTSZ => Made::CaptureBegan {
            // SAFETY: the caller's promise; the first parameter of each is the stream.
            stream: unsafe { first_word(params) },
        },
        STREAM_END_CAPTURE | STREAM_END_CAPTURE_PTSZ => {
            let p = of!(cuStreamEndCapture_params_st);
            Made::CaptureEnded {
                stream: p.hStream as u64,
                graph: out!(p.phGraph),
            }
        }
        _ => Made::Nothing,
    }
}

/// Bytes of one channel of an array's element (`CUarray_format`).
const fn bytes_of(format: u32) -> u64 {
    match format {
        0x02 | 0x09 | 0x10 => 2, // 16-bit integers, half floats
        0x03 | 0x0a | 0x20 => 4, // 32-bit integers, floats
        _ => 1,                  // 8-bit integers; packed and compressed formats about so
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::{null_mut, without_provenance_mut};

    use cudarc::driver::sys as driver;

    use super::*;

    fn params<T>(of: &T) -> *const c_void {
        (&raw const *of).cast()
    }

    #[test]
    fn an_allocation_has_the_address_that_the_driver_filled_in() {
        let mut address = 0x7f00_0000_u64;
        let p = sys::cuMemAlloc_v2_params_st {
            dptr: &raw mut address,
            bytesize: 512,
        };
        // SAFETY: the parameters of that call.
        let made = unsafe { made(MEM_ALLOC, params(&p)) };
        let expected = Made::One {
            name: (Kind::Memory, 0x7f00_0000),
            layer: HookLayer::Device,
            bytes: 512,
        };
        assert_eq!(made, expected);
    }

    #[test]
    fn a_release_has_its_first_parameter_for_a_name() {
        let p = sys::cuMemFree_v2_params_st { dptr: 0x7f00_0000 };
        // SAFETY: the parameters of these calls begin with an address.
        unsafe {
            let name = Some((Kind::Memory, 0x7f00_0000));
            assert_eq!(releases(MEM_FREE, params(&p)), name);
            assert_eq!(runtime_releases(RUNTIME_FREE, params(&p)), name);
            assert_eq!(releases(MEM_ALLOC, params(&p)), None);
        }
    }

    #[test]
    fn a_mipmapped_array_is_as_large_as_its_levels_together() {
        let mut handle: driver::CUmipmappedArray = without_provenance_mut(0x40);
        let description = driver::CUDA_ARRAY3D_DESCRIPTOR {
            Width: 64,
            Height: 64,
            Depth: 0,
            Format: driver::CUarray_format::CU_AD_FORMAT_FLOAT,
            NumChannels: 1,
            Flags: 0,
        };
        let p = sys::cuMipmappedArrayCreate_params_st {
            pHandle: &raw mut handle,
            pMipmappedArrayDesc: &raw const description,
            numMipmapLevels: 3,
        };
        // SAFETY: the parameters of that call.
        let made = unsafe { made(MIPMAPPED_ARRAY_CREATE, params(&p)) };
        let expected = Made::One {
            name: (Kind::Array, 0x40),
            layer: HookLayer::Device,
            bytes: 4 * (64 * 64 + 32 * 32 + 16 * 16),
        };
        assert_eq!(made, expected);
    }

    #[test]
    fn what_another_process_or_interface_shares_is_released_under_the_name_it_got() {
        let mut event: driver::CUevent = without_provenance_mut(0x40);
        let p = sys::cuIpcOpenEventHandle_params_st {
            phEvent: &raw mut event,
            handle: driver::CUipcEventHandle { reserved: [0; 64] },
        };
        // SAFETY: the parameters of that call.
        let opened = unsafe { made(IPC_OPEN_EVENT, params(&p)) };
        let mut semaphore: driver::CUexternalSemaphore = without_provenance_mut(0x50);
        let p = sys::cuImportExternalSemaphore_params_st {
            extSem_out: &raw mut semaphore,
            semHandleDesc: std::ptr::null(),
        };
        // SAFETY: the parameters of that call.
        let imported = unsafe { made(IMPORT_SEMAPHORE, params(&p)) };
        let one = |name, layer| Made::One {
            name,
            layer,
            bytes: 0,
        };
        assert_eq!(opened, one((Kind::Event, 0x40), HookLayer::Events));
        assert_eq!(imported, one((Kind::Semaphore, 0x50), HookLayer::Imports));

        let released = |id, name: u64| {
            // SAFETY: the parameters of these calls begin with a handle.
            unsafe { releases(id, params(&name)) }
        };
        assert_eq!(released(EVENT_DESTROY_V2, 0x40), Some((Kind::Event, 0x40)));
        let gone = Some((Kind::Semaphore, 0x50));
        assert_eq!(released(DESTROY_SEMAPHORE, 0x50), gone);
    }

    #[test]
    fn a_call_without_a_place_for_its_result_made_nothing() {
        let p = sys::cuStreamCreate_params_st {
            phStream: null_mut(),
            Flags: 0,
        };
        // SAFETY: the parameters of that call.
        assert_eq!(unsafe { made(STREAM_CREATE, params(&p)) }, Made::Nothing);
    }
}
