//! The benchmark of prefix hits, on a small stream that it makes up and on a file.

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_prefix_cache");
    Command::new(program)
        .args(arguments)
        .output()
        .expect("it runs")
}

/// Returns the first number of each cell of a table, which is found by the beginning of its head.
fn rows(text: &str, head: &str) -> Vec<Vec<f64>> {
    let rows = text.lines().skip_while(|line| !line.starts_with(head));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    let cell = |cell: &str| {
        let number = cell.split_whitespace().next().expect("a figure");
        number.parse().expect("a number")
    };
    let cells = rows.map(|row| row.trim_matches('|').split('|').map(cell).collect());
    cells.collect()
}

/// The program itself fails where the pool hits less than the lists.
#[test]
fn cache_of_the_pool_hits_as_a_list_and_evicts_fewer_blocks_than_by_age() {
    let done = run(&[]);
    let (text, error) = (done.stdout, done.stderr);
    let text = String::from_utf8(text).unwrap();
    assert!(
        done.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&error)
    );
    let hits = rows(&text, "| blocks | LRU");
    let [blocks, plain, evictable, of_four, spillable] = hits[0][..] else {
        panic!("{text}");
    };
    assert_eq!(blocks, 256.0);
    assert!(plain > 0.1 && evictable >= plain && of_four > plain && spillable >= of_four);
    let evicted = rows(&text, "| blocks | evicted");
    assert!(5.0 * evicted[0][1] < evicted[0][2], "{text}");
    let strides = rows(&text, "| stride");
    let free_by_age: Vec<_> = strides.iter().map(|row| row[1]).collect();
    assert_eq!(free_by_age, [0.94, 0.81, 0.54, 0.0], "{text}");
}

/// Runs the program on a trace of these lines.
fn run_on(name: &str, lines: &str) -> Output {
    let folder = format!("weirpool-prefixes-{name}-{}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("trace.jsonl");
    std::fs::write(&path, lines).unwrap();
    let done = run(&[path.to_str().unwrap(), "--blocks", "16"]);
    std::fs::remove_dir_all(&folder).unwrap();
    done
}

#[test]
fn trace_without_requests_for_working_memory_has_no_row_of_it() {
    let lines = "{\"hash_ids\": [0, 1]}\n".repeat(3);
    let done = run_on("short", &lines);
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{text}");
    assert_eq!(rows(&text, "| blocks | LRU").len(), 1, "{text}");
    assert!(
        !text.contains("NaN") && !text.contains("by age (hits)"),
        "{text}"
    );
}

#[test]
fn malformed_trace_is_refused_by_its_line() {
    let lines = "{\"timestamp\": 0, \"hash_ids\": [0, 1]}\n{\"timestamp\": 1}\n";
    let done = run_on("malformed", lines);
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success());
    assert!(
        error.contains("line 2") && error.contains("hash_ids"),
        "{error}"
    );
}
