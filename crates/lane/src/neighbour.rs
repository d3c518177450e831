//! Another device of the host, whose streams use memory of the pool.

use super::Events;
use crate::device::Device;
use crate::sync::{Arc, plain};

/// See the [module](self). Each lane of such a stream holds it, so that its owners count those lanes.
#[derive(Debug)]
pub struct Neighbour {
    /// That device.
    pub device: plain::Arc<dyn Device>,
    /// Events are recorded on streams of the device that created them.
    pub events: Arc<Events>,
}

impl Neighbour {
    /// Has no event yet.
    pub fn new(device: plain::Arc<dyn Device>) -> Self {
        let events = Arc::new(Events::new(device.clone()));
        Self { device, events }
    }
}
