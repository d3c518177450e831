#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod block;
mod change;
mod copies;
mod error;
mod inner;
mod region;
mod segment;
mod sleep;

pub use change::Resume;
pub use error::RegionError;
pub use region::{
    Entered, Keep, Region, RegionBuilder, RegionFigures, Regions, resume_all, suspend_all,
};
