//! Errors, by the call that returns them.

pub use weirpool_measure::{
    AccessError, AllocError, BuildError, CopyError, DrainError, EnqueueError, ErrorClass,
    Shortfall, SourceError, StreamError, SubmitError, TagShortfall, TaskError,
};
pub use weirpool_queue::FullQueue;
