//! The fuzz targets over their corpora and over mutations of them: no input makes a reader panic, or take more steps than
//! are in proportion to its length.
//!
//! `cargo +nightly fuzz run csv` (or `rmm`, `instance`, `pickle`, `gzip`) at the root of the repository searches for more.

use fastrand::Rng;
use std::fs;
use std::path::Path;
use weirpool_cli::fuzzing;

type Target = fn(&[u8]) -> Result<usize, String>;

const TARGETS: [(&str, Target); 5] = [
    ("csv", fuzzing::csv),
    ("rmm", fuzzing::rmm),
    ("instance", fuzzing::instance),
    ("pickle", fuzzing::pickle),
    ("gzip", fuzzing::gzip),
];
/// Mutations of each entry of a corpus.
const MUTATIONS: usize = 400;

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let entries = fs::read_dir(folder.join(target)).expect("a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, fs::read(path).unwrap())
    };
    paths.iter().map(read).collect()
}

/// Changes, inserts, removes or repeats some bytes.
fn mutate(random: &mut Rng, data: &mut Vec<u8>) {
    for _ in 0..random.usize(1..6) {
        let at = random.usize(..=data.len());
        match random.u8(..5) {
            0 => data.insert(at, random.u8(..)),
            1 if at < data.len() => drop(data.remove(at)),
            2 if at < data.len() => data[at] ^= 1 << random.u8(..8),
            3 => data.truncate(at.max(1)),
            _ => {
                let end = random.usize(at..=data.len());
                let piece = data[at..end].to_vec();
                data.splice(at..at, piece);
            }
        }
    }
}

#[test]
fn sound_entries_are_traces_and_others_are_refused() {
    for (name, target) in TARGETS {
        let corpus = corpus(name);
        assert!(corpus.len() >= 2, "the corpus is found at all");
        for (entry, data) in corpus {
            let read = target(&data);
            let is_sound = entry.starts_with("sound");
            assert_eq!(read.is_ok(), is_sound, "{name}/{entry}: {read:?}");
        }
    }
}

#[test]
fn mutated_entries_are_read_or_refused_with_a_reason() {
    let mut random = Rng::with_seed(7);
    for (name, target) in TARGETS {
        let mut refused = 0;
        for (_, data) in corpus(name) {
            for _ in 0..MUTATIONS {
                let mut mutated = data.clone();
                mutate(&mut random, &mut mutated);
                if let Err(reason) = target(&mutated) {
                    assert!(reason.contains("expected"), "{name}: {reason}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0, "{name}");
    }
}
