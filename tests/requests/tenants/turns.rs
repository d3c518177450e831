//! How tags with weights take turns.

use super::*;
use std::collections::BTreeMap;
use std::task::Poll;

/// While tenants of weights 1, 2 and 4, and requests without a tag, all have requests waiting, their granted bytes over
/// their weights differ by at most one largest request of each over its weight. Within each, requests are granted in
/// the order of their coming.
#[test]
fn tenants_get_memory_by_weight() {
    const LARGEST: u64 = 4 * MIB;
    let device = manual();
    let weighted: [Tag; 3] = tags("by weight");
    let weights = [1, 2, 4];
    let pool = pool(&device, LARGEST);
    for (tag, weight) in weighted.iter().zip(weights) {
        pool.tag(*tag).set_weight(weight);
    }
    let found = weighted.map(|tag| pool.tag(tag).statistics().weight);
    assert_eq!(found, weights);
    let (_, stream) = stream(&device, &pool);
    let all = pool.try_allocate(&stream, LARGEST).unwrap();
    let flows = [
        Some(weighted[0]),
        Some(weighted[1]),
        Some(weighted[2]),
        None,
    ];
    let weight_of = |flow: Option<Tag>| match flow {
        Some(tag) => pool.tag(tag).statistics().weight,
        None => 1,
    };
    let mut random = fastrand::Rng::with_seed(7);
    // Each flow floods the queue in turn.
    let mut waiting = Vec::new();
    for flow in flows {
        for number in 0..100 {
            let allocate = pool.allocate(&stream, random.u64(1..=LARGEST));
            let allocate = not_ready(flow.into_iter().fold(allocate, Allocate::tag));
            waiting.push((flow, number, allocate));
        }
    }
    drop(all);
    let mut got = BTreeMap::<Option<Tag>, u64>::new();
    let mut served = BTreeMap::<Option<Tag>, u32>::new();
    while flows.iter().all(|flow| served.get(flow) < Some(&100)) {
        let ready = waiting
            .iter_mut()
            .enumerate()
            .find_map(|(at, (_, _, allocate))| match poll(allocate) {
                Poll::Ready(block) => Some((at, block.unwrap())),
                Poll::Pending => None,
            });
        let (at, block) = ready.expect("a request is served");
        let (flow, number, _) = waiting.remove(at);
        let before = served.entry(flow).or_default();
        assert_eq!(*before, number, "the first come first");
        *before += 1;
        *got.entry(flow).or_default() += block.size();
        for (one, other) in flows
            .iter()
            .flat_map(|one| flows.iter().map(move |other| (one, other)))
        {
            let share = |flow: &Option<Tag>| {
                let weight = f64::from(weight_of(*flow));
                (
                    got.get(flow).copied().unwrap_or(0) as f64 / weight,
                    LARGEST as f64 / weight,
                )
            };
            let ((one, most_one), (other, most_other)) = (share(one), share(other));
            assert!(one - other <= most_one + most_other, "{got:?}");
        }
        drop(block);
    }
    assert!(got.len() == 4);
}

/// A flow without requests saves no turns. A request that gives up is not paid for.
#[test]
fn idle_flow_saves_no_turns() {
    let device = manual();
    let [late, steady] = tags("saved up");
    let pool = builder(&device, 2 * MIB).made();
    pool.tag(steady).set_weight(1);
    pool.tag(late).set_weight(1);
    let (_, stream) = stream(&device, &pool);
    let wait = |tag| not_ready(pool.allocate(&stream, 2 * MIB).tag(tag));
    let mut held = pool.try_allocate(&stream, 2 * MIB).unwrap();
    let mut steadies: std::collections::VecDeque<_> = (0..6).map(|_| wait(steady)).collect();
    for _ in 0..3 {
        drop(held);
        held = now(steadies.pop_front().unwrap()).unwrap();
    }
    let given_up = wait(late);
    let mut lates: std::collections::VecDeque<_> = (0..3).map(|_| wait(late)).collect();
    drop(given_up);
    // From here on the flows take turns.
    for _ in 0..3 {
        drop(held);
        held = now(lates.pop_front().unwrap()).expect("its turn");
        drop(held);
        held = now(steadies.pop_front().unwrap()).expect("its turn");
    }
}
