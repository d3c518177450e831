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
/// the name meanwhile. External streams are not kept, and are not found by their names alone.
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

    pub(super) fn others_of(&self, _: &Registration) -> Vec<Arc<Registration>> {
        Vec::new()
    }
}

#[cfg(not(weirpool_loom))]
type NativeKey = (DeviceId, RawStream, StreamId);

#[cfg(not(weirpool_loom))]
impl Roll {
    pub(super) fn enter(&self, registration: &Arc<Registration>) {
        let entry = Arc::downgrade(registration);
        self.0.lock().insert(key(registration), entry);
    }

    /// Removes a registration that ends.
    pub(super) fn leave(&self, registration: &Registration) {
        let left = self.0.lock().remove(&key(registration));
        drop(left);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Returns the registrations of streams that have, or had, a name.
    fn named(&self, device: DeviceId, raw: RawStream) -> Vec<Arc<Registration>> {
        let roll = self.0.lock();
        let named = roll.range((device, raw, StreamId::NONE)..);
        let named = named.take_while(|((on, name, _), _)| (*on, *name) == (device, raw));
        named.filter_map(|(_, known)| known.upgrade()).collect()
    }

    /// Returns a registration of the stream that has a name, if it is not an external one.
    pub(crate) fn find(&self, device: DeviceId, raw: RawStream) -> Option<Arc<Registration>> {
        let mut named = self.named(device, raw).into_iter();
        named.find(|known| !known.lane.is_external)
    }

    /// Returns the other registrations of a stream.
    pub(super) fn others_of(&self, stream: &Registration) -> Vec<Arc<Registration>> {
        let mut others = self.named(stream.stream_device().id(), stream.lane.raw);
        others.retain(|other| other.lane.id != stream.lane.id && other.is_of_same_stream(stream));
        others
    }
}

#[cfg(not(weirpool_loom))]
fn key(registration: &Registration) -> NativeKey {
    let lane = &registration.lane;
    (registration.stream_device().id(), lane.raw, lane.id)
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
