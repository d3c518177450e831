//! How a stream becomes known to the pool.

use super::{Engine, reaping};
use crate::device::{Device, DeviceStream, StreamProperties};
use crate::error::StreamError;
use crate::lane::{Lane, Neighbour, NoAccess};
use crate::seam::Fact;
use crate::sync::{Arc, plain};

/// Registers a stream, with an id of its own (invariant `stable-ids`).
///
/// # Errors
/// Returns an error if it is a stream of another device without access, or if the device cannot keep its order.
pub(crate) fn register(
    engine: &Engine,
    stream: &dyn DeviceStream,
) -> Result<Arc<Lane>, StreamError> {
    let properties = stream.properties()?;
    let neighbours = &engine.streams.neighbours;
    let neighbour = neighbours.with_access(properties.device);
    let neighbour = neighbour.map_err(refused)?;
    engine.shared.expect_seen_by(properties.raw)?;
    Ok(register_at(engine, stream, properties, neighbour))
}

/// Registers a stream on which only copies that the device makes are noted.
///
/// # Errors
/// Returns an error if it is a stream of a device that is not beside the pool's.
pub(crate) fn register_for_copies(
    engine: &Engine,
    stream: &dyn DeviceStream,
    device: &plain::Arc<dyn Device>,
) -> Result<Arc<Lane>, StreamError> {
    let neighbour = engine.streams.neighbours.of_copies(device);
    let neighbour = neighbour.map_err(refused)?;
    let lane = register_at(engine, stream, stream.properties()?, neighbour);
    lane.set_for_copies(true);
    Ok(lane)
}

fn refused(reason: NoAccess) -> StreamError {
    match reason {
        NoAccess::Foreign => StreamError::ForeignDevice,
        NoAccess::Changing => StreamError::AccessChanging,
    }
}

fn register_at(
    engine: &Engine,
    stream: &dyn DeviceStream,
    properties: StreamProperties,
    neighbour: Option<Arc<Neighbour>>,
) -> Arc<Lane> {
    // A new stream removes some that are gone, so that their number stays bounded.
    reaping::reap_retired(engine, None);
    let id = engine.streams.lanes.lock().next_id();
    let (bounds, gate) = (engine.shared.settings.lane, engine.shared.gate.clone());
    let (owner, active) = (stream.keep_alive(), &engine.streams.active);
    let lane = Lane::new(id, properties, owner, bounds, gate, active);
    let lane = Arc::new(lane.on(neighbour));
    if let Some(name) = stream.name() {
        lane.name.get_or_init(|| name);
    }
    // The heap knows the stream and its completed point before any block is freed on it.
    engine
        .store
        .heap
        .lock()
        .register(id, lane.timeline.completed());
    engine.streams.lanes.lock().insert(lane.clone());
    let (stream, name) = (lane.id, lane.name());
    engine
        .store
        .announcer
        .tell(|| Fact::StreamRegistered { stream, name });
    lane
}
