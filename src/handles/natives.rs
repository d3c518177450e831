//! Streams by the names and objects that the backend has for them.
//!
//! The roll is for callers that have a stream of cudarc's and no registration. Without that backend it keeps nothing.

#[cfg(feature = "cuda")]
pub(crate) use kept::Roll;
#[cfg(not(feature = "cuda"))]
pub(crate) use nothing::Roll;

use crate::device::{Device, DeviceStream};
use crate::sync::plain;
use std::any::Any;

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

    pub(crate) fn get(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.0.as_deref()
    }
}

#[cfg(feature = "cuda")]
mod kept {
    use crate::device::RawStream;
    use crate::handles::Registration;
    use crate::id::StreamId;
    use crate::sync::Arc;
    use crate::sync::plain::{Mutex, Weak};
    use std::collections::BTreeMap;

    /// A pool's registrations by the names of their streams. A registration keeps its stream, so that no other stream has the
    /// name meanwhile. External streams are not kept, and are not entered.
    #[derive(Debug, Default)]
    pub(crate) struct Roll(Mutex<BTreeMap<(RawStream, StreamId), Weak<Registration>>>);

    impl Roll {
        pub(in crate::handles) fn enter(&self, registration: &Arc<Registration>) {
            if let Some(key) = key(registration) {
                self.0.lock().insert(key, Arc::downgrade(registration));
            }
        }

        /// Removes a registration that ends.
        pub(in crate::handles) fn leave(&self, registration: &Registration) {
            if let Some(key) = key(registration) {
                let left = self.0.lock().remove(&key);
                drop(left);
            }
        }

        #[cfg(test)]
        pub(in crate::handles) fn len(&self) -> usize {
            self.0.lock().len()
        }

        pub(crate) fn find(&self, raw: RawStream) -> Option<Arc<Registration>> {
            let roll = self.0.lock();
            let named = roll.range((raw, StreamId::NONE)..);
            let mut named = named.take_while(|((name, _), _)| *name == raw);
            named.find_map(|(_, registration)| registration.upgrade())
        }
    }

    fn key(registration: &Registration) -> Option<(RawStream, StreamId)> {
        let lane = &registration.lane;
        (!lane.is_external).then_some((lane.raw, lane.id))
    }
}

#[cfg(not(feature = "cuda"))]
mod nothing {
    use crate::handles::Registration;
    use crate::sync::Arc;

    #[derive(Debug, Default)]
    pub(crate) struct Roll(());

    impl Roll {
        pub(in crate::handles) fn enter(&self, _: &Arc<Registration>) {}

        pub(in crate::handles) fn leave(&self, _: &Registration) {}
    }
}

#[cfg(all(test, feature = "cuda", feature = "sim"))]
mod tests {
    use crate::Pool;
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
        for _ in 0..100 {
            drop(pool.register(&device.create_stream()).unwrap());
        }
        assert_eq!(roll().len(), 2);
        assert!(Arc::ptr_eq(
            &roll().find(raw).unwrap(),
            first.registration()
        ));
        let presence = first.registration().presence.clone();
        drop(first);
        assert!(Arc::ptr_eq(
            &presence.roll.find(raw).unwrap(),
            second.registration()
        ));
        drop(second);
        assert!(presence.roll.find(raw).is_none());
    }
}
