//! Hooks that free memory for requests of a [pool](weirpool::Pool) that wait.
//!
//! A [`PressureHook`] is an async function that frees memory: it moves data to the host, or rejects other work. A
//! [`Pressure`] has one. A request that is awaited with [`relieve_with`](RelieveWith::relieve_with) asks it when the
//! request [stalls](weirpool::Request::poll_stalled): it is the first that waits, and nothing can serve it.
//!
//! An error or a panic of a hook is reported to a subscriber of `tracing`, as the event `pressure hook failed` of level
//! `WARN` and target `weirpool`, with the field `error`.
#![deny(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod asked;
mod hook;
mod pressure;
mod relief;
mod turn;

pub use hook::PressureHook;
pub use pressure::Pressure;
pub use relief::{Relief, RelieveWith};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
