#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod change;
mod copies;
mod error;
mod region;
mod segment;
mod sleep;

pub use change::{Resume, resume_all, suspend_all};
pub use error::RegionError;
pub use region::{Entered, Keep, Region, RegionBuilder, RegionFigures, Regions};
