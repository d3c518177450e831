//! The device's clock, read on the host.
//!
//! Work ends at a time of the device's clock, so that the lateness of a kernel does not add up over the kernels behind
//! it. The two clocks drift apart by up to about 50 us a second, so they are compared every 250 ms.

use super::kernels::Kernels;
use anyhow::Context;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weirpool::device::cuda::CudaDevice;

/// The time between two comparisons.
const PERIOD: Duration = Duration::from_millis(250);
/// The number of comparisons of which the quickest counts, since some are disturbed.
const FIRST_LOOKS: u32 = 20;
const LOOKS: u32 = 3;
/// A comparison that took longer than this is worth less than an older one.
const SLOWEST: Duration = Duration::from_micros(200);

/// See the [module](self).
pub(super) struct Clock {
    kernels: Kernels,
    /// A separate stream, idle whenever the time is read.
    stream: Arc<CudaStream>,
    /// The word that the device writes its time to.
    word: CudaSlice<u64>,
    address: u64,
    latest: Cell<Comparison>,
    /// When to compare again.
    next: Cell<Instant>,
}

/// One moment on both clocks.
#[derive(Clone, Copy, Debug)]
struct Comparison {
    host: Instant,
    device: u64,
    /// The duration of the comparison. Its error is at most half of that.
    took: Duration,
}

impl Clock {
    pub(super) fn new(device: &CudaDevice, kernels: &Kernels) -> anyhow::Result<Self> {
        let stream = device.create_stream()?;
        let word = stream.alloc_zeros::<u64>(1)?;
        let (address, access) = word.device_ptr(&stream);
        drop(access);
        let clock = Self {
            kernels: kernels.clone(),
            latest: Cell::new(compare(kernels, &stream, &word, address)?),
            next: Cell::new(Instant::now()),
            stream,
            word,
            address,
        };
        clock.set(FIRST_LOOKS, Duration::MAX)?;
        Ok(clock)
    }

    /// Returns the device's time in nanoseconds.
    pub(super) fn now(&self) -> anyhow::Result<u64> {
        if Instant::now() >= self.next.get() {
            self.set(LOOKS, SLOWEST)?;
        }
        let Comparison { host, device, .. } = self.latest.get();
        Ok(device + host.elapsed().as_nanos() as u64)
    }

    /// Takes the quickest of `looks` comparisons, unless even that is slower than `slowest`.
    fn set(&self, looks: u32, slowest: Duration) -> anyhow::Result<()> {
        let mut best = None::<Comparison>;
        for _ in 0..looks {
            let next = compare(&self.kernels, &self.stream, &self.word, self.address)?;
            if best.is_none_or(|best| next.took < best.took) {
                best = Some(next);
            }
        }
        if let Some(best) = best.filter(|best| best.took <= slowest) {
            self.latest.set(best);
        }
        self.next.set(Instant::now() + PERIOD);
        Ok(())
    }
}

fn compare(
    kernels: &Kernels,
    stream: &Arc<CudaStream>,
    word: &CudaSlice<u64>,
    address: u64,
) -> anyhow::Result<Comparison> {
    let began = Instant::now();
    kernels.tell_time(stream, address)?;
    stream.synchronize()?;
    let took = began.elapsed();
    let times = stream.clone_dtoh(word)?;
    stream.synchronize()?;
    Ok(Comparison {
        host: began + took / 2,
        device: *times.first().context("the device returned no time")?,
        took,
    })
}
