//! Holds the rules of writing that a machine can hold: standard terms, plain sentences, test names with a subject.

use std::fs;
use std::path::{Path, PathBuf};

/// Words that were replaced by standard terms: the word, and the term to use.
const RETIRED: &[(&str, &str)] = &[
    ("knot", "deadlock"),
    ("knots", "deadlocks"),
    ("knotted", "deadlocked"),
    ("bell", "notifier"),
    ("door", "limit, queue"),
    ("hoard", "reservation"),
    ("hoards", "reservations"),
    ("crowd", "shard"),
    ("lent", "allocated, used"),
    ("loan", "allocation"),
    ("loans", "allocations"),
    ("robbed", "flushed"),
    ("snug", "good fit"),
    ("shelf", "large-block cache"),
    ("stash", "reference cache"),
    ("postponed", "deferred"),
    ("onlooker", "observer"),
    ("onlookers", "observers"),
    ("harvest", "reap"),
    ("harvested", "reaped"),
    ("upkeep", "maintenance"),
    ("rung", "source"),
    ("rungs", "sources"),
    ("tally", "counters"),
    ("journal", "event log"),
    ("disclaim", "uncharge"),
    ("whoever", "the caller, the thread, the stream"),
    ("whosever", "of any owner"),
    ("nobodys", "unowned"),
];

/// Phrases that hide the subject of a sentence, with a replacement.
const PHRASES: &[(&str, &str)] = &[
    ("who waits", "waiters"),
    ("who asks", "the caller"),
    ("who comes", "the newcomer"),
    ("who has", "the owner"),
    ("who needs", "the caller"),
    ("who takes", "the taker"),
    ("who frees", "the freeing thread"),
    ("nobody who", "no waiter that"),
    ("those who", "requests that, threads that"),
    ("one who", "the task that"),
    ("by who", "by the caller that"),
    ("to who", "to the stream that"),
    ("is had", "is available, obtained, held"),
    ("are had", "are available, obtained, held"),
    ("was had", "was available, obtained, held"),
    ("so many bytes", "this many bytes"),
    ("so much as", "up to"),
    ("give way", "spill"),
];

/// Verbs that follow a "what" which stands for a noun: "what was freed".
const AFTER_WHAT: &[&str] = &["is", "was", "were", "are", "has", "had", "can", "may"];

/// Words that stand for a subject without naming it, anywhere in the name of a test.
const PRONOUNS: &[&str] = &["who", "whom", "whoever", "nobody", "somebody", "everybody"];

/// Verbs of telling and asking, after which "what" asks an indirect question.
const ASKING: &str = "tell tells told say says show shows see sees know knows ask asks asked decide decides \
                      describe describes list lists learn learns report reports";

/// Openings that put the object first.
const OPENINGS: &[&str] = &["Of ", "So many ", "The same"];

/// Lines that may break a rule: the end of the path, a part of the line, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("tests/wording.rs", "", "names the words that it looks for"),
    ("CHANGELOG.md", "", "history"),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if name.starts_with('.') || name == "target" {
            continue;
        }
        if path.is_dir() {
            collect(&path, files);
        } else if matches!(
            path.extension().and_then(|end| end.to_str()),
            Some("rs" | "md" | "toml")
        ) {
            files.push(path);
        }
    }
}

fn files() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    collect(&root(), &mut paths);
    let name = |path: &Path| {
        path.strip_prefix(root())
            .expect("inside")
            .to_string_lossy()
            .into_owned()
    };
    paths
        .iter()
        .map(|path| (name(path), fs::read_to_string(path).expect("text")))
        .collect()
}

fn is_excepted(path: &str, line: &str) -> bool {
    EXCEPTIONS
        .iter()
        .any(|(file, part, _)| path.contains(file) && line.contains(part))
}

/// The words of a line, also those inside identifiers: `KnotLimit` and `knot_limit` both have `knot`.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for piece in line.split(|c: char| !c.is_ascii_alphabetic()) {
        let mut word = String::new();
        for c in piece.chars() {
            if c.is_ascii_uppercase() && word.ends_with(|last: char| last.is_ascii_lowercase()) {
                words.push(std::mem::take(&mut word).to_lowercase());
            }
            word.push(c);
        }
        if !word.is_empty() {
            words.push(word.to_lowercase());
        }
    }
    words
}

/// The prose of a line: a comment in a source, any line of a page.
fn prose<'a>(path: &str, line: &'a str) -> Option<&'a str> {
    if path.ends_with(".md") {
        return Some(line.trim_start_matches(['#', '-', '*', '>', '|', ' ']));
    }
    let text = line.trim_start();
    let marks = ["//! ", "/// ", "// "];
    marks.iter().find_map(|mark| text.strip_prefix(mark))
}

fn report(found: Vec<String>) {
    let most = found
        .iter()
        .take(60)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        found.is_empty(),
        "{} lines break a rule of writing:\n{most}",
        found.len()
    );
}

fn broken_rules(rule: impl Fn(&str, &str) -> Option<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files() {
        for (at, line) in text.lines().enumerate() {
            if let Some(problem) = rule(&path, line).filter(|_| !is_excepted(&path, line)) {
                found.push(format!("{path}:{}: {problem}: {}", at + 1, line.trim()));
            }
        }
    }
    found
}

#[test]
fn retired_words_are_not_used() {
    report(broken_rules(|_, line| {
        let words = words(line);
        let retired = RETIRED
            .iter()
            .find(|(word, _)| words.iter().any(|used| used == word));
        retired.map(|(word, term)| format!("`{word}`, use `{term}`"))
    }));
}

#[test]
fn sentences_have_a_concrete_subject() {
    report(broken_rules(|path, line| {
        let line = prose(path, line)?.to_lowercase();
        let phrase = PHRASES.iter().find(|(phrase, _)| {
            let mut at = line.match_indices(phrase);
            at.any(|(at, _)| {
                let is_edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
                is_edge(line[..at].chars().next_back())
                    && is_edge(line[at + phrase.len()..].chars().next())
            })
        });
        phrase.map(|(phrase, term)| format!("\"{phrase}\", say \"{term}\""))
    }));
}

/// The word without marks around it, in lower case.
fn bare(word: &str) -> String {
    word.trim_matches(|c: char| !c.is_alphanumeric())
        .to_lowercase()
}

/// "what was freed" hides its subject: "freed memory" names it. A sentence may run over several lines.
#[test]
fn what_and_who_are_no_nouns() {
    let mut found = Vec::new();
    for (path, text) in files() {
        let lines: Vec<_> = text.lines().collect();
        let words = lines.iter().enumerate().flat_map(|(at, line)| {
            // A line of code ends the prose.
            let words = prose(&path, line).unwrap_or("|");
            words.split_whitespace().map(move |word| (at, word))
        });
        let words: Vec<_> = words.collect();
        for (index, (at, word)) in words.iter().enumerate() {
            let line = lines[*at];
            let Some((_, next)) = words.get(index + 1) else {
                continue;
            };
            // A mark behind "what" ends the phrase; one before it separates the verb.
            let is_phrase = word
                .trim_start_matches(|c: char| !c.is_alphanumeric())
                .eq_ignore_ascii_case("what")
                && AFTER_WHAT.contains(&bare(next).as_str());
            let asks = index.checked_sub(1).is_some_and(|before| {
                let before = words[before].1.to_lowercase();
                ASKING.split_whitespace().any(|verb| verb == before)
            });
            if is_phrase && !asks && !line.contains('?') && !is_excepted(&path, line) {
                let problem = format!("\"what {}\", name the subject", bare(next));
                found.push(format!("{path}:{}: {problem}: {}", at + 1, line.trim()));
            }
        }
    }
    report(found);
}

#[test]
fn sentences_open_with_their_subject() {
    report(broken_rules(|path, line| {
        let line = prose(path, line)?;
        let starts = std::iter::once(0).chain(line.match_indices(". ").map(|(at, _)| at + 2));
        let mut starts = starts.map(|at| &line[at..]);
        let opening =
            starts.find_map(|start| OPENINGS.iter().find(|opening| start.starts_with(**opening)));
        opening.map(|opening| format!("opens with \"{opening}\""))
    }));
}

#[test]
fn exceptions_are_still_needed() {
    let files = files();
    for (file, part, reason) in EXCEPTIONS {
        let is_there = files
            .iter()
            .any(|(path, text)| path.contains(file) && text.contains(part));
        assert!(
            is_there,
            "the exception for {file} ({reason}) matches nothing: remove it"
        );
    }
}

/// Returns the words of a test's name that hide its subject, if there are any.
fn hidden_subject(name: &str) -> Option<String> {
    let words: Vec<_> = name.split('_').collect();
    let pronoun = words.iter().find(|word| PRONOUNS.contains(word));
    let phrase = words
        .windows(2)
        .find(|pair| pair[0] == "what" && AFTER_WHAT.contains(&pair[1]));
    let opens = words.len() > 1 && words[0] == "what";
    pronoun
        .map(|word| (*word).to_owned())
        .or_else(|| phrase.map(|pair| pair.join("_")))
        .or_else(|| opens.then(|| "what".to_owned()))
}

#[test]
fn tests_are_named_for_a_subject() {
    let mut found = Vec::new();
    for (path, text) in files() {
        // The conformance suite lists its tests by name; their functions have no attribute.
        let is_of_tests = path.starts_with("tests/") || path.contains("/tests");
        // Whether an attribute of the item that follows makes it a test.
        let mut is_test = is_of_tests;
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.starts_with("#[") {
                is_test |= words(line).iter().any(|word| word == "test");
                continue;
            }
            let mut words = line.split_whitespace().skip_while(|word| *word != "fn");
            let name = words
                .nth(1)
                .and_then(|signature| signature.split(['(', '<']).next());
            let hidden = name.filter(|_| is_test).and_then(hidden_subject);
            if let Some(hidden) = hidden.filter(|_| !is_excepted(&path, line)) {
                found.push(format!("{path}:{}: `{hidden}` in {line}", at + 1));
            }
            is_test = is_of_tests || is_test && (line.is_empty() || line.starts_with("//"));
        }
    }
    report(found);
}

#[test]
fn names_that_hide_their_subject_are_found() {
    for (name, hidden) in [
        ("who_waits_is_woken", Some("who")),
        ("what_was_freed_is_reused", Some("what_was")),
        ("what_a_stream_freed_is_reused", Some("what")),
        ("trim_keeps_what_is_used", Some("what_is")),
        ("free_wakes_somebody", Some("somebody")),
        ("importer_reads_what_the_exporter_wrote", None),
        ("freed_memory_is_reused", None),
    ] {
        assert_eq!(hidden_subject(name).as_deref(), hidden, "{name}");
    }
}
