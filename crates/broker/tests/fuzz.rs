//! The fuzz target over its corpus and over mutations of it: no messages break an invariant of the ledger.
//!
//! `cargo +nightly fuzz run broker` at the root of the repository searches for more.

use std::fs;
use std::path::Path;
use weirpool_broker::fuzzing;

/// Mutations of each entry of the corpus.
const MUTATIONS: usize = 4000;

fn corpus() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/broker");
    let mut paths: Vec<_> = fs::read_dir(folder)
        .expect("a corpus")
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

#[test]
fn messages_of_the_corpus_are_admitted() {
    let admitted: Vec<_> = corpus().iter().map(|entry| fuzzing::run(entry)).collect();
    assert_eq!(
        admitted,
        [(1, 0), (2, 3), (2, 4), (2, 4)],
        "lies, names, recall, sound"
    );
}

#[test]
fn mutated_messages_keep_the_invariants() {
    let mut random = fastrand::Rng::with_seed(21);
    for entry in corpus() {
        let lines: Vec<_> = entry.split(|byte| *byte == b'\n').collect();
        for _ in 0..MUTATIONS {
            // Lines in any order, some with other digits.
            let mut mutated = Vec::new();
            for _ in 0..random.usize(1..24) {
                let mut line = lines[random.usize(..lines.len())].to_vec();
                for byte in &mut line {
                    if byte.is_ascii_digit() && random.u8(..8) == 0 {
                        *byte = random.u8(b'0'..=b'9');
                    }
                }
                mutated.extend(line);
                mutated.push(b'\n');
            }
            fuzzing::run(&mutated);
        }
    }
}
