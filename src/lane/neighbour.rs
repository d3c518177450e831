//! Another device of the host, whose streams use memory of the pool.

use super::Events;
use crate::device::Device;
use crate::sync::{Arc, plain};

/// See the [module](self). Each lane of such a stream holds it, so that its owners count those lanes.
#[derive(Debug)]
pub(crate) struct Neighbour {
    pub(crate) device: plain::Arc<dyn Device>,
    /// Events are recorded on streams of the device that created them.
    pub(crate) events: Arc<Events>,
}

impl Neighbour {
    pub(crate) fn new(device: plain::Arc<dyn Device>) -> Self {
        let events = Arc::new(Events::new(device.clone()));
        Self { device, events }
    }
}
