//! Tells the crate whether it is built without optimizations, because models under loom cannot be: see `src/lib.rs`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(weirpool_unoptimized)");
    if std::env::var("OPT_LEVEL").is_ok_and(|level| level == "0") {
        println!("cargo::rustc-cfg=weirpool_unoptimized");
    }
}
