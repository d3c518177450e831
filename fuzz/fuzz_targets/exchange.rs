#![no_main]

#[path = "../src/exchange.rs"]
mod exchange;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    exchange::honest(data);
    exchange::hostile(data);
});
