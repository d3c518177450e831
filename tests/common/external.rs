//! Streams of the simulated device as another library's.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use weirpool::device::sim::SimStream;
use weirpool::device::{DeviceId, DeviceStream, RawStream};

/// A stream that is destroyed while the pool has it. Numbered, since its name is given to the next.
#[derive(Clone, Copy)]
pub(crate) struct External {
    device: DeviceId,
    raw: RawStream,
    id: u64,
}

impl External {
    pub(crate) fn of(work: &SimStream) -> Self {
        static LIVING: Mutex<Vec<(Weak<dyn Any + Send + Sync>, u64)>> = Mutex::new(Vec::new());
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let owner = work.keep_alive();
        let mut living = LIVING.lock().unwrap();
        living.retain(|(owner, _)| owner.strong_count() > 0);
        let is_it = |known: &Weak<_>| known.upgrade().is_some_and(|it| Arc::ptr_eq(&it, &owner));
        let known = living.iter().find(|(known, _)| is_it(known));
        let id = known.map(|(_, id)| *id).unwrap_or_else(|| {
            let id = NEXT.fetch_add(1, Ordering::Relaxed);
            living.push((Arc::downgrade(&owner), id));
            id
        });
        Self {
            device: work.device_id(),
            raw: work.raw(),
            id,
        }
    }
}

impl DeviceStream for External {
    fn device_id(&self) -> DeviceId {
        self.device
    }

    fn raw(&self) -> RawStream {
        self.raw
    }

    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::new(())
    }

    fn external_id(&self) -> Option<u64> {
        Some(self.id)
    }
}
