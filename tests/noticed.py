"""Which test notices a fault that many others are tried on first: it saves time and proves nothing.

Where one of these notices no more, the others are tried as before; `python -m tests.mutants` prints
who notices each fault.
"""

_KNOWN = (
    ("a-flush-of-files-leaves-them", "test_what_is_flushed_of_files_is_gone"),
    ("a-kind-is-for-ever", "test_an_interrupted_state_at_an_opener_takes_the_higher_kind"),
    ("a-switch-waits-for-nobody", "test_what_is_prepared_for_a_model_does_not_reach_another"),
    (
        "claimed-on-its-way-and-gone",
        "test_a_state_that_is_claimed_on_its_way_stays_on_the_device_as_well",
    ),
    ("evicted-for-nothing", "test_nobody_gives_way_to_a_request_that_would_not_fit_all_the_same"),
    ("explained-from-the-device-alone", "test_what_is_explained_then_happens"),
    ("foreign-file-is-taken", "test_a_good_file_in_the_place_of_another_is_not_used"),
    (
        "half-a-prompt-leaves-with-its-client",
        "test_what_was_read_serves_the_retry_wherever_it_stood",
    ),
    ("header-written-first", "test_the_header_comes_last_and_the_name_after_it"),
    ("interrupted-behind-its-lane", "test_cancelled_prefill_is_kept_and_resumed"),
    ("left-under-its-unfinished-name", "test_a_file_that_cannot_even_be_removed_is_told_of"),
    (
        "live-work-makes-way-for-what-is-retained",
        "test_live_work_is_not_dropped_for_anything_retained",
    ),
    ("makes-way-before-there-is-room", "test_a_full_disk_is_left_alone_before_anything_makes_way"),
    ("name-not-synced", "test_the_header_comes_last_and_the_name_after_it"),
    ("no-free-floor", "test_a_full_disk_is_left_alone_before_anything_makes_way"),
    ("no-sync-before-the-header", "test_the_header_comes_last_and_the_name_after_it"),
    ("no-way-back", "test_settings_that_wait_for_a_load_come_into_force_with_it"),
    ("nothing-goes-ahead", "test_a_state_of_many_windows_goes_down_before_its_place_is_wanted"),
    ("null-page-moves", "test_only_pages_and_cells_that_are_there_are_moved"),
    ("padding-of-tokens-not-covered", "test_every_bit_of_the_tokens_counts"),
    ("prefixes-take-all-slots", "test_live_prefixes_hold_at_most_half_of_the_slots"),
    ("renamed-file-is-taken", "test_a_good_file_in_the_place_of_another_is_not_used"),
    ("rest-while-answering", "test_a_request_that_runs_keeps_it_loaded"),
    ("restored-tokens-are-not-told", "test_what_is_counted_is_what_was_told"),
    (
        "resumed-though-its-reader-waits",
        "test_a_sequence_whose_reader_is_behind_does_not_go_on_and_holds_nobody_up",
    ),
    (
        "running-counts-as-waiting",
        "test_an_agent_that_ran_for_long_stays_away_when_it_has_given_way",
    ),
    ("shared-cells-count-for-each", "test_half_of_the_arena_can_be_pinned_common_pages_once"),
    ("skips-in-a-row-unseen", "test_three_skips_in_a_row_are_visible_until_something_is_kept"),
    ("steps-timed-one-by-one", "test_a_short_step_is_timed_in_a_row_as_it_runs"),
    (
        "the-aged-wait-for-who-came-later",
        "test_an_agent_that_waited_its_time_takes_the_lane_of_who_came_later",
    ),
    (
        "the-old-model-goes-first",
        "test_what_cannot_be_loaded_is_refused_before_anything_is_given_up",
    ),
    (
        "the-worst-goes-down-first",
        "test_the_newest_of_a_conversation_goes_down_before_the_superseded",
    ),
    ("time-of-a-restore-untold", "test_a_restore_of_one_round_is_told_what_it_took"),
    ("tokens-of-a-file-not-compared", "test_a_good_file_in_the_place_of_another_is_not_used"),
    ("two-states-of-one-number", "test_in_the_arena_a_pinned_state_outlives_what_comes_down"),
    ("what-sinks-is-taken-for-whole", "test_what_was_read_serves_the_retry_wherever_it_stood"),
    (
        "what-was-flushed-is-found",
        "test_what_a_flush_gave_up_is_found_by_nobody_while_something_still_reads_it",
    ),
    (
        "window-as-long-as-a-step",
        "test_a_window_that_fits_decoding_makes_a_step_a_tenth_longer_either_way",
    ),
)
TRIED_FIRST = dict(_KNOWN)
