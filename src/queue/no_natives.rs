//! No backend has names or objects of its own for streams that work could bring; see `natives`.

use super::Registration;
use crate::device::{Device, DeviceStream};
use crate::sync::Arc;

#[derive(Debug)]
pub(crate) struct Native;

impl Native {
    pub(super) fn of(_: &dyn DeviceStream, _: &dyn Device) -> Self {
        Self
    }
}

#[derive(Debug, Default)]
pub(crate) struct Roll(());

impl Roll {
    pub(super) fn enter(&self, _: &Arc<Registration>) {}

    pub(super) fn leave(&self, _: &Registration) {}
}
