//! Memory of others that leaves, against uses, launches, holds and blocks that end.

use super::*;
use loom::thread;
use weirpool::device::{Device, DeviceAddress, MemoryKind};
use weirpool::extend::{Absence, ForeignMemory, Passages, Residency};
use weirpool::{StreamError, TaskError};

/// Memory that is not always there.
#[derive(Debug)]
struct Away(u64, Residency);

// SAFETY: no work of the simulated device accesses it.
#[allow(unsafe_code, reason = "implements the seam")]
unsafe impl ForeignMemory for Away {
    fn range(&self) -> (DeviceAddress, u64) {
        (DeviceAddress::from_bits(self.0), 2 * MIB)
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn is_checked(&self) -> bool {
        false
    }

    fn residency(&self) -> Option<Residency> {
        Some(self.1.clone())
    }

    fn release(self: Box<Self>, _: Passages) {}
}

fn adopt(device: &SimDevice, stream: &Stream, residency: &Residency) -> Block {
    let address = device.allocate(MemoryKind::Device, 2 * MIB).unwrap();
    let memory = Away(address, residency.clone());
    // SAFETY: the memory is the device's.
    #[allow(unsafe_code, reason = "adopts memory")]
    unsafe {
        stream.adopt(Box::new(memory))
    }
}

/// Returns an absence that begins now.
fn absence_of(
    mut leave: impl Future<Output = Result<Absence, weirpool::device::DeviceError>> + Unpin,
) -> Absence {
    // The first poll may record an event, whose watch wakes at once.
    for _ in 0..2 {
        if let Poll::Ready(absence) = poll(&mut leave) {
            return absence.unwrap();
        }
    }
    panic!("the absence does not begin");
}

/// A use is either refused, or the absence begins after its work.
#[test]
fn use_against_an_absence() {
    model("use against an absence", || {
        let (device, pool, [(_, a), (_, b)]) = start();
        let residency = pool.residency("weights");
        let block = adopt(&device, &a, &residency);
        let using = thread::spawn(move || {
            let submitted = b.submit(&block, |work: &SimStream, _| run(work, 10));
            (submitted.map(drop), block)
        });
        let mut leave = residency.leave();
        let at_once = poll(&mut leave);
        let (submitted, block) = using.join().unwrap();
        match submitted {
            Ok(()) => {
                assert!(at_once.is_pending(), "the work runs");
                assert!(poll(&mut leave).is_pending(), "the work runs");
                device.advance(Duration::from_micros(10));
                drop(absence_of(leave));
            }
            Err(TaskError::Stream(StreamError::Absent { .. })) if at_once.is_ready() => {}
            Err(TaskError::Stream(StreamError::Absent { .. })) => drop(absence_of(leave)),
            Err(error) => panic!("{error}"),
        }
        drop(at_once);
        assert!(residency.is_resident());
        a.record_use(&block).unwrap();
    });
}

/// The wake-up of the last hold is not lost.
#[test]
fn hold_that_ends_against_an_absence() {
    model("hold that ends against an absence", || {
        let (_, pool, []) = start();
        let residency = pool.residency("weights");
        let holds = [(); 2].map(|()| residency.hold().unwrap());
        let threads = holds.map(|hold| thread::spawn(move || drop(hold)));
        let mut leave = residency.leave();
        let (count, waker) = Count::new();
        let polled = Pin::new(&mut leave).poll(&mut Context::from_waker(&waker));
        let _ = threads.map(|thread| thread.join().unwrap());
        if polled.is_pending() {
            assert_eq!(count.take(), 1);
            drop(absence_of(leave));
        }
        drop(polled);
        assert!(residency.hold().is_ok());
    });
}

/// A launch is either refused, or the absence begins after it.
#[test]
fn launch_against_an_absence() {
    model("launch against an absence", || {
        let (device, pool, [(_, a)]) = start();
        let residency = pool.residency("weights");
        let block = adopt(&device, &a, &residency);
        let capture = pool.capture(&a).unwrap();
        let submitted = a.submit(&block, |work: &SimStream, _| run(work, 10));
        drop(submitted.unwrap());
        let graph = capture.end().unwrap();
        let launching = {
            let a = a.clone();
            thread::spawn(move || (graph.launch(&a), graph))
        };
        let mut leave = residency.leave();
        let at_once = poll(&mut leave);
        let (launched, graph) = launching.join().unwrap();
        match launched {
            Ok(()) => {
                assert!(at_once.is_pending(), "the launch runs");
                assert!(poll(&mut leave).is_pending(), "the launch runs");
                device.advance(Duration::from_micros(10));
                drop(absence_of(leave));
            }
            Err(StreamError::Absent { .. }) if at_once.is_ready() => {}
            Err(StreamError::Absent { .. }) => drop(absence_of(leave)),
            Err(error) => panic!("{error}"),
        }
        drop(at_once);
        graph.launch(&a).unwrap();
        device.advance(Duration::from_micros(10));
        drop((block, graph));
    });
}

/// The memory is resident when both have ended, and not before.
#[test]
fn absence_against_an_absence() {
    model("absence against an absence", || {
        let (device, pool, [(_, a)]) = start();
        let residency = pool.residency("weights");
        let block = adopt(&device, &a, &residency);
        let other = {
            let residency = residency.clone();
            thread::spawn(move || absence_of(residency.leave()))
        };
        drop(absence_of(residency.leave()));
        let absence = other.join().unwrap();
        assert!(a.record_use(&block).is_err());
        drop(absence);
        a.record_use(&block).unwrap();
    });
}

/// A block ends, and a cancelled absence, in any order.
#[test]
fn end_of_a_block_against_an_absence() {
    model("end of a block against an absence", || {
        let (device, pool, [(work, a)]) = start();
        let residency = pool.residency("weights");
        let block = adopt(&device, &a, &residency);
        a.record_use(&block).unwrap();
        run(&work, 10);
        let ending = thread::spawn(move || drop(block));
        let mut leave = residency.leave();
        assert!(poll(&mut leave).is_pending());
        drop(leave);
        ending.join().unwrap();
        device.advance(Duration::from_micros(10));
        drop(absence_of(residency.leave()));
        let statistics = Box::new(pool.inspect().statistics());
        assert_eq!((statistics.foreign, statistics.suspended), (0, 0));
    });
}
