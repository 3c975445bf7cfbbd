//! Ctrl-C and its like: the first has the workload end and be judged, the second ends us.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::Failure;

/// Becomes true when this process is asked to end. Asked twice, it ends at once, and the
/// workload with it.
pub(crate) fn asked_to_end() -> Result<Arc<AtomicBool>, Failure> {
    static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    if let Some(asked) = ASKED.get() {
        return Ok(Arc::clone(asked));
    }
    let asked = Arc::clone(ASKED.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the first of them sees what the second has set, next time.
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&asked))
            .and_then(|_| flag::register(signal, Arc::clone(&asked)))
            .map_err(|error| Failure::of_ours(format!("failed to wait for signals: {error}")))?;
    }
    Ok(asked)
}
