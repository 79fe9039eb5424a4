"""FtJob and its kin: each mistake is one sentence that names the parameter."""

from __future__ import annotations

import pytest

from torchft_x.errors import ConfigError
from torchft_x.launch.job.job import ExtraRole, FtJob, FtLighthouse
from torchft_x.launch.job.parse import parse_resource


def refused(sentence: str):
    return pytest.raises(ConfigError, match=sentence)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"script": ""}, "--script"),
        ({"run_dir": "runs"}, "--run_dir"),
        ({"name": "a b"}, "--name"),
        ({"replicas": 0}, "--replicas is 0"),
        ({"workers_per_replica": 0}, "--workers_per_replica"),
        ({"nodes_per_replica": 0}, "--nodes_per_replica"),
        ({"workers_per_replica": 3, "nodes_per_replica": 2}, r"--workers_per_replica is 3.*--nodes_per_replica \(2\)"),
        ({"min_replicas": 0}, "--min_replicas"),
        ({"replicas": 2, "min_replicas": 3}, r"--min_replicas is 3.*--replicas \(2\)"),
        ({"max_restarts": -1}, "--max_restarts"),
        ({"log_level": "loud"}, "--log_level"),
        ({"lighthouse": ("nowhere",)}, "--lighthouse 'nowhere'"),
        ({"lighthouse": ("http://h:0",)}, "port 0"),
        ({"lighthouse": ("h:1", "h"), "lighthouse_from": "TORCHFT_LIGHTHOUSE"}, "TORCHFT_LIGHTHOUSE 'h'"),
        ({"lighthouses": 0}, "--lighthouses is 0"),
        ({"lighthouses": 17}, "--lighthouses is 17; it must lie between 1 and 16"),
        ({"lighthouses": 2, "lighthouse": ("h:1",)}, "--lighthouses is 2, the job's own, but --lighthouse names h:1"),
        ({"env": {"1A": "x"}}, "--env: '1A'"),
        ({"env": {"A": 3}}, "--env: A is 3"),
        ({"env": {"TORCHFT_X_TOKEN": "abc"}}, "TORCHFT_X_TOKEN can't be given here; .* --token_file"),
        ({"env": {"TORCHFT_X_TOKEN_FILE": "/t"}}, "--env: TORCHFT_X_TOKEN_FILE .* use --token_file"),
        ({"extra_roles": (ExtraRole("trainer", "x"),)}, "'trainer'.*choose another"),
        ({"extra_roles": (ExtraRole("a/b", "x"),)}, "'a/b'"),
        ({"extra_roles": (ExtraRole("e", "x"), ExtraRole("e", "y"))}, "'e' is there twice"),
        ({"extra_roles": (ExtraRole("e", "x"),), "lighthouse": ("h:1",)}, "--lighthouse names .* stop the extra roles"),
        ({"extra_roles": (ExtraRole("e", []),)}, r"'e': the command \[\]"),
        ({"extra_roles": (ExtraRole("e", "a 'b"),)}, "can't be split"),
        ({"extra_roles": (ExtraRole("e", ["sleep", 3]),)}, "'e': the command"),  # type: ignore[list-item]
        ({"extra_roles": (ExtraRole("e", "x", replicas=0),)}, "'e': replicas is 0"),
        ({"extra_roles": (ExtraRole("e", "x", max_restarts=-1),)}, "'e': max_restarts"),
        ({"extra_roles": (ExtraRole("e", "x", memMB=0),)}, "'e': memMB is 0"),
        ({"extra_roles": (ExtraRole("e", "x", h="nonsense"),)}, "'e': h 'nonsense' .* give cpu, gpu and memMB"),
        ({"extra_roles": (ExtraRole("e", "x", env={"A": None}),)}, "'e', env: A"),  # type: ignore[dict-item]
    ],
)
def test_mistakes_in_a_job(options: dict, named: str) -> None:
    with refused(named) as caught:
        FtJob(**({"script": "train.py", "run_dir": "/r"} | options))
    assert "abc" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"lease_dir": "/d", "state_file": "/s"}, "--lease_dir and --state_file"),
        ({"lease_dir": "/d", "port": 0}, "--port 0 with --lease_dir"),
        ({"port": 65536}, "--port is 65536"),
        ({"port": -1}, "--port is -1"),
        ({"min_replicas": 0}, "--min_replicas"),
        ({"join_timeout_ms": 0}, "--join_timeout_ms"),
        ({"heartbeat_timeout_ms": -5}, "--heartbeat_timeout_ms"),
        ({"quorum_tick_ms": 0}, "--quorum_tick_ms"),
        ({"memMB": 0}, "--memMB"),
        ({"h": "nonsense"}, "--h"),
        ({"name": ""}, "--name"),
        ({"log_level": "no"}, "--log_level"),
    ],
)
def test_mistakes_in_a_lighthouse(options: dict, named: str) -> None:
    with refused(named):
        FtLighthouse(**options)


@pytest.mark.parametrize(
    "options",
    [{"replicas": 3}, {"workers_per_replica": 2}, {"workers_per_replica": 2, "nodes_per_replica": 2}],
    ids=str,
)
def test_islands_have_a_number_for_each_group_and_one_node(options: dict) -> None:
    with refused("--islands names 2 groups on one node each"):
        FtJob(script="t.py", run_dir="/r", **{"replicas": 2, "workers_by_group": (1, 2), **options})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"cpu": 0}, "--cpu is 0"),  # TorchX would make 2 of it
        ({"gpu": -1}, "--gpu"),
        ({"memMB": 0}, "--memMB"),
        ({"h": "aws_p3.2xlargo"}, r"--h 'aws_p3.2xlargo' .* did you mean 'aws_p3.2xlarge'\?"),
        ({"h": "nonsense"}, "--h 'nonsense' .* give --cpu"),
    ],
)
def test_mistakes_in_a_resource(options: dict, named: str) -> None:
    with refused(named):
        parse_resource(**{"cpu": 2, "gpu": 0, "memMB": 4096, "h": None} | options)


def test_the_command_of_an_extra_role() -> None:
    role = ExtraRole("e", "evaluate.py --note 'two words'")
    assert role.words("/usr/bin/py") == ("/usr/bin/py", "evaluate.py", "--note", "two words")
    assert ExtraRole("e", ["python", "-m", "mine"]).words("/usr/bin/py") == ("/usr/bin/py", "-m", "mine")
    assert ExtraRole("e", "redis-server --port 1").words("/usr/bin/py")[0] == "redis-server"
