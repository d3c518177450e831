#![doc = include_str!("../README.md")]

pub mod settings;

/// The library of the pool, and the audit library beside it.
#[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
mod served {
    mod answer;
    mod blocks;
    mod captures;
    mod chunks;
    mod context;
    mod contexts;
    mod counts;
    mod driver;
    mod end;
    mod exports;
    mod figures;
    mod fork;
    mod frees;
    mod handle;
    mod message;
    mod nvml;
    mod page;
    mod peers;
    mod pointers;
    mod pools;
    mod stated;
    mod streams;
    mod turns;
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
