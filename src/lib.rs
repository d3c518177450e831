//! A stream-ordered GPU memory pool whose allocations are awaited.
//!
//! A weir is a low dam across a stream; the pool behind it fills and drains as the stream runs.
//!
//! ```
//! use std::time::Duration;
//! use weirpool::{Pool, device::sim::{Operation, SimDevice}};
//!
//! let device = SimDevice::new();
//! let pool = Pool::builder(device.clone()).capacity(256 << 20).build()?;
//! let work = device.create_stream();
//! let stream = pool.register(&work)?;
//!
//! device.block_on(async {
//!     let block = pool.allocate(&stream, 64 << 20).await?; // waits for memory instead of failing
//!     work.submit(Operation::new(Duration::from_micros(50))); // ordinary stream-ordered use
//!     drop(block); // pending until the stream passes this point
//!     stream.synchronize().await?;
//!     Ok::<(), weirpool::AllocError>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Words
//!
//! - **device**: the backend. [`device::sim`] is a simulated one, on which everything here can be tried
//!   and tested without a GPU.
//! - **stream**: an in-order queue of device work, modelled as an executor: work is submitted, completion
//!   is awaited. [`Stream`] is one that was registered with a pool.
//! - **event, ticket**: a point in a stream. Each stream numbers its points with tickets; a ticket is
//!   complete when the event recorded for it, or for a later one of that stream, is complete.
//! - **segment**: a span of addresses from the device. **Block**: a piece of a segment. Blocks tile their
//!   segment.
//! - **free, used, pending**: the states of a block. *Pending* was given back, but device work submitted
//!   before may still touch it. That is relative: the stream that freed it may reuse it at once, since
//!   its own order protects it; to every other stream it is pending until the ticket completes or an
//!   ordering is inserted.
//! - **fence set**: the points, at most one of each stream, that must be complete, or come before, for a
//!   block to be reused.
//! - **lane**: the pool's cache in front of each stream, bounded in bytes. **Heap**: the shared book of
//!   segments and blocks behind the lanes.
//! - **reserved**, **used**, **pending**: bytes held from the device, owned by somebody, given back but
//!   not complete; each with its high-water mark. The names are CUDA's and HIP's.
//!
//! ```text
//!     free ──grant──▶ used ──deallocate(stream, ticket)──▶ pending ──ticket complete──▶ free
//!                      ▲                                      │
//!                      └── same stream: at once ──────────────┤
//!                      └── other stream: after the ticket, ───┘
//!                          or behind a wait on the device
//! ```
//!
//! # One allocation, followed through the layers
//!
//! 1. [`Pool::allocate`] checks nothing yet: it makes an [`Allocate`], which borrows its handles.
//! 2. Its first poll checks the request at the quota queue and rounds it to 512 bytes.
//! 3. The **lane** of the stream is asked: one lock of its own, one pop. If it has a block of that size, or
//!    else one that is larger by an eighth at most, that is all: no device call, no shared cache line
//!    written ([`Source::Lane`]).
//! 4. The **driver** climbs the [reuse ladder](Source): the **heap** for what is known to be free, of
//!    this stream, or ordered before it, unless that would break up a large piece; whatever fits best
//!    after asking the **device** what has completed; the same after taking back what other lanes keep;
//!    then growing, by mapping free memory elsewhere or taking more; then memory pending on another
//!    stream, behind a wait on the device (which comes before the asking where there is no more to be
//!    had, and the wait is [short](Order::GrowFirst)).
//! 5. If no source gives, the future joins the **queue** in `wait`, and the gate is closed: lanes are
//!    bypassed, every free goes to the heap, and rings.
//! 6. A [`Reclaimer`] on the runtime, and the waiters themselves, are woken by such a free, and by the
//!    device when a stream gets further. Whoever is polled first climbs the ladder for the head of the
//!    queue, sets the grant, and then wakes the one who has it.
//! 7. The [`Block`] is used in the order of its stream. Used on a further stream, it is told so with
//!    [`Block::used_on`].
//! 8. Dropped, it goes to the lane, or to the heap as pending under the stream's open ticket. Once
//!    enough was freed, the ticket is *sealed*: closed under the lane's lock, and its event recorded
//!    after the lock is let go. When the event is seen complete, the block is free.
//!
//! # Layers
//!
//! Imports point down only; a test holds this table.
//!
//! | layer | what it is | what it must not know |
//! |---|---|---|
//! | `tower` | memory for each request of a service | |
//! | `testing` | checks of a pool from outside | |
//! | `compat` | names and ways of other libraries: attributes, pools by name, addresses instead of blocks | |
//! | `current` | the pool that is meant where none is named: of each device, thread, task | how it allocates |
//! | `interop` | blocks as cudarc's slices | what they are given to |
//! | `shared`, `buffer`, `pool`, `block`, `copy`, `stream` | the public face | |
//! | `observe` | statistics, snapshots, histories: reads, never steers | |
//! | `registry` | the living pools and their names | what is asked of them |
//! | `queue` | waiters, futures, reclaimer | how memory is found |
//! | `driver` | one allocation and one free, through lanes, heap and device | who waits |
//! | `lane` | a stream's front and its points: the hot path | how memory is searched |
//! | `policy` | the order of all allocation sources, as a state machine | how an action is executed |
//! | `heap` | the book of segments and blocks; policies are pure functions beside it | clock, device, async, locks |
//! | `device` | the contract, and the backends | everything above |
//! | `trace` | what is told to a subscriber of `tracing` | |
//! | `error`, `id` | what can go wrong; names that are numbers | |
//! | `measure` | kinds of figures: levels, histograms, accounts of tags | what is counted in them |
//! | `rare` | what few have, out of the way of those that have none | |
//! | `fault` | mistakes that are injected on purpose, for checks of the tests | |
//! | `sync` | the only file that names the primitives of std or loom | |
//!
//! `unsafe` lives in `device`; everywhere else it is denied.
//!
//! # Features
//!
//! - `tokio` (default): a reclaimer is spawned on the running tokio runtime when somebody first waits.
//!   Without it, or outside a runtime, waiters drive themselves, on any executor.
//! - `cuda`: NVIDIA GPUs, through cudarc. Nothing of CUDA is needed to build.
//! - `export`: snapshots and histories for PyTorch's memory viewer, Perfetto, and `replay`; see
//!   [`guide::observability`].
//! - `tower`: a layer that reserves memory for each request of a service.
//! - `metrics`, `tracing`, `serde`: the figures for a recorder, events and spans for a subscriber, figures
//!   and settings as data; see [`guide::observability`].
//!
//! # More
//!
//! The [guide] has the argument for why reuse is safe, [several pools](guide::pools) and their names
//! elsewhere, [streams and hooks of other libraries](guide::interoperability), how to [test stream code](guide::testing) of your own without a GPU, how to run what there
//! is [on a GPU](guide::gpus), [what a pool tells of itself](guide::observability), how to [find out what went
//! wrong](guide::observability), how to [wait in a service](guide::services), [what was tried](guide::performance) and why the
//! design is what it is, and the figures with their commands.
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod block;
mod buffer;
pub mod compat;
mod copy;
mod current;
#[allow(unsafe_code)]
pub mod device;
mod driver;
mod error;
mod fault;
pub mod guide;
mod heap;
mod id;
#[cfg(feature = "cuda")]
mod interop;
mod lane;
mod measure;
mod observe;
mod policy;
mod pool;
mod queue;
mod rare;
mod registry;
mod shared;
mod stream;
mod sync;
pub mod testing;
#[cfg(feature = "tower")]
mod tower;
mod trace;

pub use block::{Block, DeallocateError, Deallocation, HostGuard};
pub use buffer::{Buffer, SliceMut};
pub use copy::{Download, Elements, Upload};
pub use current::{Current, Entered, Scope, Scoped, current, default_pool};
pub use driver::{
    BlockInfo, BlockOrigin, BlockState, CoalesceHeuristic, Fill, HistoryEntry, HistoryEvent, Hits,
    Occupancy, ReservationInfo, ReservationOrigin, SegmentInfo, Site, Source, Statistics, Upstream,
};
pub use error::{
    AllocError, BuildError, CopyError, DrainError, ErrorClass, Shortfall, StreamError, TagShortfall,
};
pub use heap::policy::{Order, ReleaseThreshold, Reuse, Sealing, WaitLimit};
pub use heap::{GrowBy, Remapping};
pub use id::StreamId;
pub use measure::{Bucket, Histogram, Level, Tag, WaitOutcome, WaitStatistics};
#[cfg(feature = "metrics")]
pub use observe::Metrics;
pub use observe::{
    History, LeakReport, Snapshot, StatisticsScope, StreamStatistics, TagStatistics,
};
pub use pool::{
    Allocate, AllocateMany, AllocateOwned, Capacity, Drawing, Grow, GrowReservation, Health,
    Layout, Pool, PoolBuilder, PoolConfig, PoolDescription, Request, Reservation, Reserve,
    TagAccount, TagConfig,
};
pub use queue::{Drain, Overtaking, PressureHook, QueueLimit, Reclaimer};
pub use shared::{SharedBlock, SharedBuffer};
pub use stream::{Completion, Event, Stream, Synchronize};
#[cfg(feature = "tower")]
pub use tower::{Need, ReserveError, ReserveFuture, ReserveLayer, ReserveService};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
