//! Programs in C and C++ on the simulated device, built by the system's compilers against the shared and the static library.
//!
//! | class of fault | test |
//! |---|---|
//! | a function misbehaves, or a panic leaves it; threads race | `c_program_*`, `cpp_program_runs` |
//! | the header and the library differ | `header_declares_the_functions_of_the_library`, and the sizes in `src/options.rs` |
//! | the class is no resource of `cuda::mr` | `cpp_program_is_a_resource_of_cccl`, with CCCL |
//! | streams, frees or waits differ on a GPU | the programs of `tests/gpu/build.sh`, on a GPU |

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the libraries, beside this program.
fn libraries() -> PathBuf {
    let program = env::current_exe().unwrap();
    program.parent().unwrap().to_owned()
}

struct Language {
    compiler: &'static str,
    variable: &'static str,
    standard: &'static str,
}

const C: Language = Language {
    compiler: "cc",
    variable: "CC",
    standard: "-std=c11",
};

const CPP: Language = Language {
    compiler: "c++",
    variable: "CXX",
    standard: "-std=c++17",
};

/// Compiles a program with these arguments, runs it, and returns what it printed.
fn run(language: &Language, source: &str, output: &str, arguments: &[&str]) -> String {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(output);
    let mut compiler =
        Command::new(env::var_os(language.variable).unwrap_or(language.compiler.into()));
    compiler.args([
        language.standard,
        "-O1",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
    ]);
    compiler.args(["-D_GNU_SOURCE", "-pthread"]);
    compiler.arg("-I").arg(folder().join("include"));
    compiler.arg("-o").arg(&program);
    compiler.arg(folder().join("tests/programs").join(source));
    compiler.args(arguments);
    assert!(compiler.status().unwrap().success(), "{compiler:?}");
    let ran = Command::new(&program).output().unwrap();
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{source}: {}: {told}", ran.status);
    String::from_utf8(ran.stdout).unwrap()
}

fn shared() -> Vec<String> {
    let folder = libraries().display().to_string();
    vec![
        format!("-L{folder}"),
        format!("-Wl,-rpath,{folder}"),
        "-lweirpool_c".to_owned(),
    ]
}

fn run_shared(language: &Language, source: &str, output: &str, further: &[&str]) -> String {
    let shared = shared();
    let shared = shared.iter().map(String::as_str);
    let arguments: Vec<_> = further.iter().copied().chain(shared).collect();
    run(language, source, output, &arguments)
}

#[test]
fn c_program_runs_with_the_shared_library() {
    assert_eq!(run_shared(&C, "pool.c", "pool-shared", &[]), "passed\n");
}

#[test]
fn c_program_runs_with_the_static_library() {
    let library = libraries().join("libweirpool_c.a").display().to_string();
    let arguments = [library.as_str(), "-ldl", "-lm", "-lpthread"];
    assert_eq!(run(&C, "pool.c", "pool-static", &arguments), "passed\n");
}

#[test]
fn cpp_program_runs() {
    assert_eq!(
        run_shared(&CPP, "resource.cpp", "resource", &[]),
        "passed\n"
    );
}

/// `CUDA_INCLUDE` lists folders with the headers of the CUDA runtime and of CCCL, with colons between them.
#[test]
#[ignore = "needs the headers of the CUDA runtime and of CCCL, in the folders of CUDA_INCLUDE"]
fn cpp_program_is_a_resource_of_cccl() {
    let folders = env::var_os("CUDA_INCLUDE").expect("CUDA_INCLUDE is set");
    let folders = env::split_paths(&folders);
    let folders: Vec<_> = folders.map(|path| path.display().to_string()).collect();
    let includes: Vec<_> = folders.iter().flat_map(|path| ["-isystem", path]).collect();
    let told = run_shared(&CPP, "resource.cpp", "resource-cccl", &includes);
    assert!(
        told.starts_with("CCCL 3") && told.ends_with("passed\n"),
        "{told}"
    );
}

/// Returns the names in front of the parameters of functions, in the lines that declare one.
fn functions(text: &str, declares: impl Fn(&str) -> bool) -> Vec<String> {
    let lines = text.lines().filter(|line| declares(line));
    let names = lines.map(|line| {
        let line = line.replace("pub(crate)", "");
        let (before, _) = line.split_once('(').unwrap();
        before[before.rfind("weirpool_").unwrap()..].to_owned()
    });
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

#[test]
fn header_declares_the_functions_of_the_library() {
    let read = |path: &str| fs::read_to_string(folder().join(path)).unwrap();
    let declared = functions(&read("include/weirpool.h"), |line| {
        let begins = ["weirpool_status w", "void w", "const char *w"];
        begins.iter().any(|begin| line.starts_with(begin))
    });
    let exported = functions(&read("src/exports.rs"), |line| {
        line.contains("extern \"C\" fn")
    });
    assert_eq!(declared, exported);
    assert_eq!(declared.len(), 12);
}
