//! `weirpool run`, executed, with the driver of the tests of `weirpool-preload`.
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]

#[path = "../../preload/tests/common/mod.rs"]
mod common;

use common::built;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than the programs here take together.
const PATIENCE: Duration = Duration::from_secs(60);

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("weirpool-run-{name}-{}", std::process::id()));
    fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
    path
}

fn weirpool(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weirpool"));
    command
        .args(arguments)
        .env("LD_LIBRARY_PATH", built())
        .env_remove("LD_AUDIT");
    command
}

fn program(name: &str) -> String {
    built().join(name).display().to_string()
}

#[track_caller]
fn expect_ok(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && output.stdout == b"ok\n",
        "{output:?}"
    );
    errors
}

#[test]
fn program_allocates_from_the_pool_and_keeps_its_status() {
    let cases = program("cases");
    let output = weirpool(&[
        "run", "--limit", "16MiB", "--wait", "200ms", "--", &cases, "limited",
    ])
    .output();
    let errors = expect_ok(&output.unwrap());
    assert!(errors.contains("2 allocations on device 0"), "{errors}");
    let failed = weirpool(&["run", "--", "sh", "-c", "exit 7"])
        .output()
        .unwrap();
    assert_eq!((failed.status.code(), failed.stderr.len()), (Some(7), 0));
    let missing = weirpool(&["run", "--", "/nowhere/program"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(
        !missing.status.success() && text.contains("/nowhere/program cannot be started"),
        "{text}"
    );
}

#[test]
fn recorded_program_is_replayed() {
    let folder = folder("record");
    let trace = folder.join("trace.csv").display().to_string();
    let reach = program("reach");
    let output = weirpool(&["run", "--quiet", "--record", &trace, "--", &reach, "linked"]).output();
    assert_eq!(expect_ok(&output.unwrap()), "");
    let replayed = weirpool(&["replay", "--json", &trace]).output().unwrap();
    assert!(replayed.status.success(), "{replayed:?}");
    let report: serde_json::Value = serde_json::from_slice(&replayed.stdout).unwrap();
    assert_eq!(report["ops"], 40, "{report}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn run_within_a_run_has_its_own_settings_and_admits_memory_once() {
    let folder = folder("nested");
    let trace = folder.join("trace.csv").display().to_string();
    let (own, cases) = (env!("CARGO_BIN_EXE_weirpool"), program("cases"));
    let inner = ["--memory", "plain", "--wait", "200ms"];
    let mut outer = weirpool(&[
        "run", "--quiet", "--limit", "1MiB", "--record", &trace, "--",
    ]);
    outer.args([own, "run", "--limit", "16MiB"]).args(inner);
    let errors = expect_ok(&outer.args(["--", &cases, "plain"]).output().unwrap());
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("2 of the driver's admitted"), "{errors}");
    assert!(!Path::new(&trace).exists());
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn live_page_is_served_while_the_program_runs() {
    let cases = program("cases");
    let mut command = weirpool(&["run", "--page", "--", &cases, "rounds"]);
    let output = command.output().unwrap();
    let errors = expect_ok(&output);
    assert!(
        errors.contains("the page is at http://127.0.0.1:"),
        "{errors}"
    );
}

#[test]
fn three_programs_share_less_memory_than_they_need() {
    let folder = folder("broker");
    let socket = folder.join("gpu0.sock").display().to_string();
    // Each takes 24 MiB in each round, in two steps: 0.6 of what they hold together.
    let mut broker = weirpool(&["broker", "--capacity", "44MiB", "--socket", &socket])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    while !Path::new(&socket).exists() {
        assert!(begin.elapsed() < PATIENCE, "the broker listens");
        thread::sleep(Duration::from_millis(5));
    }
    let cases = program("cases");
    let arguments = [
        "run",
        "--wait",
        "30s",
        "--broker",
        &socket,
        "--tag",
        "rounds",
        "--reserve",
        "24MiB",
        "--",
        &cases,
        "rounds",
    ];
    let programs = [(); 3].map(|()| {
        weirpool(&arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let outputs = programs.map(|program| program.wait_with_output().unwrap());
    let _ = broker.kill();
    let _ = broker.wait();
    let errors = outputs.each_ref().map(expect_ok);
    assert!(
        errors
            .iter()
            .all(|text| text.contains("400 allocations") && !text.contains("failed")),
        "{errors:?}"
    );
    assert!(
        errors.iter().any(|text| text.contains("waited")),
        "{errors:?}"
    );
    fs::remove_dir_all(folder).unwrap();
}
