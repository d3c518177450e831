#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let _ = weirpool_cli::fuzzing::instance(data);
});
