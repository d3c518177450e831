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
//! The [guide] begins with [concepts](guide::concepts): the glossary, the states of a block, and where memory comes
//! from.
//!
//! # One allocation, followed through the layers
//!
//! 1. [`Pool::allocate`] checks nothing yet. It creates an [`Allocate`], which borrows its handles.
//! 2. The first poll checks the request and rounds it to a multiple of 512 bytes.
//! 3. The **lane** of the stream is searched: one lock that no other stream takes, and one pop. A cached block of that
//!    size, or one that is larger by at most 1/8, is the result: no device call, no shared cache line written
//!    ([`Source::Lane`]).
//! 4. Otherwise the **engine** tries the [allocation sources](Source) in order:
//!    1. the **heap**: memory that is known to be free, was freed by this stream, or is ordered before it, unless the
//!       request would split a large piece;
//!    2. the best fit after polling the **device** for completed events, and after flushing the other lanes' caches;
//!    3. growth: mapping free memory elsewhere, or taking more from the device;
//!    4. memory pending on another stream, behind a wait on the device. Where the pool cannot grow and the wait is
//!       [short](Order::GrowFirst), this comes before polling.
//! 5. If no source suffices, the future joins the **queue**, and the gate is closed: lanes are bypassed, and every free
//!    goes to the heap and notifies the queue.
//! 6. Such a free, and the device when a stream advances, notify the first waiter, and a [`Reclaimer`] if there is one.
//!    Whichever is polled first tries the sources for the head of the queue, sets the grant, and then wakes its waiter.
//! 7. The [`Block`] is used in the order of its stream. Work is [submitted](Stream::submit) with the memory that it
//!    uses; other uses on a further stream are declared with [`Block::used_on`].
//! 8. Dropping the block returns it to the lane, or to the heap as pending under the stream's open ticket. Once enough
//!    bytes are freed, the ticket is *sealed*: closed under the lane's lock, and its event recorded after the lock is
//!    released. When the event is seen complete, the block is free.
//!
//! # Layers
//!
//! Imports point down only, with one exception, which the test that holds this table names.
//!
//! | layer | contents | must not know |
//! |---|---|---|
//! | `testing` | checks of a pool from outside | |
//! | `interop` | blocks as cudarc's slices | the callers of the slices |
//! | `capture` | allocation while a stream is captured into a graph | |
//! | `task` | work submitted to streams, as futures | how a stream keeps its order |
//! | `evictable`, `shared`, `buffer`, `pool`, `block`, `copy`, `stream` | the public types | |
//! | `observe` | statistics, snapshots, histories: reads, never steers | |
//! | `registry` | the living pools and their names | the requests to them |
//! | `foreign` | memory of other owners as blocks, and bytes charged for others | the crates that use them |
//! | `handles` | what the handles of a pool, a stream or a reservation share with their blocks | the public types |
//! | `queue` | waiters, futures, reclaimer | how memory is found |
//! | `engine` | one allocation and one free, through lanes, heap and device | the waiters |
//! | `seam` | what other crates lend to a pool, and what they are told | the pool that they add it to |
//! | `lane` | the state of a stream and its tickets: the hot path | how memory is searched |
//! | `error` | errors | |
//! | `timer` | the deadlines of a pool, behind one alarm of the device | what happens then |
//! | `device` | the contract, and the backends | everything above |
//! | `measure` | kinds of figures: levels, histograms, accounts of tags | the things that are counted |
//! | `rare` | state that few objects have, stored out of line | |
//! | `worker` | futures that wait for drops | the jobs that it runs |
//! | `background` | threads for calls that block, and their jobs, one at a time each | the jobs |
//! | `sync` | the only module that names the primitives of std or loom | |
//!
//! `unsafe` is denied, except where a file or a statement allows it; `docs/unsafe.md` lists every use with its
//! argument.
//!
//! Below these layers are crates. `crates/heap` has segments and blocks, which of them are free, the order in which
//! sources are tried, and ids; it knows no clock, device or lock. `crates/device` is the contract with the backends,
//! `crates/sim` and `crates/cuda`.
//!
//! # Crates beside this one
//!
//! These use this crate's public interface alone. A program adds the ones that it needs beside `weirpool`.
//!
//! | crate | contents |
//! |---|---|
//! | `weirpool-broker` | a broker that leases one GPU to the pools of several processes, and its client |
//! | `weirpool-compat` | names and ways of other libraries: attributes, pools by name, addresses instead of blocks, the current pool of a device, thread or task |
//! | `weirpool-dashboard` | a live page of a pool, for a web server |
//! | `weirpool-driver-pool` | the driver's own memory pools, as sources of segments |
//! | `weirpool-observe` | observers: histories, leaks, events for `tracing`, files for viewers; figures for the `metrics` crate |
//! | `weirpool-share` | blocks between processes, and tensors of other libraries |
//! | `weirpool-tower` | layers that reserve memory for each request of a service |
//!
//! For such crates there are [`Request::terms`] and [`Request::location`], [`Reservation::enter`], [`Pool::downgrade`],
//! [`Pool::all`], the public figures, and the seams of [`extend`].
//!
//! # Features
//!
//! - `sim` (default): the simulated device, `device::sim`.
//! - `tokio` (default): a reclaimer is spawned on the running tokio runtime when the first request waits. Without the
//!   feature, or outside a runtime, waiters drive themselves, on any executor.
//! - `cuda`: NVIDIA GPUs, through cudarc. Building needs no CUDA toolkit.
//! - `serde`: figures and settings as data. See [`guide::observability`].
//!
//! # More
//!
//! The [guide] explains [why reuse is safe](guide::safety), [several pools](guide::pools) and the names in other
//! libraries, [interoperability](guide::interoperability) with streams and hooks of other libraries, [testing stream
//! code](guide::testing) without a GPU, running [on a GPU](guide::gpus), [observing a pool](guide::observability) and
//! debugging with it, [waiting in a service](guide::services), and [performance](guide::performance): the figures with
//! their commands, and the reasons for the design.
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod background;
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
mod lane;
mod measure;
mod observe;
mod pool;
mod queue;
mod rare;
mod registry;
mod seam;
mod shared;
mod stream;
mod sync;
mod task;
pub mod testing;
mod timer;
mod worker;

/// The seams of the pool: what a crate beside this one implements, and what it may ask for, to add a feature without reading
/// the inside of the pool. Each seam has a page in the [guide].
///
/// | seam | for |
/// |---|---|
/// | [`CapacitySource`](extend::CapacitySource) | a broker or an orchestrator that lends the capacity |
/// | [`SegmentSource`](extend::SegmentSource) | where segments come from: the driver's own pools, a file of huge pages, another pool |
/// | [`Observer`](extend::Observer) | code that hears of each fact once |
/// | [`ForeignMemory`](extend::ForeignMemory), [`Stream::adopt`] | memory that others own, as blocks |
/// | [`Pool::charge`] | bytes that others hold, counted against the capacity |
pub mod extend {
    pub use crate::foreign::{Charge, ForeignMemory};
    pub use crate::queue::Passages;
    pub use crate::seam::{
        BlockOrigin, BoundedPool, Bounds, CapacitySource, Event, Fact, Holding, Joining, Memory,
        Observer, ReservationOrigin, SegmentProperties, SegmentSource, Site,
    };
}

pub use block::{Block, DeallocateError, Deallocation, HostGuard};
pub use buffer::{Buffer, FromBlockError, SliceMut};
pub use capture::{
    Capture, CapturedGraph, GraphCheckpoint, GraphMemory, JoinedCapture, RestoreError,
};
pub use copy::{Download, Elements, Upload};
pub use engine::{
    BlockInfo, BlockState, CoalesceHeuristic, Fill, Hits, ReservationInfo, SegmentInfo, Source,
    Statistics, Trimmed, Upstream,
};
pub use error::{
    AccessError, AllocError, BuildError, CopyError, DrainError, ErrorClass, FullQueue, Shortfall,
    SourceError, StreamError, TagShortfall, TaskError,
};
pub use evictable::{Evictable, Pinned};
pub use measure::{Bucket, Histogram, Level, Recorder, Tag, WaitOutcome, WaitStatistics};
pub use observe::{Snapshot, StatisticsScope, StreamStatistics, TagStatistics};
pub use pool::{
    AccessGuard, Allocate, AllocateMany, AllocateOwned, Capacity, Drawing, EnterGuard, Grow,
    GrowReservation, Health, Layout, Pool, PoolBuilder, PoolConfig, PoolDescription, Request,
    Reservation, Reserve, TagAccount, TagConfig, WeakPool,
};
pub use queue::{Drain, Overtaking, PressureHook, QueueLimit, Reclaimer, Terms, WaitingRequest};
pub use shared::{SharedBlock, SharedBuffer};
pub use stream::{Completion, Event, Stream, Synchronize};
pub use task::{AccessOrder, Accesses, HostTask, Submission, Submitted, Task};
pub(crate) use weirpool_heap::{self as heap, fault, id};
pub use weirpool_heap::{
    GrowBy, Order, ReleaseThreshold, Remapping, Reuse, Sealing, WaitLimit, id::StreamId,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
