//! Memory: where blocks come from, what becomes of them, and how memory is given back.
//!
//! | module | about |
//! |---|---|
//! | `asking` | complete memory that no stream was asked about yet |
//! | `capacity_source` | a capacity that something outside lends |
//! | `donors` | whose memory a stream waits for |
//! | `evictable` | memory that is taken back on demand |
//! | `fault_sweep` | each device call fails once |
//! | `faults` | a device that fails by script |
//! | `fills` | memory that is filled |
//! | `foreign` | memory that others own, as blocks |
//! | `full_device` | evictable memory beside other pools and programs that fill the device |
//! | `going_on` | maintenance that was put off, requests that were set aside, memory for graphs |
//! | `grow` | blocks that grow in place |
//! | `handoff` | memory that passes between streams while kernels are short |
//! | `in_place` | memory that host and device share |
//! | `lanes` | the per-stream cache |
//! | `large_cache` | large blocks in the cache |
//! | `maintenance` | releasing and coalescing |
//! | `pools` | several pools, settings, upstreams |
//! | `pressure` | devices that refuse memory |
//! | `remapping` | remapping or growing |
//! | `resize` | a capacity that changes |
//! | `shards` | many threads on one stream |

#[path = "../common/mod.rs"]
mod common;

mod asking;
mod capacity_source;
mod donors;
mod evictable;
mod fault_sweep;
mod faults;
mod fills;
mod foreign;
mod full_device;
mod going_on;
mod grow;
mod handoff;
mod in_place;
mod lanes;
mod large_cache;
mod maintenance;
mod pools;
mod pressure;
mod remapping;
mod resize;
mod shards;
