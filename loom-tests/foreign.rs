//! Owners of streams and wakers that ask the pool when they are dropped. If that happened under a lock, the thread would
//! wait for itself, which loom reports.

use super::*;
use loom::thread;
use std::any::Any;
use weirpool::device::{DeviceAddress, DeviceError, DeviceStream, StreamProperties};
use weirpool::extend::{ForeignMemory, Passages};
use weirpool::{Pool, Tag, Unordered};

/// The pool that is asked, until the end of the model: an owner must not keep the pool alive that keeps the owner.
#[derive(Clone)]
struct Asked(Arc<std::sync::Mutex<Option<Pool>>>);

impl Asked {
    fn new(pool: &Pool) -> Self {
        Self(Arc::new(std::sync::Mutex::new(Some(pool.clone()))))
    }

    fn end(self) {
        let pool = self.0.lock().unwrap().take();
        drop(pool);
    }
}

/// Asks the pool when it is dropped.
struct Asks(Asked);

impl Drop for Asks {
    fn drop(&mut self) {
        let pool = self.0.0.lock().unwrap().clone();
        if let Some(pool) = pool {
            let _ = (
                pool.inspect().statistics(),
                pool.inspect().waiting_requests(1),
            );
        }
    }
}

impl Wake for Asks {
    fn wake(self: Arc<Self>) {}
}

/// A stream whose owner asks.
struct Wrapped(SimStream, Arc<(SimStream, Asks)>);

// SAFETY: the owner keeps the stream of the simulated device.
#[allow(unsafe_code, reason = "implements the device's contract")]
unsafe impl DeviceStream for Wrapped {
    fn properties(&self) -> Result<StreamProperties, DeviceError> {
        Ok(StreamProperties::new(self.0.device_id(), self.0.raw()))
    }

    fn keep_alive(&self) -> Arc<dyn Any + Send + Sync> {
        self.1.clone()
    }
}

fn wrapped(device: &SimDevice, pool: &Pool, asked: &Asked) -> Stream {
    let work = device.create_stream();
    let owner = Arc::new((work.clone(), Asks(asked.clone())));
    pool.register(&Wrapped(work, owner)).unwrap()
}

/// A request comes and leaves with its stream, while another thread searches for the one that waits before it.
#[test]
fn owner_of_a_stream_against_a_search() {
    model("owner of a stream against a search", || {
        let (device, pool, [(_, a)]) = start();
        let held = pool.try_allocate(&a, 2 * MIB).unwrap();
        let mut head = pool.allocate(&a, 2 * MIB);
        assert!(poll(&mut head).is_pending());
        let asked = Asked::new(&pool);
        let of_newcomer = asked.clone();
        let leaving = {
            let (pool, stream) = (pool.clone(), wrapped(&device, &pool, &asked));
            thread::spawn(move || {
                let waker = Waker::from(Arc::new(Asks(of_newcomer)));
                let mut newcomer = pool.allocate(&stream, MIB);
                let _ = poll_with(&mut newcomer, &waker);
                drop(newcomer);
                drop(stream);
            })
        };
        pool.tag(Tag::new("other")).set_limit(Some(MIB));
        leaving.join().unwrap();
        drop((head, held));
        asked.end();
        pool.inspect().check_conserved().unwrap();
    });
}

/// A reservation gives back what it keeps for a stream that ends meanwhile.
#[test]
fn owner_of_a_stream_against_the_end_of_a_reservation() {
    model("owner of a stream against the end of a reservation", || {
        let device = device();
        let pool = builder(&device).build().unwrap();
        let asked = Asked::new(&pool);
        let stream = wrapped(&device, &pool, &asked);
        let reservation = pool.reserve(MIB).try_now().unwrap();
        // The first block of a size is not kept.
        for _ in 0..2 {
            drop(reservation.allocate(&stream, 4096).unwrap());
        }
        let ending = thread::spawn(move || drop(stream));
        drop(reservation);
        ending.join().unwrap();
        let _ = pool.maintain().reap();
        asked.end();
        pool.inspect().check_conserved().unwrap();
    });
}

/// Figures are read while a stream ends: the list of streams that the reader holds may be the last owner.
#[test]
fn owner_of_a_stream_against_figures() {
    model("owner of a stream against figures", || {
        let device = device();
        let pool = builder(&device).build().unwrap();
        let asked = Asked::new(&pool);
        let stream = wrapped(&device, &pool, &asked);
        let ending = thread::spawn(move || drop(stream));
        let _ = pool.inspect().statistics();
        ending.join().unwrap();
        let _ = pool.maintain().reap();
        asked.end();
        pool.inspect().check_conserved().unwrap();
    });
}

/// Memory whose owner asks the pool when it has it back, and keeps the passages.
struct Adopted(Asked, Arc<std::sync::Mutex<Vec<Passages>>>);

impl std::fmt::Debug for Adopted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Adopted")
    }
}

// SAFETY: nothing uses the memory.
#[allow(unsafe_code, reason = "implements the seam")]
unsafe impl ForeignMemory for Adopted {
    fn range(&self) -> (DeviceAddress, u64) {
        (DeviceAddress::from_bits(1 << 40), MIB)
    }

    fn release(self: Box<Self>, after: Passages) {
        drop(Asks(self.0.clone()));
        self.1.lock().unwrap().push(after);
    }
}

/// A block of foreign memory that two streams use is dropped, while another thread seals one of them and searches for
/// the request that waits.
#[test]
fn release_of_foreign_memory_against_a_search() {
    model("release of foreign memory against a search", || {
        let (device, pool, [(work, a), (_, b)]) = start();
        let asked = Asked::new(&pool);
        let released = Arc::default();
        let memory = Box::new(Adopted(asked.clone(), Arc::clone(&released)));
        // SAFETY: nothing uses the memory.
        #[allow(unsafe_code, reason = "uses the seam")]
        let block = unsafe { a.adopt(memory) };
        b.record_use(Unordered::UntilFreed(&block)).unwrap();
        work.submit(Operation::new(Duration::from_micros(10)));
        let held = pool.try_allocate(&b, 2 * MIB).unwrap();
        let mut waiting = pool.allocate(&b, 2 * MIB);
        assert!(poll(&mut waiting).is_pending());
        let dropping = thread::spawn(move || drop(block));
        a.seal().unwrap();
        drop(held);
        dropping.join().unwrap();
        assert!(poll(&mut waiting).is_ready());
        let mut after = released.lock().unwrap().pop().expect("released once");
        assert!(released.lock().unwrap().is_empty());
        assert_eq!(pool.inspect().statistics().foreign, MIB);
        assert!(poll(&mut after).is_pending(), "the work runs");
        device.advance_to_end();
        assert!(matches!(poll(&mut after), Poll::Ready(Ok(()))));
        drop((after, waiting));
        assert_eq!(pool.inspect().statistics().foreign, 0);
        asked.end();
        pool.inspect().check_conserved().unwrap();
    });
}
