//! The driver of the tests, and the programs that call it. The tests of the command line use it as well.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A folder with the driver and the programs.
pub(crate) fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
        fs::create_dir_all(&folder).unwrap();
        let source = |name: &str| {
            format!(
                "{}/../preload/tests/programs/{name}.c",
                env!("CARGO_MANIFEST_DIR")
            )
        };
        let compile = |output: &str, input: &str, arguments: &[&str]| {
            let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
            compiler.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]);
            compiler.arg(folder.join(output)).arg(source(input));
            compiler
                .arg(format!("-L{}", folder.display()))
                .args(arguments);
            assert!(compiler.status().unwrap().success(), "{compiler:?}");
        };
        compile(
            "libcuda.so.1",
            "cuda",
            &["-fPIC", "-shared", "-Wl,-soname,libcuda.so.1", "-lpthread"],
        );
        let linked = ["-l:libcuda.so.1", "-lpthread", "-ldl"];
        compile("cases", "cases", &linked);
        compile("reach", "reach", &linked);
        compile("libown.so", "own", &["-fPIC", "-shared"]);
        // The functions of the first library hide those of the driver.
        compile(
            "reach-by-data",
            "reach",
            &[&["-fno-plt", "-l:libown.so"][..], &linked].concat(),
        );
        folder
    })
}
