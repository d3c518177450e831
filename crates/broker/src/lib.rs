#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

#[cfg(target_os = "linux")]
mod client;
pub mod desk;
#[doc(hidden)]
pub mod fuzzing;
pub mod ledger;
pub mod message;
pub mod names;
#[cfg(target_os = "linux")]
mod pool;
#[cfg(target_os = "linux")]
mod server;
mod share;

#[cfg(target_os = "linux")]
pub use client::{
    Attachment, Client, ClientConfig, ClientError, Descriptors, Held, Names, Reader, Tenant, Watch,
    withdraw,
};
#[cfg(target_os = "linux")]
pub use pool::{BrokerFailure, BrokerLease, BrokerOptions, lease_capacity, lease_of, names_of};
#[cfg(target_os = "linux")]
pub use server::{Broker, BrokerConfig, BrokerError, LONGEST, Running, Stop};
pub use share::{Share, Statement, Terms};
