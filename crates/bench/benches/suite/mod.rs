//! The workloads of the benchmarks, and the program that runs and prints them.
//!
//! A workload is written once, for any [contender](contender::Contender) on any [backend](backend::Backend): the pool
//! on the simulated device or on a GPU; the driver's own pool beside it; and floors, the steps that such a design
//! cannot avoid. The contenders of a figure take turns in one process, round by round, and the figure is the median of
//! the rounds, because machines are noisy. Figures are comparable only within one run.
//!
//! | file | contents |
//! |---|---|
//! | `contender`, `pooled`, `cuda::driver_pool`, `cuda::bare`, `floor` | the contenders: the pool, the driver's pool, floors |
//! | `backend`, `simulated`, `cuda` | the device: streams, and work of any given duration |
//! | `race`, `threads`, `heap` | the measurements: in turns, on several threads at once, of the host's heap |
//! | `hot`, `mix`, `handoff`, `scarce`, `scale`, `growing`, `live_blocks`, `pressure`, `spills` | the workloads |
//! | `row`, `report`, `peers` | figures, the table, and other programs' figures in it |
//! | `options`, `effort`, `program` | the command line, the amount of work, and the whole program |

pub(crate) mod backend;
pub(crate) mod contender;
#[cfg_attr(not(feature = "cuda"), path = "no_cuda.rs")]
pub(crate) mod cuda;
pub(crate) mod effort;
pub(crate) mod floor;
pub(crate) mod growing;
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
pub(crate) mod spills;
pub(crate) mod threads;
