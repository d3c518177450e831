//! Faults that are injected on purpose, to show that the tests notice them.
//!
//! A fault switch replaces one correct step by a plausible mistake: `if injected("fence-lost-in-merge") { … }`.
//! Without `--cfg weirpool_faults` [`injected`] is the constant `false`, and the compiler removes the switch.
//! With it, the environment variable `WEIRPOOL_FAULT` names the fault that is active in this process.
//! `.ci/faults/list` names every fault and the test that must fail; `.ci/faults/run` runs those tests.

/// Returns whether the fault of that name is active.
#[cfg(not(weirpool_faults))]
#[allow(dead_code, reason = "a layer may have no switch at the time")]
#[inline(always)]
pub const fn injected(_name: &str) -> bool {
    false
}

/// Returns whether the fault of that name is active.
#[cfg(weirpool_faults)]
#[allow(dead_code, reason = "a layer may have no switch at the time")]
pub fn injected(name: &str) -> bool {
    static ACTIVE: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let active = ACTIVE.get_or_init(|| std::env::var("WEIRPOOL_FAULT").ok());
    active.as_deref() == Some(name)
}
