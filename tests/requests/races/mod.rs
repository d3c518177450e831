//! Races with device calls, and other cases in which waits, fences and bounds could fail.
//!
//! The device is the simulated one, with hooks that run inside its calls. A test's hook acts at that moment, as another
//! thread could.
//!
//! | file | contents |
//! |---|---|
//! | `hooked` | the device |
//! | `memory_calls` | actions of other threads while memory is taken from the device, or released |
//! | `fences` | tickets, their records and queries |
//! | `foreign` | destructors and wakers that ask the pool for everything |
//! | `waiters` | waiters, beside others that are dropped, forgotten or never polled |
//! | `bounds` | bounds of events and of memory |

mod bounds;
mod fences;
mod foreign;
mod hooked;
mod memory_calls;
mod waiters;

use crate::common::*;
use hooked::Hooked;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weirpool::device::DeviceErrorKind;
use weirpool::device::sim::{Call, Clock, Fault, SimDevice};
use weirpool::*;

/// A device with hooks, and a pool over it.
fn hooked(capacity: u64) -> (SimDevice, Hooked, TestPool) {
    let sim = manual();
    let device = Hooked::new(&sim);
    let pool = builder(&device, capacity).made();
    (sim, device, pool)
}
