//! Compiles the audit library, which is C: the dynamic linker loads it before there is anything else.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=audit/audit.c");
    let of_target = |name: &str| env::var(name).unwrap_or_default();
    let is_served = of_target("CARGO_CFG_TARGET_OS") == "linux"
        && of_target("CARGO_CFG_TARGET_ENV") == "gnu"
        && of_target("CARGO_CFG_TARGET_POINTER_WIDTH") == "64";
    if !is_served {
        return;
    }
    let library = PathBuf::from(of_target("OUT_DIR")).join("libweirpool_audit.so");
    let mut compiler = cc::Build::new().opt_level(2).get_compiler().to_command();
    compiler
        .args([
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fPIC",
            "-shared",
        ])
        .arg("-o")
        .arg(&library)
        .arg("audit/audit.c");
    let compiled = compiler.status();
    let is_compiled = compiled.as_ref().is_ok_and(|status| status.success());
    assert!(
        is_compiled,
        "{compiler:?}: {compiled:?}: a C compiler is needed, such as that of build-essential"
    );
}
