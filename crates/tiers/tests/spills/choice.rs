//! Which memory is spilled.

use crate::site::{MIB, Site, poll};
use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;
use weirpool::device::sim::{Backing, SimDevice};
use weirpool_tiers::{Spillable, keep_chunks_free, keep_headroom};

const CACHE: u64 = 1024 * MIB;
const WANTED: u64 = 896 * MIB;
const BLOCK: u64 = MIB / 4;

/// A cache that fills the device, with eight blocks in a chunk. Each of `stride` rounds uses every `stride`th block, so the
/// oldest blocks lie in different chunks. kvcached's table: 0.84, 0.75, 0.50 and 0.03 GB of 0.88 are freed by age.
fn cache(stride: usize) -> (Site, Vec<Spillable>) {
    let device = SimDevice::builder()
        .memory(CACHE)
        .host_memory(CACHE)
        .backing(Backing::AddressesOnly)
        .build();
    let site = Site::on(device, CACHE, CACHE);
    let blocks = (0..CACHE / BLOCK).map(|_| site.spillable(BLOCK, 0));
    let mut blocks: Vec<_> = blocks.collect();
    let address = |block: &Spillable| site.fetch(block).unwrap().address();
    blocks.sort_by_cached_key(address);
    for first in 0..stride {
        for block in blocks.iter().skip(first).step_by(stride) {
            drop(site.fetch(block).unwrap());
        }
    }
    (site, blocks)
}

/// By age, chunks are free only where the oldest blocks lie together. The pool spills for requests what frees whole chunks,
/// and at most a ninth more: some blocks are too young to go before their turn.
#[test]
fn memory_is_spilled_by_the_chunks_that_it_frees() {
    for (stride, freed_by_age) in [(1, 896), (2, 768), (4, 512), (8, 0)] {
        let (site, blocks) = cache(stride);
        site.pool.maintain().evict(WANTED);
        site.device.advance_to_end();
        site.device.block_on(site.stream.synchronize()).unwrap();
        let freed = site.pool.trim_to(0).unwrap().released / MIB;
        assert_eq!(freed, freed_by_age, "stride {stride}");
        drop(blocks);
        site.end();

        let (site, blocks) = cache(stride);
        let request = || site.pool.allocate(&site.stream, 2 * MIB);
        let granted: Vec<_> = (0..WANTED / (2 * MIB))
            .map(|_| site.device.block_on(request()).unwrap())
            .collect();
        let spilled = site.tier.figures().spilled;
        println!(
            "stride {stride}: {freed} MiB by age, {} MiB spilled",
            spilled / MIB
        );
        assert!(
            (WANTED..=WANTED * 10 / 9).contains(&spilled),
            "stride {stride}"
        );
        drop((granted, blocks));
        site.end();
    }
}

/// Bytes of blocks that share their chunks with others are no room for a request of a chunk, which then waits for copies.
#[test]
fn chunks_are_free_ahead_of_requests_that_are_larger_than_the_blocks() {
    let (low, high) = (16 * MIB, 64 * MIB);
    let look = |site: &Site, headroom: &mut (dyn Future<Output = ()> + Unpin)| {
        for _ in 0..20 {
            assert!(poll(std::pin::Pin::new(&mut *headroom)).is_pending());
            site.device.advance(Duration::from_millis(10));
        }
    };
    let grants = |site: &Site| {
        let before = site.tier.figures().spills;
        let request = || site.pool.allocate(&site.stream, 2 * MIB);
        let granted: Vec<_> = (0..high / (2 * MIB))
            .map(|_| site.device.block_on(request()).unwrap())
            .collect();
        drop(granted);
        site.tier.figures().spills - before
    };
    let (site, blocks) = cache(8);
    look(&site, &mut pin!(keep_headroom(&site.pool, low..high)));
    assert!(grants(&site) > 0, "by age no chunk is free");
    drop(blocks);
    site.end();

    let (site, blocks) = cache(8);
    look(&site, &mut pin!(keep_chunks_free(&site.pool, low..high)));
    let spilled = site.tier.figures().spilled;
    assert!((high..=high * 10 / 9).contains(&spilled), "{spilled}");
    assert_eq!(grants(&site), 0, "no request spills");
    drop(blocks);
    site.end();
}

/// A request of a chunk gets the one without a block in use whose youngest block is the oldest, however many
/// older blocks lie beside younger ones.
#[test]
fn chunk_whose_youngest_block_is_the_oldest_goes_first() {
    let mut chosen = 0;
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let site = Site::new(512 * MIB, 2 * MIB);
        let mut room = site.pool.capacity();
        let mut blocks = Vec::new();
        while room > 0 {
            let bytes = BLOCK * [1, 1, 1, 1, 1, 1, 3, 12, 20][random.usize(..9)];
            let block = site
                .pool
                .try_allocate(&site.stream, bytes.min(room))
                .unwrap();
            room -= block.size();
            blocks.push((block.address().to_bits(), block.size(), block));
        }
        let blocks = blocks.into_iter();
        let blocks = blocks.map(|(address, bytes, block)| (address, bytes, block.into_evictable()));
        let blocks: Vec<_> = blocks.collect();
        let all = 0..blocks.len();
        let mut uses: Vec<_> = all.clone().map(|n| n as u64 + 1).collect();
        let mut last = blocks.len() as u64;
        for _ in 0..random.usize(..4 * blocks.len()) {
            let used = random.usize(all.clone());
            drop(blocks[used].2.pin().unwrap());
            last += 1;
            uses[used] = last;
        }
        let pins = (0..random.usize(..200)).map(|_| random.usize(all.clone()));
        let in_use: BTreeSet<_> = pins.collect();
        let held: Vec<_> = in_use.iter().map(|n| blocks[*n].2.pin().unwrap()).collect();

        let oldest = all.clone().filter(|n| !in_use.contains(n)).map(|n| uses[n]);
        let oldest = last - oldest.min().unwrap();
        let chunk = 2 * MIB;
        let last_byte = |(address, bytes, _): &(u64, u64, _)| (address + bytes - 1) / chunk;
        let chunks = blocks.iter().flat_map(|it| it.0 / chunk..=last_byte(it));
        let of_chunks = chunks.map(|number| -> BTreeSet<usize> {
            let touches = |n: &usize| {
                let (address, bytes, _) = blocks[*n];
                address < (number + 1) * chunk && number * chunk < address + bytes
            };
            all.clone().filter(touches).collect()
        });
        let youngest = |of: &BTreeSet<usize>| of.iter().map(|n| uses[*n]).max().unwrap();
        let can_go: Vec<_> = of_chunks.filter(|of| of.is_disjoint(&in_use)).collect();
        let first = can_go.iter().map(youngest).min();
        let Some(first) = first.filter(|first| last - first >= oldest / 16) else {
            continue;
        };
        let granted = site.pool.allocate(&site.stream, chunk);
        let granted = site.device.block_on(granted).unwrap();
        let is_gone = |n: &usize| !in_use.contains(n) && blocks[*n].2.pin().is_none();
        let gone: BTreeSet<_> = all.filter(is_gone).collect();
        assert_eq!(youngest(&gone), first, "seed {seed}: {gone:?}");
        assert!(
            can_go.iter().any(|of| gone.is_subset(of)),
            "seed {seed}: {gone:?}"
        );
        chosen += 1;
        drop((granted, held, blocks));
        site.end();
    }
    assert!(chosen > 20, "{chosen} choices");
}
