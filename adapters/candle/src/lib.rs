#![doc = include_str!("../README.md")]

mod memory;
mod pool_tensor;
mod storage;

pub use memory::{Memory, MemoryError};
pub use pool_tensor::PoolTensor;
