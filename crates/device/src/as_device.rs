//! Handles of devices.

use super::{Device, DeviceId};
use crate::plain::Arc;

/// A handle of a device: a device that can be cloned, or a shared one.
pub trait AsDevice {
    /// Returns the id of the device.
    fn device_id(&self) -> DeviceId;

    /// Returns the device, shared.
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
