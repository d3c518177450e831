//! Spillable memory on the simulated device.

mod behaviour;
mod choice;
mod failures;
mod random;
mod site;
