//! Where a runtime may drive.

use super::Service;
use super::reclaimer::Spawned;
use crate::sync::Arc;

/// Spawns a reclaimer on the tokio runtime that is running here, if one is.
#[cfg(feature = "tokio")]
pub(super) fn reclaimer(service: &Arc<Service>) -> Option<Spawned> {
    let runtime = tokio::runtime::Handle::try_current().ok()?;
    let (reclaimer, spawned) = super::Reclaimer::while_awaited(service);
    // A runtime that is shutting down drops the task at once; the waiters then drive.
    drop(runtime.spawn(reclaimer));
    Some(spawned)
}

/// Without a runtime the waiters drive.
#[cfg(not(feature = "tokio"))]
pub(super) fn reclaimer(_service: &Arc<Service>) -> Option<Spawned> {
    None
}
