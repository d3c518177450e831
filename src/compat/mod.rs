//! The names and the ways of other libraries, for code that is ported to this crate or written against
//! several pools. Everything here is also available under this crate's own names.
//!
//! | item | library |
//! |---|---|
//! | [`Attribute`] | `cudaMemPoolGetAttribute`, `cuMemPoolGetAttribute`, `hipMemPoolGetAttribute` and their setters |

mod attribute;

pub use attribute::{Attribute, AttributeError};
