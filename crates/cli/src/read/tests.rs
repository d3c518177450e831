use super::native::HEADER;
use super::*;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

const SOUND: &str = "time_us,op,id,bytes,stream\n0,a,7,512,0\n5,a,8,256,3\n9,f,7,512,0\n";

fn trace(source: impl Read) -> Result<Trace, AtLocation> {
    let recording = parse(source, "test", Request::default())?;
    assert_eq!(recording.notes, []);
    Ok(recording.trace)
}

fn fault_of(text: &str) -> (u64, Fault) {
    match trace(text.as_bytes()).expect_err("the trace is malformed") {
        (Location::Line(line), fault) => (line, fault),
        (location, fault) => panic!("{location}: {fault}"),
    }
}

/// Returns the message about a sound trace with `row` as its fifth line.
fn message_about(row: &str) -> String {
    let (line, fault) = fault_of(&format!("{SOUND}{row}\n"));
    assert_eq!(line, 5, "{fault}");
    let (file, location) = ("t.csv".to_owned(), Location::Line(line));
    TraceError {
        file,
        location,
        fault,
    }
    .to_string()
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// A file of this test, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, content: &[u8]) -> Self {
        let process = std::process::id();
        let path = std::env::temp_dir().join(format!("weirpool-replay-{process}-{name}"));
        std::fs::write(&path, content).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn sound_trace_is_read() {
    let trace = trace(SOUND.as_bytes()).unwrap();
    assert_eq!((trace.events.len(), trace.streams), (3, 2));
    assert_eq!(trace.requested_peak, 768);
    assert_eq!(trace.duration, Duration::from_micros(9));
}

#[test]
fn windows_line_ends_and_a_missing_last_one_are_read() {
    let windows = SOUND.replace('\n', "\r\n");
    let sound = trace(SOUND.as_bytes());
    assert_eq!(trace(windows.as_bytes()), sound);
    assert_eq!(trace(SOUND.trim_end().as_bytes()), sound);
}

#[test]
fn gzip_is_known_by_content_or_name() {
    let by_content = Scratch::new("content.csv", &gzip(SOUND));
    let by_name = Scratch::new("name.csv.gz", &gzip(SOUND));
    assert_eq!(
        read(&by_content.0, Request::default())
            .unwrap()
            .trace
            .events
            .len(),
        3
    );
    assert_eq!(
        read(&by_name.0, Request::default())
            .unwrap()
            .trace
            .events
            .len(),
        3
    );
    let no_gzip = Scratch::new("plain.csv.gz", SOUND.as_bytes());
    let message = read(&no_gzip.0, Request::default())
        .unwrap_err()
        .to_string();
    assert!(message.ends_with("expected a whole file"), "{message}");
}

#[test]
fn trace_is_named_like_its_file() {
    assert_eq!(name(Path::new("some/llama.serve.csv.gz")), "llama.serve");
    assert_eq!(name(Path::new("llama.csv")), "llama");
    assert_eq!(name(Path::new("snapshot.pickle")), "snapshot");
    assert_eq!(
        name(Path::new("memory_log.csv.dev0")),
        "memory_log.csv.dev0"
    );
}

#[test]
fn wrong_header_is_shown_beside_the_right_ones() {
    let (line, fault) = fault_of("time,op,id,bytes,stream\n0,a,0,1,0\n");
    assert_eq!(line, 1);
    let message = fault.to_string();
    assert!(message.contains("`time,op,id,bytes,stream`"), "{message}");
    for header in [HEADER, rmm::HEADER, instance::HEADER] {
        assert!(message.contains(header), "{message}");
    }
    assert_eq!(fault_of("").0, 1);
    assert_eq!(fault_of("0,a,0,1,0\n").0, 1);
}

#[test]
fn header_without_rows_is_refused() {
    assert_eq!(fault_of(HEADER), (1, Fault::Empty));
}

#[test]
fn malformed_row_is_named_by_its_line() {
    for (row, wrong) in [
        ("9,x,9,1,0", "unknown op `x`, expected `a`"),
        ("9,,9,1,0", "unknown op ``"),
        ("9,f,42,1,0", "allocation 42 is freed but unknown"),
        ("9,f,7,512,0", "double free of allocation 7"),
        ("9,a,8,1,0", "id 8 is allocated again"),
        ("9,f,8,1,0", "freed with 1 bytes, expected the 256"),
        ("9,a,9,281474976710657,0", "bytes is `281474976710657`"),
        ("9,a,9,99999999999999999999999,0", "to 281474976710656"),
        ("9,a,9,0,0", "whole number from 1"),
        ("9,a,9,,0", "bytes is ``"),
        ("9,a,9,-5,0", "bytes is `-5`"),
        ("9,a,9,many,0", "bytes is `many`"),
        ("9,a,nine,1,0", "id is `nine`"),
        ("9,a,9,1,70000", "stream is `70000`"),
        ("soon,a,9,1,0", "time_us is `soon`"),
        ("8,a,9,1,0", "time goes back to 8 us"),
        ("9,a,9,1", "4 fields"),
        ("9,a,9,1,0,0", "6 fields"),
        ("9,\"a,9,1,0", "unknown op"),
    ] {
        let message = message_about(row);
        assert!(message.starts_with("t.csv:5: "), "{message}");
        assert!(message.contains(wrong), "{row}: {message}");
        assert!(message.contains("expected"), "{message}");
    }
}

#[test]
fn line_after_an_empty_one_keeps_its_number() {
    let text = format!("{SOUND}\n\n10,x,9,1,0");
    assert_eq!(fault_of(&text).0, 7);
    assert_eq!(fault_of(&text.replace('\n', "\r\n")).0, 7);
    assert_eq!(fault_of(&format!("{text}\n\n")).0, 7);
}

#[test]
fn truncated_gzip_is_named_with_the_line_it_breaks_at() {
    let rows: String = (0..5000).map(|id| format!("{id},a,{id},512,0\n")).collect();
    let whole = gzip(&format!("{HEADER}\n{rows}"));
    let cut = Scratch::new("cut.csv.gz", &whole[..whole.len() / 2]);
    let error = read(&cut.0, Request::default()).unwrap_err();
    let error = error.downcast_ref::<TraceError>().unwrap();
    assert_eq!(error.fault, Fault::Truncated);
    let Location::Line(line) = error.location else {
        panic!("{error}");
    };
    assert!((1000..4999).contains(&line), "{error}");
}

#[test]
fn gzip_without_its_trailer_or_with_a_broken_one_is_refused() {
    let mut broken = gzip(SOUND);
    let length = broken.len();
    let cut = trace(Inflated::new(&broken[..length - 4]));
    assert_eq!(cut.unwrap_err().1, Fault::Truncated);
    broken[length - 8] ^= 1;
    let damaged = trace(Inflated::new(&broken[..]));
    assert!(matches!(damaged.unwrap_err().1, Fault::Damaged { .. }));
}

#[test]
fn binary_file_gets_a_short_message() {
    let (line, fault) = fault_of(&"\u{0}\u{1}garbage".repeat(1000));
    assert_eq!(line, 1);
    assert!(fault.to_string().len() < 300);
}

#[test]
fn missing_file_is_named() {
    let message = read(Path::new("no/such.csv"), Request::default())
        .unwrap_err()
        .to_string();
    assert!(message.starts_with("no/such.csv: "), "{message}");
}

#[test]
fn recorded_traces_have_their_measured_figures() {
    for (name, operations, streams, requested_peak) in [
        ("llama_serve", 408_832, 5, 1_420_377_920),
        ("bert_train", 43_387, 1, 5_923_718_724),
        ("resnet_serve", 29_532, 9, 2_342_846_699),
    ] {
        let trace = read(&crate::options::recorded(name), Request::default())
            .unwrap()
            .trace;
        assert_eq!(trace.name, name);
        assert_eq!((trace.events.len(), trace.streams), (operations, streams));
        assert_eq!(trace.requested_peak, requested_peak);
        assert!(!trace.handed_over().contains(&true));
    }
}

#[test]
fn trace_is_the_same_in_every_format() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces/samples");
    let named = |file: &str| Recording {
        trace: Trace {
            name: "serve".to_owned(),
            ..read(&folder.join(file), Request::default()).unwrap().trace
        },
        ..read(&folder.join(file), Request::default()).unwrap()
    };
    let native = named("serve.csv");
    assert_eq!((native.trace.events.len(), native.trace.streams), (600, 2));
    let (rmm, torch) = (named("serve_rmm.csv"), named("serve_torch.pickle.gz"));
    assert_eq!(rmm.trace, native.trace);
    assert_eq!(torch.trace, native.trace);
    assert_eq!(
        rmm.notes,
        [
            Note::UnknownFrees(2),
            Note::FailedAllocations(1),
            Note::Empty(2)
        ]
    );
    let (blocks, bytes) = (1, 512);
    assert_eq!(
        torch.notes,
        [Note::UnknownFrees(1), Note::EarlierBlocks { blocks, bytes }]
    );
}

#[test]
fn truncated_snapshot_is_named() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/traces/samples");
    let whole = std::fs::read(folder.join("serve_torch.pickle.gz")).unwrap();
    let cut = Scratch::new("cut.pickle.gz", &whole[..whole.len() / 2]);
    let error = read(&cut.0, Request::default()).unwrap_err();
    let error = error.downcast_ref::<TraceError>().unwrap();
    assert!(matches!(
        error.fault,
        Fault::Truncated | Fault::Pickle { .. }
    ));
    assert!(error.to_string().contains("cut.pickle.gz: "), "{error}");
}
