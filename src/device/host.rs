//! The host, as a stream.

use super::{DeviceId, DeviceStream, RawStream};
use crate::sync::plain::Arc;
use std::any::Any;

/// The host of a device: one stream of execution, which is ordered by itself and takes no waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host(pub(crate) DeviceId);

impl DeviceStream for Host {
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
