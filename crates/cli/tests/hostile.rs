//! Damaged and hostile files, extreme options, and broken outputs: each ends the command with an error and exit code 1
//! (2 for options), or is of no consequence. None makes it panic, run for ever or use the memory of the host.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const TRACE: &str = "time_us,op,id,bytes,stream\n0,a,1,4096,0\n9,f,1,0,0\n";

/// A folder of one test, removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("weirpool-cli-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn weirpool() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weirpool"));
    command.arg("replay");
    command
}

fn replay(file: &Path, arguments: &[&str]) -> Output {
    weirpool().arg(file).args(arguments).output().unwrap()
}

/// Returns the message with which the replay of a file fails.
fn refusal(file: &Path, arguments: &[&str]) -> String {
    let output = replay(file, arguments);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    let name = file.file_name().unwrap().to_string_lossy();
    assert!(message.contains(&*name), "{message}");
    message
}

/// Compresses `pieces` of content.
fn gzip(pieces: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    for piece in pieces {
        encoder.write_all(piece.as_ref()).unwrap();
    }
    encoder.finish().unwrap()
}

/// Returns a snapshot of one allocation, with a further key whose value is `extra`.
fn snapshot(extra: &[u8]) -> Vec<u8> {
    let mut pickle = b"\x80\x02}(X\x05\x00\x00\x00extra".to_vec();
    pickle.extend(extra);
    pickle.extend(b"X\x0d\x00\x00\x00device_traces](](}(");
    pickle.extend(b"X\x06\x00\x00\x00actionX\x05\x00\x00\x00allocX\x04\x00\x00\x00addrK\x01");
    pickle.extend(b"X\x04\x00\x00\x00sizeK\x08X\x06\x00\x00\x00streamK\x00ueeu.");
    pickle
}

#[test]
fn deep_pickle_does_not_overflow_the_stack() {
    let folder = Folder::new("deep");
    let nested = |depth, open: &[u8], bottom: &[u8], close: &[u8]| {
        [&open.repeat(depth), bottom, &close.repeat(depth)[..]].concat()
    };
    for (name, extra) in [
        (
            "dictionaries",
            nested(30_000, b"}X\x01\x00\x00\x00k", b"N", b"s"),
        ),
        ("tuples", nested(150_000, b"(", b"N", b"t")),
        ("lists", nested(1_000_000, b"]", b"N", b"a")),
    ] {
        let file = folder.file(&format!("{name}.pickle.gz"), &gzip([snapshot(&extra)]));
        let output = replay(&file, &["--json"]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{name}: {message}");
        assert!(output.stdout.starts_with(b"{"), "{name}");
    }
}

#[test]
fn file_that_inflates_without_end_is_refused() {
    let folder = Folder::new("bombs");
    let megabyte = |byte| vec![byte; 1 << 20];
    let repeated = |byte| std::iter::repeat_n(megabyte(byte), 3);
    for (name, start, byte) in [
        ("field", &b"time_us,op,id,bytes,stream\n0,a,"[..], b'7'),
        ("commas", b"time_us,op,id,bytes,stream\n", b','),
        ("header", b"", b'h'),
        ("zeros", b"", 0),
    ] {
        let pieces = std::iter::once(start.to_vec()).chain(repeated(byte));
        let file = folder.file(&format!("{name}.csv.gz"), &gzip(pieces));
        let message = refusal(&file, &[]);
        assert!(
            message.contains("the line is longer than 4096 bytes"),
            "{message}"
        );
        assert!(
            message.contains(".csv.gz:1: ") || message.contains(".csv.gz:2: "),
            "{message}"
        );
    }
    for (name, byte) in [("marks", b'('), ("lists", b']'), ("memos", 0x94)] {
        let pieces = std::iter::once(b"\x80\x04N".to_vec()).chain(repeated(byte));
        let file = folder.file(&format!("{name}.pickle.gz"), &gzip(pieces));
        let message = refusal(&file, &[]);
        assert!(message.contains("pickle.gz: byte "), "{message}");
    }
}

#[test]
fn pickled_number_of_many_digits_is_refused() {
    let folder = Folder::new("digits");
    let digits = [&b"L"[..], &b"7".repeat(2_000_000), b"L\n"].concat();
    let file = folder.file("digits.pickle", &snapshot(&digits));
    let message = refusal(&file, &[]);
    assert!(
        message.contains("the line is longer than 4096 bytes"),
        "{message}"
    );
}

#[cfg(unix)]
#[test]
fn endless_device_is_refused() {
    let message = refusal(Path::new("/dev/zero"), &[]);
    assert!(
        message.contains("/dev/zero:1: the line is longer"),
        "{message}"
    );
}

#[test]
fn live_bytes_do_not_overflow() {
    let folder = Folder::new("live");
    let rows: String = (0..70_000)
        .map(|id| format!("{id},a,{id},281474976710656,0\n"))
        .collect();
    let file = folder.file(
        "live.csv",
        format!("time_us,op,id,bytes,stream\n{rows}").as_bytes(),
    );
    let message = refusal(&file, &[]);
    assert!(
        message.contains("live.csv:4098: more than 1,152,921,504,606,846,976 live bytes"),
        "{message}"
    );
}

#[test]
fn hostile_instance_is_refused_at_its_line() {
    let folder = Folder::new("instance");
    let longest = "281474976710656";
    for (name, row, message) in [
        (
            "live",
            format!("b,0,9,{longest}\n"),
            "live.csv:4098: more than",
        ),
        (
            "long",
            format!("{},0,9,1\n", "b".repeat(5000)),
            "long.csv:2: the line is longer",
        ),
        (
            "late",
            format!("b,0,{longest}0,1\n"),
            "late.csv:2: upper is",
        ),
        (
            "commas",
            ",".repeat(4000) + "\n",
            "commas.csv:2: 4001 fields",
        ),
    ] {
        let instance = format!("id,lower,upper,size\n{}", row.repeat(5000));
        let file = folder.file(&format!("{name}.csv"), instance.as_bytes());
        let refused = refusal(&file, &[]);
        assert!(refused.contains(message), "{refused}");
    }
    let bomb = std::iter::once(&b"id,lower,upper,size\n"[..]);
    let zeros = vec![b'0'; 1 << 20];
    let bomb = gzip(bomb.chain(std::iter::repeat_n(&zeros[..], 3)));
    let refused = refusal(&folder.file("bomb.csv.gz", &bomb), &[]);
    assert!(
        refused.contains("bomb.csv.gz:2: the line is longer"),
        "{refused}"
    );
}

#[test]
fn instance_is_replayed_beside_its_lower_bound() {
    let folder = Folder::new("bound");
    let instance = b"id,lower,upper,size\nb2,3,9,4096\nb1,0,3,4096\nb3,0,9,8192\n";
    let file = folder.file("small.csv", instance);
    for (scale, bound) in [("--scale=1", 8 << 20), ("--scale=1024", 16 << 20)] {
        let output = replay(&file, &[scale, "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["lower_bound"].as_u64(), Some(bound), "{report}");
        assert_eq!(
            report["reserved_over_bound"].as_f64(),
            Some(1.0),
            "{report}"
        );
    }
    let refused = refusal(
        &folder.file("huge.csv", b"id,lower,upper,size\nb,0,9,999999999999\n"),
        &["--scale=1048576"],
    );
    assert!(
        refused.contains("--scale 1048576 is too large"),
        "{refused}"
    );
}

#[test]
fn pauses_of_a_log_do_not_overflow() {
    let folder = Folder::new("pauses");
    let pause = 1_u64 << 48;
    let rows: String = (0..70_000_u64)
        .map(|row| format!("1,{},allocate,(nil),0,0\n", row.saturating_mul(pause)))
        .collect();
    let log = format!(
        "Thread,Time,Action,Pointer,Size,Stream\n{rows}1,{},allocate,1,8,0\n",
        u64::MAX
    );
    let output = replay(&folder.file("pauses.csv", log.as_bytes()), &[]);
    assert_ne!(output.status.code(), Some(101));
}

#[test]
fn extreme_options_are_refused() {
    for arguments in [
        &["--lag=18446744073709551615s"][..],
        &["--capacity=1PiB"],
        &["--chunk-bytes=15EiB"],
        &[
            "--generate=cross-stream",
            "--operations=18446744073709551615",
        ],
        &["--remapping=1e308"],
        &["--scale=0"],
        &["--scale=1048577"],
    ] {
        let output = weirpool().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

/// A device that always refuses is not asked for ever.
#[test]
fn allocation_larger_than_the_device_ends_the_replay() {
    let folder = Folder::new("huge");
    let trace = "time_us,op,id,bytes,stream\n0,a,1,200000000000000,0\n5,f,1,0,0\n";
    let file = folder.file("huge.csv", trace.as_bytes());
    for upstream in ["--upstream=device", "--upstream=virtual"] {
        for capacity in [&["--capacity=256TiB"][..], &[]] {
            let arguments = [&[upstream, "--json"], capacity].concat();
            let output = replay(&file, &arguments);
            let printed = String::from_utf8(output.stdout).unwrap();
            let has_failed = printed.contains("\"failures\":1,");
            assert!(
                has_failed || output.status.code() == Some(1),
                "{arguments:?}: {printed}"
            );
        }
    }
    let output = replay(&file, &["--verify"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("of 16.0 GiB at most"), "{message}");
}

#[test]
fn lane_may_keep_nothing() {
    let folder = Folder::new("lane");
    let file = folder.file("lane.csv", TRACE.as_bytes());
    let output = replay(&file, &["--lane=0", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"lane\":0"));
}

#[test]
fn text_has_no_device_to_choose() {
    let folder = Folder::new("device");
    let file = folder.file("device.csv", TRACE.as_bytes());
    let message = refusal(&file, &["--trace-device=0"]);
    assert!(
        message.contains("expected a snapshot of PyTorch"),
        "{message}"
    );
}

#[test]
fn traces_of_one_name_have_a_picture_each() {
    let folder = Folder::new("names");
    let files = ["one/serve.csv", "two/serve.csv"].map(|name| folder.file(name, TRACE.as_bytes()));
    let plot = folder.0.join("plot.svg");
    let plot = format!("--plot={}", plot.display());
    let status = weirpool()
        .args(&files)
        .args([&plot, "--json"])
        .output()
        .unwrap()
        .status;
    assert_eq!(status.code(), Some(0));
    for picture in ["plot.serve.svg", "plot.serve-2.svg"] {
        assert!(folder.0.join(picture).is_file(), "{picture}");
    }
}

#[test]
fn bytes_behind_gzip_data_are_named_as_such() {
    let folder = Folder::new("behind");
    let content = [&gzip([TRACE])[..], b"and more"].concat();
    let message = refusal(&folder.file("behind.csv.gz", &content), &[]);
    assert!(
        message.contains("bytes follow the end of the gzip data"),
        "{message}"
    );
    let cut = gzip([TRACE]);
    let message = refusal(&folder.file("cut.csv.gz", &cut[..cut.len() - 4]), &[]);
    assert!(message.contains("truncated gzip"), "{message}");
}

#[cfg(unix)]
#[test]
fn control_characters_of_a_file_name_are_escaped() {
    let folder = Folder::new("escapes");
    let file = folder.file("a\u{1b}[31m.csv", b"nonsense");
    let output = replay(&file, &[]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        !message.contains('\u{1b}') && message.contains("a\\u{1b}[31m.csv"),
        "{message}"
    );
    let sound = folder.file("b\u{1b}[31m.csv", TRACE.as_bytes());
    let output = replay(&sound, &[]);
    assert!(!output.stdout.contains(&0x1b));
}

#[test]
fn closed_pipe_ends_the_command_quietly() {
    let folder = Folder::new("pipe");
    let file = folder.file("pipe.csv", TRACE.as_bytes());
    let mut command = weirpool();
    command
        .arg(file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stderr, b"");
    assert_eq!(output.status.code(), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn full_outputs_make_no_panic() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let folder = Folder::new("full");
    let file = folder.file("full.csv", TRACE.as_bytes());
    let status = weirpool().arg(&file).stdout(full()).stderr(full()).status();
    assert_eq!(status.unwrap().code(), Some(1));
    let missing = weirpool().arg("missing.csv").stderr(full()).status();
    assert_eq!(missing.unwrap().code(), Some(1));
    let output = weirpool().arg(&file).stdout(full()).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        message.contains("standard output cannot be written"),
        "{message}"
    );
}

#[test]
fn folder_is_no_trace() {
    let folder = Folder::new("folder");
    let message = refusal(&folder.0, &[]);
    assert!(message.contains("cannot be read"), "{message}");
}

/// Returns the JSON of an element of a page.
fn element(page: &str, id: &str) -> serde_json::Value {
    let (_, rest) = page.split_once(&format!("id=\"{id}\">")).unwrap();
    let (json, _) = rest.split_once("</script>").unwrap();
    serde_json::from_str(json).unwrap()
}

/// Replays a trace that waits, with a page, and returns the page.
fn page(folder: &Folder, extra: &[&str]) -> (String, serde_json::Value) {
    let file = folder.0.join("page.html");
    let html = format!("--html={}", file.display());
    let output = weirpool()
        .args(WAITING)
        .args([&html, "--json"])
        .args(extra)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let page = fs::read_to_string(file).unwrap();
    (page, serde_json::from_slice(&output.stdout).unwrap())
}

const WAITING: [&str; 4] = [
    "--generate=cross-stream",
    "--operations=4000",
    "--lag=1ms",
    "--capacity=500MB",
];

#[test]
fn page_loads_nothing_and_its_frames_are_in_order() {
    let folder = Folder::new("page");
    let (page, report) = page(&folder, &[]);
    assert!(page.len() < 30_000_000, "{}", page.len());
    for loads in [
        "http:", "https:", "src=", "href", "@import", "url(", "fetch(",
    ] {
        assert!(!page.contains(loads), "{loads}");
    }
    assert!(page.contains("default-src 'none'"));

    let start = element(&page, "start");
    let frames = start["frames"].as_array().unwrap();
    assert!((100..=300).contains(&frames.len()), "{}", frames.len());
    let of = |frame: &serde_json::Value, key: &str| frame[key].as_u64().unwrap();
    let times: Vec<_> = frames.iter().map(|frame| of(frame, "time_ns")).collect();
    assert!(times.is_sorted_by(|one, next| one < next), "{times:?}");
    let makespan = of(&report, "makespan_ns");
    let span = times.last().unwrap() - times[0];
    assert!(
        span <= makespan && span >= makespan * 9 / 10,
        "{span} of {makespan}"
    );
    for two in times.windows(2) {
        assert!(two[1] - two[0] <= span / 25, "{two:?}: evenly");
    }
    for frame in frames {
        let levels = &frame["levels"];
        assert!(of(levels, "reserved") <= of(&report, "reserved_peak"));
        assert!(of(levels, "requested") <= of(&report, "requested_high"));
        let parts = ["used", "pending", "free"].map(|key| of(levels, key));
        assert_eq!(parts.iter().sum::<u64>(), of(levels, "reserved"));
        let segments = frame["segments"].as_array().unwrap().iter();
        let blocks = segments.flat_map(|segment| segment["blocks"].as_array().unwrap());
        let shown: u64 = blocks.map(|block| block[1].as_u64().unwrap()).sum();
        assert_eq!(shown + of(frame, "small_bytes"), of(levels, "reserved"));
    }
    let last = frames.last().unwrap();
    let waits = &last["times"][0];
    assert_eq!(waits["name"], "waits for memory");
    assert!(of(waits, "count") > 0);
    assert_eq!(of(waits, "count"), of(&report, "waits"));
}

#[test]
fn page_does_not_change_the_figures_of_a_replay() {
    let folder = Folder::new("page-figures");
    let figures = |report: &serde_json::Value| {
        let mut figures = report.as_object().unwrap().clone();
        for measured in ["ns_p50", "ns_p99", "ns_mean"] {
            assert!(figures.remove(measured).is_some(), "{measured}");
        }
        figures
    };
    let (_, with) = page(&folder, &[]);
    let output = weirpool().args(WAITING).arg("--json").output().unwrap();
    let without: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(without["waits"].as_u64() > Some(0) && without["device_waits"].as_u64() > Some(0));
    assert_eq!(figures(&with), figures(&without));
}

#[cfg(unix)]
#[test]
fn name_of_a_trace_cannot_leave_its_element() {
    let folder = Folder::new("page-names");
    let name = "<!--<script>alert(1)<script x>\u{2028}'\"&amp;";
    let file = folder.file(&format!("{name}.csv"), TRACE.as_bytes());
    let html = folder.0.join("page.html");
    let output = replay(&file, &[&format!("--html={}", html.display())]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let page = fs::read_to_string(html).unwrap();
    let (head, _) = page.split_once("<script type").unwrap();
    let (_, data) = page.split_once("id=\"start\">").unwrap();
    let (data, _) = data.split_once("</script>").unwrap();
    assert!(!head.contains("alert(1)") && !data.contains('<'), "{data}");
    let title = &element(&page, "start")["title"];
    let shown = name.replace('\u{2028}', "\\u{2028}");
    assert!(title.as_str().unwrap().starts_with(&shown), "{title}");
}

#[test]
fn page_that_cannot_be_written_ends_the_command() {
    let folder = Folder::new("page-unwritable");
    let file = folder.file("trace.csv", TRACE.as_bytes());
    let html = folder.0.join("missing/page.html");
    let output = replay(&file, &[&format!("--html={}", html.display())]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(
        message.contains("page.html: cannot be written: "),
        "{message}"
    );
}

#[test]
fn traces_have_a_page_each() {
    let folder = Folder::new("pages");
    let files = ["one.csv", "two.csv"].map(|name| folder.file(name, TRACE.as_bytes()));
    let html = format!("--html={}", folder.0.join("page.html").display());
    let output = weirpool().args(&files).args([&html, "--json"]).output();
    assert_eq!(output.unwrap().status.code(), Some(0));
    for page in ["page.one.html", "page.two.html"] {
        assert!(folder.0.join(page).is_file(), "{page}");
    }
}

/// By the same name, by links of both kinds, and through a folder that is a link.
#[cfg(unix)]
#[test]
fn outputs_do_not_overwrite_the_input() {
    use std::os::unix::fs::symlink;
    let folder = Folder::new("overwrite");
    let file = folder.file("trace.csv", TRACE.as_bytes());
    let at = |name: &str| folder.0.join(name);
    symlink(&file, at("soft.csv")).unwrap();
    fs::hard_link(&file, at("hard.csv")).unwrap();
    symlink(&folder.0, at("folder")).unwrap();
    let names = [
        "trace.csv",
        "soft.csv",
        "hard.csv",
        "folder/trace.csv",
        "folder/soft.csv",
    ];
    for option in ["record", "html", "plot", "frontier"] {
        for name in names {
            let output = format!("--{option}={}", at(name).display());
            for input in [&file, &at("soft.csv")] {
                let message = refusal(input, &[&output]);
                assert!(message.contains("would overwrite"), "{output}: {message}");
                assert_eq!(fs::read(&file).unwrap(), TRACE.as_bytes(), "{output}");
            }
        }
    }
    // With several traces, each output has a name of its own.
    let (one, two) = (
        folder.file("one.csv", TRACE.as_bytes()),
        folder.file("page.one.html", TRACE.as_bytes()),
    );
    let html = format!("--html={}", at("page.html").display());
    let output = weirpool().args([&one, &two]).arg(&html).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(fs::read(&two).unwrap(), TRACE.as_bytes());
    // Two outputs of one name are refused as well, and others are written.
    let both = |html: &str, plot: &str| {
        let [html, plot] = [("html", html), ("plot", plot)]
            .map(|(option, name)| format!("--{option}={}", at(name).display()));
        replay(&file, &[&html, &plot, "--json"]).status.code()
    };
    assert_eq!(both("out", "out"), Some(1));
    assert!(!at("out").exists());
    assert_eq!(both("out.html", "out.svg"), Some(0));
    assert_eq!(
        both("out.html", "out.svg"),
        Some(0),
        "an earlier output is replaced"
    );
    assert_eq!(
        replay(&file, &["--html=/dev/null", "--json"]).status.code(),
        Some(0)
    );
}

#[cfg(unix)]
#[test]
fn overrides_of_the_writing_direction_are_escaped() {
    let folder = Folder::new("direction");
    let file = folder.file("a\u{202e}vsc.csv", b"nonsense");
    let output = replay(&file, &[]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("a\\u{202e}vsc.csv"), "{message}");
}
