//! The simulated device, on the wall clock.

use super::Bench;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::Device;
use weirpool::device::sim::{Clock, Operation, SimDevice, SimStream};
use weirpool::{Pool, Stream};

pub(crate) struct Sim(pub(crate) SimDevice);

impl Sim {
    pub(crate) fn new() -> Self {
        Self(SimDevice::builder().clock(Clock::Wall).build())
    }
}

impl Bench for Sim {
    type Work = SimStream;

    fn device(&self) -> Arc<dyn Device> {
        Arc::new(self.0.clone())
    }

    fn name(&self) -> String {
        "the simulated device, on the wall clock".to_owned()
    }

    fn stream(&self, pool: &Pool) -> (SimStream, Stream) {
        let work = self.0.create_stream();
        let stream = pool.register(&work).expect("a stream of the device");
        (work, stream)
    }

    fn spend(&self, work: &SimStream, time: Duration) {
        work.submit(Operation::new(time));
    }
}
