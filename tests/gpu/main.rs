//! Tests on real hardware: everything that the simulated device is used to show, on a GPU.
//!
//! Without a GPU (no driver, no device, or no NVRTC to compile the kernels) every test is *ignored*, one line says why,
//! and that is no failure. With `WEIRPOOL_REQUIRE_GPU` set it is one. The page `weirpool::guide::gpus` says how to run
//! the tests.
//!
//! | file | contents |
//! |---|---|
//! | `harness` | running the tests, with a time limit |
//! | `pressure` | a full device |
//! | `cuda` | a GPU as the bench of the conformance suite (`tests/conformance`) |
//! | `facts` | the properties that the device reports |
//! | `upstreams` | device, page-locked and managed memory |
//! | `ordering` | a long kernel, its memory, and the next owner; and checks that the tests detect mistakes |
//! | `hand_shakes` | streams that wait for each other on the device |
//! | `canaries` | guards of blocks |
//! | `captures` | streams that other code captures into a graph |
//! | `foreign_graphs` | graphs of cudarc on memory of a pool |
//! | `copies` | copies between host and device |
//! | `regions` | memory that is suspended and resumed, or spilled and fetched |
//! | `interop` | buffers in calls of cudarc and cuBLAS |
//! | `streams` | default streams, streams of the pool, streams that are dropped |
//! | `handles` | streams known only by their handle |
//! | `contexts` | threads with another context, or none |
//! | `children` | child processes for the following files |
//! | `ends` | kernels that fault, processes that end |
//! | `shutdown` | ends in the wrong order |
//! | `peers` | two GPUs |
//! | `processes` | another process that holds the device's memory |
//! | `broker` | two processes whose memory a broker leases; with the feature `broker` |
//! | `ipc` | blocks that two processes share |
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
#[path = "../conformance/driver_pools.rs"]
mod driver_pools;
#[path = "../conformance/external.rs"]
mod external;
#[path = "../conformance/failures.rs"]
mod failures;
#[path = "../conformance/fills.rs"]
mod fills;
#[path = "../conformance/graphs.rs"]
mod graphs;
#[path = "../conformance/growing.rs"]
mod growing;
#[path = "../conformance/host.rs"]
mod host;
#[path = "../conformance/lifetime.rs"]
mod lifetime;
#[path = "../conformance/moves.rs"]
mod moves;
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
#[path = "../conformance/submitting.rs"]
mod submitting;
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

#[cfg(target_os = "linux")]
mod broker;
mod canaries;
mod captures;
mod children;
mod contexts;
mod copies;
mod cuda;
mod ends;
mod facts;
mod foreign_graphs;
mod hand_shakes;
mod handles;
mod harness;
mod interop;
#[cfg(target_os = "linux")]
mod ipc;
mod ordering;
mod peers;
mod pressure;
mod processes;
#[cfg(target_os = "linux")]
mod published;
mod regions;
mod shutdown;
mod soak;
mod streams;
mod upstreams;

use cuda::{Cuda, DriverPools, Managed, Mapped, Pinned, Plain};
use harness::Entry;
use weirpool::Upstream;

/// Turns the conformance suite into a list.
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

/// Lists tests that run only on a GPU, for each kind of memory.
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

/// Lists tests that run only on a GPU, once.
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
        // The tests of peers need two.
        devices: if path[0] == "peers" { 2 } else { 1 },
    }
}

fn entries() -> Vec<Entry> {
    let mut list: Vec<Entry> = once! {
        facts:
            description_names_the_device_and_its_memory,
            devices_are_listed_with_a_line_each,
            missing_device_is_an_error;
        streams:
            legacy_default_stream_is_never_made_to_wait,
            per_thread_default_stream_is_refused,
            streams_of_the_pool_accept_work,
            stream_is_kept_while_its_memory_is_pending;
        handles:
            raw_stream_is_served_and_dropped,
            permanent_stream_is_treated_like_a_kept_one,
            legacy_default_stream_waits_on_the_host,
            per_thread_default_stream_is_refused_by_its_handle,
            stream_of_another_context_is_refused;
        upstreams:
            memory_is_of_the_requested_kind,
            pools_of_the_driver_have_every_kind_or_are_refused,
            missing_kind_is_refused_by_name,
            host_memory_is_used_by_the_host_only;
        interop:
            copies_of_cudarc_accept_buffers,
            copy_sees_writes_of_a_kernel_on_another_stream,
            memory_is_not_reused_before_a_copy_has_ended,
            fill_comes_after_all_copies,
            unregistered_stream_is_waited_for_by_the_host,
            legacy_default_stream_is_adopted,
            streams_that_cannot_be_ordered_are_refused,
            cublas_multiplies_buffers;
        captures:
            query_in_the_default_mode_breaks_a_capture,
            capture_is_not_broken_by_blocks_that_are_passed_through,
            capture_is_not_broken_by_calls_of_the_pool,
            captured_stream_keeps_its_freed_memory,
            captured_stream_of_another_library_is_wrapped,
            graph_has_no_fills,
            captured_stream_takes_device_work_alone,
            host_gets_a_block_after_the_launches_that_use_it,
            captured_copy_of_plain_memory_needs_no_access;
        foreign_graphs:
            graph_of_cudarc_keeps_its_memory,
            upload_is_captured_with_its_bytes,
            capture_ends_in_every_state;
        regions:
            contents_and_graphs_survive_a_hundred_rounds,
            suspension_comes_after_a_running_kernel,
            resumption_waits_for_memory_of_others,
            contents_are_spilled_and_fetched;
        contexts:
            thread_needs_no_context,
            context_of_a_thread_is_left_alone,
            dropped_device_leaves_the_context_alone;
        peers:
            capabilities_list_the_peers,
            kernel_writes_memory_of_the_other_device,
            access_stays_while_work_of_the_other_device_runs,
            copies_keep_bytes_and_order,
            event_orders_streams_of_two_devices,
            captured_copy_needs_access;
        ends:
            faulting_kernel_fails_the_awaiting_task,
            faulting_kernel_fails_all_waiters,
            process_ends_with_live_pools;
        shutdown:
            pool_is_dropped_while_kernels_write,
            thread_ends_the_process_while_others_wait,
            pool_serves_where_no_thread_can_be_started;
    }
    .into();
    list.extend(on_every_kind! {
        copies:
            bytes_survive_a_round_trip,
            bytes_are_taken_when_the_copy_is_submitted,
            copies_keep_the_order_of_their_stream,
            copies_come_after_what_their_stream_waited_for,
            dropped_download_has_no_effect,
            many_copies_are_under_way_at_once;
        canaries:
            kernel_that_writes_beside_a_block_is_found;
        ordering:
            waiter_on_the_host_comes_after_a_long_kernel,
            stream_waiting_on_the_device_comes_after_a_long_kernel,
            wrong_result_of_a_query_is_detected,
            missing_wait_is_detected;
        hand_shakes:
            handshake_is_not_waited_for_while_other_memory_suffices,
            memory_freed_before_a_handshake_serves_the_other_stream,
            memory_freed_while_a_request_waits_is_sealed_at_once;
        soak:
            tasks_over_streams_keep_every_word;
    });
    list.extend(on_device_memory! {
        pressure:
            another_pool_spills,
            last_chunk_of_a_full_device_is_waited_for,
            refused_waiter_asks_again;
        processes:
            memory_of_another_process_is_waited_for;
    });
    #[cfg(target_os = "linux")]
    list.extend(once! {
        ipc:
            kernels_of_two_processes_share_a_block,
            memory_of_a_killed_importer_comes_back,
            costs_of_sharing_are_measured;
    });
    #[cfg(target_os = "linux")]
    list.extend(once! {
        broker:
            broker_moves_memory_between_processes;
    });
    #[cfg(target_os = "linux")]
    list.extend(once! {
        published:
            memory_outlives_the_process_that_published_it;
    });
    list.extend(suite!(as_list: "cuda_mapped", Cuda<Mapped>));
    list.extend(suite!(as_list: "cuda_plain", Cuda<Plain>));
    list.extend(suite!(as_list: "cuda_pinned", Cuda<Pinned>));
    list.extend(suite!(as_list: "cuda_managed", Cuda<Managed>));
    list.extend(suite!(as_list: "cuda_driver_pools", Cuda<DriverPools>));
    list
}

fn main() -> ExitCode {
    if let Some(code) = children::in_a_child() {
        return code;
    }
    // By default, streams share 8 queues of the device, and a held stream would hold all that share its queue.
    if std::env::var_os("CUDA_DEVICE_MAX_CONNECTIONS").is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32") };
    }
    harness::run(entries())
}
