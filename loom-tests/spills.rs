//! Spillable memory: fetches against evictions, drops and other fetches.

use super::*;
use loom::thread;
use weirpool::Upstream;
use weirpool_tiers::{Fetch, Fetched, HostTier, IntoSpillable, Spillable};

/// A pool and a host tier of one chunk each, and spillable memory that takes up both.
struct Site {
    device: SimDevice,
    pool: Pool,
    host: Pool,
    tier: HostTier,
    stream: Stream,
}

impl Site {
    fn new() -> (Self, Spillable) {
        let device = device_builder()
            .host_memory(64 * MIB)
            .checker(Checker::Off)
            .build();
        let pool = pool(&device);
        let host = builder(&device).upstream(Upstream::Pinned).build().unwrap();
        let site = Self {
            tier: HostTier::new(&host).unwrap(),
            stream: pool.create_stream().unwrap(),
            device,
            pool,
            host,
        };
        let block = site.pool.try_allocate(&site.stream, 2 * MIB).unwrap();
        let memory = block.into_spillable(&site.tier);
        (site, memory)
    }

    fn spill(&self) {
        self.pool.maintain().evict(u64::MAX);
    }

    /// Fetches memory that nothing stands in the way of any more.
    fn fetch(&self, mut fetch: Fetch<'_>) -> Fetched {
        for _ in 0..8 {
            if let Poll::Ready(fetched) = poll(&mut fetch) {
                return fetched.unwrap();
            }
            self.device.advance(Duration::from_secs(1));
        }
        panic!("the fetch is not served");
    }

    fn end(self) {
        let figures = self.tier.figures();
        assert_eq!((figures.resident, figures.spilled), (0, 0));
        assert_eq!((figures.evictable, figures.refusals), (0, 0));
        self.device.advance(Duration::from_secs(1));
        for pool in [&self.pool, &self.host] {
            assert_eq!(pool.inspect().statistics().used.current, 0);
            pool.inspect().check_conserved().unwrap();
        }
    }
}

/// A fetch finds the memory, or hears of it once it is spilled.
#[test]
fn fetch_against_an_eviction() {
    model("fetch against an eviction", || {
        let (site, memory) = Site::new();
        let pool = site.pool.clone();
        let evicting = thread::spawn(move || pool.maintain().evict(u64::MAX));
        let (count, waker) = Count::new();
        let mut fetch = memory.fetch(&site.stream);
        let polled = Pin::new(&mut fetch).poll(&mut Context::from_waker(&waker));
        evicting.join().unwrap();
        match polled {
            Poll::Ready(fetched) => drop(fetched.unwrap()),
            Poll::Pending => {
                site.device.advance(Duration::from_secs(1));
                assert!(count.take() > 0, "the fetch is not woken");
                drop(site.fetch(fetch));
            }
        }
        assert!(memory.is_resident() || site.tier.figures().spilled > 0);
        drop(memory);
        site.end();
    });
}

/// Memory that is dropped while it is spilled leaves nothing, neither on the device nor on the host.
#[test]
fn drop_against_an_eviction() {
    model("drop of spillable memory against an eviction", || {
        let (site, memory) = Site::new();
        let dropping = thread::spawn(move || drop(memory));
        site.spill();
        dropping.join().unwrap();
        site.end();
    });
}

/// The end of a use, against the next one: the memory is pinned or evictable, and counted once.
#[test]
fn fetch_against_the_end_of_another_use() {
    model("fetch against the end of another use", || {
        let (site, memory) = Site::new();
        let fetched = site.fetch(memory.fetch(&site.stream));
        let ending = thread::spawn(move || drop(fetched));
        let again = site.fetch(memory.fetch(&site.stream));
        ending.join().unwrap();
        site.spill();
        assert!(memory.is_resident(), "it is in use");
        assert_eq!(site.tier.figures().evictable, 0);
        drop(again);
        site.spill();
        assert!(!memory.is_resident());
        drop(memory);
        site.end();
    });
}

/// Two fetches of spilled memory share one copy, and the one that comes second hears of the first.
#[test]
fn fetch_against_a_fetch() {
    model("fetch against a fetch", || {
        let (site, memory) = Site::new();
        site.spill();
        site.device.advance(Duration::from_secs(1));
        let memory = Arc::new(memory);
        let other = {
            let (memory, stream) = (memory.clone(), site.stream.clone());
            thread::spawn(move || poll(&mut memory.fetch(&stream)))
        };
        let (count, waker) = Count::new();
        let mut fetch = memory.fetch(&site.stream);
        let polled = Pin::new(&mut fetch).poll(&mut Context::from_waker(&waker));
        // In use until this one is served, which otherwise evicts it for itself.
        let other = other.join().unwrap();
        match polled {
            Poll::Ready(fetched) => drop(fetched.unwrap()),
            Poll::Pending => {
                assert!(count.take() > 0, "the fetch is not woken");
                drop(site.fetch(fetch));
            }
        }
        drop(other);
        assert_eq!(site.tier.figures().fetches, 1);
        drop(Arc::into_inner(memory));
        site.end();
    });
}
