//! The proof on real hardware: whatever the simulated device is taken to show, here on a GPU.
//!
//! Without one (no driver, no device, no NVRTC to compile the kernels with) every test is *ignored*, one
//! line says why, and that is no failure; with `WEIRPOOL_REQUIRE_GPU` set it is. The page
//! `weirpool::guide::gpus` says how to run it.
//!
//! | file | about |
//! |---|---|
//! | `harness` | how the tests are run, and what becomes of one that hangs |
//! | `pressure` | a device that is full |
//! | `cuda` | a GPU on the bench of the behaviour suite (`tests/conformance`) |
//! | `facts` | what the device says of itself |
//! | `upstreams` | where memory comes from: of the device, page-locked, managed |
//! | `ordering` | a long kernel, its memory, and the next owner; and that the tests would see a mistake |
//! | `hand_shakes` | streams that wait for each other on the device |
//! | `captures` | streams that are captured into a graph |
//! | `copies` | between host and device |
//! | `interop` | buffers in the hands of cudarc and cuBLAS |
//! | `streams` | default streams, streams of the pool's, streams that go away |
//! | `handles` | streams of which nothing but the handle is known |
//! | `contexts` | threads with another context, or none |
//! | `children` | processes of their own, for what follows |
//! | `ends` | kernels that fault, processes that end |
//! | `shutdown` | ends in the wrong order |
//! | `processes` | another process that has the device's memory |
//! | `soak` | many tasks for a few seconds |

use std::process::ExitCode;

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/gpu/mod.rs"]
mod gpu;

#[path = "../conformance/bench.rs"]
mod bench;
#[path = "../conformance/executors.rs"]
mod executors;
#[path = "../conformance/probe.rs"]
mod probe;
#[path = "../conformance/site.rs"]
mod site;
#[macro_use]
#[path = "../conformance/suite.rs"]
mod suite;

#[path = "../conformance/allocation.rs"]
mod allocation;
#[path = "../conformance/broken.rs"]
mod broken;
#[path = "../conformance/capacity.rs"]
mod capacity;
#[path = "../conformance/debugging.rs"]
mod debugging;
#[path = "../conformance/external.rs"]
mod external;
#[path = "../conformance/failures.rs"]
mod failures;
#[path = "../conformance/fills.rs"]
mod fills;
#[path = "../conformance/growing.rs"]
mod growing;
#[path = "../conformance/host.rs"]
mod host;
#[path = "../conformance/lifetime.rs"]
mod lifetime;
#[path = "../conformance/parts.rs"]
mod parts;
#[path = "../conformance/pools.rs"]
mod pools;
#[path = "../conformance/raw.rs"]
mod raw;
#[path = "../conformance/reuse.rs"]
mod reuse;
#[path = "../conformance/services.rs"]
mod services;
#[path = "../conformance/settings.rs"]
mod settings;
#[path = "../conformance/sharing.rs"]
mod sharing;
#[path = "../conformance/statistics.rs"]
mod statistics;
#[path = "../conformance/tasks.rs"]
mod tasks;
#[path = "../conformance/threads.rs"]
mod threads;
#[path = "../conformance/unwinding.rs"]
mod unwinding;
#[path = "../conformance/uses.rs"]
mod uses;
#[path = "../conformance/waiting.rs"]
mod waiting;

mod captures;
mod children;
mod contexts;
mod copies;
mod cuda;
mod ends;
mod facts;
mod hand_shakes;
mod handles;
mod harness;
mod interop;
mod ordering;
mod pressure;
mod processes;
mod shutdown;
mod soak;
mod streams;
mod upstreams;

use cuda::{Cuda, Managed, Mapped, Pinned, Plain};
use harness::Entry;
use weirpool::Upstream;

/// The behaviour suite, as a list.
macro_rules! as_list {
    (
        ($backend:literal, $bench:ty)
        themes { $($theme:ident: $($test:ident),+;)+ }
        awaited $awaited:tt
        executors { $($(#[$condition:meta])? $place:ident: $executor:ty;)+ }
    ) => {{
        let mut list = vec![$($(
            entry(
                &[$backend, stringify!($theme), stringify!($test)],
                $theme::$test::<$bench>,
                <$bench as bench::Bench>::UPSTREAM,
            ),
        )+)+];
        $(
            $(#[$condition])?
            awaited_list!(list, $backend, $bench, $place, $executor, $awaited);
        )+
        list
    }};
}

macro_rules! awaited_list {
    ($list:ident, $backend:literal, $bench:ty, $place:ident, $executor:ty, [$($test:ident),+]) => {$(
        $list.push(entry(
            &[$backend, stringify!($place), stringify!($test)],
            tasks::$test::<$bench, $executor>,
            <$bench as bench::Bench>::UPSTREAM,
        ));
    )+};
}

/// What is tested on a GPU alone, on each kind of memory.
macro_rules! on_memory {
    ($backend:literal, $setting:ty; $($theme:ident: $($test:ident),+;)+) => {
        [$($(entry(
            &[$backend, stringify!($theme), stringify!($test)],
            $theme::$test::<$setting>,
            <$setting as cuda::Setting>::UPSTREAM,
        )),+),+]
    };
}

macro_rules! on_device_memory {
    ($($list:tt)+) => {
        on_memory!("cuda_mapped", Mapped; $($list)+)
            .into_iter()
            .chain(on_memory!("cuda_plain", Plain; $($list)+))
    };
}

macro_rules! on_every_kind {
    ($($list:tt)+) => {
        on_device_memory!($($list)+)
            .chain(on_memory!("cuda_pinned", Pinned; $($list)+))
            .chain(on_memory!("cuda_managed", Managed; $($list)+))
    };
}

/// What is tested on a GPU alone, once.
macro_rules! once {
    ($($theme:ident: $($test:ident),+;)+) => {
        [$($(entry(
            &[stringify!($theme), stringify!($test)],
            $theme::$test,
            Upstream::default(),
        )),+),+]
    };
}

fn entry(path: &[&str], test: fn(), upstream: Upstream) -> Entry {
    Entry {
        name: path.join("::"),
        test,
        kind: upstream.kind(),
    }
}

fn entries() -> Vec<Entry> {
    let mut list: Vec<Entry> = once! {
        facts:
            the_description_names_the_device_and_its_memory,
            a_device_that_does_not_exist_is_an_error;
        streams:
            the_legacy_default_stream_is_never_made_to_wait,
            the_per_thread_default_stream_is_refused,
            streams_of_the_pools_own_take_work,
            a_stream_is_kept_for_as_long_as_its_memory_is_pending;
        handles:
            a_stream_of_the_drivers_is_served_and_forgotten,
            the_legacy_default_stream_waits_on_the_host,
            the_per_thread_default_stream_is_refused_by_its_handle,
            a_stream_of_another_context_is_refused;
        upstreams:
            memory_is_of_the_kind_that_was_asked_for,
            what_is_not_there_is_refused_by_name,
            the_hosts_memory_is_the_hosts;
        interop:
            cudarcs_copies_take_buffers,
            a_copy_sees_what_a_kernel_elsewhere_wrote,
            memory_is_not_reused_before_a_copy_has_ended,
            a_fill_comes_after_all_copies,
            an_unregistered_stream_is_waited_for_by_the_host,
            the_legacy_default_stream_is_adopted,
            streams_that_cannot_be_ordered_are_refused,
            cublas_multiplies_buffers;
        captures:
            a_query_in_the_default_mode_breaks_a_capture,
            a_capture_is_not_broken_by_what_the_pool_does,
            a_captured_stream_keeps_what_it_freed,
            a_graph_has_no_fills;
        contexts:
            a_thread_needs_no_context,
            the_context_of_a_thread_is_left_alone,
            the_end_of_a_device_leaves_the_context_alone;
        ends:
            faulting_kernel_fails_the_awaiting_task,
            faulting_kernel_fails_all_waiters,
            a_process_ends_with_pools_alive;
        shutdown:
            a_pool_is_dropped_while_kernels_write,
            a_thread_ends_the_process_while_others_wait;
    }
    .into();
    list.extend(on_every_kind! {
        copies:
            bytes_come_back_as_they_went,
            bytes_are_taken_when_the_copy_is_asked_for,
            copies_keep_the_order_of_their_stream,
            copies_come_after_what_their_stream_waited_for,
            a_download_dropped_on_its_way_harms_nobody,
            many_copies_are_under_way_at_once;
        ordering:
            who_waits_on_the_host_comes_after_a_long_kernel,
            who_waits_on_the_device_comes_after_a_long_kernel,
            a_wrong_answer_to_a_query_is_seen,
            a_wait_that_is_left_out_is_seen;
        hand_shakes:
            a_hand_shake_is_not_waited_for_while_other_memory_can_do,
            what_was_freed_before_a_hand_shake_serves_the_other_side,
            what_is_freed_while_somebody_waits_is_sealed_at_once;
        soak:
            tasks_over_streams_keep_every_word;
    });
    list.extend(on_device_memory! {
        pressure:
            another_pool_gives_way,
            refused_waiter_asks_again;
        processes:
            another_process_is_waited_for;
    });
    list.extend(suite!(as_list: "cuda_mapped", Cuda<Mapped>));
    list.extend(suite!(as_list: "cuda_plain", Cuda<Plain>));
    list.extend(suite!(as_list: "cuda_pinned", Cuda<Pinned>));
    list.extend(suite!(as_list: "cuda_managed", Cuda<Managed>));
    list
}

fn main() -> ExitCode {
    if let Some(code) = children::in_a_child() {
        return code;
    }
    // By default streams share 8 of the device's queues, and what is held in one holds all that share it.
    if std::env::var_os("CUDA_DEVICE_MAX_CONNECTIONS").is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32") };
    }
    harness::run(entries())
}
