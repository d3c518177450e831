//! Every use of `unsafe` in the pool and in the devices is listed in `docs/unsafe.md`, with the number of its uses and
//! the argument why they are sound. Clippy (`undocumented_unsafe_blocks`) holds that each block has a comment of its
//! own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn is_word(code: &str, at: usize, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let before = code[..at].chars().next_back();
    let after = code[at + word.len()..].chars().next();
    !before.is_some_and(is_part) && !after.is_some_and(is_part)
}

/// Counts the keyword in a source, outside of comments.
fn uses(source: &str) -> usize {
    let code = source.lines().map(|line| line.split("//").next().unwrap());
    code.map(|code| {
        let found = code.match_indices("unsafe");
        found.filter(|(at, word)| is_word(code, *at, word)).count()
    })
    .sum()
}

fn collect(folder: &Path, found: &mut BTreeMap<String, usize>) {
    let entries = fs::read_dir(folder).into_iter().flatten();
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            let count = uses(&fs::read_to_string(&path).expect("a readable file"));
            let name = path.strip_prefix(root()).expect("inside");
            if count > 0 {
                found.insert(name.to_string_lossy().into_owned(), count);
            }
        }
    }
}

/// The rows of the page: file, number of uses, and argument.
fn listed() -> BTreeMap<String, (usize, String)> {
    let page = fs::read_to_string(root().join("docs/unsafe.md")).expect("the page");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let count = cells[1].parse().expect("a number in the second column");
        let file = cells[0].trim_end_matches('`').to_owned();
        (file, (count, cells[2].to_owned()))
    })
    .collect()
}

#[test]
fn page_lists_every_file_that_uses_unsafe() {
    let mut found = BTreeMap::new();
    collect(&root().join("src"), &mut found);
    for part in [
        "alloc",
        "c",
        "canaries",
        "device",
        "driver-pool",
        "preload",
        "lane",
        "segments",
        "share",
        "sim",
        "cuda",
        "wire",
    ] {
        collect(&root().join("crates").join(part).join("src"), &mut found);
    }
    for part in ["candle", "cubecl", "cuda-core", "cudarc", "ort"] {
        let folder = root().join("adapters").join(part).join("src");
        collect(&folder, &mut found);
    }
    let listed = listed();
    for (file, count) in &found {
        let row = listed.get(file);
        let told = row.map(|(count, _)| *count);
        assert_eq!(
            told,
            Some(*count),
            "docs/unsafe.md is to list `{file}` with {count} uses of `unsafe`"
        );
    }
    let gone: Vec<_> = (listed.keys())
        .filter(|file| !found.contains_key(*file))
        .collect();
    assert!(
        gone.is_empty(),
        "docs/unsafe.md lists {gone:?}, which have no unsafe code: remove them"
    );
    assert!(listed.values().all(|(_, argument)| argument.len() > 20));
}
