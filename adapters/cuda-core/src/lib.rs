#![doc = include_str!("../README.md")]

mod core_stream;
mod memory;

pub use core_stream::CoreStream;
pub use memory::{Memory, MemoryError};
