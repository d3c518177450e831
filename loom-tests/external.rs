//! Streams of other libraries: their owner destroys them as soon as its own calls have returned.

use super::*;
use loom::thread;
use std::any::Any;
use weirpool::device::{DeviceId, DeviceStream, RawStream};
use weirpool::{AllocError, Source, WaitLimit};

/// A stream that nobody keeps.
struct External(DeviceId, RawStream);

// SAFETY: the simulated device refuses the names of streams that are gone.
unsafe impl DeviceStream for External {
    fn device_id(&self) -> DeviceId {
        self.0
    }

    fn raw(&self) -> RawStream {
        self.1
    }

    fn keep_alive(&self) -> std::sync::Arc<dyn Any + Send + Sync> {
        std::sync::Arc::new(())
    }

    fn external_id(&self) -> Option<u64> {
        Some(1)
    }
}

/// A pool of one handle, in which streams are made to wait for each other.
fn waiting_pool(device: &SimDevice) -> Pool {
    Pool::builder(device.clone())
        .capacity(2 * MIB)
        .chunk_bytes(2 * MIB)
        .lane_bytes(4096)
        .wait_limit(WaitLimit::Unlimited)
        .build()
        .unwrap()
}

pub(crate) fn external(device: &SimDevice, pool: &Pool) -> (SimStream, Stream) {
    let work = device.create_stream();
    let lent = External(work.device_id(), work.raw());
    let stream = pool.register(&lent).unwrap();
    (work, stream)
}

/// A free, and the stream is destroyed; another stream wants the memory meanwhile. Between the closing of the ticket
/// and its event nobody else records one: the device would refuse a stream that is gone.
#[test]
fn a_free_against_who_wants_the_memory() {
    model("a free against who wants the memory", || {
        let device = device();
        let pool = waiting_pool(&device);
        let (work_a, a) = external(&device, &pool);
        let (work_b, b) = stream(&device, &pool);
        let block = pool.try_allocate(&a, 2 * MIB).unwrap();
        run(&work_a, 10);
        let freeing = thread::spawn(move || {
            drop(block);
            drop(work_a);
            // The pool's handle may go later than the stream.
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
        pool.reap().unwrap();
        assert_eq!(pool.statistics().pending.current, 0);
        pool.check_conserved().unwrap();
    });
}

/// A request that waits is given up, and its stream destroyed, while another thread serves the queue: that has nothing
/// wait on the stream.
#[test]
fn a_request_given_up_against_who_serves() {
    model("a request given up against who serves", || {
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
                pool.reap().unwrap();
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
        pool.check_conserved().unwrap();
    });
}
