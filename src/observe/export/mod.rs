//! Snapshots and histories as files that other tools read.
//!
//! | file | about |
//! |---|---|
//! | `memory_viz` | PyTorch's viewer of memory snapshots |
//! | `pieces` | what pending blocks were when they were freed, as that viewer shows them |
//! | `chrome` | Perfetto, and the tracing page of Chromium |
//! | `trace` | the example `replay` |

mod chrome;
mod memory_viz;
mod pieces;
mod trace;
