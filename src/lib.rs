//! A stream-ordered GPU memory pool whose allocations are awaited.
//!
//! A weir is a low dam across a stream; the pool behind it fills and drains as the stream runs.
//!
//! ```
//! use std::time::Duration;
//! use weirpool::{Pool, device::sim::{Operation, SimDevice, SimStream}};
//!
//! let device = SimDevice::new();
//! let pool = Pool::builder(device.clone()).capacity(256 << 20).build()?;
//! let stream = pool.create_stream()?;
//!
//! device.block_on(async {
//!     let mut block = pool.allocate(&stream, 64 << 20).await?; // waits for memory instead of failing
//!     let task = stream.submit(&mut block, |work: &SimStream, block| {
//!         let kernel = Operation::new(Duration::from_micros(50)); // stands for a kernel
//!         work.submit(kernel.writes(block.address(), block.size()));
//!     })?;
//!     drop(block); // pending until the stream passes this point
//!     task.await?; // the device has run the kernel
//!     Ok::<(), Box<dyn std::error::Error>>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```text
//!     free ──grant──▶ used ──free, in the stream's order──▶ pending ──event complete──▶ free
//!                      ▲                                       │
//!                      └── the same stream: at once; others: behind the event, or once it is complete
//! ```
//!
//! **Waiting.** A request that finds no memory joins a fair queue: first come, first served, or by deadline, priority and
//! weight. Every future can be dropped at any time. No runtime is required; on tokio a [`Reclaimer`] serves the queue.
//!
//! **Streams are executors.** [`Stream::submit`] takes work with the memory that it reads and writes: it runs after the
//! earlier uses of that memory, and is a future. Host functions and host futures take their turn in the stream.
//!
//! **Memory moves between streams** when the work that used it is complete, when an event orders the streams, or behind a
//! wait on the device: the guide says [why that is safe](guide::safety). Free pieces of virtual memory are mapped together
//! before the pool grows.
//!
//! **A request in one reservation.** [`Pool::reserve`] waits once for all that a request needs; in its
//! [scope](Reservation::scope), allocations neither wait nor fail.
//!
//! **Tenants.** A [`Tag`] has a limit, a weight and a share of the queue. [`Evictable`] memory goes before anybody waits.
//!
//! **Tested without a GPU.** The simulated device runs streams in virtual time, and reports memory used out of order.
//!
//! **Open.** Other crates lend the pool capacity or memory, and hear of each fact once, through [`extend`].
//!
//! The [guide] begins with [concepts](guide::concepts): the glossary, the states of a block, where memory comes from, one
//! allocation followed through the source, and where to find what.
//!
//! # Crates beside this one
//!
//! These use this crate's public interface alone. A program adds the ones that it needs beside `weirpool`.
//!
//! | crate | contents |
//! |---|---|
//! | `weirpool-alloc` | the memory that a library of kernels takes: of a pool, a reservation, the current pool, or cudarc |
//! | `weirpool-broker` | a broker that leases one GPU to the pools of several processes, and its client |
//! | `weirpool-c` | headers and libraries for C and C++, and a resource of `cuda::mr` |
//! | `weirpool-canaries` | guards of blocks, which find writes beside them |
//! | `weirpool-compat` | names and ways of other libraries: attributes, pools by name, addresses instead of blocks, the current pool of a device, thread or task |
//! | `weirpool-dashboard` | a live page of a pool, for a web server |
//! | `weirpool-driver-pool` | the driver's own memory pools, as sources of segments |
//! | `weirpool-observe` | observers: histories, leaks, events for `tracing`, files for viewers; figures for the `metrics` crate |
//! | `weirpool-pressure` | hooks that free memory for a request that nothing serves |
//! | `weirpool-share` | blocks with several owners, between processes, and as tensors of other libraries |
//! | `weirpool-tiers` | regions of memory that are suspended and resumed at the same addresses; blocks that are spilled to the host |
//! | `weirpool-tower` | layers that reserve memory for each request of a service |
//!
//! # Features
//!
//! - `sim` (default): the simulated device, `device::sim`.
//! - `tokio` (default): a reclaimer is spawned on the running tokio runtime when the first request waits. Without the
//!   feature, or outside a runtime, waiters drive themselves, on any executor.
//! - `cuda`: NVIDIA GPUs, through cudarc. Building needs no CUDA toolkit.
//! - `serde`: figures and settings as data. See [`guide::observability`].
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod block;
mod buffer;
mod capture;
mod copy;
#[allow(unsafe_code, reason = "the contract of the device")]
pub mod device;
mod engine;
mod error;
mod evictable;
mod foreign;
pub mod guide;
mod handles;
#[cfg(feature = "cuda")]
mod interop;
mod measure;
mod observe;
mod pool;
mod queue;
mod registry;
mod seam;
mod stream;
mod task;
#[doc(hidden)]
pub mod testing;

/// The seams of the pool: what a crate beside this one implements, and what it may ask for, to add a feature without reading
/// the inside of the pool. Each seam has a page in the [guide].
///
/// | seam | for |
/// |---|---|
/// | [`CapacitySource`](extend::CapacitySource) | a broker or an orchestrator that lends the capacity |
/// | [`SegmentSource`](extend::SegmentSource) | where segments come from: the driver's own pools, a file of huge pages, another pool |
/// | [`Observer`](extend::Observer) | code that hears of each fact once |
/// | [`ForeignMemory`](extend::ForeignMemory), [`Stream::adopt`] | memory that others own, as blocks |
/// | [`Residency`](extend::Residency), [`Pool::residency`] | such memory that is not always there |
/// | [`Evictable::evicted_by`] | evictable memory that is copied elsewhere before it goes |
/// | [`Pool::charge`], [`Pool::charge_for`] | bytes that others hold, counted against the capacity |
/// | [`Request::poll_stalled`] | owners that free memory for a request that nothing serves |
pub mod extend {
    pub use crate::foreign::{Absence, Charge, ForeignMemory, Leave, Residency, Resident};
    pub use crate::measure::{BlockOrigin, ReservationOrigin, Site};
    pub use crate::pool::ChargeFor;
    pub use crate::queue::Passages;
    pub use crate::seam::{
        BoundedPool, Bounds, CapacitySource, Event, Fact, Holding, Joining, Memory, Observer,
        SegmentProperties, SegmentSource,
    };
}

pub use block::{Block, DeallocateError, Deallocation, HostGuard};
pub use buffer::{AllocateBuffer, Buffer, FromBlockError, SliceMut};
pub use capture::{
    Capture, CapturedGraph, GraphCheckpoint, GraphMemory, JoinedCapture, RestoreError,
};
pub use copy::{Download, Elements, Upload};
pub use engine::{CoalesceHeuristic, Fill, Hits, Source, Statistics, Trimmed, Upstream};
pub use error::{
    AccessError, AllocError, BuildError, CopyError, DrainError, EnqueueError, ErrorClass,
    FullQueue, Shortfall, SourceError, StreamError, SubmitError, TagShortfall, TaskError,
};
pub use evictable::{Evictable, Pinned};
pub use measure::{
    BlockInfo, BlockState, Bucket, Histogram, Level, Recorder, ReservationInfo, SegmentInfo,
    Snapshot, StreamStatistics, Tag, TagStatistics, WaitOutcome, WaitStatistics,
};
pub use observe::StatisticsScope;
pub use pool::{
    AccessGuard, Allocate, AllocateMany, AllocateOwned, Capacity, Drawing, EnterGuard, FillAt,
    Grow, GrowReservation, Health, Inspect, Layout, Maintain, Peers, Pool, PoolBuilder,
    PoolDescription, Request, Reservation, Reserve, TagAccount, Tuning, WeakPool,
};
pub use queue::{Drain, Overtaking, QueueLimit, Reclaimer, Terms, WaitingRequest};
pub use stream::{Completion, Event, Stream};
pub use task::{AccessOrder, Accesses, HostTask, Native, Submission, Submitted, Task, Unordered};
pub(crate) use weirpool_heap::{self as heap, id};
pub use weirpool_heap::{
    GrowBy, ReleaseThreshold, Remapping, Reuse, Sealing, WhenShort, id::StreamId,
};
pub(crate) use weirpool_lane as lane;
pub(crate) use weirpool_sync::{self as sync, background, timer, worker};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
