//! Streams by the names and objects that the backend has for them: for callers that have those and no registration. If no
//! backend has any, this module keeps nothing.

#[cfg(feature = "cuda")]
pub(crate) use kept::{Native, Roll};
#[cfg(not(feature = "cuda"))]
pub(crate) use nothing::{Native, Roll};

#[cfg(feature = "cuda")]
mod kept {
    use crate::device::{Device, DeviceStream, RawStream};
    use crate::handles::Registration;
    use crate::id::StreamId;
    use crate::sync::Arc;
    use crate::sync::plain::{self, Mutex, Weak};
    use std::any::Any;
    use std::collections::BTreeMap;

    /// The backend's own object of a stream.
    #[derive(Debug)]
    pub(crate) struct Native(Option<plain::Arc<dyn Any + Send + Sync>>);

    impl Native {
        /// Takes the object from the stream's owner, or from the device.
        pub(in crate::handles) fn of(stream: &dyn DeviceStream, device: &dyn Device) -> Self {
            let own = stream.native();
            Self(own.or_else(|| device.native_stream(stream.raw())))
        }

        pub(crate) fn get(&self) -> Option<&(dyn Any + Send + Sync)> {
            self.0.as_deref()
        }
    }

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
    use crate::device::{Device, DeviceStream};
    use crate::handles::Registration;
    use crate::sync::Arc;

    #[derive(Debug)]
    pub(crate) struct Native;

    impl Native {
        pub(in crate::handles) fn of(_: &dyn DeviceStream, _: &dyn Device) -> Self {
            Self
        }
    }

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
