//! Where the memory of a pool of weirpool comes from. It carries out what the heap planned, and decides nothing.
//!
//! | file | contents |
//! |---|---|
//! | `device_memory` | chunks of the device, and the ranges of addresses that they are mapped into |
//! | `chunks` | what the device gave |
//! | `accessors` | the other devices that may use this memory |
//! | `held_memory` | all of it, once its pool has ended |
//! | `segment_source` | the trait for memory from elsewhere |
//! | `plain_memory` | plain memory of the device, as such a source |
//! | `upstream` | which memory a pool takes from its device |

#![allow(unsafe_code, reason = "device calls on chunks, ranges and segments")]
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the documentation is read beside the source"
)]

mod accessors;
mod chunks;
mod device_memory;
mod held_memory;
mod plain_memory;
mod segment_source;
mod upstream;

pub use device_memory::DeviceMemory;
pub use held_memory::{HeldMemory, Refused};
pub use plain_memory::PlainMemory;
pub use segment_source::{SegmentProperties, SegmentSource};
pub use upstream::{MemorySource, Upstream};

use weirpool_device as device;
use weirpool_heap as heap;
use weirpool_sync as sync;
