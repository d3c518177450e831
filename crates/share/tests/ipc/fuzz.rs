//! `cargo +nightly fuzz run exchange` searches for more.

#[path = "../../../../fuzz/src/exchange.rs"]
#[allow(unreachable_pub, reason = "a target of its own in fuzz/")]
mod exchange;

use fastrand::Rng;
use std::fs;
use std::path::Path;

#[test]
fn random_actions_of_honest_sides_end_each_block_once() {
    let mut random = Rng::with_seed(11);
    let mut ended = 0;
    for round in 0..300 {
        // Some rounds mostly offer, so that they meet the bound.
        let most = if round % 3 == 0 { 80 } else { u8::MAX };
        let actions: Vec<_> = (0..3000)
            .map(|_| match random.u8(..) {
                byte if byte < most => byte,
                byte => byte / 5 * 5,
            })
            .collect();
        ended += exchange::honest(&actions);
    }
    assert!(ended > 10_000, "{ended}");
}

#[test]
fn mutated_frames_of_a_hostile_side_are_events_or_errors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/exchange");
    let mut random = Rng::with_seed(12);
    let mut events = 0;
    let mut paths: Vec<_> = (fs::read_dir(folder).expect("a corpus"))
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 2);
    for entry in paths.iter().map(|path| fs::read(path).unwrap()) {
        for round in 0..2000 {
            let mut mutated = entry.clone();
            for _ in 0..round.min(random.usize(0..6)) {
                let at = random.usize(..mutated.len());
                mutated[at] = match random.bool() {
                    true => random.u8(b'0'..=b'9'),
                    false => random.u8(..),
                };
            }
            events += exchange::hostile(&mutated);
        }
    }
    assert!(events > 1000, "{events}");
}
