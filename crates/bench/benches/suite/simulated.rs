//! The simulated device.

use super::backend::{Backend, Line};
use super::contender::{Awaited, Contender};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use weirpool::device::Device;
use weirpool::device::sim::{Backing, Checker, Clock, Operation, SimDevice, SimStream};

/// See the [module](self).
pub(crate) struct Simulated {
    device: SimDevice,
    clock: Clock,
}

impl Simulated {
    /// Creates a device with more memory than is requested. On the manual clock no work is ever submitted, so that the
    /// measured time is that of the host.
    pub(crate) fn new(clock: Clock) -> Self {
        let device = SimDevice::builder()
            .memory(1 << 40)
            .backing(Backing::AddressesOnly)
            .clock(clock)
            .checker(Checker::Off)
            .build();
        Self { device, clock }
    }
}

impl Simulated {
    /// Creates a device of 1 GiB in virtual time, with contents.
    #[allow(dead_code, reason = "of benchmarks that look at contents")]
    pub(crate) fn with_contents() -> Self {
        let clock = Clock::Virtual;
        let builder = SimDevice::builder().memory(1 << 30).host_memory(4 << 30);
        let device = builder.clock(clock).build();
        Self { device, clock }
    }
}

impl Backend for Simulated {
    type Work = SimStream;
    type Driver<'a> = Nobody;

    fn name(&self) -> String {
        "the simulated device".to_owned()
    }

    fn device(&self) -> Arc<dyn Device> {
        Arc::new(self.device.clone())
    }

    fn create_stream(&self) -> SimStream {
        self.device.create_stream()
    }

    fn enter(&self) {}

    fn spend(&self, work: &SimStream, time: Duration) {
        work.submit(Operation::new(time));
    }

    fn run<F: Future>(&self, future: F) -> F::Output {
        self.device.block_on(future)
    }

    fn is_virtual(&self) -> bool {
        self.clock == Clock::Virtual
    }

    fn driver(&self, _most: Option<u64>) -> Option<Nobody> {
        None
    }
}

/// The driver's pool of a device that has none.
pub(crate) enum Nobody {}

impl Contender for Nobody {
    type Stream = Line<SimStream>;
    type Block = ();

    fn stream(&self) -> Line<SimStream> {
        match *self {}
    }

    fn allocate(&self, _line: &Line<SimStream>, _bytes: u64) -> Option<()> {
        match *self {}
    }

    fn free(&self, (): (), _line: &Line<SimStream>) {
        match *self {}
    }
}

impl Awaited for Nobody {
    async fn granted(&self, _line: &Line<SimStream>, _bytes: u64) -> ((), u64) {
        match *self {}
    }

    fn hand_on(&self, (): &mut (), _from: &Line<SimStream>, _to: &Line<SimStream>) {
        match *self {}
    }
}
