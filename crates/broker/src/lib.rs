#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

#[cfg(target_os = "linux")]
mod client;
pub mod desk;
#[doc(hidden)]
pub mod fuzzing;
pub mod ledger;
pub mod message;
#[cfg(target_os = "linux")]
mod server;
mod share;

#[cfg(target_os = "linux")]
pub use client::{Bounds, Client, ClientConfig, ClientError, Held, Reader, Tenant, Watch};
#[cfg(target_os = "linux")]
pub use server::{Broker, BrokerConfig, BrokerError, LONGEST, Running, Stop};
pub use share::{Share, Statement, Terms};
