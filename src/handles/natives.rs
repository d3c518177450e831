//! Streams by the names and objects that the backend has for them.
//!
//! The roll is for callers that have a stream of the backend's, or of another pool, and no registration.

use super::Registration;
use crate::device::{Device, DeviceId, DeviceStream, RawStream};
#[cfg(not(weirpool_loom))]
use crate::id::StreamId;
use crate::sync::{Arc, plain};
use std::any::Any;
#[cfg(not(weirpool_loom))]
use std::collections::BTreeMap;

/// The backend's own object of a stream, in which a [`NativeStream`](crate::device::NativeStream) is found.
#[derive(Debug)]
pub(crate) struct Native(Option<plain::Arc<dyn Any + Send + Sync>>);

impl Native {
    /// Takes the object from the stream's owner, or from the device. An external stream has none: nothing may keep it.
    pub(super) fn of(stream: &dyn DeviceStream, device: &dyn Device) -> Self {
        let of_device = || device.native_stream(stream.raw());
        let is_external = stream.external_id().is_some();
        Self(stream.native().or_else(|| (!is_external).then(of_device)?))
    }

    pub(crate) fn shared(&self) -> Option<plain::Arc<dyn Any + Send + Sync>> {
        self.0.clone()
    }

    pub(crate) fn get(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.0.as_deref()
    }
}

/// A pool's registrations by the names of their streams. A registration keeps its stream, so that no other stream has
/// the name meanwhile. External streams are not kept, and are not entered.
///
/// The models have no weak references, and no streams that are found again.
#[derive(Debug, Default)]
pub(crate) struct Roll(
    #[cfg(not(weirpool_loom))] plain::Mutex<BTreeMap<NativeKey, plain::Weak<Registration>>>,
    #[cfg(weirpool_loom)] (),
);

#[cfg(weirpool_loom)]
impl Roll {
    pub(super) fn enter(&self, _: &Arc<Registration>) {}

    pub(super) fn leave(&self, _: &Registration) {}

    pub(crate) fn find(&self, _: DeviceId, _: RawStream) -> Option<Arc<Registration>> {
        None
    }
}

#[cfg(not(weirpool_loom))]
type NativeKey = (DeviceId, RawStream, StreamId);

#[cfg(not(weirpool_loom))]
impl Roll {
    pub(super) fn enter(&self, registration: &Arc<Registration>) {
        if let Some(key) = key(registration) {
            self.0.lock().insert(key, Arc::downgrade(registration));
        }
    }

    /// Removes a registration that ends.
    pub(super) fn leave(&self, registration: &Registration) {
        if let Some(key) = key(registration) {
            let left = self.0.lock().remove(&key);
            drop(left);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }

    pub(crate) fn find(&self, device: DeviceId, raw: RawStream) -> Option<Arc<Registration>> {
        let roll = self.0.lock();
        let named = roll.range((device, raw, StreamId::NONE)..);
        let mut named = named.take_while(|((on, name, _), _)| (*on, *name) == (device, raw));
        named.find_map(|(_, registration)| registration.upgrade())
    }
}

#[cfg(not(weirpool_loom))]
fn key(registration: &Registration) -> Option<NativeKey> {
    let lane = &registration.lane;
    (!lane.is_external).then(|| (registration.stream_device().id(), lane.raw, lane.id))
}

#[cfg(all(test, feature = "sim", not(weirpool_loom)))]
mod tests {
    use crate::Pool;
    use crate::device::Device;
    use crate::device::sim::SimDevice;
    use crate::sync::Arc;

    #[test]
    fn ended_registrations_leave_the_roll() {
        let device = SimDevice::new();
        let pool = Pool::builder(device.clone()).build().unwrap();
        let work = device.create_stream();
        let [first, second] = [(); 2].map(|()| pool.register(&work).unwrap());
        let raw = first.registration().lane.raw;
        let roll = || &first.registration().presence.roll;
        let id = device.id();
        for _ in 0..100 {
            drop(pool.register(&device.create_stream()).unwrap());
        }
        assert_eq!(roll().len(), 2);
        assert!(Arc::ptr_eq(
            &roll().find(id, raw).unwrap(),
            first.registration()
        ));
        let presence = first.registration().presence.clone();
        drop(first);
        assert!(Arc::ptr_eq(
            &presence.roll.find(id, raw).unwrap(),
            second.registration()
        ));
        drop(second);
        assert!(presence.roll.find(id, raw).is_none());
    }
}
