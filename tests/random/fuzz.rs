//! The fuzz target over operations of a pool, over its corpus and over mutations of it.
//!
//! `cargo +nightly fuzz run operations` searches for more.

#[path = "../../fuzz/src/operations.rs"]
#[allow(unreachable_pub, reason = "a library of its own in fuzz/")]
mod operations;

use fastrand::Rng;
use std::fs;
use std::path::Path;

/// Mutations of each entry of the corpus.
const MUTATIONS: usize = 40;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/operations");
    let entries = fs::read_dir(folder).expect("a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn operations_of_the_corpus_keep_the_invariants() {
    let corpus = corpus();
    assert!(corpus.len() >= 3, "the corpus is found at all");
    let counts = corpus.iter().map(|entry| operations::run(entry));
    assert!(counts.sum::<usize>() > 0);
}

#[test]
fn random_and_mutated_operations_keep_the_invariants() {
    let mut random = Rng::with_seed(7);
    for entry in corpus() {
        for _ in 0..MUTATIONS {
            let mut mutated = entry.clone();
            for _ in 0..random.usize(1..=mutated.len() / 4 + 1) {
                let at = random.usize(..mutated.len());
                mutated[at] = random.u8(..);
            }
            operations::run(&mutated);
        }
        let noise: Vec<_> = (0..600).map(|_| random.u8(..)).collect();
        operations::run(&noise);
    }
}
