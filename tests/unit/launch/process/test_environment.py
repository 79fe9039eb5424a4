"""The trainer's environment: pure."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from torchft_x import env
from torchft_x.env import AttemptEnv, read_attempt
from torchft_x.launch.process.environment import (
    package_root,
    tuned,
    with_package,
    worker_environment,
)
from torchft_x.launch.supervisor.config import SupervisorConfig, trainer_environment
from torchft_x.launch.supervisor.locate import FoundLighthouse
from torchft_x.net import Address

ATTEMPT = AttemptEnv(number=4, folder="/f")
CONFIG = SupervisorConfig(command=("x.py",), group="1", groups=3, run_dir=Path("/runs/x"))
FOUND = FoundLighthouse((Address("h", 1),), "secret", "/runs/x/token")


def test_what_a_group_must_be_wins_over_what_is_set() -> None:
    given = {"REPLICA_GROUP_ID": "9", "TORCHFT_LIGHTHOUSE": "http://old:1", "HOME": "/h"}
    out = trainer_environment(CONFIG, given, ATTEMPT, FOUND, "node1")
    group = {"REPLICA_GROUP_ID": "1", "NUM_REPLICA_GROUPS": "3", "TORCHFT_LIGHTHOUSE": "http://h:1", "HOME": "/h"}
    own = {env.ATTEMPT: str(ATTEMPT), env.RUN_DIR: "/runs/x", env.TOKEN_FILE: "/runs/x/token"}
    assert out.items() >= (group | own | {env.ADVERTISE_HOST: "node1"}).items()


def test_a_warm_parent_lacks_only_variables_that_no_import_reads() -> None:
    given = {"HOME": "/h"}
    parent, attempt = trainer_environment(CONFIG, given), trainer_environment(CONFIG, given, ATTEMPT, FOUND, "node1")
    differ = {name for name in {*parent, *attempt} if parent.get(name) != attempt.get(name)}
    assert differ == {env.ATTEMPT, env.LIGHTHOUSE, env.TOKEN_FILE, env.ADVERTISE_HOST}


def test_what_the_user_tunes_stays() -> None:
    assert tuned({}, 0)["OMP_NUM_THREADS"] == "1"
    given = {"OMP_NUM_THREADS": "3", "TORCH_CPP_LOG_LEVEL": "INFO"}
    assert tuned(given, 8).items() >= given.items()


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_the_allocator_is_left_alone_when_the_user_chose_one(name: str) -> None:
    assert "MALLOC_TRIM_THRESHOLD_" in tuned({}, 1)
    assert "MALLOC_TRIM_THRESHOLD_" not in tuned({name: "x"}, 1)


@pytest.mark.parametrize(("local", "groups", "threads"), [(False, 3, "8"), (True, 3, "2"), (True, 99, "1")])
def test_threads_share_the_cores(local: bool, groups: int, threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(16))
    config = dataclasses.replace(CONFIG, workers=2, groups=groups, local=local)
    assert trainer_environment(config, {})["OMP_NUM_THREADS"] == threads


def test_a_bare_clone_goes_on_the_path_after_the_users_own() -> None:
    assert with_package({"PYTHONPATH": "/mine"}, "/clone")["PYTHONPATH"] == "/mine:/clone"
    assert with_package({"PYTHONPATH": "/clone"}, "/clone")["PYTHONPATH"] == "/clone"
    assert "PYTHONPATH" not in with_package({}, None)


def test_an_installed_package_needs_no_path() -> None:
    assert package_root("/clone/torchft_x/__init__.py", ("/usr/lib/site-packages",)) == "/clone"
    assert package_root("/usr/lib/site-packages/torchft_x/__init__.py", ("/usr/lib/site-packages",)) is None


@pytest.mark.parametrize(("server", "folder"), [("", "/f"), ("1", "/f"), ("0", "")])
def test_a_worker_shows_itself_unless_the_user_wants_none(server: str, folder: str) -> None:
    out = trainer_environment(CONFIG, {"TORCHFT_X_WORKER_SERVER": server}, ATTEMPT)
    assert read_attempt(out) == AttemptEnv(number=4, folder=folder)


def test_a_worker_finds_its_ranks() -> None:
    meet = {"name": "run", "local_rank": 1, "workers": 2, "node": 1, "nodes": 3}
    out = worker_environment({"A": "1", "RANK": "of somebody else"}, Address("10.0.0.1", 7), "/f", **meet)
    assert (out["A"], out["RANK"], out["LOCAL_RANK"], out["GROUP_RANK"], out["WORLD_SIZE"]) == ("1", "3", "1", "1", "6")
    assert (out["MASTER_ADDR"], out["MASTER_PORT"]) == ("10.0.0.1", "7")
    assert out["TORCHELASTIC_ERROR_FILE"] == "/f/torchelastic/attempt_0/1/error.json"
    nccl = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    assert worker_environment(nccl, Address("10.0.0.1", 7), "/f", **meet).items() >= nccl.items()
