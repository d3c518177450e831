//! Allocation while a stream is captured into a graph.
//!
//! Work of a captured stream does not run. It becomes part of a graph, and each launch of the graph touches the same
//! addresses. So a captured stream allocates from [memory](GraphMemory) that is set aside for graphs.
//!
//! | file | contents |
//! |---|---|
//! | `memory` | memory that captures allocate from |
//! | `routed` | a stream that allocates from it while it is being captured |
//! | `session` | a capture that the pool begins and ends |
//! | `joined` | a capture that other code begins and ends |
//! | `graph` | a graph, with its memory |
//! | `checkpoint` | going back to an earlier state of the memory |
//!
//! What these share is in [`handles`](crate::handles), and requests for blocks of the memory are in `pool::captured`.
//!
//! The lane of a captured stream has its [state](crate::lane), and the engine allocates and frees in an
//! [order](crate::engine::order) of its own for it.

mod checkpoint;
mod graph;
mod joined;
mod memory;
mod routed;
mod session;

pub use checkpoint::{GraphCheckpoint, RestoreError};
pub use graph::CapturedGraph;
pub use joined::JoinedCapture;
pub use memory::GraphMemory;
pub use session::Capture;
