//! The guide: pages that are longer than a signature.
//!
//! | page | topic |
//! |---|---|
//! | [`getting_started`] | how to allocate, wait and free, on the simulated device and on a GPU |
//! | [`concepts`] | streams, tickets, blocks, reuse, and where memory comes from |
//! | [`services`] | waiting in a service: reservations, order, quotas, overload, shutdown |
//! | [`testing`] | testing your own stream code without a GPU, with the checker and with loom |
//! | [`gpus`] | memory for kernels and for cudarc's libraries; running the tests on a GPU |
//! | [`observability`] | statistics, metrics, tracing, snapshots, histories, leaks, fills |
//! | [`interoperability`] | streams and allocation hooks of other libraries, PyTorch |
//! | [`python`] | services in Python: waiting with asyncio, PyTorch in a reservation |
//! | [`pools`] | several pools, and the names that other libraries use |
//! | [`foreign_memory`] | memory of other owners as blocks |
//! | [`capacity_sources`] | a capacity that a broker or an orchestrator lends |
//! | [`segment_sources`] | memory from the driver's own pools, a file of huge pages, or another pool |
//! | [`observers`] | what an observer is told, and what it may do |
//! | [`stalled_requests`] | requests that nothing serves, and owners that free memory for them |
//! | [`safety`] | why reuse is safe, invariant by invariant |
//! | [`performance`] | fast operations, slow ones, and how to measure them |

#[doc = include_str!("../docs/guide/getting-started.md")]
pub mod getting_started {}

#[doc = include_str!("../docs/guide/concepts.md")]
pub mod concepts {}

#[doc = include_str!("../docs/guide/services.md")]
pub mod services {}

#[doc = include_str!("../docs/guide/testing.md")]
pub mod testing {}

#[doc = include_str!("../docs/guide/gpus.md")]
pub mod gpus {}

#[doc = include_str!("../docs/guide/observability.md")]
pub mod observability {}

#[doc = include_str!("../docs/guide/interoperability.md")]
pub mod interoperability {}

#[doc = include_str!("../docs/guide/python.md")]
pub mod python {}

#[doc = include_str!("../docs/guide/foreign-memory.md")]
pub mod foreign_memory {}

#[doc = include_str!("../docs/guide/pools.md")]
pub mod pools {}

#[doc = include_str!("../docs/guide/capacity-sources.md")]
pub mod capacity_sources {}

#[doc = include_str!("../docs/guide/segment-sources.md")]
pub mod segment_sources {}

#[doc = include_str!("../docs/guide/observers.md")]
pub mod observers {}

#[doc = include_str!("../docs/guide/stalled-requests.md")]
pub mod stalled_requests {}

#[doc = include_str!("../docs/guide/safety.md")]
pub mod safety {}

#[doc = include_str!("../docs/guide/performance.md")]
pub mod performance {}
