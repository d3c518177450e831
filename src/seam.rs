//! What other crates lend to a pool, and what they are told: the traits that the engine calls. They are public in
//! [`extend`](crate::extend).

pub use weirpool_measure::{Event, Fact, Memory, Observer};
pub(crate) use weirpool_recall::ApplyBounds;
pub use weirpool_recall::{BoundedPool, Bounds, CapacitySource, Holding, Joining};
pub use weirpool_segments::{SegmentProperties, SegmentSource};
