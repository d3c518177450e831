//! weirpool
#![deny(unsafe_code)]

mod block;
mod buffer;
#[allow(unsafe_code)]
pub mod device;
mod engine;
mod error;
mod id;
mod lane;
mod ledger;
mod observe;
mod pool;
mod stream;
mod sync;
mod wait;

pub use block::{Block, DeallocateError, Deallocation};
pub use buffer::Buffer;
pub use engine::Rung;
pub use error::{AllocError, BuildError, Shortfall, StreamError};
pub use id::StreamId;
pub use ledger::Level;
pub use ledger::policy::{Order, Reuse, Sealing, WaitLimit};
pub use observe::{Hits, Statistics};
pub use pool::{Allocate, Pool, PoolBuilder};
pub use stream::{Completion, Event, Stream, Synchronize};
pub use wait::{Reclaimer, WaitStatistics};
