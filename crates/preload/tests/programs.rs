//! Programs in C on the pool, with a driver of the tests' own: each ends as it does without the pool, and the driver
//! counts the allocations that reach it.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]

mod common;

use common::built;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use weirpool_preload::settings::{LIBRARY, PROCESS, Settings, libraries};

/// What a program and its driver say.
struct Run {
    output: Output,
    /// What the driver of each process counted, in the order of their ends.
    counts: Vec<BTreeMap<String, i64>>,
}

impl Run {
    fn errors(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// Checks that the program ended well.
    #[track_caller]
    fn expect_ok(self) -> Self {
        let text = String::from_utf8_lossy(&self.output.stdout);
        assert!(
            self.output.status.success() && text == "ok\n",
            "{text}{}",
            self.errors()
        );
        self
    }

    /// Checks that no allocation reached the driver, and how many the pool served.
    #[track_caller]
    fn expect_served(self, allocations: u64) -> Self {
        let run = self.expect_ok();
        for call in ["alloc", "async", "pool", "free", "free_async"] {
            assert_eq!(run.counts[0][call], 0, "{call}");
        }
        let served = format!("weirpool: {allocations} allocations on device 0,");
        assert!(run.errors().contains(&served), "{}", run.errors());
        assert!(!run.errors().contains("not freed"), "{}", run.errors());
        run
    }
}

fn command(program: &str, arguments: &[&str], report: &Path) -> Command {
    let mut command = Command::new(built().join(program));
    command
        .args(arguments)
        .env("LD_LIBRARY_PATH", built())
        .env("FAKE_REPORT", report)
        .env_remove("LD_AUDIT");
    command
}

fn finish(mut command: Command, report: &Path) -> Run {
    let output = command.output().unwrap();
    let text = fs::read_to_string(report).unwrap_or_default();
    let _ = fs::remove_file(report);
    let counts = |line: &str| {
        let pairs = line.split(' ').map(|pair| pair.split_once('=').unwrap());
        pairs
            .map(|(name, count)| (name.to_owned(), count.parse().unwrap()))
            .collect()
    };
    Run {
        output,
        counts: text.lines().map(counts).collect(),
    }
}

fn report() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!(
        "report-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    );
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn without(program: &str, arguments: &[&str]) -> Run {
    let report = report();
    finish(command(program, arguments, &report), &report)
}

fn with(settings: &Settings, program: &str, arguments: &[&str]) -> Run {
    let report = report();
    let mut command = command(program, arguments, &report);
    let own = std::env::current_exe().unwrap();
    let (audit, library) = libraries(&own).expect("both libraries are built with this test");
    command
        .envs(settings.variables())
        .env("LD_AUDIT", audit)
        .env(LIBRARY, library)
        .env(PROCESS, "0");
    finish(command, &report)
}

fn usual() -> Settings {
    Settings {
        wait: Duration::from_millis(200),
        ..Settings::default()
    }
}

fn case(name: &str) -> Run {
    with(&usual(), "cases", &[name])
}

#[test]
fn every_way_to_the_driver_is_served() {
    for way in ["linked", "dlsym", "address", "thread"] {
        with(&usual(), "reach", &[way]).expect_served(20);
    }
    with(&usual(), "reach-by-data", &["linked"]).expect_served(20);
}

#[test]
fn function_of_the_programs_own_is_not_replaced() {
    let run = with(&usual(), "reach-by-data", &["own"]).expect_ok();
    assert_eq!(run.errors(), "");
}

#[test]
fn program_without_the_setting_uses_the_driver() {
    for way in ["linked", "dlsym", "address", "thread"] {
        let run = without("reach", &[way]).expect_ok();
        assert_eq!((run.counts[0]["alloc"], run.counts[0]["async"]), (10, 10));
        assert_eq!(run.errors(), "");
    }
    // The audit library is there, and off.
    let report = report();
    let mut command = command("reach", &["linked"], &report);
    let (audit, _) = libraries(&std::env::current_exe().unwrap()).unwrap();
    command.env("LD_AUDIT", audit).env_remove(LIBRARY);
    let run = finish(command, &report).expect_ok();
    assert_eq!((run.counts[0]["alloc"], run.errors()), (10, String::new()));
}

#[test]
fn program_without_the_library_uses_the_driver() {
    let report = report();
    let mut command = command("reach", &["dlsym"], &report);
    let (audit, _) = libraries(&std::env::current_exe().unwrap()).unwrap();
    command
        .env("LD_AUDIT", audit)
        .env(LIBRARY, "/nowhere/libweirpool_preload.so");
    let run = finish(command, &report).expect_ok();
    assert_eq!((run.counts[0]["alloc"], run.counts[0]["async"]), (10, 10));
    assert_eq!(
        run.errors().matches("cannot be loaded").count(),
        1,
        "{}",
        run.errors()
    );
}

#[test]
fn memory_follows_the_order_of_streams() {
    case("order").expect_served(3);
}

#[test]
fn synchronous_free_waits_for_the_device() {
    let run = case("waits").expect_served(2);
    // One wait as the pool is made, and one for the free.
    assert_eq!(run.counts[0]["synchronize"], 2);
    // The second allocation did not fit beside the first.
    assert_eq!(run.counts[0]["used"], 40 << 20);
}

#[test]
fn destroyed_stream_lives_until_its_memory_is_reused() {
    let run = case("destroyed").expect_served(100);
    assert_eq!(run.counts[0]["destroyed"], 100);
}

#[test]
fn captured_allocations_are_the_drivers() {
    let run = case("captures").expect_ok();
    assert_eq!(
        (run.counts[0]["async"], run.counts[0]["free_async"]),
        (1, 1)
    );
    assert!(
        run.errors().contains("passed through: 2 in captures"),
        "{}",
        run.errors()
    );
    assert!(!run.errors().contains("not freed"), "{}", run.errors());
}

#[test]
fn pool_is_not_made_during_a_capture() {
    let run = case("captured_first").expect_ok();
    assert_eq!(
        (run.counts[0]["async"], run.counts[0]["free_async"]),
        (1, 1)
    );
    assert!(
        run.errors().contains("1 allocation on device 0"),
        "{}",
        run.errors()
    );
}

#[test]
fn capture_that_ends_with_its_stream_or_context_is_over() {
    let run = case("captures_destroyed").expect_ok();
    assert_eq!((run.counts[0]["alloc"], run.counts[0]["free"]), (0, 0));
    assert_eq!(run.counts[0]["destroyed"], 2);
}

#[test]
fn memory_freed_during_a_capture_is_available_after_it() {
    let run = case("captures_free").expect_ok();
    assert_eq!((run.counts[0]["alloc"], run.counts[0]["async"]), (0, 0));
    let text = run.errors();
    assert!(!text.contains("not freed"), "{text}");
    assert_eq!(text.lines().count(), 1, "one line of a process: {text}");
}

#[test]
fn capture_that_ends_with_its_thread_is_over() {
    case("captures_thread").expect_served(2);
}

#[test]
fn context_is_destroyed_after_deferred_frees_of_another_thread() {
    let run = case("captures_context").expect_ok();
    assert_eq!((run.counts[0]["alloc"], run.counts[0]["free"]), (0, 0));
    assert!(!run.errors().contains("not freed"), "{}", run.errors());
}

#[test]
fn each_version_of_a_function_gets_its_own_arguments() {
    case("versions").expect_ok();
}

#[test]
fn call_for_another_context_leaves_the_current_one() {
    let run = case("elsewhere").expect_ok();
    let count = |call: &str| run.counts[0][call];
    assert_eq!(
        (count("async"), count("pool"), count("free_async")),
        (0, 1, 1)
    );
}

#[test]
fn settings_of_a_pool_before_its_first_allocation_are_kept() {
    let run = case("peers").expect_ok();
    // Both devices have access to the memory of both.
    assert_eq!(run.counts[0]["access"], 0b1111, "{}", run.errors());
    assert_eq!(run.errors().lines().count(), 1, "{}", run.errors());
}

#[test]
fn context_that_the_driver_keeps_keeps_its_memory() {
    let run = case("refused").expect_ok();
    assert_eq!((run.counts[0]["alloc"], run.counts[0]["free"]), (0, 0));
}

#[test]
fn failed_request_gives_the_reserve_back() {
    let reserve = Some(40 << 20);
    with(&Settings { reserve, ..usual() }, "cases", &["reserved"]).expect_ok();
}

fn reserving(wait: Duration, name: &str) -> Run {
    let bytes = Some(40 << 20);
    let settings = Settings {
        reserve: bytes,
        limit: bytes,
        wait,
        ..usual()
    };
    with(&settings, "cases", &[name])
}

#[test]
fn impossible_request_leaves_the_reserve_with_the_blocks() {
    let run = reserving(usual().wait, "reserve_kept").expect_served(2);
    assert!(!run.errors().contains("panicked"), "{}", run.errors());
}

#[test]
fn threads_wait_for_the_reserve_side_by_side() {
    let run = reserving(Duration::from_millis(500), "reserve_in_vain").expect_ok();
    assert!(run.errors().contains("4 failed"), "{}", run.errors());
}

#[test]
fn pool_serves_again_once_the_current_pool_of_the_driver_is_destroyed() {
    let run = case("current_pool").expect_ok();
    let count = |call: &str| run.counts[0][call];
    assert_eq!((count("async"), count("free_async")), (1, 1));
}

#[test]
fn invalid_calls_get_the_drivers_answers() {
    case("errors").expect_ok();
}

#[test]
fn memory_that_the_pool_cannot_serve_is_passed_through_and_counted() {
    let run = case("passed").expect_ok();
    assert_eq!((run.counts[0]["managed"], run.counts[0]["pool"]), (1, 1));
    let counted = "passed through: 1 of managed memory, 1 from other pools";
    assert!(run.errors().contains(counted), "{}", run.errors());
    assert_eq!((run.counts[0]["used"], run.counts[0]["handles"]), (0, 0));
}

#[test]
fn addresses_are_described_as_the_drivers_own() {
    let run = case("pointers").expect_served(2);
    assert!(run.errors().contains("--memory plain"), "{}", run.errors());
}

#[test]
fn limit_is_seen_and_kept() {
    let limit = Some(16 << 20);
    let run = with(&Settings { limit, ..usual() }, "cases", &["limited"]).expect_served(2);
    assert!(run.errors().contains("1 failed"), "{}", run.errors());
    assert!(run.counts[0]["used"] <= 16 << 20);
}

#[test]
fn short_request_waits_for_a_free_of_another_thread() {
    let (limit, wait) = (Some(16 << 20), Duration::from_secs(20));
    let run = with(
        &Settings {
            limit,
            wait,
            ..usual()
        },
        "cases",
        &["patient"],
    )
    .expect_served(2);
    assert!(run.errors().contains("1 waited"), "{}", run.errors());
}

#[test]
fn plain_memory_is_the_drivers_and_the_limit_admits_it() {
    let settings = Settings {
        limit: Some(16 << 20),
        is_plain: true,
        ..usual()
    };
    let run = with(&settings, "cases", &["plain"]).expect_ok();
    let count = |call: &str| run.counts[0][call];
    assert_eq!(
        (
            count("alloc"),
            count("free"),
            count("free_async"),
            count("used")
        ),
        (2, 1, 1, 0)
    );
    assert!(run.errors().contains("1 failed"), "{}", run.errors());
}

#[test]
fn chunk_is_admitted_until_nothing_has_it() {
    let limit = Some(16 << 20);
    let run = with(&Settings { limit, ..usual() }, "cases", &["chunks"]).expect_ok();
    let text = run.errors();
    assert!(
        text.contains("2 of the driver's admitted") && text.contains("4 failed"),
        "{text}"
    );
}

#[test]
fn memory_of_a_context_ends_with_it() {
    let run = case("contexts").expect_ok();
    assert_eq!((run.counts[0]["used"], run.counts[0]["handles"]), (0, 0));
}

#[test]
fn threads_never_share_memory() {
    let run = case("threads").expect_ok();
    assert_eq!((run.counts[0]["alloc"], run.counts[0]["async"]), (0, 0));
    assert!(!run.errors().contains("not freed"), "{}", run.errors());
    // Three rounds of eight threads with four streams each.
    assert!(run.counts[0]["destroyed"] > 72, "{:?}", run.counts);
}

#[test]
fn forked_process_gets_the_drivers_answers() {
    let run = case("forks").expect_ok();
    let [child, parent] = &run.counts[..] else {
        panic!("two processes");
    };
    assert_eq!((child["alloc"], child["free"], parent["alloc"]), (1, 1, 0));
    assert_eq!(
        run.errors().lines().count(),
        1,
        "the parent reports: {}",
        run.errors()
    );
}

#[test]
fn process_forked_before_its_first_allocation_has_a_pool_of_its_own() {
    let run = case("forks_first").expect_ok();
    assert!(run.counts.iter().all(|counts| counts["alloc"] == 0));
    assert_eq!(run.errors().lines().count(), 2, "{}", run.errors());
}

#[test]
fn executed_program_is_served_too() {
    case("executes").expect_served(3);
}

#[test]
fn memory_can_be_freed_after_main() {
    case("late").expect_served(3);
}

#[test]
fn program_ends_as_it_would_without_the_pool() {
    let run = case("exits_in_thread").expect_ok();
    assert!(run.errors().contains("2 not freed"), "{}", run.errors());
    case("leaves").expect_ok();
    let killed = case("crashes");
    assert_eq!(killed.output.status.signal(), Some(11));
    assert_eq!(killed.errors(), "");
}

#[test]
fn recorded_trace_has_every_allocation_and_free() {
    let file = report().with_extension("csv");
    let record = Some(file.clone());
    with(&Settings { record, ..usual() }, "reach", &["linked"]).expect_served(20);
    // The program is not the process of that number: its own is in the name.
    let folder = file.parent().unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    let found = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let found = found.filter(|path| {
        path.file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .starts_with(name)
    });
    let found: Vec<_> = found.collect();
    assert_eq!(found.len(), 1);
    let text = fs::read_to_string(&found[0]).unwrap();
    fs::remove_file(&found[0]).unwrap();
    let count = |op: &str| text.lines().filter(|line| line.contains(op)).count();
    assert_eq!((count(",a,"), count(",f,")), (20, 20));
}

#[test]
fn missing_broker_fails_allocations_and_says_so() {
    let broker = Some("/nowhere/gpu0.sock".into());
    let run = with(&Settings { broker, ..usual() }, "cases", &["order"]);
    assert!(!run.output.status.success());
    let text = run.errors();
    assert!(
        text.contains("/nowhere/gpu0.sock") && text.contains("allocations fail"),
        "{text}"
    );
    assert_eq!(run.counts[0]["async"], 0);
}

#[test]
fn quiet_program_writes_nothing_of_its_own() {
    let is_quiet = true;
    let run = with(
        &Settings {
            is_quiet,
            ..usual()
        },
        "reach",
        &["linked"],
    )
    .expect_ok();
    assert_eq!(run.errors(), "");
}

/// Compiles a program of `tests/gpu`, and returns what it writes without and with the pool.
fn on_a_gpu(name: &str, arguments: &[&str]) -> [String; 2] {
    let source = format!("{}/tests/gpu/{name}.cu", env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compiler = Command::new("nvcc");
    compiler
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-lcuda");
    assert!(compiler.status().unwrap().success(), "{compiler:?}");
    let (audit, library) = libraries(&std::env::current_exe().unwrap()).unwrap();
    let variables = usual().variables();
    [false, true].map(|is_served| {
        let mut command = Command::new(&program);
        command.args(arguments);
        if is_served {
            command
                .envs(variables.clone())
                .env("LD_AUDIT", &audit)
                .env(LIBRARY, &library);
        }
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(errors.contains(" allocations"), is_served, "{errors}");
        String::from_utf8(output.stdout).unwrap()
    })
}

#[test]
#[ignore = "needs an NVIDIA GPU and nvcc; tests/gpu/run.sh runs further programs"]
fn answers_on_a_gpu_are_the_drivers() {
    let [without, with] = on_a_gpu("semantics", &[]);
    assert_eq!(with, without);
}

#[test]
#[ignore = "needs an NVIDIA GPU and nvcc; tests/gpu/run.sh runs further programs"]
fn memory_on_a_gpu_follows_the_order_of_streams() {
    for text in on_a_gpu("streams", &["500"]) {
        assert_eq!(text, "8 threads, 500 rounds: 0 wrong words\n");
    }
}
