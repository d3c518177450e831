//! Streams of other libraries, whose owner destroys them as soon as its own calls have returned.

use super::*;
use loom::thread;
use std::any::Any;
use weirpool::device::{DeviceError, DeviceId, DeviceStream, RawStream, StreamProperties};
use weirpool::{AllocError, Source, WhenShort};

/// A stream that the pool cannot keep alive.
struct External(DeviceId, RawStream);

// SAFETY: the simulated device refuses the names of destroyed streams.
unsafe impl DeviceStream for External {
    fn properties(&self) -> Result<StreamProperties, DeviceError> {
        let mut properties = StreamProperties::new(self.0, self.1);
        properties.external_id = Some(1);
        Ok(properties)
    }

    fn keep_alive(&self) -> std::sync::Arc<dyn Any + Send + Sync> {
        std::sync::Arc::new(())
    }
}

/// Creates a pool of one chunk, which makes streams wait for each other on the device.
fn waiting_pool(device: &SimDevice) -> Pool {
    Pool::builder(device.clone())
        .capacity(2 * MIB)
        .chunk_bytes(2 * MIB)
        .tuning(|tuning| {
            tuning.lane_bytes = 4096;
            tuning.when_short = WhenShort::GrowThenWait;
        })
        .build()
        .unwrap()
}

pub(crate) fn external(device: &SimDevice, pool: &Pool) -> (SimStream, Stream) {
    let work = device.create_stream();
    let external = External(work.device_id(), work.raw());
    let stream = pool.register(&external).unwrap();
    (work, stream)
}

/// A block is freed, and its stream is destroyed, while another stream allocates the memory. No other thread records
/// the event of the closed ticket, since the device would refuse a destroyed stream.
#[test]
fn free_against_an_allocation_of_its_memory() {
    model("free against an allocation of its memory", || {
        let device = device();
        let pool = waiting_pool(&device);
        let (work_a, a) = external(&device, &pool);
        let (work_b, b) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        run(&work_a, 10);
        let freeing = thread::spawn(move || {
            drop(block);
            drop(work_a);
            // The pool's handle may be dropped after the stream is destroyed.
            drop(a);
        });
        match pool.try_allocate(&b, 2 * MIB) {
            Ok(block) => {
                assert_eq!(block.source(), Source::DeviceWait);
                run(&work_b, 1);
                device.advance(Duration::from_micros(9));
                assert!(work_b.backlog() > 0, "b came before a's last use");
                drop(block);
            }
            Err(AllocError::Exhausted(_)) => {}
            Err(error) => panic!("{error}"),
        }
        freeing.join().unwrap();
        b.seal().unwrap();
        device.advance(Duration::from_micros(20));
        pool.maintain().reap().unwrap();
        assert_eq!(pool.inspect().statistics().pending.current, 0);
        pool.inspect().check_conserved().unwrap();
    });
}

/// A waiting request is dropped, and its stream destroyed, while another thread serves the queue. No wait is inserted
/// into that stream.
#[test]
fn cancelled_request_against_a_serving_thread() {
    model("cancelled request against a serving thread", || {
        let device = device();
        let pool = waiting_pool(&device);
        let (work_a, a) = stream(&device, &pool);
        let (work_b, b) = external(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        run(&work_a, 10);
        let mut waiting = Box::pin(pool.allocate(&b, 2 * MIB));
        assert!(waiting.as_mut().poll_once().is_pending());
        let serving = {
            let pool = pool.clone();
            thread::spawn(move || {
                drop(block);
                pool.maintain().reap().unwrap();
            })
        };
        let polled = waiting.as_mut().poll_once();
        assert!(polled.is_pending(), "{polled:?}");
        drop(waiting);
        drop(work_b);
        serving.join().unwrap();
        assert_eq!(device.counters().device_waits, 0);
        device.advance(Duration::from_micros(10));
        a.seal().unwrap();
        drop(b);
        pool.inspect().check_conserved().unwrap();
    });
}
