//! A pool as the current one, with the streams that were used with it.

use crate::device::{DeviceStream, RawStream};
use crate::error::StreamError;
use crate::pool::Pool;
use crate::stream::Stream;
use crate::sync::plain::Mutex;
use std::collections::HashMap;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) pool: Pool,
    /// By the driver's name: what is registered is kept from being destroyed, and so is its name from
    /// becoming another's.
    streams: Mutex<HashMap<RawStream, Stream>>,
}

impl Seat {
    pub(super) fn new(pool: Pool) -> Self {
        Self {
            pool,
            streams: Mutex::default(),
        }
    }

    /// The stream's registration; made if it is the first use.
    pub(super) fn stream<W: DeviceStream>(&self, work: &W) -> Result<Stream, StreamError> {
        if work.device_id() != self.pool.device_id() {
            return Err(StreamError::ForeignDevice);
        }
        let known = self.streams.lock().get(&work.raw()).cloned();
        known.map_or_else(|| self.register(work), Ok)
    }

    fn register<W: DeviceStream>(&self, work: &W) -> Result<Stream, StreamError> {
        let stream = self.pool.register(work)?;
        let mut streams = self.streams.lock();
        // Another thread may have been faster: its registration is used, and this one is let go.
        let kept = streams.entry(work.raw()).or_insert(stream.clone()).clone();
        let abandoned: Vec<_> = {
            let mut names: Vec<_> = streams.keys().copied().collect();
            names.retain(|name| streams[name].is_abandoned());
            let abandoned = names.iter().filter_map(|name| streams.remove(name));
            abandoned.collect()
        };
        drop(streams);
        // Outside the lock: the driver may be called.
        drop((abandoned, stream));
        Ok(kept)
    }
}
