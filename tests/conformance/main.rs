//! What a memory pool must do, whatever the device: behaviours that peers test, and bugs that peers had. The names of the tests
//! are listed in `docs/behaviours.md`. The comment of a test opens with its origin and a colon, if it has one.
//!
//! A device takes part by a [`bench::Bench`] and one line: below, if it is simulated; in `tests/gpu`, which
//! says so where it finds no GPU, if it is not. No test asserts how long anything takes: a stream is held
//! at a gate until the test opens it, and bytes tell whether work came too early.
//!
//! | file | about |
//! |---|---|
//! | `bench` | what a device under test provides |
//! | `sim` | the simulated device, in several settings |
//! | `probe` | a device in front of any other, that counts calls and makes them fail |
//! | `site` | a pool under test, and workers: streams with memory |
//! | `executors` | what runs the awaiting tests |
//! | `suite` | the list of all tests |
//! | the rest | the tests, by theme |

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod executors;
mod probe;
mod sim;
mod site;
#[macro_use]
mod suite;

mod allocation;
mod broken;
mod capacity;
mod debugging;
mod driver_pools;
mod external;
mod failures;
mod fills;
mod graphs;
mod growing;
mod host;
mod lifetime;
mod moves;
mod parts;
mod pools;
mod raw;
mod reuse;
mod services;
mod settings;
mod sharing;
mod statistics;
mod submitting;
mod tasks;
mod threads;
mod unwinding;
mod uses;
mod waiting;

/// A module with every test for one bench.
macro_rules! backend {
    ($backend:ident, $bench:ty) => {
        mod $backend {
            type Bench = $bench;
            suite!(as_tests:);
        }
    };
}

macro_rules! as_tests {
    (
        ()
        themes { $($theme:ident: $($test:ident),+;)+ }
        awaited $awaited:tt
        executors { $($(#[$condition:meta])? $place:ident: $executor:ty;)+ }
    ) => {
        $(
            mod $theme {
                $(
                    #[test]
                    fn $test() {
                        crate::$theme::$test::<super::Bench>();
                    }
                )+
            }
        )+
        $(
            $(#[$condition])?
            mod $place {
                awaited_tests!($executor: $awaited);
            }
        )+
    };
}

macro_rules! awaited_tests {
    ($executor:ty: [$($test:ident),+]) => {$(
        #[test]
        fn $test() {
            crate::tasks::$test::<super::Bench, $executor>();
        }
    )+};
}

backend!(sim_mapped, crate::sim::Sim<crate::sim::Mapped>);
backend!(sim_plain, crate::sim::Sim<crate::sim::Plain>);
backend!(sim_slow_calls, crate::sim::Sim<crate::sim::SlowCalls>);
backend!(
    sim_plain_slow_calls,
    crate::sim::Sim<crate::sim::PlainSlowCalls>
);
backend!(sim_pinned, crate::sim::Sim<crate::sim::Pinned>);
backend!(sim_managed, crate::sim::Sim<crate::sim::Managed>);
backend!(sim_driver_pools, crate::sim::Sim<crate::sim::DriverPools>);
backend!(sim_real_time, crate::sim::Sim<crate::sim::RealTime>);
