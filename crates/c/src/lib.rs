//! The C interface of weirpool: `include/weirpool.h` has its documentation, and this crate no interface for Rust.
//!
//! | file | contents |
//! |---|---|
//! | `exports` | the functions |
//! | `pool` | a pool behind addresses and handles, on a GPU or the simulated device |
//! | `options` | the structs, in all versions |
//! | `status` | results, the last error of a thread, and the catch of panics |

mod exports;
mod options;
mod pool;
mod status;
