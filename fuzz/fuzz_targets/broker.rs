#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    weirpool_broker::fuzzing::run(data);
});
