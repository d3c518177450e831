//! A device, however it is held.

use super::{Device, DeviceId};
use crate::plain::Arc;

/// Something that is a device's handle: a device that can be cloned, or one that is shared already.
pub trait AsDevice {
    /// Which device it is.
    fn device_id(&self) -> DeviceId;

    /// The device, shared.
    fn to_shared(&self) -> Arc<dyn Device>;
}

impl<D: Device + Clone> AsDevice for D {
    fn device_id(&self) -> DeviceId {
        self.id()
    }

    fn to_shared(&self) -> Arc<dyn Device> {
        Arc::new(self.clone())
    }
}

impl AsDevice for Arc<dyn Device> {
    fn device_id(&self) -> DeviceId {
        self.id()
    }

    fn to_shared(&self) -> Arc<dyn Device> {
        self.clone()
    }
}
