//! What other crates lend to a pool, and what they are told: the traits that the engine calls. They are public in
//! [`extend`](crate::extend).

mod capacity_source;
mod observer;

pub(crate) use capacity_source::ApplyBounds;
pub use capacity_source::{BoundedPool, Bounds, CapacitySource, Holding, Joining};
pub(crate) use observer::Figures;
pub use observer::{Event, Fact, Memory, Observer};
pub use weirpool_segments::{SegmentProperties, SegmentSource};
