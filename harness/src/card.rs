//! The gauge of the cards' memory: NVIDIA's management library, asked from outside the
//! workload. It needs no context on the card, which would cost half a gigabyte of it.

use crate::books::Card;

/// The memory of all cards now, and what of it the processes take that `is_ours` names.
/// `None` where there is no card, or it cannot be read.
#[cfg(feature = "gpu")]
pub(crate) fn now(is_ours: impl Fn(i32) -> bool) -> Option<Card> {
    use std::sync::OnceLock;

    use nvml_wrapper::Nvml;
    use nvml_wrapper::enums::device::UsedGpuMemory;

    static LIBRARY: OnceLock<Option<Nvml>> = OnceLock::new();
    let nvml = LIBRARY.get_or_init(|| Nvml::init().ok()).as_ref()?;
    let mut sum = Card::default();
    for index in 0..nvml.device_count().ok()? {
        let device = nvml.device_by_index(index).ok()?;
        sum.used += device.memory_info().ok()?.used;
        for process in device.running_compute_processes().ok()? {
            let UsedGpuMemory::Used(bytes) = process.used_gpu_memory else {
                return None;
            };
            if i32::try_from(process.pid).is_ok_and(&is_ours) {
                sum.process += bytes;
            } else {
                sum.others += 1;
            }
        }
    }
    Some(sum)
}

/// Without the feature `gpu` nobody is asked.
#[cfg(not(feature = "gpu"))]
pub(crate) fn now(_is_ours: impl Fn(i32) -> bool) -> Option<Card> {
    None
}
