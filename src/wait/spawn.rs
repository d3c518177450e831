//! Where a runtime may drive.

use super::{Reclaimer, Service};
use crate::sync::Arc;

/// Spawns a reclaimer for as long as somebody waits on the tokio runtime that is running here, if one
/// is.
#[cfg(feature = "tokio")]
pub(super) fn reclaimer(service: &Arc<Service>) -> bool {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return false;
    };
    // A runtime that is shutting down drops the task at once; the waiters then drive.
    drop(runtime.spawn(Reclaimer::while_awaited(service)));
    true
}

/// Without a runtime the waiters drive.
#[cfg(not(feature = "tokio"))]
pub(super) fn reclaimer(_service: &Arc<Service>) -> bool {
    let _ = Reclaimer::while_awaited;
    false
}
