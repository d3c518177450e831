//! Several devices of one host, on the simulated device: access to each other's memory, copies, and the order across
//! them.
//!
//! | file | about |
//! |---|---|
//! | `host` | the simulated devices themselves: their clock, memory, checker |
//! | `access` | giving and taking back access, for each kind of memory |
//! | `failing` | access while device calls fail, and while threads grow and trim |
//! | `streams` | streams of another device, and events across pools and devices |
//! | `copies` | copies between blocks, with access and without |
//! | `random` | random work of several devices, checked by bytes and by the ordering checker |

mod access;
mod copies;
mod failing;
mod host;
mod random;
mod streams;

use crate::common::*;
use std::sync::{Arc, Mutex};
use weirpool::device::sim::{
    Call, Checker, Clock, Fault, Operation, SimBuilder, SimDevice, SimStream, ViolationKind,
};
use weirpool::device::{Device, DeviceErrorKind, PeerAccess};
use weirpool::*;
use weirpool_driver_pool::{DriverPool, DriverPoolUse};

fn settings() -> SimBuilder {
    SimDevice::builder()
        .memory(256 * MIB)
        .clock(Clock::Manual)
        .checker(Checker::Collect)
}

/// Two devices of one host, with access between them.
fn two() -> [SimDevice; 2] {
    settings().build_host()
}

/// A pool over a kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Virtual,
    Plain,
    DriverPool(DriverPoolUse),
}

impl Memory {
    const ALL: [Self; 4] = [
        Self::Virtual,
        Self::Plain,
        Self::DriverPool(DriverPoolUse::SubAllocated),
        Self::DriverPool(DriverPoolUse::PassedThrough),
    ];

    fn pool(self, device: &SimDevice) -> TestPool {
        let builder = builder(device, 64 * MIB);
        let builder = match self {
            Self::Virtual => builder,
            Self::Plain => builder.upstream(Upstream::Device),
            Self::DriverPool(how) => {
                let pool = DriverPool::builder(device).build().unwrap();
                Pool::builder(device.clone())
                    .capacity(64 * MIB)
                    .segment_source(pool.segments(how))
            }
        };
        builder.made()
    }
}

/// Reads a byte of a block by work of a device. Returns `None` if the device may not: it is broken then.
fn seen_from(device: &SimDevice, block: &Block) -> Option<u8> {
    let seen = Arc::new(Mutex::new(None));
    let (into, address) = (seen.clone(), block.address());
    let work = device.create_stream();
    work.submit(Operation::new(us(1)).run(move |memory| {
        let mut byte = [0];
        memory.read(address, &mut byte);
        *into.lock().unwrap() = Some(byte[0]);
    }));
    device.advance_to_end();
    let is_broken = device.create_event().is_err();
    let seen = *seen.lock().unwrap();
    seen.filter(|_| !is_broken)
}

/// Returns whether work of a device may use the memory: asks the checker, and breaks nothing.
fn may_use(device: &SimDevice, block: &Block) -> bool {
    device.take_violations();
    let work = device.create_stream();
    work.submit(Operation::new(us(0)).reads(block.address(), 1));
    let found = device.take_violations();
    !found
        .iter()
        .any(|found| found.kind == ViolationKind::NoAccess)
}
