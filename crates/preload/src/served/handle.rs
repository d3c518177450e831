//! Streams, as the pool registers them.

use super::driver::PER_THREAD;
use std::any::Any;
use std::sync::Arc;
use weirpool::device::{DeviceError, DeviceId, DeviceStream, RawStream, StreamProperties};

/// A stream, as the pool registers it.
pub(super) struct Handle {
    properties: StreamProperties,
    owner: Arc<dyn Any + Send + Sync>,
}

impl Handle {
    /// Returns a stream that lives as long as its owner.
    pub(super) fn kept(context: usize, raw: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        // As weirpool-cuda names the device of a context.
        let device = DeviceId(context as u64 | 1 << 63);
        let properties = StreamProperties::new(device, RawStream(raw as u64));
        Self { properties, owner }
    }

    /// Returns the stream as one that never waits on the device.
    pub(super) fn without_waits(mut self) -> Self {
        self.properties.takes_waits = false;
        self
    }

    /// Returns the default stream of this thread, of a number of its own.
    pub(super) fn of_thread(context: usize, number: u64) -> Self {
        let mut own = Self::kept(context, PER_THREAD, Arc::new(()));
        own.properties.external_id = Some(number);
        own
    }
}

// SAFETY: the stream belongs to the context. It is destroyed with its owner; one of a thread is named only in that
// thread's calls.
unsafe impl DeviceStream for Handle {
    fn properties(&self) -> Result<StreamProperties, DeviceError> {
        Ok(self.properties)
    }

    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        self.owner.clone()
    }
}
