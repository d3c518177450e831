//! Regions on the simulated device.

mod behaviour;
mod common;
mod failures;
