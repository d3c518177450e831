//! Rules about the sources: the layer table of `CONTRIBUTING.md`, and names in the documentation that must exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers from the lowest up. A layer imports from those before it, and from itself.
const LAYERS: [&str; 20] = [
    "measure",
    "device",
    "error",
    "seam",
    "engine",
    "queue",
    "handles",
    "foreign",
    "registry",
    "observe",
    "stream",
    "copy",
    "block",
    "pool",
    "capture",
    "buffer",
    "evictable",
    "task",
    "interop",
    "testing",
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder of sources");
    let mut files = Vec::new();
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Returns every source file with its layer and its text, without comments.
fn read(folder: &str) -> Vec<(PathBuf, String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let read = |path: PathBuf| {
        let inside = path.strip_prefix(&root).expect("inside src");
        let first = inside.components().next().expect("a name");
        let layer = first.as_os_str().to_string_lossy();
        let layer = layer.trim_end_matches(".rs").to_owned();
        let text = fs::read_to_string(&path).expect("a readable file");
        let code: Vec<_> = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .collect();
        (path, layer, code.join("\n"))
    };
    sources(&root).into_iter().map(read).collect()
}

fn rank(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|name| *name == layer)
}

/// Returns the modules of the crate that a text names.
fn imports(code: &str) -> impl Iterator<Item = &str> {
    code.match_indices("crate::").map(|(at, name)| {
        let rest = &code[at + name.len()..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

#[test]
fn imports_point_down() {
    let mut seen = BTreeMap::<usize, usize>::new();
    for (path, layer, code) in read("src") {
        // Tests may use the whole crate.
        let code = code.split("#[cfg(test)]").next().unwrap_or_default();
        if layer == "lib" || layer == "guide" {
            continue;
        }
        let own = rank(&layer).unwrap_or_else(|| panic!("{} is in no layer", path.display()));
        for import in imports(code).filter_map(rank) {
            assert!(
                import <= own,
                "{} imports {} from above",
                path.display(),
                LAYERS[import]
            );
            *seen.entry(own).or_default() += 1;
        }
    }
    assert!(seen.len() > 8, "the imports are found at all: {seen:?}");
}

#[test]
fn only_the_facade_names_std_sync_or_loom() {
    let files = ["src", "crates/measure/src"].into_iter().flat_map(read);
    for (path, _, code) in files {
        for name in ["std::sync", "loom::", "std::thread", "parking_lot"] {
            assert!(!code.contains(name), "{} names {name}", path.display());
        }
    }
}

#[test]
fn heap_knows_no_clock_device_or_lock() {
    for (path, _, code) in read("crates/heap/src") {
        for word in ["Instant", "Mutex", "Waker", "Future", "async ", "device::"] {
            assert!(!code.contains(word), "{} names {word}", path.display());
        }
    }
}

#[test]
fn queue_knows_no_clock_device_waker_or_lock() {
    for (path, _, code) in read("crates/queue/src") {
        // The names of tags are the process's, behind a lock of their own.
        let is_tag = path.ends_with("tag.rs");
        for word in [
            "Instant", "Mutex", "Atomic", "Arc<", "Waker", "Future", "async ", "device::",
        ] {
            let is_allowed = is_tag && word == "Mutex" || !code.contains(word);
            assert!(is_allowed, "{} names {word}", path.display());
        }
    }
}

#[test]
fn contributing_lists_the_layers_from_the_highest_down() {
    let page = page("CONTRIBUTING.md");
    let (_, table) = page.split_once("\n| layer |").expect("the table");
    let rows = table.lines().skip(2);
    let cells = rows
        .take_while(|row| row.starts_with("|"))
        .filter_map(|row| row.split('|').nth(1));
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    assert!(names.eq(LAYERS.into_iter().rev()));
}

/// Returns whether there is a test of this name in a file of `tests`, named without the folder of its test binary.
fn is_test(file: &str, function: &str) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ends = [format!("{file}.rs"), format!("{file}/main.rs")];
    let files = ["tests", "crates"].map(|folder| sources(&root.join(folder)));
    files.concat().iter().any(|path| {
        ends.iter().any(|end| path.ends_with(end))
            && path.iter().any(|part| part == "tests")
            && functions(&[&path.to_string_lossy()]).contains(function)
    })
}

fn page(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(path).expect("the page")
}

/// Projects whose tests or bugs the conformance suite names.
const PEERS: &str = "camp CUDA cuda-async cuda-oxide cudarc cupy cutile-rs golang HIP iree LMCache PyTorch pytorch \
                     RMM rmm rocm-systems tokio Umpire Warp";

/// Returns the comment above an item or at the head of a file, as one line.
fn comment<'a>(lines: impl Iterator<Item = &'a str>, mark: &str) -> String {
    let lines = lines.map_while(|line| line.strip_prefix(mark));
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Returns the origin that opens the comment of a test, in front of a colon: a test or a bug of a peer.
fn origin(comment: &str) -> Option<&str> {
    let sentence = comment.split(". ").next()?;
    let name = sentence.split([' ', '#', ',', ':', '\'']).next()?;
    let is_peer = PEERS.split_whitespace().any(|peer| peer == name);
    let origin = |(origin, _)| origin;
    is_peer.then(|| sentence.split_once(": ").map(origin).expect(sentence))
}

/// Writes the page on behaviours: the names of the conformance suite in words, by theme.
fn behaviours() -> String {
    let suite = page("tests/conformance/suite.rs");
    let (_, list) = suite.split_once("themes {").expect("the themes");
    let (themes, list) = list.split_once("awaited [").expect("awaited tests");
    let (awaited, _) = list.split_once("]").expect("their end");
    let mut text = page("docs/behaviours.md");
    text.truncate(text.find("\n# ").expect("a heading"));
    let themes = themes.trim().trim_end_matches('}').trim_end();
    let themes = themes.trim_end_matches(';').split(';');
    let themes = themes.map(|theme| theme.split_once(':').expect("a theme"));
    for (theme, tests) in themes.chain([("tasks", awaited)]) {
        let source = page(&format!("tests/conformance/{}.rs", theme.trim()));
        let title = comment(source.lines(), "//!");
        let title = title.split(". ").next().expect("a sentence");
        text.push_str(&format!("\n# {}\n\n", title.trim_end_matches('.')));
        let tests = tests.split(',').map(str::trim);
        for test in tests.filter(|test| !test.is_empty()) {
            let definition = format!("\npub(crate) fn {test}<");
            let above = source.split(&definition).next().expect("a part");
            let above = above.rsplit("\n\n").next().expect("a part");
            let comment = comment(above.lines(), "///");
            let origin = origin(&comment).map(|origin| format!(" ({origin})"));
            let name = test.replace('_', " ");
            text.push_str(&format!("- {name}{}\n", origin.unwrap_or_default()));
        }
    }
    text
}

/// The page is that of the suite. `UPDATE=1` writes it.
#[test]
fn page_on_behaviours_is_that_of_the_conformance_suite() {
    let text = behaviours();
    if std::env::var_os("UPDATE").is_some() {
        fs::write("docs/behaviours.md", &text).expect("the page is written");
    }
    assert!(
        text == page("docs/behaviours.md"),
        "docs/behaviours.md is not that of the suite: run `UPDATE=1 cargo test --test tidy behaviours`"
    );
}

/// The page on safety names modules, tests of loom without a file, and faults, in this order, in the columns of a
/// table.
#[test]
fn page_on_safety_names_existing_modules_tests_and_faults() {
    let page = page("docs/guide/safety.md");
    let (_, section) = page
        .split_once("# What would notice a violation")
        .expect("the section");
    let rows = section
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let models = functions(&["loom-tests"]);
    let faults = fs::read_to_string(root.join(".ci/faults/list")).unwrap_or_default();
    let quoted = |cell: &str| -> Vec<String> {
        let names = cell.split('`').skip(1).step_by(2);
        names.map(str::to_owned).collect()
    };
    let mut count = 0;
    for row in rows {
        for module in quoted(row[2]) {
            let path = match module.split_once("::") {
                Some((
                    part @ ("heap" | "lane" | "recall" | "segments" | "share" | "sync"),
                    module,
                )) => {
                    let source = root.join("crates").join(part).join("src");
                    source.join(module.replace("::", "/"))
                }
                Some(("weirpool_queue", module)) => root
                    .join("crates/queue/src")
                    .join(module.replace("::", "/")),
                _ => root.join("src").join(module.replace("::", "/")),
            };
            assert!(
                path.is_dir() || path.with_extension("rs").is_file(),
                "no module {module}"
            );
        }
        for test in quoted(row[3]) {
            let exists = match test.split_once("::") {
                Some(("heap" | "sync", function)) => {
                    !functions(&["crates/heap/src", "crates/device/src"])
                        .is_disjoint(&[function.into()].into())
                        || root
                            .join("crates/heap/src")
                            .join(function)
                            .with_extension("rs")
                            .is_file()
                }
                Some((file, function)) => is_test(file, function),
                None => test == "shuttle" || models.contains(&test),
            };
            assert!(exists, "no test {test}");
            count += 1;
        }
        for fault in quoted(row[4]) {
            assert!(
                faults.is_empty() || faults.contains(&fault),
                "no fault {fault}"
            );
        }
    }
    assert!(count > 15, "the names are found at all");
}

/// Notes are few and short. The files, links, tests and models that they name exist.
#[test]
fn notes_are_short_and_name_existing_files_and_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = root.join("docs/notes");
    let functions = functions(&["src", "tests", "loom-tests", "crates"]);
    let (mut notes, mut names) = (0, 0);
    for entry in fs::read_dir(&folder).expect("the notes") {
        let path = entry.expect("an entry").path();
        let text = fs::read_to_string(&path).expect("a note");
        let file = path.display();
        assert!(text.lines().count() <= 40, "{file} has more than 40 lines");
        notes += 1;
        for (at, _) in text.match_indices("](") {
            let link = text[at + 2..].split(')').next().expect("a link");
            assert!(folder.join(link).exists(), "{file} links to {link}");
        }
        for name in text.split('`').skip(1).step_by(2) {
            let is_path = name.ends_with(".rs") || name.starts_with("tests/");
            let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
            let is_function = name.contains('_') && name.chars().all(is_part);
            let mut places = ["", "src", "crates/heap/src", "loom-tests"].into_iter();
            let exists = !is_path || places.any(|place| root.join(place).join(name).exists());
            let is_known = !is_function || name.ends_with("_serve") || functions.contains(name);
            assert!(exists && is_known, "{file} names {name}");
            names += usize::from(is_path || is_function);
        }
    }
    assert!(notes <= 15 + 1, "{notes} notes, with their list");
    assert!(names > 30, "the names are found at all: {names}");
}

/// Returns the names of all functions in the sources at these paths, each a file or a folder.
fn functions(paths: &[&str]) -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut functions = BTreeSet::new();
    for path in paths.iter().map(|path| root.join(path)) {
        let files = match (path.is_dir(), path.is_file()) {
            (true, _) => sources(&path),
            (_, true) => vec![path],
            _ => Vec::new(),
        };
        for file in files {
            let text = fs::read_to_string(file).expect("a readable file");
            let names = text.match_indices("fn ").map(|(at, found)| {
                let rest = &text[at + found.len()..];
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                rest[..end.unwrap_or(rest.len())].to_owned()
            });
            functions.extend(names);
        }
    }
    functions
}

/// The list names a test by `loom <filter>`, or by the arguments of `cargo`, with a filter that may be a prefix.
#[test]
fn list_of_faults_names_existing_tests() {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/faults/list");
    let Ok(list) = fs::read_to_string(list) else {
        return; // the published package does not contain the list
    };
    let lines = list
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let mut count = 0;
    for line in lines {
        let test = line.split('|').nth(1).expect("a test");
        let words: Vec<_> = test.split_whitespace().collect();
        let filter = words.last().expect("a filter");
        let filter = filter.rsplit("::").next().expect("a name");
        let after = |option| words.iter().skip_while(move |word| **word != option).nth(1);
        let package = after("-p").and_then(|name| name.strip_prefix("weirpool-"));
        let manifest = after("--manifest-path").and_then(|path| path.strip_suffix("Cargo.toml"));
        let within = match (package, manifest) {
            (Some(name), _) => format!("crates/{name}/"),
            (None, folder) => folder.unwrap_or_default().to_owned(),
        };
        let places = match (words[0], after("--test")) {
            ("loom", _) => vec!["loom-tests".to_owned()],
            (_, Some(target)) => vec![
                format!("{within}tests/{target}.rs"),
                format!("{within}tests/{target}"),
            ],
            _ => vec![format!("{within}src")],
        };
        let places: Vec<_> = places.iter().map(String::as_str).collect();
        let exists = functions(&places).iter().any(|name| name.contains(filter));
        assert!(exists, "no test matches `{}`", test.trim());
        count += 1;
    }
    assert!(count > 10, "the lines are found at all");
}

/// Each fault of the list is a patch that applies to the source as it is.
#[test]
#[cfg(target_os = "linux")]
fn patches_of_faults_apply() {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/faults/run");
    if !run.exists() {
        return; // the published package does not contain it
    }
    let mut check = std::process::Command::new(run);
    let check = check.arg("--check").output().expect("a shell");
    let told = String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success(), "{told}");
}

/// Returns the names of this crate in the guide's table of names: the backquoted names of its second column.
fn own_names(page: &str) -> Vec<&str> {
    let (_, section) = page
        .split_once("# Names in other libraries")
        .expect("the section");
    let (section, _) = section.split_once("\n## ").expect("another section");
    let rows = section.lines().filter(|line| line.starts_with("| "));
    let cells = rows.filter_map(|row| row.split('|').nth(2));
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter(|name| !name.contains(' ')) // a command
        .collect()
}

/// Returns whether the sources declare `name`, a type or function, or a member as `Type::member`.
fn is_declared(name: &str, sources: &str) -> bool {
    let name = name.trim_start_matches("compat::");
    let (owner, member) = match name.split_once("::") {
        Some((owner, member)) => (Some(owner), member),
        None => (None, name),
    };
    let follows = |text: &str, ends: &[char]| {
        let rest = sources
            .match_indices(text)
            .map(|(at, _)| &sources[at + text.len()..]);
        rest.into_iter().any(|rest| rest.starts_with(ends))
    };
    let is_type = |name: &str| {
        let kinds = ["struct", "enum", "trait", "type"];
        kinds
            .iter()
            .any(|kind| follows(&format!(" {kind} {name}"), &[' ', '<', ':', '(', ';']))
    };
    let is_function = follows(&format!("fn {member}"), &['(', '<']);
    let is_member = follows(&format!("pub {member}"), &[':'])
        || follows(&format!("\n    {member}"), &[',', '(', ' ']);
    match owner {
        Some(owner) => is_type(owner) && (is_function || is_member),
        None => is_type(member) || is_function,
    }
}

#[test]
fn names_in_the_table_of_names_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/guide/pools.md")).expect("the page");
    let names = own_names(&page);
    assert!(names.len() > 40, "the names are found at all: {names:?}");
    let mut texts: Vec<_> = read("src").into_iter().map(|(_, _, code)| code).collect();
    let crates = sources(&root.join("crates")).into_iter();
    texts.extend(crates.map(|path| fs::read_to_string(path).expect("a readable file")));
    let sources = texts.join("\n");
    let exists = |name: &&str| root.join(name).is_dir() || is_declared(name, &sources);
    let missing: Vec<_> = names.into_iter().filter(|name| !exists(name)).collect();
    assert!(
        missing.is_empty(),
        "the table of names has {missing:?}, which the sources do not declare"
    );
    assert!(!is_declared("Pool::lake", &sources));
}

/// The last section of the page tells a newcomer which file to open, and where to begin in it.
#[test]
fn page_on_concepts_names_existing_files_and_items() {
    let page = page("docs/guide/concepts.md");
    let (_, section) = page
        .split_once("# Where to find it in the source")
        .expect("the section");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let texts: Vec<_> = ["src", "crates"]
        .iter()
        .flat_map(|folder| sources(&root.join(folder)))
        .map(|path| fs::read_to_string(path).expect("a readable file"))
        .collect();
    let code = texts.join("\n");
    let names: Vec<&str> = section.split('`').skip(1).step_by(2).collect();
    assert!(names.len() > 15, "the names are found at all: {names:?}");
    let is_path = |name: &str| root.join(name).exists() || root.join("src").join(name).exists();
    let is_item = |name: &str, code: &str| {
        is_declared(name, code)
            || code.contains(&format!("const {name}:"))
            || code.contains(&format!("fn {name}("))
    };
    let missing: Vec<_> = names
        .into_iter()
        .filter(|name| !is_path(name) && !is_item(name, &code))
        .collect();
    assert!(missing.is_empty(), "the page names {missing:?}");
    // "`Type::function` in `file`", and "`file`: `Type`".
    let parts: Vec<&str> = section.split('`').collect();
    let pairs = parts.windows(3).filter_map(|part| match part {
        [item, " in ", file] => Some((item, file)),
        [file, ": ", item] => Some((item, file)),
        _ => None,
    });
    let pairs: Vec<_> = pairs.filter(|(_, file)| file.ends_with(".rs")).collect();
    assert!(pairs.len() > 8, "the pairs are found at all: {pairs:?}");
    let elsewhere = pairs.into_iter().filter(|(item, file)| {
        let inside = [root.join("src").join(file), root.join(file)];
        let path = inside.into_iter().find(|path| path.exists());
        let text = fs::read_to_string(path.expect("named above")).expect("a readable file");
        // The type may be in another file than its methods.
        !is_item(item.rsplit("::").next().expect("a part"), &text)
    });
    let elsewhere: Vec<_> = elsewhere.collect();
    assert!(
        elsewhere.is_empty(),
        "these are in other files: {elsewhere:?}"
    );
}
