//! A pool's end: nothing more is granted, and all comes back.

use super::Pool;
use crate::observe::LeakReport;
use crate::queue::{Drain, Service};

impl Pool {
    /// Ends the granting: who waits fails with [`AllocError::Closed`](crate::AllocError::Closed), and so does every later
    /// allocation. Live blocks stay valid, and are freed as ever: the report names those, and the reservations, that
    /// live at this moment (see [`leaks`](Self::leaks)). The first time, a subscriber of `tracing` is warned of them, if
    /// there are any.
    pub fn close(&self) -> LeakReport {
        let is_first = Service::close(self.service());
        let report = self.leaks();
        if is_first {
            report.tell();
        }
        report
    }

    /// Whether [`close`](Self::close) was called.
    pub fn is_closed(&self) -> bool {
        self.service().driver.is_closed()
    }

    /// Waits until everything came back: nobody waits for memory, no block lives, no reservation does, and
    /// nothing is pending. All that the pool holds is free then, and no work of the device touches any of it.
    ///
    /// It ends nothing by itself: allocations are granted meanwhile, and it is ready at a moment at which all
    /// of them have come back. To end a service, [`close`](Self::close) the pool first:
    ///
    /// ```
    /// # use weirpool::{Pool, device::sim::{Operation, SimDevice}};
    /// # use std::time::Duration;
    /// # let device = SimDevice::new();
    /// # let pool = Pool::builder(device.clone()).build()?;
    /// # let work = device.create_stream();
    /// # let stream = pool.register(&work)?;
    /// let block = pool.try_allocate(&stream, 64 << 20)?;
    /// work.submit(Operation::new(Duration::from_micros(50)));
    /// drop(block); // pending behind that work
    ///
    /// pool.close(); // who waits fails; what lives stays valid
    /// device.block_on(pool.drain().timeout(Duration::from_secs(1)))?;
    /// assert_eq!(device.now(), Duration::from_micros(50));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// While somebody drains, no stream's lane keeps what is freed: each free takes the heap's lock and
    /// records an event.
    pub fn drain(&self) -> Drain {
        Drain::new(self.presence.clone())
    }
}
