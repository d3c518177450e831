#![doc = include_str!("../README.md")]

mod blocks;
mod callbacks;
mod exception;
mod failure;
mod memory;
mod wait;

pub use failure::Failure;
pub use memory::{Memory, MemoryBuilder, MemoryError};
