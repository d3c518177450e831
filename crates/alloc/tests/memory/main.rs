//! One function of a library, over each kind of memory, on the simulated device, whose checker reports each use out of
//! order.
//!
//! | class of fault | test |
//! |---|---|
//! | memory is of another pool than the application chose | each test compares the owner of the result |
//! | a block is freed in the order of another stream | the checker, in each test; `next_call_reuses_the_scratch_memory_at_once` |
//! | a block's own stream is registered again, and loses its cached memory | `pool_of_an_input_block_serves_on_the_streams_of_the_block_and_on_others` |
//! | a library waits where it must not, or fails where it could wait | `calls_wait_for_memory_in_turn`, `reservation_serves_what_it_has_and_nothing_else` |
//! | terms of the application are lost | `terms_of_the_application_hold_for_requests_of_the_library` |
//! | memory leaks from futures that are dropped | `dropped_call_returns_its_memory` |

use futures::future::{join, join_all};
use static_assertions::assert_impl_all;
use std::error::Error;
use std::time::Duration;
use weirpool::device::sim::{Operation, SimDevice, SimStream};
use weirpool::{AllocError, Block, Pool, Reservation, Tag, Terms};
use weirpool_alloc::{MemoryBlock, OnStream, StreamMemory};
use weirpool_compat::{Scope, current, pool_of};

type Outcome = Result<(), Box<dyn Error>>;

const MIB: u64 = 1 << 20;

assert_impl_all!(OnStream<Pool, SimStream>: Send, Sync, std::fmt::Debug);
assert_impl_all!(OnStream<&'static Reservation, SimStream>: Send, Sync);

/// The library: writes `bytes` bytes by way of as much scratch memory. It knows no pool.
async fn double<M: StreamMemory<Stream = SimStream>>(
    memory: &M,
    bytes: u64,
) -> Result<M::Block, M::Error> {
    let scratch = memory.allocate(bytes).await?;
    let output = memory.try_allocate(bytes)?;
    let kernel = |name| Operation::new(Duration::from_micros(20)).named(name);
    let (from, to) = (scratch.address(), output.address());
    memory.stream().submit(kernel("first").writes(from, bytes));
    let second = kernel("second").reads(from, bytes).writes(to, bytes);
    memory.stream().submit(second);
    Ok(output)
}

fn device_and_pool(capacity: u64) -> Result<(SimDevice, Pool), Box<dyn Error>> {
    let device = SimDevice::builder().memory(1 << 30).build();
    let pool = Pool::builder(device.clone()).capacity(capacity).build()?;
    Ok((device, pool))
}

fn used(pool: &Pool) -> u64 {
    pool.inspect().statistics().used.current
}

#[test]
fn pool_serves_a_library() -> Outcome {
    let (device, pool) = device_and_pool(64 * MIB)?;
    let memory = OnStream::of_pool(&pool, device.create_stream())?;
    let output: Block = device.block_on(double(&memory, MIB))?;
    assert_eq!(output.stream().pool(), pool);
    assert_eq!(output.stream().id(), memory.registered().id());
    assert_eq!(used(&pool), MIB, "the scratch memory is freed");
    device.advance_to_end();
    device.assert_ordered();
    Ok(())
}

#[test]
fn next_call_reuses_the_scratch_memory_at_once() -> Outcome {
    let (device, pool) = device_and_pool(4 * MIB)?;
    let memory = OnStream::of_pool(&pool, device.create_stream())?;
    let before = device.now();
    for _ in 0..100 {
        drop(device.block_on(double(&memory, 2 * MIB))?);
    }
    assert_eq!(device.now(), before, "no call waited for the device");
    device.advance_to_end();
    assert_eq!(device.now() - before, Duration::from_micros(100 * 40));
    device.assert_ordered();
    Ok(())
}

#[test]
fn reservation_serves_what_it_has_and_nothing_else() -> Outcome {
    let (device, pool) = device_and_pool(64 * MIB)?;
    let reservation = pool.reserve(4 * MIB).try_now()?;
    let memory = OnStream::of_reservation(&reservation, device.create_stream())?;
    let output = device.block_on(double(&memory, 2 * MIB))?;
    assert_eq!(reservation.left(), 2 * MIB, "the output is part of it");
    let refused = device.block_on(double(&memory, 2 * MIB)).unwrap_err();
    assert!(
        matches!(refused, AllocError::NotReserved { .. }),
        "{refused}"
    );
    drop(output);
    assert_eq!(reservation.left(), 4 * MIB);
    device.advance_to_end();
    device.assert_ordered();
    Ok(())
}

#[test]
fn scope_of_a_reservation_serves_a_library_that_has_the_pool() -> Outcome {
    let (device, pool) = device_and_pool(64 * MIB)?;
    let reservation = pool.reserve(4 * MIB).try_now()?;
    let memory = OnStream::of_pool(&pool, device.create_stream())?;
    let output = device.block_on(reservation.scope(double(&memory, 2 * MIB)))?;
    assert_eq!(reservation.left(), 2 * MIB);
    // More than is left: of the pool.
    let further = device.block_on(reservation.scope(double(&memory, 4 * MIB)))?;
    assert_eq!(reservation.left(), 2 * MIB);
    assert_eq!(used(&pool), 4 * MIB + output.size() + 2 * MIB);
    drop(further);
    device.advance_to_end();
    device.assert_ordered();
    Ok(())
}

#[test]
fn current_pool_serves_a_library() -> Outcome {
    let (device, pool) = device_and_pool(64 * MIB)?;
    let work = device.create_stream();
    let call = async || {
        let memory = OnStream::of_current(&current(&device)?, work.clone())?;
        Ok::<_, Box<dyn Error>>(double(&memory, MIB).await?)
    };
    let chosen = Scope::pool(&pool);
    let [inside, outside] = device.block_on(async {
        let inside = chosen.run(call()).await?;
        Ok::<_, Box<dyn Error>>([inside, call().await?])
    })?;
    assert_eq!(inside.stream().pool(), pool);
    assert_ne!(outside.stream().pool(), pool);
    assert_eq!(pool_of(inside.address()).expect("a pool").0, pool);
    // The stream is registered once.
    let again = device.block_on(chosen.run(call()))?;
    assert_eq!(again.stream().id(), inside.stream().id());
    device.advance_to_end();
    device.assert_ordered();
    Ok(())
}

#[test]
fn pool_of_an_input_block_serves_on_the_streams_of_the_block_and_on_others() -> Outcome {
    let (device, pool) = device_and_pool(64 * MIB)?;
    let (work, other) = (device.create_stream(), device.create_stream());
    let stream = pool.register(&work)?;
    let input = pool.try_allocate(&stream, MIB)?;
    let own = OnStream::of_block(&input, work)?;
    assert_eq!(
        own.registered().id(),
        stream.id(),
        "it is not registered again"
    );
    let output = device.block_on(double(&own, MIB))?;
    assert_eq!(output.stream().id(), stream.id());
    let beside = OnStream::of_block(&input, other)?;
    assert_ne!(beside.registered().id(), stream.id());
    assert_eq!(device.block_on(double(&beside, MIB))?.stream().pool(), pool);
    let elsewhere = SimDevice::new().create_stream();
    assert!(OnStream::of_block(&input, elsewhere).is_err());
    device.advance_to_end();
    device.assert_ordered();
    Ok(())
}

#[test]
fn calls_wait_for_memory_in_turn() -> Outcome {
    let (device, pool) = device_and_pool(8 * MIB)?;
    let of_stream = |_| OnStream::of_pool(&pool, device.create_stream());
    let memories = (0..6).map(of_stream).collect::<Result<Vec<_>, _>>()?;
    // One allocation each, of the whole pool: five of six wait.
    let call = async |memory: &OnStream<Pool, SimStream>| {
        let block = memory.allocate(8 * MIB).await?;
        let kernel = Operation::new(Duration::from_micros(50));
        memory
            .stream()
            .submit(kernel.writes(block.address(), block.size()));
        Ok::<_, AllocError>(())
    };
    let calls = join_all(memories.iter().map(call));
    let outcomes = device.block_on(calls);
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    device.advance_to_end();
    device.assert_ordered();
    assert_eq!(used(&pool), 0);
    Ok(())
}

#[test]
fn terms_of_the_application_hold_for_requests_of_the_library() -> Outcome {
    let (device, pool) = device_and_pool(8 * MIB)?;
    let tag = Tag::new("library");
    let terms = Terms {
        tag: Some(tag),
        timeout: Some(Duration::from_millis(3)),
        ..Terms::default()
    };
    let memory = OnStream::of_pool(&pool, device.create_stream())?.terms(terms);
    let output = device.block_on(double(&memory, 4 * MIB))?;
    assert_eq!(output.tag(), Some(tag));
    assert_eq!(pool.tag(tag).statistics().used.current, 4 * MIB);
    let other = OnStream::of_pool(&pool, device.create_stream())?.terms(terms);
    let (refused, ()) = device.block_on(join(other.allocate(8 * MIB), async {}));
    let refused = refused.unwrap_err();
    assert!(matches!(refused, AllocError::TimedOut { .. }), "{refused}");
    assert!(device.now() >= Duration::from_millis(3));
    Ok(())
}

#[test]
fn dropped_call_returns_its_memory() -> Outcome {
    let (device, pool) = device_and_pool(8 * MIB)?;
    let memory = OnStream::of_pool(&pool, device.create_stream())?;
    let held = memory.try_allocate(6 * MIB)?;
    let mut waits = Box::pin(double(&memory, 4 * MIB));
    let is_waiting = futures::FutureExt::now_or_never(waits.as_mut()).is_none();
    assert!(is_waiting);
    assert_eq!(pool.inspect().waiting_requests(2).len(), 1);
    drop(waits);
    drop(held);
    assert_eq!(pool.inspect().waiting_requests(2).len(), 0);
    drop(memory.try_allocate(8 * MIB)?);
    assert_eq!(pool.inspect().check_conserved(), Ok(()));
    Ok(())
}

#[test]
fn zero_bytes_have_an_address() -> Outcome {
    let (device, pool) = device_and_pool(8 * MIB)?;
    let memory = OnStream::of_pool(&pool, device.create_stream())?;
    let blocks = [memory.try_allocate(0)?, memory.try_allocate(0)?];
    assert_ne!(
        MemoryBlock::address(&blocks[0]),
        MemoryBlock::address(&blocks[1])
    );
    Ok(())
}
