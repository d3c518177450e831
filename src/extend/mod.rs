//! What other crates add to a pool. Each seam has a page in the [guide](crate::guide).

mod capacity_source;
mod observer;

pub(crate) use capacity_source::ApplyBounds;
pub use capacity_source::{BoundedPool, Bounds, CapacitySource, Holding, Joining};
pub(crate) use observer::Figures;
pub use observer::{BlockOrigin, Event, Fact, Memory, Observer, ReservationOrigin, Site};
