//! Access of another device, against what other threads do.

use super::*;
use loom::thread;
use weirpool::{AccessError, StreamError};

/// A pool of the first device of a host, and the second one.
fn host() -> (Pool, SimDevice, SimDevice) {
    let settings = SimDevice::builder()
        .memory(64 * MIB)
        .backing(Backing::AddressesOnly)
        .clock(Clock::Manual)
        .checker(Checker::Off);
    let [first, second] = settings.build_host();
    let pool = Pool::builder(first.clone())
        .capacity(8 * MIB)
        .chunk_bytes(2 * MIB)
        .build()
        .unwrap();
    (pool, first, second)
}

/// A stream of the other device is registered while its access is taken back: the one that comes first decides.
#[test]
fn registration_against_an_access_that_is_taken_back() {
    model("registration against an access that is taken back", || {
        let (pool, _, second) = host();
        pool.peers().enable(&second).unwrap();
        let registering = {
            let (pool, work) = (pool.clone(), second.create_stream());
            thread::spawn(move || pool.register(&work))
        };
        let taken_back = pool.peers().disable(&second);
        let registered = registering.join().unwrap();
        match registered {
            Ok(_stream) => {
                assert_eq!(taken_back, Err(AccessError::InUse { streams: 1 }));
                assert!(pool.peers().is_enabled(&second));
            }
            Err(error) => {
                assert_eq!((error, taken_back), (StreamError::ForeignDevice, Ok(true)));
            }
        }
    });
}

/// Memory is mapped while access is given: it is accessible, whichever comes first.
#[test]
fn growth_against_an_access_that_is_given() {
    model("growth against an access that is given", || {
        let (pool, first, second) = host();
        let (_, stream) = stream(&first, &pool);
        let growing = {
            let pool = pool.clone();
            thread::spawn(move || pool.try_allocate(&stream, 2 * MIB).unwrap())
        };
        pool.peers().enable(&second).unwrap();
        let block = growing.join().unwrap();
        let mapped = first.mapped_for(&second);
        assert!(!mapped.is_empty() && mapped.iter().all(|(_, is_allowed)| *is_allowed));
        drop(block);
        pool.inspect().check_conserved().unwrap();
    });
}

/// Memory is released while access is given. The access is not refused because of a chunk that is gone.
#[test]
fn release_against_an_access_that_is_given() {
    model("release against an access that is given", || {
        let (pool, first, second) = host();
        let (_, stream) = stream(&first, &pool);
        drop(pool.try_allocate(&stream, 2 * MIB).unwrap());
        first.advance_to_end();
        let releasing = {
            let pool = pool.clone();
            thread::spawn(move || drop(pool.trim_to(0).unwrap()))
        };
        pool.peers().enable(&second).unwrap();
        releasing.join().unwrap();
        let mapped = first.mapped_for(&second);
        assert!(mapped.iter().all(|(_, is_allowed)| *is_allowed));
        pool.inspect().check_conserved().unwrap();
    });
}
