//! Memory that host and device see where it lies: the host has it without a copy.
//!
//! The device is the simulated one, but for its pinned memory, which is the host's own: what a real one does.

use crate::common::*;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weirpool::device::sim::{Checker, Clock, Operation, SimDevice};
use weirpool::device::*;
use weirpool::*;

#[derive(Clone, Debug)]
struct Unified {
    sim: SimDevice,
    /// Bytes taken now.
    taken: Arc<AtomicU64>,
}

impl Unified {
    fn new() -> Self {
        // The checker knows nothing of addresses that the simulated device did not give.
        let builder = SimDevice::builder().clock(Clock::Manual);
        Self {
            sim: builder.checker(Checker::Off).build(),
            taken: Arc::default(),
        }
    }
}

fn layout(bytes: u64) -> Layout {
    Layout::from_size_align(bytes as usize, CHUNK as usize).unwrap()
}

// SAFETY: pinned memory is the allocator's, from `allocate` to `free`, and every other call is the simulated
// device's.
unsafe impl Device for Unified {
    pass_on! {
        |unified| &unified.sim =>
        id, describe, capabilities, memory_info, now, set_alarm, cancel_alarm, reserve, unreserve, create,
        destroy, map, unmap, create_stream, destroy_stream, native_stream, is_abandoned, create_event,
        destroy_event, record, query, wait, watch, unwatch,
    }

    fn allocate(&self, kind: MemoryKind, bytes: u64) -> Result<u64, DeviceError> {
        assert_eq!(kind, MemoryKind::Pinned);
        self.taken.fetch_add(bytes, Ordering::SeqCst);
        // SAFETY: a pool asks for no segment of nothing.
        Ok(unsafe { alloc_zeroed(layout(bytes)) } as u64)
    }

    unsafe fn free(&self, kind: MemoryKind, address: u64, bytes: u64) -> Result<(), DeviceError> {
        assert_eq!(kind, MemoryKind::Pinned);
        self.taken.fetch_sub(bytes, Ordering::SeqCst);
        // SAFETY: it was taken with that layout, and no work uses it any more, as the caller guarantees.
        unsafe { dealloc(address as *mut u8, layout(bytes)) };
        Ok(())
    }

    fn host_pointer(&self, address: u64, _: u64) -> Option<NonNull<u8>> {
        NonNull::new(address as *mut u8)
    }

    unsafe fn upload(
        &self,
        _: RawStream,
        _: u64,
        _: &[u8],
        _: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        panic!("nothing is copied");
    }

    unsafe fn download(
        &self,
        _: RawStream,
        _: u64,
        _: u64,
        _: &'static Location<'static>,
    ) -> Result<Box<dyn Transfer>, DeviceError> {
        panic!("nothing is copied");
    }

    unsafe fn fill(
        &self,
        _: RawStream,
        _: u64,
        _: u64,
        _: u8,
        _: &'static Location<'static>,
    ) -> Result<(), DeviceError> {
        panic!("nothing is filled");
    }
}

/// Work of the device that adds to each element.
fn add(argument: Argument<'_>, amount: u32, took: u64) -> Operation {
    let (start, count) = (argument.address().to_bits(), argument.size() / 4);
    Operation::new(us(took)).run(move |_| {
        for at in 0..count as usize {
            // SAFETY: so many elements are there, and what this is submitted behind is over.
            unsafe { *(start as *mut u32).add(at) += amount };
        }
    })
}

#[test]
fn the_host_has_the_elements_where_they_lie() {
    let device = Unified::new();
    let pool = Pool::builder(device.clone())
        .upstream(Upstream::Pinned)
        .capacity(8 * MIB);
    let pool = pool.made();
    let work = [0, 1].map(|_| device.sim.create_stream());
    let [home, further] = work.each_ref().map(|work| pool.register(work).unwrap());
    let mut buffer = pool.buffer::<u32>(&home, 1024).try_now().unwrap();
    for round in 0..3 {
        {
            let address = buffer.address();
            let mut elements = now(buffer.host()).unwrap();
            assert_eq!(DeviceAddress::from_bits(elements.as_ptr() as u64), address);
            assert_eq!(elements.len(), 1024);
            elements.fill(round);
        }
        work[1].submit(add(further.record_use(&mut buffer).unwrap(), 10, 50));
        work[0].submit(add(home.record_use(&mut buffer).unwrap(), 100, 20));
        let mut waiting = Box::pin(buffer.host());
        device.sim.advance(us(60));
        assert!(poll(&mut waiting).is_pending(), "the second adds still");
        device.sim.advance(us(10));
        let elements = now(waiting).unwrap();
        assert!(elements.iter().all(|element| *element == round + 110));
    }
    // A guard that is forgotten holds nothing.
    std::mem::forget(now(buffer.host()).unwrap());
    assert_eq!(now(buffer.host()).unwrap()[0], 112);
    let mut nothing = pool.buffer::<u64>(&home, 0).try_now().unwrap();
    assert!(now(nothing.host()).unwrap().is_empty());
    drop((buffer, nothing));
    device.sim.advance_to_end();
    pool.inspect().check_conserved().unwrap();
    drop((home, further, pool));
    assert_eq!(device.taken.load(Ordering::SeqCst), 0);
}
