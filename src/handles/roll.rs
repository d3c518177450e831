//! Registrations by the names that the backend has for their streams.
//!
//! The roll is for callers that have a stream of the backend's, or of another pool, and no registration.

use super::Registration;
use crate::device::{DeviceId, RawStream};
#[cfg(not(weirpool_loom))]
use crate::id::StreamId;
use crate::sync::Arc;
#[cfg(not(weirpool_loom))]
use crate::sync::plain;
#[cfg(not(weirpool_loom))]
use std::collections::BTreeMap;

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
        let raw = first.registration.lane.raw;
        let roll = || &first.registration.presence.roll;
        let id = device.id();
        for _ in 0..100 {
            drop(pool.register(&device.create_stream()).unwrap());
        }
        assert_eq!(roll().len(), 2);
        assert!(Arc::ptr_eq(
            &roll().find(id, raw).unwrap(),
            &first.registration
        ));
        let presence = first.registration.presence.clone();
        drop(first);
        assert!(Arc::ptr_eq(
            &presence.roll.find(id, raw).unwrap(),
            &second.registration
        ));
        drop(second);
        assert!(presence.roll.find(id, raw).is_none());
    }
}
