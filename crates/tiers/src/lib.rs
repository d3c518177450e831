#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod block;
mod books;
mod change;
mod copies;
mod error;
mod headroom;
mod inner;
mod region;
mod segment;
mod sleep;
mod spillable;
mod terms;
mod tier;

pub use books::HostTierFigures;
pub use change::Resume;
pub use error::{RegionError, SpillError};
pub use headroom::{keep_chunks_free, keep_headroom};
pub use region::{
    Entered, Keep, Region, RegionBuilder, RegionFigures, Regions, resume_all, suspend_all,
};
pub use spillable::{Fetch, Fetched, IntoSpillable, Spillable};
pub use tier::HostTier;
