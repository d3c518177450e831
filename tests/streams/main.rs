//! Streams: captures, peers, submitted work; what a pool tells of itself.
//!
//! | module | about |
//! |---|---|
//! | `capture` | allocation while a stream is captured |
//! | `observers` | observers that are told of each fact |
//! | `peers` | several devices of one host |
//! | `statistics` | figures, exactly |
//! | `submitting` | submitted work, and work of the host in stream order |
//! | `uses` | uses of one block on several streams |

#[path = "../common/mod.rs"]
mod common;

mod capture;
mod observers;
mod peers;
mod statistics;
mod submitting;
mod uses;
