//! The list of all tests, for whatever runs them.

/// Hands the list to the macro that is named, behind what comes with the name: by theme, the tests of a
/// device; those that await, which are in `tasks`; and the executors, on each of which they are run.
macro_rules! suite {
    ($run:ident: $($with:tt)*) => {
        $run! {
            ($($with)*)
            themes {
                allocation:
                    zero_bytes_are_a_block_of_their_own,
                    a_free_is_over_once_its_stream_has_passed,
                    a_request_that_can_never_fit_fails_at_once,
                    alignment_is_honoured_and_nonsense_refused,
                    live_blocks_never_overlap,
                    contents_keep_their_pattern,
                    a_block_of_more_than_four_gibibytes;
                reuse:
                    a_stream_gets_back_what_it_freed_with_no_device_call,
                    a_large_block_comes_back_to_its_stream_while_its_work_runs,
                    another_stream_gets_other_memory_while_there_is_room,
                    with_no_room_another_stream_comes_after_the_work,
                    complete_memory_is_everybodys,
                    work_that_is_over_is_never_waited_for,
                    an_event_that_was_waited_for_makes_memory_reusable,
                    an_event_from_before_the_free_proves_nothing,
                    pending_memory_does_not_hide_complete_memory,
                    complete_memory_is_found_without_merging,
                    two_who_ask_at_once_learn_no_more_than_either,
                    an_odd_size_does_not_grow_at_every_turn,
                    events_are_made_once_and_destroyed,
                    a_recycled_stream_handle_inherits_nothing;
                parts:
                    a_part_of_pending_memory_leaves_the_rest_pending,
                    joined_memory_waits_for_its_latest_part,
                    joined_memory_waits_for_every_stream_of_its_parts,
                    all_free_blocks_become_one,
                    free_memory_in_pieces_makes_a_whole;
                sharing:
                    host_use_is_ordered_like_another_stream,
                    a_block_used_on_several_streams_waits_for_all,
                    who_takes_a_shared_block_comes_after_all_its_streams,
                    a_block_freed_on_another_stream_keeps_the_order_of_both,
                    a_further_stream_comes_after_the_earlier_life,
                    devices_do_not_mix,
                    streams_of_another_pool_are_refused,
                    an_event_of_another_device_is_refused,
                    a_refused_free_leaves_the_block_allocated;
                capacity:
                    settings_out_of_range_are_refused,
                    capacity_is_a_bound_and_its_end_is_clean,
                    a_pool_grows_by_steps,
                    at_the_limit_trying_fails_and_awaiting_waits,
                    memory_that_completed_since_is_found_by_the_next_try,
                    a_full_device_is_made_up_for_by_what_completed,
                    growth_under_way_counts,
                    what_is_given_back_may_come_again_at_once,
                    running_out_names_every_figure,
                    a_failed_allocation_counts_nothing;
                external:
                    an_external_stream_is_found_again,
                    a_recycled_handle_is_another_stream,
                    each_free_is_sealed_before_it_returns,
                    a_destroyed_stream_leaves_its_memory_in_order,
                    who_waits_is_given_nothing_behind_a_wait,
                    a_further_stream_needs_nothing_of_an_external_one,
                    what_could_not_be_sealed_waits_for_the_owner;
                raw:
                    an_address_is_freed_once,
                    an_address_is_freed_on_another_stream,
                    an_address_is_freed_when_its_stream_is_gone,
                    an_address_that_a_further_stream_uses_waits_for_it,
                    who_allocates_an_address_waits_so_long_only,
                    threads_give_out_and_free_addresses,
                    what_is_given_out_outlives_its_list;
                host:
                    host_memory_is_never_pending,
                    who_does_not_see_memory_gets_none,
                    host_and_device_take_turns_in_shared_memory,
                    a_block_is_seen_by_host_and_device,
                    the_host_awaits_instead_of_waiting;
                pools:
                    default_pools_are_their_devices,
                    named_and_default_pools_are_isolated,
                    an_override_is_undone_on_every_way_out,
                    what_a_device_lacks_is_made_up_for_or_named,
                    without_pooling_memory_goes_back_once_it_is_complete;
                fills:
                    memory_is_zero_when_it_is_allocated,
                    memory_is_poison_when_it_is_freed,
                    poison_comes_after_further_streams,
                    a_further_stream_comes_after_the_fill,
                    a_fill_that_fails_loses_nothing,
                    without_fills_there_is_no_call_for_them;
                failures:
                    growing_that_fails_half_way_loses_nothing,
                    a_failed_call_leaks_no_waker;
                statistics:
                    figures_add_up_at_rest,
                    high_marks_are_kept_and_reset,
                    nothing_is_freed_more_than_it_was_allocated,
                    grants_are_counted_by_their_rung,
                    what_can_be_released_is_what_a_trim_releases,
                    attributes_are_those_of_cuda_and_hip,
                    scopes_nest,
                    scopes_of_several_threads_never_go_below_zero,
                    streams_and_tags_count_for_themselves,
                    waits_and_pending_frees_are_timed;
                debugging:
                    a_snapshot_adds_up_at_rest,
                    a_history_has_the_order_of_what_happened,
                    leaks_are_what_is_in_use;
                services:
                    a_tags_limit_holds_its_own_requests_back,
                    who_is_due_first_is_served_first,
                    the_head_is_passed_so_often_only,
                    what_is_reserved_neither_waits_nor_is_overwritten,
                    several_blocks_are_granted_together,
                    a_hook_frees_what_a_request_lacks,
                    draining_waits_for_the_device;
                waiting:
                    a_spurious_wake_polls_again,
                    the_latest_waker_is_woken,
                    futures_dropped_in_flight_give_everything_back,
                    who_is_woken_and_leaves_wakes_the_next,
                    what_is_forgotten_frees_nothing_early,
                    a_cancelled_task_frees_nothing_in_flight,
                    a_waker_may_call_the_pool,
                    nobody_overtakes_a_large_request,
                    small_requests_do_not_starve_behind_a_large_one;
                threads:
                    many_threads_keep_their_patterns,
                    submitters_of_one_stream_keep_its_order,
                    blocks_are_freed_on_other_threads,
                    a_drop_elsewhere_covers_the_last_use,
                    threads_at_the_limit_never_exceed_it,
                    an_address_has_one_owner_at_a_time,
                    a_held_stream_holds_nobody_else;
                lifetime:
                    a_stream_that_goes_away_leaves_its_memory_in_order,
                    the_pool_ends_while_work_runs,
                    blocks_and_waits_outlive_the_handle,
                    a_thread_ends_with_a_pool_of_its_own;
            }
            awaited [
                many_tasks_share_a_small_pool,
                a_free_lets_the_next_one_in,
                frees_and_events_are_awaited,
                a_limited_wait_ends_with_the_figures,
                waits_that_are_given_up_lose_nothing,
                a_reclaimer_runs_as_a_task,
                a_small_service_runs_on_any_executor,
                an_override_stays_with_its_task
            ]
            executors {
                on_futures: crate::executors::Futures;
                on_smol: crate::executors::Smol;
                #[cfg(feature = "tokio")]
                on_tokio_current_thread: crate::executors::TokioCurrentThread;
                #[cfg(feature = "tokio")]
                on_tokio_multi_thread: crate::executors::TokioMultiThread;
            }
        }
    };
}
