//! Streams and the simulated device: order, captures, peers, submitted work; what a pool tells of itself.
//!
//! | module | about |
//! |---|---|
//! | `capture` | allocation while a stream is captured |
//! | `checker` | the ordering checker |
//! | `observers` | observers that are told of each fact |
//! | `peers` | several devices of one host |
//! | `sim` | the simulated device |
//! | `sim_schedule` | its schedule, against a model |
//! | `statistics` | figures, exactly |
//! | `submitting` | submitted work, and work of the host in stream order |
//! | `uses` | uses of one block on several streams |

#[path = "../common/mod.rs"]
mod common;

mod capture;
mod checker;
mod observers;
mod peers;
mod sim;
mod sim_schedule;
mod statistics;
mod submitting;
mod uses;
