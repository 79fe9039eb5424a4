"""Tests of torchft's that are not run, and why.

Each is about torchft's internals, or about one of the differences that docs/torchft.md names. What such a test shows of
a user's code is covered by tests of ours, which are named where that is not plain.
"""

from __future__ import annotations

ALL = ""
"""Key for a whole file, which can't be imported or is about one thing."""

_CLIENT = (
    "replaces torchft's gRPC client by a mock, and looks at the Manager's private fields; the same stories are "
    "played by real processes in tests/torch/train/test_manager.py"
)
_RENDEZVOUS = "is about private functions of torchft's rendezvous; ours: tests/torch/comm/test_handles.py"
_STORE = "replaces torch's store by a mock in torchft's module; ours reads addresses in tests/torch/comm/store"
_PRIVATE = "looks at private fields of DiLoCo's fragments, or gives it an allreduce without reduce_op"
_PICKLED = "has a DTensor received into nothing; we don't unpickle meshes, so a DTensor needs one to be received into"
_GRANT = (
    "a third group has to be let in between two exchanges that follow each other within milliseconds; ours lets it in with "
    "the next question to the lighthouse, which comes once in about a second of steps (tests/torch/train/test_apart_faults.py)"
)
_URLLIB = "wants the exceptions of urllib, or the lock inside"
_RACE = (
    "its threads share torch's generator, and its lock guards a model's making only, not the inputs that another thread "
    "draws meanwhile: the models differ from the start. With a pause of 0.2 s in the model's constructor it fails each time, "
    "with torchft itself and with the same difference"
)
_WORDS = "wants torch's or gRPC's own words, or a private process, where ours has a sentence"

_MOCKED = (
    "TestManager::test_manager", "TestManager::test_native_process_group",
    "TestManager::test_native_process_group_requires_support", "TestManager::test_state_dict",
    "TestManager::test_user_state_dict", "TestManager::test_quorum_happy", "TestManager::test_quorum_heal_sync",
    "TestManager::test_quorum_heal_async_not_enough_participants", "TestManager::test_quorum_heal_async_zero_grad",
    "TestManager::test_allreduce_error", "TestManager::test_pg_errored", "TestManager::test_quorum_fixed_world_size",
    "TestManager::test_quorum_no_healing", "TestManager::test_manager_report_error",
    "TestManager::test_manager_wrap_future", "TestManager::test_manager_wrap_future_timeout",
    "TestManager::test_manager_numerics", "TestManager::test_quorum_happy_timeouts",
    "TestManager::test_quorum_skip_init", "TestManager::test_quorum_checkpoint_errors",
    "TestManager::test_quorum_configure_errors", "TestManager::test_max_retries",
    "TestManager::test_state_dict_lock_allow_disallow", "TestManager::test_state_dict_lock_concurrent_access",
    "TestManager::test_manager_state_dict_with_lock",
)  # fmt: skip

EXCLUDED: dict[str, dict[str, str]] = {
    "checkpointing/http_transport_test.py": {ALL: f"{_URLLIB}; {_PICKLED}"},
    "checkpointing/pg_transport_test.py": {"PGTransportTest::test_pg_transport_gloo": _PICKLED},
    "diloco_regression_test.py": {
        ALL: "ends one step twice, and compares with recorded weights of failed exchanges, which torchft throws away and we "
        "keep; tests/torch/train/test_apart.py compares with the papers' algorithms"
    },
    "local_sgd_integ_test.py": {f"LocalSGDIntegTest::test_streaming_diloco_upscale_{i:02d}": _GRANT for i in range(12)},
    "local_sgd_test.py": {
        "DiLoCoTest::test_bucketization_correctness": _PRIVATE,
        "DiLoCoTest::test_diloco_allreduce_call_efficiency_0_bucketized_should_use_fewer_calls": _PRIVATE,
        "DiLoCoTest::test_diloco_allreduce_call_efficiency_1_non_bucketized_should_call_per_param": _PRIVATE,
        "DiLoCoTest::test_diloco_healthy": _PRIVATE,
        "DiLoCoTest::test_gradient_correctness": _PRIVATE,
        "LocalSGDTest::test_local_sgd_healthy": _PRIVATE,
        "LocalSGDTest::test_local_sgd_recovery": _PRIVATE,
    },
    "manager_integ_test.py": {
        "ManagerIntegTest::test_ddp_skip_init_sync": _RACE,
        "ManagerIntegTest::test_quorum_timeout": _WORDS,
    },
    "manager_test.py": dict.fromkeys(_MOCKED, _CLIENT),
    "multiprocessing_test.py": {ALL: "is about the private pipe of torchft's process groups in a child process"},
    "process_group_test.py": {
        "CreateStoreClientTest::test_parses_addr_0_localhost_1234_my_prefix": _STORE,
        "CreateStoreClientTest::test_parses_addr_1_127_0_0_1_29500_torchft_0_1": _STORE,
        "CreateStoreClientTest::test_parses_addr_2_fdaa_0_1_2_3_4_5_6_29521_torchft_0_1": _STORE,
        "CreateStoreClientTest::test_parses_addr_3__1_29521_torchft_0_1": _STORE,
        "CreateStoreClientTest::test_parses_addr_4__fdaa_0_1_2_3_4_5_6_29521_torchft_0_1": _STORE,
        "ProcessGroupTest::test_baby_gloo_apis": _WORDS,
        "ProcessGroupTest::test_baby_gloo_timeout": "gives a handle whose store is no address, which is refused at once",
        "ProcessGroupTest::test_functional_collectives": "wants torch's counter of groups as a group's name",
        "ProcessGroupTest::test_gloo_timeout": "gives a handle whose store is no address, which is refused at once",
        "ProcessGroupTest::test_managed_process_group": "lets a group of one member say that it has 123, and gathers 123",
        "ProcessGroupTest::test_process_group_wrapper": "wants a repr, and a counter's name",
        "ProcessGroupTest::test_reconfigure_baby_process_group": _WORDS,
    },
    "reconfigure_test.py": {
        "ReconfigureTest::test_manager_reconfigure_pg": _RENDEZVOUS,
        "ReconfigureTest::test_order_and_timeout": _STORE,
        "ReconfigureTest::test_rendezvous": _RENDEZVOUS,
    },
}
"""Reasons by file and test."""

TIMED: dict[str, tuple[str, ...]] = {"lighthouse_test.py": ("TestLighthouse::test_join_timeout_behavior",)}
"""Tests that compare a clock's reading with fractions of a second.

python -m tests.extended.compat.peer_suite runs them; CI does not, as its machine is busy.
"""
