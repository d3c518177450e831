//! The workloads of the benchmarks, and what runs and prints them.
//!
//! A workload is written once, for any [contender](contender::Contender) on any [backend](backend::Backend): the
//! pool on the simulated device or on a GPU, the driver's own pool beside it, and floors, which are what a
//! design like this one cannot do without. The contenders of a figure take turns in one process, round by
//! round, and the figure is the median of the rounds: machines are noisy, and compare only within one run.
//!
//! | file | about |
//! |---|---|
//! | `contender`, `pooled`, `driver_pool`, `floor` | what is measured: the pool, the driver's pool, floors |
//! | `backend`, `simulated`, `cuda` | the device: streams, and work of any given duration |
//! | `race`, `threads`, `heap` | how: by turns, on several threads at once, on the heap |
//! | `hot`, `mix`, `handoff`, `scarce`, `scale`, `live_blocks`, `pressure` | the workloads |
//! | `row`, `report`, `peers` | figures, the table, and other programs' figures in it |
//! | `options`, `effort`, `program` | the command line, how much is done, and the whole |

pub(crate) mod backend;
pub(crate) mod contender;
#[cfg_attr(not(feature = "cuda"), path = "no_cuda.rs")]
pub(crate) mod cuda;
#[cfg(feature = "cuda")]
pub(crate) mod driver_pool;
pub(crate) mod effort;
pub(crate) mod floor;
pub(crate) mod handoff;
pub(crate) mod heap;
pub(crate) mod hot;
pub(crate) mod live_blocks;
pub(crate) mod mix;
pub(crate) mod options;
pub(crate) mod peers;
pub(crate) mod pooled;
pub(crate) mod pressure;
pub(crate) mod program;
pub(crate) mod race;
pub(crate) mod report;
pub(crate) mod row;
pub(crate) mod scale;
pub(crate) mod scarce;
pub(crate) mod simulated;
pub(crate) mod threads;
