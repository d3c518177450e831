//! One block from a reservation whose free memory is scattered.

use super::*;

/// Pieces that were freed separately are joined for a request that needs all of them.
#[test]
fn pieces_are_joined_when_they_are_needed() {
    let (_, pool, [(_, a), (_, b)]) = set_up_with(small);
    let reservation = pool.reserve(8 * MIB).try_now().unwrap();
    for _ in 0..3 {
        let pieces: Vec<_> = (0..8)
            .map(|at| {
                let stream = if at % 2 == 0 { &a } else { &b };
                reservation.allocate(stream, MIB).unwrap()
            })
            .collect();
        drop(pieces);
        drop(reservation.allocate(&a, 8 * MIB).unwrap());
    }
    pool.inspect().check().unwrap();
}

/// Scattered free memory serves any request as long as it consists of whole chunks: they are mapped elsewhere, although
/// the pool is full.
#[test]
fn whole_chunks_are_drawn_from_a_full_pool() {
    let (_, pool, [(_, stream)]) = set_up_with(small);
    let _pebble = pool.try_allocate(&stream, 512).unwrap(); // prevents accidental alignment
    let reservation = pool.reserve(24 * MIB).try_now().unwrap();
    let mut others = Vec::new();
    while let Ok(block) = pool.try_allocate(&stream, 512 << 10) {
        others.push(block);
    }
    let mut random = fastrand::Rng::with_seed(5);
    let mut blocks: Vec<Block> = Vec::new();
    let (mut allocated, mut remapped) = (0, 0);
    for _ in 0..3000 {
        if random.bool() && !blocks.is_empty() {
            allocated -= blocks.swap_remove(random.usize(..blocks.len())).size();
        } else if allocated < 24 * MIB {
            let most = (24 * MIB - allocated) / (2 * MIB);
            let bytes = random.u64(1..=most) * 2 * MIB;
            let before = pool.inspect().statistics().remaps;
            blocks.push(reservation.allocate(&stream, bytes).unwrap());
            remapped += pool.inspect().statistics().remaps - before;
            allocated += bytes;
        }
        assert_eq!(reservation.left(), 24 * MIB - allocated);
        assert_eq!(reservation.size(), 24 * MIB);
        pool.inspect().check().unwrap();
    }
    assert!(remapped > 0, "it was never scattered");
}

/// Pieces of any size are exchanged for a range of the pool, which then has as many free bytes as before.
#[test]
fn pieces_are_exchanged_for_a_contiguous_range() {
    for device in devices() {
        let pool = tuned(&device, 32 * MIB, |tuning| {
            tuning.lane_bytes = 0;
            tuning.initial_size = 32 * MIB;
        });
        let (_, stream) = stream(&device, &pool);
        let reservation = pool.reserve(4 * MIB).try_now().unwrap();
        let pieces: Vec<_> = (0..8)
            .map(|_| reservation.allocate(&stream, MIB / 2).unwrap())
            .collect();
        let (kept, freed): (Vec<_>, Vec<_>) = pieces
            .into_iter()
            .enumerate()
            .partition(|(at, _)| at % 2 == 0);
        drop(freed);
        assert_eq!(reservation.left(), 2 * MIB);
        let free = pool.inspect().statistics().free;
        let one = reservation.allocate(&stream, 3 * MIB / 2).unwrap();
        assert_eq!(reservation.left(), MIB / 2);
        assert_eq!(figures(&pool).free, free, "an exchange is even");
        pool.inspect().check().unwrap();
        // No other request gets any of it before the reservation ends.
        drop((one, kept));
        assert_eq!(reservation.left(), 4 * MIB);
        let others: Vec<_> =
            std::iter::from_fn(|| pool.try_allocate(&stream, MIB / 2).ok()).collect();
        assert_eq!(others.len(), 56);
    }
}

/// If the device fails during an exchange, the reservation keeps its memory.
#[test]
fn failed_exchange_takes_no_memory() {
    use weirpool::device::sim::{Call, Fault};
    let (device, pool, [(_, stream)]) = set_up_with(small);
    let reservation = pool.reserve(16 * MIB).try_now().unwrap();
    let pieces: Vec<_> = (0..8)
        .map(|_| reservation.allocate(&stream, 2 * MIB).unwrap())
        .collect();
    let _others = pool.try_allocate(&stream, 16 * MIB).unwrap();
    let mut kept = Vec::new();
    for (at, piece) in pieces.into_iter().enumerate() {
        if at % 2 == 0 {
            kept.push(piece);
        }
    }
    device.faults().script(
        Call::Unmap,
        2,
        Fault::Fails(weirpool::device::DeviceErrorKind::Other),
    );
    assert!(reservation.allocate(&stream, 8 * MIB).is_err());
    let found = (reservation.left(), reservation.size());
    assert_eq!(found, (8 * MIB, 16 * MIB));
    pool.inspect().check().unwrap();
    drop(reservation.allocate(&stream, 8 * MIB).unwrap());
}

/// Whatever is drawn and freed on several streams, beside other reservations, no byte of a reservation is lost, and
/// none has two owners.
#[test]
fn reservations_keep_their_bytes() {
    for seed in 0..20 {
        let device = manual();
        let pool = small(&device);
        let streams = [0; 3].map(|_| stream(&device, &pool));
        let mut random = fastrand::Rng::with_seed(seed);
        let mut reservations: Vec<_> = (0..3)
            .map(|_| pool.reserve(random.u64(1..=12) << 19).try_now().unwrap())
            .collect();
        let mut blocks: Vec<(Option<usize>, Block)> = Vec::new();
        for _ in 0..600 {
            let (work, on) = &streams[random.usize(..3)];
            let bytes = 1 << random.u64(9..23);
            let from = random.choice([None, Some(0), Some(1), Some(2)]).flatten();
            let block = match from {
                _ if random.bool() => None,
                Some(at) => reservations[at].allocate(on, bytes).ok(),
                None => pool.try_allocate(on, bytes).ok(),
            };
            match block {
                Some(block) => {
                    use_block(work, &block, us(random.u64(1..50)));
                    blocks.push((from, block));
                }
                None if !blocks.is_empty() => {
                    drop(blocks.swap_remove(random.usize(..blocks.len())));
                }
                None => device.advance(us(20)),
            }
            for (at, reservation) in reservations.iter().enumerate() {
                let of_it = blocks.iter().filter(|(from, _)| *from == Some(at));
                let allocated: u64 = of_it.map(|(_, block)| block.size()).sum();
                assert_eq!(reservation.left() + allocated, reservation.size());
            }
            pool.inspect().check().unwrap();
        }
        reservations.truncate(1);
        drop(blocks);
        reservations.clear();
        device.advance(us(100_000));
        pool.maintain().reap().unwrap();
    }
}
