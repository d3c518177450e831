//! Four walks through the pool, each in a function of its own: `.ci/measures` counts the files and functions in which
//! they execute code, by callgrind and without optimizations.

use futures::FutureExt;
use weirpool::device::sim::{Checker, Clock, SimDevice};
use weirpool::{AllocError, Block, Pool, Stream};

const MIB: u64 = 1 << 20;

/// Allocates a block of a size that the stream's lane has.
#[inline(never)]
fn hot_allocation(pool: &Pool, stream: &Stream) -> Block {
    pool.try_allocate(stream, MIB).expect("memory")
}

/// Frees a block into its stream's lane.
#[inline(never)]
fn hot_free(block: Block) {
    drop(block);
}

/// Polls a request until it sleeps.
#[inline(never)]
fn waiting_allocation(request: &mut (impl Future<Output = Result<Block, AllocError>> + Unpin)) {
    assert!(request.now_or_never().is_none(), "it waits");
}

/// Frees memory that a request of another stream waits for, and polls that request.
#[inline(never)]
fn serving_free(block: Block, request: impl Future<Output = Result<Block, AllocError>>) -> Block {
    drop(block);
    let granted = request.now_or_never().expect("granted at once");
    granted.expect("memory")
}

fn main() -> anyhow::Result<()> {
    // Its time stands still, so that each run takes the same way.
    let device = SimDevice::builder()
        .memory(1 << 30)
        .clock(Clock::Manual)
        .checker(Checker::Off)
        .build();
    let pool = Pool::builder(device).capacity(64 * MIB).build()?;
    let [stream, other] = [pool.create_stream()?, pool.create_stream()?];
    round(&pool, &stream, &other)?; // creates what the later one finds
    round(&pool, &stream, &other)
}

/// Takes each walk once. Only the last round counts.
#[inline(never)]
fn round(pool: &Pool, stream: &Stream, other: &Stream) -> anyhow::Result<()> {
    drop(pool.try_allocate(stream, MIB)?); // the lane keeps it
    hot_free(hot_allocation(pool, stream));
    let held = pool.try_allocate(stream, 48 * MIB)?;
    let mut request = pool.allocate(other, 32 * MIB).into_future();
    waiting_allocation(&mut request);
    drop(serving_free(held, request));
    Ok(())
}
