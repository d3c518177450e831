//! The simulated device through its public interface, and the findings of its checker in pools.
//!
//! | file | contents |
//! |---|---|
//! | `checker` | the ordering checker |
//! | `order` | the order in which operations run |
//! | `flags`, `events` | streams that wait for each other |
//! | `clock` | the clocks |
//! | `memory` | addresses, chunks and bytes |
//! | `driver_pools` | the memory pools of the driver |
//! | `faults` | work and calls that fail |
//! | `schedule` | the schedule, against a model |
//! | `many_streams` | the ordering checker with as many streams as a server has connections |

#[path = "../../../../tests/common/mod.rs"]
mod common;

mod checker;
mod clock;
mod driver_pools;
mod events;
mod faults;
mod flags;
mod many_streams;
mod memory;
mod order;
mod schedule;

use common::{Count, MIB, manual, manual_builder, us};
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use weirpool_device::{Device, DeviceErrorKind, RawEvent};
use weirpool_sim::{Operation, SimDevice, SimStream};

const GRANULE: u64 = 2 * MIB;

fn operation(count: u64) -> Operation {
    Operation::new(us(count))
}

fn recorded(sim: &SimDevice, stream: &SimStream) -> RawEvent {
    let event = sim.create_event().unwrap();
    sim.record(event, stream.raw()).unwrap();
    event
}

/// Operations that append their name to a common list when they complete.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn entry(&self, name: &str, operation: Operation) -> Operation {
        let (log, name) = (self.clone(), name.to_owned());
        operation.run(move |_| log.0.lock().unwrap().push(name))
    }

    fn text(&self) -> String {
        self.0.lock().unwrap().join(" ")
    }
}

/// Completes when the event does.
fn completion(sim: &SimDevice, event: RawEvent) -> impl Future<Output = ()> + use<> {
    let sim = sim.clone();
    let mut watch = None;
    poll_fn(move |context| {
        if let Some(old) = watch.take() {
            sim.unwatch(old);
        }
        watch = Some(sim.watch(event, context.waker()));
        match sim.query(event).unwrap() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
}
