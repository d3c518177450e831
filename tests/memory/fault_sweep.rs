//! Makes every device call of a scripted run of the public surface fail once: the first, the second, up to the last,
//! each with every fault. Whatever fails, no call panics, hangs or loses a byte: errors are typed, and unless the error
//! is sticky the pool works on.

use crate::common::*;
use futures::future::{Either, select};
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use weirpool::device::Argument;
use weirpool::device::DeviceErrorKind::{Other, OutOfMemory, Sticky, Unsupported};
use weirpool::device::sim::{Call, Clock, Fault, Operation, SimDevice, SimStream};
use weirpool::*;
use weirpool_driver_pool::{DriverPool, DriverPoolUse};
use weirpool_observe::{Record as _, Recorded as _};

type Outcome = Result<(), Box<dyn Error>>;

/// The most calls of one kind that are made to fail one by one.
const MOST: u64 = 24;

#[derive(Clone, Copy, Debug)]
enum Memory {
    Virtual,
    Plain,
    Managed,
    PassedThrough,
}

#[derive(Clone, Copy, Debug)]
struct Scenario {
    memory: Memory,
    order: WhenShort,
    fills: bool,
}

impl Scenario {
    /// The device of the pool, and another one of the same host.
    fn devices(self) -> [SimDevice; 2] {
        SimDevice::builder()
            .memory(64 * MIB)
            .clock(Clock::Virtual)
            .virtual_memory(matches!(self.memory, Memory::Virtual))
            .build_host()
    }

    fn pool(self, device: &SimDevice) -> Result<Pool, BuildError> {
        let builder = match self.memory {
            Memory::Virtual | Memory::Plain => builder(device, 16 * MIB),
            Memory::Managed => builder(device, 16 * MIB).upstream(Upstream::Managed),
            Memory::PassedThrough => Pool::builder(device.clone())
                .capacity(16 * MIB)
                .segment_source(
                    DriverPool::default_of(device)?.segments(DriverPoolUse::PassedThrough),
                ),
        };
        let builder = builder
            .tuning(|tuning| tuning.when_short = self.order)
            .history(64);
        if self.fills {
            builder
                .fill(FillAt::Allocation, Fill::Zero)
                .fill(FillAt::Free, Fill::Poison)
                .build()
        } else {
            builder.build()
        }
    }
}

/// Uses the pool in every way there is. Each step may fail with an error; the next one is tried nevertheless.
async fn use_everything([device, guest]: [&SimDevice; 2], pool: &Pool) -> Vec<Box<dyn Error>> {
    let mut errors = Vec::new();
    let work = device.create_stream();
    let Ok(stream) = pool.register(&work) else {
        return errors;
    };
    let other = match pool.create_stream() {
        Ok(other) => other,
        Err(error) => {
            errors.push(error.into());
            stream.clone()
        }
    };
    let steps: Vec<(&str, Outcome)> = vec![
        ("allocate", allocate(pool, &work, &stream).await),
        ("hand over", hand_over(pool, &work, &stream, &other).await),
        (
            "contend",
            contend(device, pool, &work, &stream, &other).await,
        ),
        ("many", many(pool, &stream).await),
        ("reserve", reserve(pool, &stream, &other).await),
        ("grow", grow(pool, &stream).await),
        ("copy", copy(pool, &stream).await),
        ("share", share(pool, &stream, &other).await),
        ("submit", submit(device, pool, &stream, &other).await),
        ("capture", capture(pool, &work, &stream, &other).await),
        ("peers", peers(guest, pool, &stream).await),
        ("manage", manage(pool, &stream).await),
    ];
    errors.extend(steps.into_iter().filter_map(|(_, outcome)| outcome.err()));
    errors
}

const LIMIT: std::time::Duration = us(100_000);

async fn allocate(pool: &Pool, work: &SimStream, stream: &Stream) -> Outcome {
    for bytes in [512, MIB, 3 * MIB, 6 * MIB] {
        let block = pool.allocate(stream, bytes).timeout(LIMIT).await?;
        use_block(work, &block, us(20));
        drop(block);
    }
    drop(pool.try_allocate(stream, 4096)?);
    pool.try_allocate(stream, 4096)?.deallocate().await?;
    stream.synchronize().await?;
    Ok(())
}

async fn hand_over(pool: &Pool, work: &SimStream, stream: &Stream, other: &Stream) -> Outcome {
    let block = pool.allocate(stream, 2 * MIB).timeout(LIMIT).await?;
    use_block(work, &block, us(50));
    other.wait(&stream.event()?)?;
    other.record_use(Unordered::UntilFreed(&block))?;
    drop(block);
    let next = pool.allocate(other, 2 * MIB).timeout(LIMIT).await?;
    next.deallocate().await?;
    stream.seal()?;
    Ok(())
}

/// Work of two streams on one block, and the host between them.
async fn submit(device: &SimDevice, pool: &Pool, stream: &Stream, other: &Stream) -> Outcome {
    let mut block = pool.allocate(stream, MIB).timeout(LIMIT).await?;
    let kernel = |work: &SimStream, block: Argument<'_>| {
        work.submit(Operation::new(us(20)).writes(block.address(), block.size()));
    };
    let first = stream.task("first").submit(&mut block, kernel)?;
    drop(other.submit(&mut block, kernel)?);
    drop(block);
    let host = stream.spawn(device.sleep(us(10)))?;
    other.after(&host)?;
    let last = other.run(|| 7)?;
    first.await?;
    host.await?;
    assert_eq!(last.await?, 7);
    Ok(other.synchronize().await?)
}

/// Two graphs that share memory, on two streams, with a reservation, fills and uploads in the captures.
async fn capture(pool: &Pool, work: &SimStream, stream: &Stream, other: &Stream) -> Outcome {
    let memory = pool.graph_memory();
    let kept = pool.allocate(other, MIB).timeout(LIMIT).await?;
    let earlier = pool.allocate(stream, MIB).timeout(LIMIT).await?;
    let given = match pool.reserve(2 * MIB).timeout(LIMIT).await {
        Err(AllocError::NotReservable) => None, // each block is the driver's
        given => Some(given?),
    };
    if let Some(given) = given {
        memory.give(given)?;
    }
    other.synchronize().await?; // a captured stream cannot be made to wait for a fill
    let mut graphs = Vec::new();
    for bytes in [MIB, 3 * MIB] {
        let capture = memory.capture(stream)?;
        if !pool.inspect().describe().is_passed_through {
            let mut block = pool.allocate(stream, bytes).zeroed().await?;
            drop(block.upload(stream, 0, &[7; 64])?);
            use_block(work, &block, us(20));
        }
        stream.record_use(Unordered::UntilFreed(&kept))?;
        graphs.push(capture.end()?);
    }
    drop((earlier, kept));
    let aborted = pool.capture(other)?;
    drop(aborted);
    for graph in &graphs {
        graph.launch(stream)?;
    }
    other.wait(&stream.event()?)?;
    graphs[0].launch(other)?;
    drop((graphs, memory));
    Ok(other.synchronize().await?)
}

/// Two requests for more than half of the pool: the second one waits for the first.
async fn contend(
    device: &SimDevice,
    pool: &Pool,
    work: &SimStream,
    stream: &Stream,
    other: &Stream,
) -> Outcome {
    let first = async {
        let block = pool.allocate(stream, 12 * MIB).timeout(LIMIT).await?;
        use_block(work, &block, us(200));
        device.sleep(us(50)).await;
        drop(block);
        Ok::<_, AllocError>(())
    };
    let second = async {
        device.sleep(us(10)).await;
        pool.allocate(other, 12 * MIB)
            .timeout(LIMIT)
            .await
            .map(drop)
    };
    let (first, second) = futures::future::join(first, second).await;
    first?;
    second?;
    Ok(())
}

async fn many(pool: &Pool, stream: &Stream) -> Outcome {
    let blocks = pool
        .allocate_many(stream, [MIB, 2 * MIB, 4096])
        .timeout(LIMIT)
        .await?;
    drop(blocks);
    Ok(())
}

async fn reserve(pool: &Pool, stream: &Stream, other: &Stream) -> Outcome {
    let mut reservation = match pool.reserve(6 * MIB).timeout(LIMIT).await {
        Err(AllocError::NotReservable) => return Ok(()), // each block is the driver's
        reservation => reservation?,
    };
    let block = reservation.allocate(stream, 2 * MIB)?;
    reservation
        .scope(async { pool.allocate(other, MIB).await.map(drop) })
        .await?;
    drop(block);
    let half = reservation.split(2 * MIB);
    drop(half);
    reservation.grow(2 * MIB).await?;
    Ok(())
}

async fn grow(pool: &Pool, stream: &Stream) -> Outcome {
    let mut block = match pool.allocate(stream, MIB).room(4 * MIB).await {
        Err(AllocError::NoRoom { .. }) => return Ok(()), // memory that cannot be mapped has none
        block => block?,
    };
    block.grow(MIB).await?;
    block.grow(MIB).try_now()?;
    Ok(())
}

async fn copy(pool: &Pool, stream: &Stream) -> Outcome {
    let numbers: Vec<u32> = (0..4096).collect();
    let mut buffer = pool.buffer::<u32>(stream, numbers.len()).await?;
    buffer.write(stream, &numbers).await?;
    let answer = buffer.read(stream).await?;
    assert_eq!(answer, numbers, "a copy that succeeded has the bytes");
    Ok(())
}

async fn share(pool: &Pool, stream: &Stream, other: &Stream) -> Outcome {
    let block = pool.allocate(stream, MIB).timeout(LIMIT).await?;
    let block = Arc::new(block);
    let twin = block.clone();
    drop(block);
    other.wait(&stream.event()?)?;
    drop(twin);
    Ok(())
}

/// Memory that another device uses, and that grows meanwhile.
async fn peers(guest: &SimDevice, pool: &Pool, stream: &Stream) -> Outcome {
    let mut block = pool.allocate(stream, MIB).timeout(LIMIT).await?;
    let access = pool.peers().grant(guest)?;
    let far = pool.register(&guest.create_stream())?;
    let kernel = |work: &SimStream, block: Argument<'_>| {
        work.submit(Operation::new(us(20)).writes(block.address(), block.size()));
    };
    drop(far.task("far").submit(&mut block, kernel)?);
    let mut twin = pool.allocate(&far, 6 * MIB).timeout(LIMIT).await?;
    let copied = block.copy_to(0..MIB, &mut twin, MIB, &far)?;
    stream.wait(&far.event()?)?;
    drop((block, twin));
    copied.await?;
    far.synchronize().await?;
    drop(far);
    pool.maintain().reap()?;
    Ok(access.end()?)
}

async fn manage(pool: &Pool, stream: &Stream) -> Outcome {
    stream.synchronize().await?;
    pool.maintain().coalesce()?;
    let _ = pool.trim_to(4 * MIB)?;
    drop(pool.allocate(stream, 5 * MIB).timeout(LIMIT).await?);
    let _ = pool.resize(24 * MIB)?;
    stream.synchronize().await?;
    let _ = pool.trim_to(0)?;
    let _ = (
        pool.inspect().statistics(),
        pool.inspect().snapshot(),
        pool.leaks(),
        pool.inspect().describe(),
    );
    Ok(())
}

/// Runs the script on a device with that fault, and checks that nothing is lost. Returns how often each call was made.
fn run(scenario: Scenario, fault: Option<(Call, u64, Fault)>) -> Vec<u64> {
    let [device, guest] = scenario.devices();
    if let Some((call, nth, fault)) = fault {
        device.faults().script(call, nth, fault);
    }
    let pool = match scenario.pool(&device) {
        Ok(pool) => pool,
        Err(error) => {
            assert!(fault.is_some(), "the pool is built: {error}");
            return Vec::new();
        }
    };
    let errors = device.block_on(async {
        let script = std::pin::pin!(use_everything([&device, &guest], &pool));
        let limit = std::pin::pin!(device.sleep(us(2_000_000)));
        match select(script, limit).await {
            Either::Left((errors, _)) => errors,
            // An event that never completes is waited for in vain.
            Either::Right(_) => vec!["the script did not end".into()],
        }
    });
    let made = device.counters();
    if fault.is_none() {
        assert!(errors.is_empty(), "nothing fails by itself: {errors:?}");
    }
    pool.inspect()
        .check()
        .unwrap_or_else(|broken| panic!("an invariant is broken: {broken}"));
    let is_sticky = matches!(
        fault,
        Some((_, _, Fault::Fails(Sticky) | Fault::Reports(Sticky)))
    );
    let never_completes = matches!(fault, Some((_, _, Fault::Never | Fault::Reports(_))));
    if !is_sticky && !never_completes {
        works_on(&device, &pool);
    }
    drop(pool);
    device.assert_ordered();
    if !is_sticky && !never_completes && fault.is_none() {
        assert_eq!(
            device.counters().physical_in_use,
            0,
            "all memory went back to the device"
        );
    }
    Call::ALL.iter().map(|call| made.calls(*call)).collect()
}

/// The pool serves as if nothing had happened, and gives everything back.
fn works_on(device: &SimDevice, pool: &Pool) {
    device.block_on(async {
        let work = device.create_stream();
        let stream = pool.register(&work).expect("a stream is registered");
        let block = pool.allocate(&stream, 16 * MIB).timeout(LIMIT).await;
        let block = block.expect("all of the pool is granted again");
        use_block(&work, &block, us(10));
        drop(block);
        // The driver's pool releases nothing whose work runs.
        let _ = stream.synchronize().await;
        drop(stream);
        pool.drain()
            .timeout(LIMIT)
            .await
            .expect("everything comes back");
    });
    pool.inspect().check_conserved().expect("no byte is lost");
    // A chunk that could not be destroyed is destroyed with the next release.
    let _ = pool.trim_to(0).expect("the device releases memory again");
    let reserved = pool.inspect().statistics().reserved.current;
    assert_eq!(
        reserved,
        device.counters().physical_in_use,
        "the books agree with the device"
    );
}

fn sweep(scenario: Scenario) {
    let calls = run(scenario, None);
    let mut failed = Vec::new();
    let mut runs = 0;
    // The script makes its own stream with a call that panics where it fails.
    let calls = Call::ALL
        .into_iter()
        .zip(calls)
        .filter(|(call, _)| *call != Call::CreateStream);
    for (call, made) in calls {
        let mut faults = vec![
            Fault::Fails(OutOfMemory),
            Fault::Fails(Other),
            Fault::Fails(Unsupported),
            Fault::Fails(Sticky),
        ];
        if call == Call::Record {
            faults.extend([Fault::Late(us(300)), Fault::Never]);
            faults.extend([Fault::Reports(Other), Fault::Reports(Sticky)]);
        }
        for nth in 1..=made.min(MOST) {
            for fault in &faults {
                runs += 1;
                let case = Some((call, nth, *fault));
                if catch_unwind(AssertUnwindSafe(|| run(scenario, case))).is_err() {
                    failed.push(format!("{call:?} {nth} of {made} {fault:?}"));
                }
            }
        }
    }
    assert!(runs > 100, "the script makes calls: {runs}");
    assert!(
        failed.is_empty(),
        "{} of {runs} runs of {scenario:?} failed:\n{}",
        failed.len(),
        failed.join("\n")
    );
}

fn scenario(memory: Memory, order: WhenShort, fills: bool) -> Scenario {
    Scenario {
        memory,
        order,
        fills,
    }
}

#[test]
fn virtual_memory_survives_every_failing_call() {
    sweep(scenario(Memory::Virtual, WhenShort::GrowFirst, false));
}

#[test]
fn virtual_memory_that_waits_first_survives_every_failing_call() {
    sweep(scenario(Memory::Virtual, WhenShort::WaitBriefly, false));
}

#[test]
fn plain_memory_survives_every_failing_call() {
    sweep(scenario(Memory::Plain, WhenShort::GrowFirst, false));
}

#[test]
fn managed_memory_survives_every_failing_call() {
    sweep(scenario(Memory::Managed, WhenShort::GrowFirst, false));
}

#[test]
fn filled_memory_survives_every_failing_call() {
    sweep(scenario(Memory::Virtual, WhenShort::GrowFirst, true));
}

#[test]
fn memory_of_the_drivers_pool_survives_every_failing_call() {
    sweep(scenario(Memory::PassedThrough, WhenShort::GrowFirst, false));
}
