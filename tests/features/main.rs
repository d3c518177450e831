//! What needs a feature.

#[path = "../common/mod.rs"]
mod common;

#[cfg(feature = "serde")]
mod serde;
