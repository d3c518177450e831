//! What may happen while a device call is on its way, and other places where waiting, fences and bounds
//! could go wrong.
//!
//! The device is the simulated one, with hooks that run inside its calls: whatever a test does there
//! happens at that very moment, as another thread could do it.
//!
//! | file | about |
//! |---|---|
//! | `hooked` | the device |
//! | `memory_calls` | what others do while memory is taken from the device, or given back |
//! | `fences` | tickets, their records and queries |
//! | `waiters` | who waits, with others who wait no more or never look |
//! | `bounds` | how many events there may be, and how much memory |

#[path = "../common/mod.rs"]
mod common;

mod bounds;
mod fences;
mod hooked;
mod memory_calls;
mod waiters;

use common::*;
use hooked::Hooked;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use weirpool::device::DeviceErrorKind;
use weirpool::device::sim::SimDevice;
use weirpool::*;
