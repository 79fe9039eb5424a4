"""Tests that `./scripts/test` and CI leave out, and what CI runs in their place; `./scripts/test -m nightly` runs them.

Each shows once more, under other conditions, what a test of CI shows, and costs half a minute of a processor or more.
Run them before a release and after a change in their room (docs/testing.md, decision 74).
"""

from __future__ import annotations

from collections.abc import Mapping

NIGHTLY: Mapping[str, str] = {
    # a test, or all of its parameters -> what CI runs instead
    "tests/benchmarks/test_runs.py::test_what_starts_jobs_runs[goodput]": "[ddp], and scripts/kill_test.py's tests",
    "tests/benchmarks/test_runs.py::test_what_starts_jobs_runs[hang]": "[ddp]",
    "tests/benchmarks/test_runs.py::test_what_starts_jobs_runs[hsdp]": "[ddp]",
    "tests/benchmarks/test_runs.py::test_what_starts_jobs_runs[late]": "[ddp]",
    "tests/benchmarks/test_runs.py::test_what_starts_jobs_runs[longest]": "[ddp]",
    "tests/benchmarks/test_runs.py::test_what_starts_jobs_runs[empty]": "[ddp]",
    "tests/benchmarks/test_runs.py::test_what_starts_jobs_runs[outage]": "[ddp]",
    "tests/benchmarks/test_runs.py::test_what_starts_jobs_runs[rejoin]": "[ddp]",
    "tests/benchmarks/test_runs.py::test_what_starts_jobs_runs[stripes]": "[ddp]",
    "tests/benchmarks/test_runs.py::test_the_peer_is_measured_too": "tests/rpc/test_peer.py, and [ddp]",
    "tests/compat/test_titan.py::test_a_whole_job_goes_on_from_torchtitans_checkpoint": "tests/e2e/test_hsdp.py, [None] here",
    "tests/compat/test_titan.py::test_torchtitan_trains_through_a_kill[diloco]": "[None], and test_trainers' of its classes",
    "tests/compat/test_titan.py::test_torchtitan_trains_through_a_kill[local_sgd]": "[None], and test_trainers' of its classes",
    "tests/compat/test_trainers.py::test_a_trainer_goes_on_through_a_kill[torchtitan-fsdp]": "test_titan.py[None]",
    "tests/compat/test_trainers.py::test_a_trainer_goes_on_through_a_kill[transformers-compiled]": "[transformers], [lightning]",
    "tests/compat/test_trainers.py::test_a_trainer_goes_on_through_a_kill[torchtitan-local_sgd]": "[torchtitan-diloco]",
    "tests/e2e/test_addresses.py::test_they_train_together_and_a_killed_one_heals[IPv4 only, own name is the loopback]": "[dual, by interface]",
    "tests/e2e/test_all_gone.py": "tests/transfer/durable/test_s3.py, test_hsdp.py[(1, 4)]",
    "tests/e2e/test_diloco.py::test_the_missions_configurations_run_as_they_stand[fragments]": "[islands]",
    "tests/e2e/test_diloco.py::test_the_missions_configurations_run_as_they_stand[on CPU]": "[islands]",
    "tests/e2e/test_diloco.py::test_a_checkpoint_goes_on_with_other_numbers[local_sgd]": "[diloco]",
    "tests/e2e/test_diloco.py::test_a_checkpoint_goes_on_with_other_numbers[islands]": "[diloco]",
    "tests/e2e/test_endings.py::test_a_group_that_comes_late_waits_for_the_end_of_those_that_finish[0]": "[1]",
    "tests/e2e/test_endings.py::test_a_job_that_is_told_to_stop_saves_its_last_step[1]": "[2]",
    "tests/e2e/test_endings.py::test_a_slow_save_has_the_time_that_the_sender_gives[60]": "[3]",
    "tests/e2e/test_give_up.py::test_shards_of_two_ranks_are_saved_and_one_rank_goes_on": "test_what_its_supervisor_held_is_saved",
    "tests/e2e/test_hsdp.py::test_a_checkpoint_goes_on_with_other_numbers_of_ranks_and_groups[(3, 1)]": "[(1, 4)]",
    "tests/e2e/test_jobs_lighthouses.py::test_groups_over_two_nodes_go_on_and_are_begun_again_at_the_other_lighthouse": "the first test there",
    "tests/e2e/test_kill_all.py::test_two_groups_of_one": "test_two_sharded_groups_of_two",
    "tests/e2e/test_kill_all.py::test_groups_over_two_nodes": "test_two_sharded_groups_of_two",
    "tests/e2e/test_kill_all.py::test_groups_that_train_apart": "test_two_sharded_groups_of_two",
    "tests/e2e/test_kill_all.py::test_without_memory_they_begin_again": "tests/sim, test_two_sharded_groups_of_two",
    "tests/e2e/test_kills.py::test_each_rank_of_groups_of_two_is_equal_in_both_groups": "test_hsdp.py, with kills",
    "tests/e2e/test_kills.py::test_the_peers_two_shell_launch_works_without_supervisor_and_torchx": "test_diloco.py[islands]",
    "tests/e2e/test_kills.py::test_a_run_is_saved_and_resumed_at_its_step": "test_hsdp.py[(1, 4)]",
    "tests/e2e/test_late.py::test_a_hung_group_is_left_out_and_started_again[worker-1]": "[loader-2]",
    "tests/e2e/test_local_ft.py::test_who_died_with_its_supervisor_is_not_waited_for": "tests/sim (R21), and the first test there",
    "tests/e2e/test_mismatch.py::test_a_group_that_comes_later_and_differs_ends_with_a_sentence[data-runner1]": "[model-runner0]",
    "tests/e2e/test_mismatch.py::test_a_group_that_comes_later_and_differs_ends_with_a_sentence[size-runner2]": "[model-runner0]",
    "tests/e2e/test_mismatch.py::test_the_verdict_of_a_job_says_what_differs[data]": "[model]",
    "tests/e2e/test_nodes.py::test_the_nightly_line_trains_too_and_nothing_is_left_after_Ctrl_C": "tests/matrix",
    "tests/e2e/test_scenarios.py::test_with_real_processes[alone_meanwhile]": "the simulator, and [everything]",
    "tests/e2e/test_scenarios.py::test_with_real_processes[kill_source]": "the simulator, and [kill_during_heal]",
    "tests/e2e/test_scenarios.py::test_with_real_processes[leave_without_lighthouse]": "the simulator",
    "tests/e2e/test_scenarios.py::test_with_real_processes[lighthouse_back]": "the simulator, and test_lighthouse_dies.py",
    "tests/e2e/test_scenarios.py::test_with_real_processes[lighthouse_dies_with_group]": "the simulator, and test_lighthouse_dies.py",
    "tests/e2e/test_scenarios.py::test_with_real_processes[link_flap]": "the simulator, and [cut_from_one_another]",
    "tests/e2e/test_scenarios.py::test_with_real_processes[long_pause]": "the simulator, and test_gone.py",
    "tests/e2e/test_scenarios.py::test_with_real_processes[supervisor_killed]": "the simulator, and test_local_ft.py",
    "tests/e2e/test_several_lighthouses.py::test_the_shared_directory_is_away_for_a_while": "tests/sim/test_several.py",
    "tests/e2e/test_several_lighthouses.py::test_nobody_trains_apart_where_each_lighthouse_is_reached_by_half_of_the_groups": "tests/sim/test_several.py",
    "tests/e2e/test_slurm.py::test_the_nightly_line_trains_too": "tests/matrix, and test_a_killed_worker_comes_back",
    "tests/e2e/test_slurm.py::test_a_killed_supervisor_is_the_end_of_its_group_only[1]": "[0]",
    "tests/e2e/test_slurm_faults.py::test_a_job_goes_through_its_time_limit_and_ends_by_itself": "tests/core/slurm, tests/launch/slurm",
    "tests/e2e/test_slurm_ft.py::test_groups_of_different_sizes_are_arrays_of_their_own_and_train_together": "tests/launch/slurm, test_a_group_over_two_nodes",
    "tests/kubernetes/faults/test_job.py::test_a_killed_and_an_evicted_pod_come_back_alone": "tests/kubernetes/test_scheduler.py and test_elastic.py",
    "tests/kubernetes/test_elastic.py::test_evicted_and_tainted_the_others_drop_nothing_and_the_logs_tell_it": "test_scaled_up_and_down, test_cluster.py and tests/launch/kubernetes/test_remote.py",
    "tests/launch/workers/test_warm_client.py::test_all_lives_are_warm[1]": "[2]",
    "tests/launch/workers/test_warm_client.py::test_the_workers_meet_in_the_store_of_their_life[1]": "[2]",
    "tests/sim/test_lies.py::test_many_lies_and_faults[0.0]": "[1.0]",
}


def replaced_by(nodeid: str) -> str | None:
    """What CI runs in the place of this test; None if it runs it."""
    return next((NIGHTLY[key] for key in (nodeid, nodeid.split("[")[0], nodeid.split("::")[0]) if key in NIGHTLY), None)
