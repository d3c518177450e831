//! The devices that traces are replayed on.
//!
//! | module | purpose |
//! |---|---|
//! | [`machine`] | what a replay asks of a device |
//! | [`simulated`] | the simulated device, in virtual time |
//! | `cuda`, `timetable` | a GPU; operations in real time |
//! | `meter` | a device whose calls are timed |
//! | [`verify`] | contents that are written and checked |

#[cfg_attr(not(feature = "cuda"), path = "no_cuda.rs")]
pub(crate) mod cuda;
pub(crate) mod machine;
#[cfg(any(test, feature = "cuda"))]
pub(crate) mod meter;
pub(crate) mod simulated;
#[cfg(any(test, feature = "cuda"))]
pub(crate) mod timetable;
pub(crate) mod verify;
