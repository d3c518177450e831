#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod canaries;
mod guarded;
mod overrun;

pub use canaries::Canaries;
pub use overrun::{Found, Overrun, Side};
