//! A pool as the current one, with the streams that were used with it.

use crate::device::DeviceStream;
use crate::error::StreamError;
use crate::pool::{KnownStreams, Pool};
use crate::stream::Stream;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) pool: Pool,
    streams: KnownStreams,
}

impl Seat {
    pub(super) fn new(pool: Pool) -> Self {
        Self {
            pool,
            streams: KnownStreams::default(),
        }
    }

    /// The stream's registration; made if it is the first use.
    pub(super) fn stream<W: DeviceStream>(&self, work: &W) -> Result<Stream, StreamError> {
        self.streams.stream(&self.pool, work)
    }
}
