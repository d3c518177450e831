//! The settings of the current pool, for each device of the process.
//!
//! Statics are not dropped at the end of the process, so no pool is destroyed after its driver.

use crate::known_streams::KnownStreams;
use crate::mutex::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use weirpool::device::{AsDevice, DeviceId, DeviceStream, Pooling};
use weirpool::{BuildError, Pool, Stream, StreamError, Upstream};

static TABLE: Mutex<BTreeMap<DeviceId, Seats>> = Mutex::new(BTreeMap::new());

/// A pool that can be the current one, with the streams that were used with it.
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

    /// Returns the stream's registration, and makes it at the first use.
    pub(super) fn stream<W: DeviceStream>(&self, work: &W) -> Result<Stream, StreamError> {
        let stream = self.streams.stream(&self.pool, work)?;
        Ok(Stream::clone(&stream))
    }
}

/// A device's pools.
#[derive(Debug, Default)]
struct Seats {
    /// Built when it is first requested.
    default: Option<Arc<Seat>>,
    /// The pool that a user has set.
    set: Option<Arc<Seat>>,
    /// Built when it is first requested.
    unpooled: Option<Arc<Seat>>,
}

/// Selects one of a device's pools.
type SeatAccessor = fn(&mut Seats) -> &mut Option<Arc<Seat>>;

/// Returns the pool of a device, with or without pooling.
pub(super) fn seat(device: &impl AsDevice, pooling: Pooling) -> Result<Arc<Seat>, BuildError> {
    match pooling {
        Pooling::Disabled => made(
            device,
            |seats| &mut seats.unpooled,
            |device| {
                Pool::builder(device.to_shared())
                    .upstream(Upstream::Unpooled)
                    .build()
            },
        ),
        Pooling::Enabled => match present(device.device_id(), |seats| &mut seats.set) {
            Some(seat) => Ok(seat),
            None => default_seat(device),
        },
    }
}

pub(super) fn default_seat(device: &impl AsDevice) -> Result<Arc<Seat>, BuildError> {
    made(
        device,
        |seats| &mut seats.default,
        |device| Pool::builder(device.to_shared()).build(),
    )
}

/// Sets a pool for its device.
pub(super) fn set(pool: &Pool) {
    let seat = Arc::new(Seat::new(pool.clone()));
    replace(pool.device().id(), Some(seat));
}

pub(super) fn reset(device: DeviceId) {
    replace(device, None);
}

fn replace(device: DeviceId, seat: Option<Arc<Seat>>) {
    let old = {
        let mut table = TABLE.lock();
        std::mem::replace(&mut table.entry(device).or_default().set, seat)
    };
    // Outside the lock, because this may be the last handle of its pool.
    drop(old);
}

fn present(device: DeviceId, accessor: SeatAccessor) -> Option<Arc<Seat>> {
    let mut table = TABLE.lock();
    accessor(table.get_mut(&device)?).clone()
}

/// Returns the seat that `accessor` selects, and builds it if there is none. It is built outside the lock, because this
/// calls the device. If two threads build it at once, one of them drops its own.
fn made<D: AsDevice>(
    device: &D,
    accessor: SeatAccessor,
    make: impl FnOnce(&D) -> Result<Pool, BuildError>,
) -> Result<Arc<Seat>, BuildError> {
    let id = device.device_id();
    if let Some(seat) = present(id, accessor) {
        return Ok(seat);
    }
    let made = Arc::new(Seat::new(make(device)?));
    let kept = {
        let mut table = TABLE.lock();
        let seats = table.entry(id).or_default();
        accessor(seats).get_or_insert_with(|| made.clone()).clone()
    };
    drop(made);
    Ok(kept)
}
