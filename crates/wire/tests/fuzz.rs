//! The fuzz target over frames, over its corpus and over mutations of it.
//!
//! `cargo +nightly fuzz run wire` searches for more.
#![cfg(target_os = "linux")]

#[path = "../../../fuzz/src/wire.rs"]
#[allow(unreachable_pub, reason = "a target of its own in fuzz/")]
mod wire;

use std::fs;
use std::path::Path;

/// Mutations of each entry of the corpus.
const MUTATIONS: usize = 300;

#[test]
fn random_and_mutated_frames_are_values_or_errors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/wire");
    let mut random = fastrand::Rng::with_seed(3);
    let (mut values, mut errors) = (0, 0);
    let mut paths: Vec<_> = (fs::read_dir(folder).expect("a corpus"))
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    for entry in paths.iter().map(|path| fs::read(path).unwrap()) {
        for round in 0..MUTATIONS {
            let mut mutated = entry.clone();
            for _ in 0..round.min(random.usize(0..4)) {
                let at = random.usize(..mutated.len());
                mutated[at] = random.u8(..);
            }
            match wire::run(&mutated) {
                true => values += 1,
                false => errors += 1,
            }
        }
    }
    for length in [0, 1, 65_535, 65_536, 65_537, 65_538, 200_000] {
        let digits = vec![b'1'; length];
        wire::run(&digits);
        wire::run(&[b"\x00[", digits.as_slice()].concat());
    }
    assert!(
        values > 50 && errors > 50,
        "{values} values, {errors} errors"
    );
}
