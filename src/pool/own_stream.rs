//! Streams that the pool makes.

use crate::device::{Device, DeviceError, DeviceStream, RawStream, StreamProperties};
use crate::sync::plain::Arc;
use std::any::Any;

/// A stream that the pool made. It is destroyed with its last owner.
pub(super) struct OwnStream(Arc<StreamOwner>);

#[derive(Debug)]
struct StreamOwner {
    device: Arc<dyn Device>,
    raw: RawStream,
}

impl OwnStream {
    pub(super) fn new(device: &Arc<dyn Device>) -> Result<Self, DeviceError> {
        let raw = device.create_stream()?;
        let device = device.clone();
        Ok(Self(Arc::new(StreamOwner { device, raw })))
    }
}

// SAFETY: the device made the stream, which lives until its last owner is dropped.
#[allow(unsafe_code, reason = "a stream that the device made")]
unsafe impl DeviceStream for OwnStream {
    fn properties(&self) -> Result<StreamProperties, DeviceError> {
        Ok(StreamProperties::new(self.0.device.id(), self.0.raw))
    }

    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        self.0.clone()
    }

    fn native(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.0.device.native_stream(self.0.raw)
    }
}

impl Drop for StreamOwner {
    fn drop(&mut self) {
        // If it cannot be destroyed, the device cleans up at its own end.
        // SAFETY: this was the last owner of the stream that it made, so that no later call names it.
        #[allow(unsafe_code, reason = "device call on a stream that ends")]
        let _ = unsafe { self.device.destroy_stream(self.raw) };
    }
}
