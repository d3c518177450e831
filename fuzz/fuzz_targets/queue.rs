#![no_main]

#[path = "../src/queue.rs"]
mod queue;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    queue::run(data);
});
