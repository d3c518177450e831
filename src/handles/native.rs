//! The backend's own object of a stream.

use crate::device::Device;
use crate::lane::Lane;
use crate::sync::plain;
use std::any::Any;

/// The backend's own object of a stream, in which a [`NativeStream`](crate::device::NativeStream) is found.
#[derive(Debug)]
pub(crate) struct Native(Option<plain::Arc<dyn Any + Send + Sync>>);

impl Native {
    /// Takes the object from the stream's owner, or from the device. An external stream has none: nothing may keep it.
    pub(super) fn of(
        native: Option<plain::Arc<dyn Any + Send + Sync>>,
        lane: &Lane,
        device: &dyn Device,
    ) -> Self {
        let of_device = || device.native_stream(lane.raw);
        Self(native.or_else(|| (!lane.is_external).then(of_device)?))
    }

    pub(crate) fn shared(&self) -> Option<plain::Arc<dyn Any + Send + Sync>> {
        self.0.clone()
    }

    pub(crate) fn get(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.0.as_deref()
    }
}
