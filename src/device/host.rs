//! The host as a stream.

use super::{DeviceId, DeviceStream, RawStream};
use crate::sync::plain::Arc;
use std::any::Any;

/// The host of a device: a stream of execution that runs in order and accepts no waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host(pub(crate) DeviceId);

// SAFETY: the host is always there.
unsafe impl DeviceStream for Host {
    fn device_id(&self) -> DeviceId {
        self.0
    }

    fn raw(&self) -> RawStream {
        RawStream::HOST
    }

    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::new(())
    }

    fn takes_waits(&self) -> bool {
        false
    }
}
