//! weirpool
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod device;
mod id;
mod ledger;
mod sync;
