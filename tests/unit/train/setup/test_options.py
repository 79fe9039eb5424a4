"""Arguments beat variables, variables beat defaults; what can't work gets a sentence."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from torchft_x.errors import ConfigError
from torchft_x.train.setup.options import Options, resolve

NOTHING: dict[str, Any] = dict.fromkeys(
    [
        "replica_id", "rank", "world_size", "timeout", "quorum_timeout", "connect_timeout",
        "lighthouse_addr", "port", "hostname", "store_addr", "store_port", "token",
    ]
) | {"min_replica_size": 1}  # fmt: skip


def options(environ: dict[str, str] | None = None, **arguments: Any) -> Options:
    return resolve(**{**NOTHING, **arguments}, environ={"TORCHFT_LIGHTHOUSE": "http://a:1", **(environ or {})})


def test_defaults_make_a_group_of_one() -> None:
    o = options()
    assert (o.group_rank, o.group_world_size, o.replica_id) == (0, 1, "")
    assert (o.timeout, o.quorum_timeout, o.connect_timeout) == (60.0, 60.0, 60.0)
    assert (o.group_timeout, o.straggler_timeout) == (600.0, None)
    assert (o.store_host, o.store_port, o.port, o.token, o.run_dir) == (None, 0, 0, None, None)


def test_without_a_lighthouse_and_a_job_a_group_is_alone() -> None:
    assert options({"TORCHFT_LIGHTHOUSE": ""}).alone
    assert not options().alone


def test_variables_beat_defaults() -> None:
    o = options(
        {
            "REPLICA_GROUP_ID": "3", "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node", "MASTER_PORT": "29500",
            "TORCHFT_TIMEOUT_SEC": "5", "TORCHFT_QUORUM_TIMEOUT_SEC": "6.5", "TORCHFT_CONNECT_TIMEOUT_SEC": "7",
            "TORCHFT_MANAGER_PORT": "4000", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2",
            "TORCHFT_X_TOKEN": "secret", "TORCHFT_X_ADVERTISE_HOST": "10.0.0.1",
        }
    )  # fmt: skip
    assert (o.replica_id, o.group_rank, o.group_world_size) == ("3", 1, 2)
    assert (o.timeout, o.quorum_timeout, o.connect_timeout) == (5.0, 6.5, 7.0)
    assert o.group_timeout == 5.0
    assert (o.store_host, o.store_port, o.agent_store, o.key_prefix) == ("node", 29500, True, "torchft_x/3/2")
    assert (o.port, o.token, o.host) == (4000, "secret", "10.0.0.1")


def test_arguments_beat_variables() -> None:
    o = options(
        {"TORCHFT_TIMEOUT_SEC": "5", "REPLICA_GROUP_ID": "3", "TORCHFT_X_ADVERTISE_HOST": "x"},
        timeout=timedelta(milliseconds=1500), replica_id="", hostname="y", lighthouse_addr="http://b:2", token="t",
    )  # fmt: skip
    assert (o.timeout, o.replica_id, o.host, o.lighthouse, o.token) == (1.5, "", "y", "http://b:2", "t")


@pytest.mark.parametrize(
    ("environ", "arguments", "sentence"),
    [
        *(
            ({"TORCHFT_LIGHTHOUSE": "", **of_a_job}, arguments, "set TORCHFT_LIGHTHOUSE")
            for of_a_job, arguments in (
                ({"REPLICA_GROUP_ID": "0"}, {}),
                ({"NUM_REPLICA_GROUPS": "2"}, {}),
                ({"TORCHFT_X_RUN_DIR": "/run"}, {}),
                ({"TORCHFT_X_MIN_REPLICAS": "2"}, {}),
                ({}, {"min_replica_size": 2}),
            )
        ),
        ({"RANK": "x"}, {}, "RANK='x' is not a whole number"),
        ({}, {"rank": 2, "world_size": 2}, "not among the group's 2 ranks"),
        ({}, {"world_size": 2}, "set MASTER_ADDR and MASTER_PORT"),
        ({}, {"timeout": 0}, "timeout"),
        ({}, {"quorum_timeout": "soon"}, "TORCHFT_QUORUM_TIMEOUT_SEC.* is 'soon'"),
        ({"TORCHFT_X_MIN_REPLICAS": "two"}, {}, "TORCHFT_X_MIN_REPLICAS='two' is not a whole number"),
        ({"TORCHFT_QUORUM_TIMEOUT_SEC": "-1"}, {}, "TORCHFT_QUORUM_TIMEOUT_SEC"),
    ],
)
def test_mistakes_get_a_sentence(environ: dict[str, str], arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        options(environ, **arguments)


@pytest.mark.parametrize(("argument", "variable", "counts"), [(1, None, 1), (1, "3", 3), (3, "2", 3), (0, None, 0)])
def test_the_larger_minimum_counts(argument: int, variable: str | None, counts: int) -> None:
    environ = {} if variable is None else {"TORCHFT_X_MIN_REPLICAS": variable}
    assert options(environ, min_replica_size=argument).min_replica_size == counts


def test_only_rank_0_needs_the_lighthouse() -> None:
    o = options({"TORCHFT_LIGHTHOUSE": "", "MASTER_ADDR": "n", "MASTER_PORT": "1"}, rank=1, world_size=2)
    assert o.lighthouse is None
