//! Memory that is freed ahead of need.

use crate::sleep::Sleep;
use std::ops::Range;
use std::time::Duration;
use weirpool::{Pool, Statistics};

/// The time between two looks at a pool.
const PAUSE: Duration = Duration::from_millis(1);

/// The longest time, after looks that freed nothing.
const LONGEST: Duration = Duration::from_millis(100);

/// Frees memory of a pool ahead of need, so that a request need not wait for a copy: whenever fewer bytes are left than
/// `free.start`, it evicts until `free.end` bytes are, or nothing is evictable. [Evictable](weirpool::Evictable) memory is
/// evicted in the pool's order, whether it is [spillable](crate::Spillable) or not.
///
/// Bytes of the pool's capacity are left that no block, charge or reservation holds, freed ones that are pending among them.
/// Under a broker, bytes that the pool may still lease are left as well: a request that takes them may wait for other
/// processes. It looks every millisecond of the device's clock, less often while nothing can be evicted (up to 100 ms), and
/// evicts between two requests rather than in one. Spawn it
/// beside a service. It ends when the last handle of the pool is dropped, and keeps none itself; dropping it ends it at once.
///
/// ```
/// # use weirpool::{Pool, device::sim::SimDevice};
/// # use weirpool_tiers::keep_headroom;
/// # use std::{pin::pin, task::{Context, Waker}};
/// let device = SimDevice::new();
/// let pool = Pool::builder(device.clone()).capacity(64 << 20).build()?;
/// let stream = pool.create_stream()?;
/// let cached = [(); 4].map(|()| pool.try_allocate(&stream, 16 << 20).map(|block| block.into_evictable()));
/// let mut headroom = pin!(keep_headroom(&pool, 8 << 20..32 << 20)); // to be spawned
/// # let _ = headroom.as_mut().poll(&mut Context::from_waker(Waker::noop()));
/// assert_eq!(pool.inspect().statistics().evictions, 2);
/// # drop(cached);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn keep_headroom(pool: &Pool, free: Range<u64>) -> impl Future<Output = ()> + Send + use<> {
    keep(
        pool,
        free.start,
        move |pool, left| {
            pool.maintain().evict(free.end.saturating_sub(left));
        },
        left_of,
    )
}

/// [`keep_headroom`] in whole chunks, for requests that are larger than the blocks of a cache: whenever whole free chunks have
/// fewer bytes than `free.start`, it evicts until they have `free.end`, by the chunks that evictions free rather than by age alone.
/// They go to the device, and a request maps memory again. If all that is evictable would not do, nothing is evicted.
pub fn keep_chunks_free(pool: &Pool, free: Range<u64>) -> impl Future<Output = ()> + Send + use<> {
    keep(
        pool,
        free.start,
        move |pool, _| {
            // Room for a charge is whole chunks.
            drop(pool.charge(free.end));
        },
        whole_of,
    )
}

/// Looks again and again whether less than `least` is left, and makes room.
fn keep<M: Fn(&Pool, u64) + Send, L: Fn(&Statistics) -> u64 + Send>(
    pool: &Pool,
    least: u64,
    make_room: M,
    left_of: L,
) -> impl Future<Output = ()> + Send + use<M, L> {
    let (device, pool) = (pool.device().clone(), pool.downgrade());
    async move {
        let mut pause = PAUSE;
        while let Some(pool) = pool.upgrade() {
            let before = left_of(&pool.inspect().statistics());
            let is_vain = before < least && {
                make_room(&pool, before);
                left_of(&pool.inspect().statistics()) <= before
            };
            pause = match is_vain {
                true => (pause * 2).min(LONGEST),
                false => PAUSE,
            };
            drop(pool);
            Sleep::after(&device, pause).await;
        }
    }
}

/// Returns the bytes that nothing holds.
fn left_of(statistics: &Statistics) -> u64 {
    let held = statistics.used.current + statistics.charged;
    statistics.capacity.saturating_sub(held)
}

/// Returns the bytes of whole chunks that nothing holds, whether the pool or the device has them.
fn whole_of(statistics: &Statistics) -> u64 {
    let held = statistics.reserved.current + statistics.charged;
    statistics.capacity.saturating_sub(held) + statistics.releasable_bytes
}
