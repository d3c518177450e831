//! Random operations on the queue, beside a list; the fuzz target `queue` finds others. `WEIRPOOL_STEPS` sets their number.

#[path = "../../../fuzz/src/queue.rs"]
#[allow(unreachable_pub, reason = "a target of its own in fuzz/")]
mod queue;

#[test]
fn random_operations_agree_with_a_list() {
    let steps = std::env::var("WEIRPOOL_STEPS").ok();
    let steps = steps.map_or(400_000, |steps| steps.parse().unwrap());
    let steps: u64 = if cfg!(miri) { 200 } else { steps };
    for seed in 0..steps.div_ceil(200) {
        println!("seed {seed}");
        // A step takes about ten bytes.
        let mut bytes = vec![0; 2000];
        fastrand::Rng::with_seed(seed).fill(&mut bytes);
        queue::run(&bytes);
    }
}
