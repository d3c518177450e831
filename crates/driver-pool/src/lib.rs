#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod pool;
mod segments;

pub use pool::{DriverPool, DriverPoolBuilder};
pub use segments::{DriverPoolUse, driver_pool_of};
