//! The gauge of the cards' memory: NVIDIA's management library, asked from outside the
//! workload. It needs no context on the card, which would cost half a gigabyte of it.

use crate::books::Card;
use crate::doctor::{Check, State};

#[cfg(feature = "gpu")]
pub(crate) use with_library::{examine, names, now};

#[cfg(feature = "gpu")]
mod with_library {
    use std::sync::OnceLock;

    use nvml_wrapper::Nvml;
    use nvml_wrapper::enums::device::UsedGpuMemory;
    use nvml_wrapper::error::NvmlError;

    use super::{Card, Check, State};

    fn library() -> Result<&'static Nvml, &'static NvmlError> {
        static LIBRARY: OnceLock<Result<Nvml, NvmlError>> = OnceLock::new();
        LIBRARY.get_or_init(Nvml::init).as_ref()
    }

    /// The memory of all cards now, and what of it the processes take that `is_ours`
    /// names. `None` where there is no card, or it cannot be read.
    pub(crate) fn now(is_ours: impl Fn(i32) -> bool) -> Option<Card> {
        read(library().ok()?, is_ours).ok().flatten()
    }

    fn read(nvml: &Nvml, is_ours: impl Fn(i32) -> bool) -> Result<Option<Card>, NvmlError> {
        let mut sum = Card::default();
        for index in 0..nvml.device_count()? {
            let device = nvml.device_by_index(index)?;
            sum.used += device.memory_info()?.used;
            for process in device.running_compute_processes()? {
                if !i32::try_from(process.pid).is_ok_and(&is_ours) {
                    sum.others += 1;
                    continue;
                }
                match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => sum.process += bytes,
                    UsedGpuMemory::Unavailable => return Ok(None),
                }
            }
        }
        Ok(Some(sum))
    }

    /// The cards' names and their driver's version, as far as they can be read.
    pub(crate) fn names() -> (Vec<String>, String) {
        let Ok(nvml) = library() else {
            return (Vec::new(), String::new());
        };
        let count = nvml.device_count().unwrap_or(0);
        let name = |index| nvml.device_by_index(index)?.name();
        let names = (0..count).filter_map(|index| name(index).ok()).collect();
        (names, nvml.sys_driver_version().unwrap_or_default())
    }

    /// What the library says of this machine.
    pub(crate) fn examine() -> Vec<Check> {
        match library() {
            Ok(nvml) => tell(nvml).unwrap_or_else(|error| vec![missing(&error)]),
            Err(error) => vec![missing(error)],
        }
    }

    fn missing(error: &NvmlError) -> Check {
        Check {
            what: "NVML".into(),
            state: State::Missing,
            seen: error.to_string(),
            advice: Some("the card's memory is not gauged; its ledger decides alone".into()),
        }
    }

    fn tell(nvml: &Nvml) -> Result<Vec<Check>, NvmlError> {
        let mut checks = Vec::new();
        for index in 0..nvml.device_count()? {
            let device = nvml.device_by_index(index)?;
            let memory = device.memory_info()?;
            checks.push(Check {
                what: format!("card {index}"),
                state: State::Good,
                seen: format!(
                    "{}, {} MiB, {} MiB in use",
                    device.name()?,
                    memory.total >> 20,
                    memory.used >> 20
                ),
                advice: None,
            });
            let others = device.running_compute_processes()?.len();
            checks.push(Check {
                what: format!("others on card {index}"),
                state: if others == 0 {
                    State::Good
                } else {
                    State::Limited
                },
                seen: format!("{others} processes"),
                advice: (others != 0)
                    .then(|| "memory that the card has in use is not the workload's alone".into()),
            });
        }
        Ok(checks)
    }
}

/// Without the feature `gpu` nobody is asked.
#[cfg(not(feature = "gpu"))]
pub(crate) fn now(_is_ours: impl Fn(i32) -> bool) -> Option<Card> {
    None
}

#[cfg(not(feature = "gpu"))]
pub(crate) fn names() -> (Vec<String>, String) {
    (Vec::new(), String::new())
}

#[cfg(not(feature = "gpu"))]
pub(crate) fn examine() -> Vec<Check> {
    vec![Check {
        what: "NVML".into(),
        state: State::Missing,
        seen: "tidegate was built without its feature `gpu`".into(),
        advice: Some("the card's memory is not gauged".into()),
    }]
}
