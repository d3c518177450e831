//! Streams, as the pool registers them.

use super::driver::PER_THREAD;
use std::any::Any;
use std::sync::Arc;
use weirpool::device::{DeviceId, DeviceStream, RawStream};

/// A stream, as the pool registers it.
pub(super) struct Handle {
    device: DeviceId,
    raw: RawStream,
    owner: Arc<dyn Any + Send + Sync>,
    takes_waits: bool,
    external: Option<u64>,
}

impl Handle {
    /// Returns a stream that lives as long as its owner.
    pub(super) fn kept(context: usize, raw: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            // As weirpool-cuda names the device of a context.
            device: DeviceId(context as u64 | 1 << 63),
            raw: RawStream(raw as u64),
            owner,
            takes_waits: true,
            external: None,
        }
    }

    /// Returns the stream as one that never waits on the device.
    pub(super) fn without_waits(self) -> Self {
        let takes_waits = false;
        Self {
            takes_waits,
            ..self
        }
    }

    /// Returns the default stream of this thread, of a number of its own.
    pub(super) fn of_thread(context: usize, number: u64) -> Self {
        let external = Some(number);
        Self {
            external,
            ..Self::kept(context, PER_THREAD, Arc::new(()))
        }
    }
}

// SAFETY: the stream belongs to the context. It is destroyed with its owner; one of a thread is named only in that
// thread's calls.
unsafe impl DeviceStream for Handle {
    fn device_id(&self) -> DeviceId {
        self.device
    }

    fn raw(&self) -> RawStream {
        self.raw
    }

    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        self.owner.clone()
    }

    fn takes_waits(&self) -> bool {
        self.takes_waits
    }

    fn external_id(&self) -> Option<u64> {
        self.external
    }
}
