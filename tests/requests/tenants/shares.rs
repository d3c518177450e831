//! The pool's queue limit, which tags share by weight.

use super::*;
use std::collections::BTreeMap;
use weirpool::FullQueue;
use weirpool::device::sim::SimDevice;

const ALL: u64 = 8 * MIB;

/// A pool with that queue limit, all of whose memory is allocated.
fn full(device: &SimDevice, limit: impl Into<QueueLimit>) -> (TestPool, Stream, Block) {
    let builder = builder(device, ALL).tuning(|tuning| tuning.reuse = only_host_waits());
    let pool = builder.queue_limit(limit).made();
    let (_, stream) = stream(device, &pool);
    let held = pool.try_allocate(&stream, ALL).unwrap();
    (pool, stream, held)
}

#[track_caller]
fn of_full_queue<T: std::fmt::Debug>(answer: Option<&Result<T, AllocError>>) -> FullQueue {
    match answer {
        Some(Err(AllocError::QueueFull(full))) => **full,
        other => panic!("{other:?}"),
    }
}

/// One tag without a limit fills the queue. Each request of a heavier tag is admitted, and the last one of the flood
/// fails in its place and is woken.
#[test]
fn flood_of_a_tag_refuses_no_request_of_another() {
    for device in devices() {
        let [flooding, heavy] = tags("flood");
        let (pool, stream, held) = full(&device, 4);
        pool.tag(heavy).set_weight(1000);
        let request = |tag| Woken::new(pool.allocate(&stream, ALL).tag(tag));
        let mut flood = [(); 4].map(|()| request(flooding));
        let refused = request(flooding);
        assert_eq!(of_full_queue(refused.output.as_ref()).waiting, 4);
        let first = request(heavy);
        assert!(first.is_waiting(), "it is below its share");
        assert!(flood[3].is_woken() && flood[..3].iter().all(|waiter| !waiter.is_woken()));
        settle(&mut flood);
        let displaced = of_full_queue(flood[3].output.as_ref());
        let found = (displaced.tag, displaced.waiting, displaced.limit);
        assert_eq!(found, (None, 4, 4));
        let waits = pool.tag(flooding).statistics().waits;
        assert_eq!((waits.waiting, waits.refused, waits.unserved()), (3, 2, 0));
        assert_eq!(used(&pool, flooding), 0);
        let mut others = [first, request(heavy), request(heavy), request(heavy)];
        settle(&mut flood);
        // A tag keeps one request, however light it is.
        assert!(flood[0].is_waiting() && flood[1..].iter().all(|waiter| !waiter.is_waiting()));
        of_full_queue(others[3].output.as_ref());
        assert!(others[..3].iter().all(Woken::is_waiting));
        drop(held);
        for _ in 0..4 {
            settle(&mut flood);
            settle(&mut others);
            flood.iter_mut().chain(&mut others).for_each(|waiter| {
                // The block is freed, and the next request served.
                drop(waiter.output.take());
            });
        }
        assert!(
            flood
                .iter()
                .chain(&others)
                .all(|waiter| !waiter.is_waiting())
        );
        assert_eq!(pool.tag(heavy).statistics().waits.served, 3);
    }
}

/// Requests without a tag are a tag of their own. Reservations, several blocks, and requests in scopes displace and are
/// displaced as single blocks are.
#[test]
fn requests_of_every_kind_displace_and_are_displaced() {
    for device in devices() {
        let [tag] = tags("kinds");
        let (pool, stream, held) = full(&device, QueueLimit::bytes(4 * MIB));
        let mut reserve = Woken::new(pool.reserve(2 * MIB).tag(tag));
        let mut many = Woken::new(pool.allocate_many(&stream, [MIB, MIB]).tag(tag));
        let mut untagged = [
            Woken::new(pool.allocate(&stream, MIB)),
            Woken::new(pool.allocate(&stream, MIB)),
        ];
        many.poll_if_woken();
        of_full_queue(many.output.as_ref());
        assert!(reserve.is_waiting() && untagged.iter().all(Woken::is_waiting));
        let more = Woken::new(pool.allocate(&stream, MIB));
        of_full_queue(more.output.as_ref());
        drop(held);
        reserve.poll_if_woken();
        settle(&mut untagged);
        assert!(!reserve.is_waiting() && untagged.iter().all(|waiter| !waiter.is_waiting()));
        drop((reserve, untagged));

        // In the scope of a reservation that has too little left.
        pool.maintain().set_queue_limit(2);
        let held = pool.try_allocate(&stream, ALL - MIB).unwrap();
        let reservation = now(pool.reserve(MIB)).unwrap();
        let mut scoped = [(); 2].map(|()| {
            Woken::new(reservation.scope(async { pool.allocate(&stream, 2 * MIB).tag(tag).await }))
        });
        assert!(scoped.iter().all(Woken::is_waiting));
        let other = Woken::new(pool.reserve(2 * MIB));
        assert!(other.is_waiting());
        settle(&mut scoped);
        of_full_queue(scoped[1].output.as_ref());
        drop((held, other));
        settle(&mut scoped);
        assert!(!scoped[0].is_waiting());
    }
}

/// A queue limit of the tag's own bounds all its requests that wait, for memory as well as for its limit.
#[test]
fn queue_limit_of_a_tag_holds_without_a_limit_of_its_memory() {
    let device = manual();
    let [tag, other] = tags("own queue limit");
    let (pool, stream, held) = full(&device, 100);
    pool.tag(tag).set_queue_limit(Some(2.into()));
    let request = |tag| Woken::new(pool.allocate(&stream, MIB).tag(tag));
    let first = request(tag);
    pool.tag(tag).set_limit(Some(MIB));
    let second = request(tag);
    assert!(first.is_waiting() && second.is_waiting());
    let refused = of_full_queue(request(tag).output.as_ref());
    let found = (refused.tag, refused.waiting, refused.limit);
    assert_eq!(found, (Some(tag), 2, 2));
    assert!(request(other).is_waiting());
    pool.tag(tag).set_limit(None);
    of_full_queue(request(tag).output.as_ref());
    drop((first, second, held));
}

/// Serves `count` requests for all of the memory, one every 100 µs.
fn serve(
    device: &SimDevice,
    pool: &Pool,
    stream: &Stream,
    mut block: Block,
    count: usize,
) -> Block {
    let mut waiters: Vec<_> = (0..count).map(|_| pool.allocate(stream, ALL)).collect();
    assert!(waiters.iter_mut().all(|waiter| poll(waiter).is_pending()));
    for waiter in waiters {
        device.advance(us(100));
        drop(block);
        block = now(waiter).unwrap();
    }
    block
}

/// A request of a tag with little waiting is not told that it waits behind another tag's backlog, and is not shed for it.
#[test]
fn expected_wait_follows_weights() {
    let device = manual();
    let [flooding, heavy] = tags("expected wait");
    let builder = builder(&device, ALL).tuning(|tuning| tuning.reuse = only_host_waits());
    let pool = builder.load_shedding().made();
    let (_, stream) = stream(&device, &pool);
    pool.tag(flooding).set_weight(1);
    pool.tag(heavy).set_weight(1000);
    let held = pool.try_allocate(&stream, ALL).unwrap();
    let _held = serve(&device, &pool, &stream, held, 40);
    let request = |tag| pool.allocate(&stream, ALL).tag(tag);
    let _flood: Vec<_> = (0..50).map(|_| not_ready(request(flooding))).collect();
    let shed = now(request(flooding).timeout(us(4000))).unwrap_err();
    assert_matches!(shed, AllocError::Shed { expected, .. } if *expected == us(5100));
    // One request of the flood comes first.
    let _own = not_ready(request(heavy).timeout(us(250)));
    let shed = now(request(heavy).timeout(us(250))).unwrap_err();
    assert_matches!(shed, AllocError::Shed { expected, .. } if *expected == us(300));
    assert_eq!(
        pool.inspect().expected_wait(ALL),
        Some(us(300)),
        "a flow of its own, of weight 1"
    );
    let told: Vec<_> = pool.inspect().waiting_requests(usize::MAX);
    let told = told.iter().map(|request| request.expected_wait.unwrap());
    let expected = (1..=51).map(|place| us(100 * place));
    assert!(told.eq(expected));
    assert_eq!(pool.inspect().waiting_requests(2)[1].tag, Some(heavy));
}

/// What the rules say of a request of a tag, given the requests that wait: whether its tag is below its share, and whether
/// another is above its own.
fn judge(
    waiting: &BTreeMap<Option<Tag>, Vec<u64>>,
    weight: impl Fn(Option<Tag>) -> u64,
    limit: QueueLimit,
    tag: Option<Tag>,
    bytes: u64,
) -> (bool, bool) {
    let own = waiting.get(&tag).cloned().unwrap_or_default();
    let others = waiting
        .iter()
        .filter(|(other, all)| **other != tag && !all.is_empty());
    let weights = weight(tag) + others.clone().map(|(other, _)| weight(*other)).sum::<u64>();
    let is_within = |tag: Option<Tag>, all: &[u64]| {
        let sum: u64 = all.iter().sum();
        let share = |limit: u64| u128::from(limit) * u128::from(weight(tag));
        let by_requests = all.len() as u128 * u128::from(weights) <= share(limit.requests as u64);
        let by_bytes = u128::from(sum) * u128::from(weights) <= share(limit.bytes);
        (all.len() <= 1 || by_requests) && (all.len() <= 1 || by_bytes)
    };
    let mut with = own;
    with.push(bytes);
    let mut others = others;
    (
        is_within(tag, &with),
        others.any(|(other, all)| !is_within(*other, all)),
    )
}

/// Random tags, weights, sizes and cancellations. While a tag is above its share, no request of a tag below its own is
/// refused; the queue never exceeds its limit; each displaced future is woken and fails with the queue's figures; all
/// others are served in the end.
#[test]
fn random_requests_share_the_queue() {
    for seed in 0..3000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let device = &devices()[random.usize(..2)];
        let limit = match random.bool() {
            true => QueueLimit::requests(random.usize(1..10)),
            false => QueueLimit::bytes(random.u64(8..40) * MIB),
        };
        let (pool, stream, held) = full(device, limit);
        let tags: [Tag; 3] = tags("random");
        for tag in tags {
            pool.tag(tag).set_weight(random.u32(..4));
        }
        let all = [None, Some(tags[0]), Some(tags[1]), Some(tags[2])];
        let few = random.usize(1..=4);
        let mut held = vec![held];
        let mut waiting: Vec<(Option<Tag>, u64, Woken<'_, _>)> = Vec::new();
        let (mut asked, mut served, mut refused, mut cancelled) = (0, 0, 0, 0);
        for _ in 0..60 {
            match random.u8(..10) {
                0 => drop(held.pop()),
                1 if !waiting.is_empty() => {
                    drop(waiting.swap_remove(random.usize(..waiting.len())));
                    cancelled += 1;
                }
                2 => {
                    let tag = tags[random.usize(..3)];
                    pool.tag(tag).set_weight(random.u32(1..9));
                }
                _ => {
                    let tag = all[random.usize(..few)];
                    let bytes = random.u64(1..=8) * MIB;
                    let mut by_tag = BTreeMap::<_, Vec<_>>::new();
                    for (tag, bytes, waiter) in &waiting {
                        assert!(waiter.is_waiting());
                        by_tag.entry(*tag).or_default().push(*bytes);
                    }
                    let weight = |tag: Option<Tag>| {
                        tag.map_or(1, |tag| pool.tag(tag).statistics().weight.max(1))
                            .into()
                    };
                    let (is_below, is_any_above) = judge(&by_tag, weight, limit, tag, bytes);
                    let request = pool.allocate(&stream, bytes).priority(random.i32(..3));
                    let request = tag.into_iter().fold(request, Allocate::tag);
                    let request = Woken::new(request);
                    asked += 1;
                    if let Some(Err(error)) = &request.output {
                        assert_matches!(error, AllocError::QueueFull(_));
                        let counts_requests = limit.bytes == u64::MAX;
                        let is_wrong = is_below && is_any_above && counts_requests;
                        assert!(!is_wrong, "seed {seed}: {error}");
                        refused += 1;
                        continue;
                    }
                    waiting.push((tag, bytes, request));
                }
            }
            // Tasks are polled only when they are woken: a displaced one, too.
            while waiting
                .iter_mut()
                .any(|(.., waiter)| waiter.poll_if_woken())
            {}
            let is_ready = |(.., waiter): &mut (_, _, Woken<'_, _>)| !waiter.is_waiting();
            for (.., mut waiter) in waiting.extract_if(.., is_ready) {
                match waiter.output.take() {
                    Some(Ok(block)) => {
                        held.push(block);
                        served += 1;
                    }
                    Some(Err(AllocError::QueueFull(_))) => refused += 1,
                    other => panic!("seed {seed}: {other:?}"),
                }
            }
            let listed = pool.inspect().waiting_requests(usize::MAX);
            let bytes: u64 = listed.iter().map(|request| request.requested).sum();
            assert_eq!(listed.len(), waiting.len(), "seed {seed}");
            assert!(
                listed.len() <= limit.requests && bytes <= limit.bytes,
                "seed {seed}"
            );
            assert_eq!(figures(&pool).waits.refused, refused, "seed {seed}");
        }
        while !waiting.is_empty() {
            held.clear();
            while waiting
                .iter_mut()
                .any(|(.., waiter)| waiter.poll_if_woken())
            {}
            for (.., mut waiter) in waiting.extract_if(.., |(.., waiter)| !waiter.is_waiting()) {
                held.push(waiter.output.take().unwrap().unwrap());
                served += 1;
            }
        }
        held.clear();
        assert_eq!(served + refused + cancelled, asked);
    }
}
