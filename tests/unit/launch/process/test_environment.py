"""The trainer's environment: pure."""

from __future__ import annotations

import dataclasses

import pytest

from torchft_x.env import AttemptFacts, read_attempt
from torchft_x.launch.process.environment import (
    Rendezvous,
    TrainerSettings,
    package_root,
    trainer_environment,
    without_effect,
    worker_environment,
)

SETTINGS = TrainerSettings(
    group="1", groups=3, workers=2, attempt=AttemptFacts(number=4, folder="/f"), lighthouse="http://h:1", run_dir="/runs/x",
    token_file="/runs/x/token", advertise_host="node1", cores=16, groups_here=1, package_root=None,
)  # fmt: skip


def test_what_a_group_must_be_wins_over_what_is_set() -> None:
    out = trainer_environment({"REPLICA_GROUP_ID": "9", "TORCHFT_LIGHTHOUSE": "http://old:1", "HOME": "/h"}, SETTINGS)
    group = {"REPLICA_GROUP_ID": "1", "NUM_REPLICA_GROUPS": "3", "TORCHFT_LIGHTHOUSE": "http://h:1", "HOME": "/h"}
    own = {
        "ATTEMPT": str(SETTINGS.attempt),
        "RUN_DIR": "/runs/x",
        "TOKEN_FILE": "/runs/x/token",
        "ADVERTISE_HOST": "node1",
    }
    assert out.items() >= (group | {f"TORCHFT_X_{name}": value for name, value in own.items()}).items()


def test_what_the_user_tunes_stays() -> None:
    out = trainer_environment({"OMP_NUM_THREADS": "3", "TORCH_CPP_LOG_LEVEL": "INFO"}, SETTINGS)
    assert out["OMP_NUM_THREADS"] == "3"
    assert out["TORCH_CPP_LOG_LEVEL"] == "INFO"


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "LD_PRELOAD"])
def test_the_allocator_is_left_alone_when_the_user_chose_one(name: str) -> None:
    assert "MALLOC_TRIM_THRESHOLD_" in trainer_environment({}, SETTINGS)
    assert "MALLOC_TRIM_THRESHOLD_" not in trainer_environment({name: "x"}, SETTINGS)


@pytest.mark.parametrize(("cores", "groups_here", "threads"), [(16, 1, "8"), (16, 3, "2"), (2, 3, "1")])
def test_threads_share_the_cores(cores: int, groups_here: int, threads: str) -> None:
    settings = dataclasses.replace(SETTINGS, cores=cores, groups_here=groups_here)
    assert trainer_environment({}, settings)["OMP_NUM_THREADS"] == threads


def test_a_bare_clone_goes_on_the_path_after_the_users_own() -> None:
    settings = dataclasses.replace(SETTINGS, package_root="/clone")
    assert trainer_environment({"PYTHONPATH": "/mine"}, settings)["PYTHONPATH"] == "/mine:/clone"
    assert trainer_environment({"PYTHONPATH": "/clone"}, settings)["PYTHONPATH"] == "/clone"
    assert "PYTHONPATH" not in trainer_environment({}, SETTINGS)


def test_an_installed_package_needs_no_path() -> None:
    assert package_root("/clone/torchft_x/__init__.py", ("/usr/lib/site-packages",)) == "/clone"
    assert package_root("/usr/lib/site-packages/torchft_x/__init__.py", ("/usr/lib/site-packages",)) is None


@pytest.mark.parametrize(("server", "folder"), [("", "/f"), ("1", "/f"), ("0", "")])
def test_a_worker_shows_itself_unless_the_user_wants_none(server: str, folder: str) -> None:
    out = trainer_environment({"TORCHFT_X_WORKER_SERVER": server}, SETTINGS)
    assert read_attempt(out) == AttemptFacts(number=4, folder=folder)


def test_a_worker_finds_its_ranks() -> None:
    meet = Rendezvous(name="run", host="10.0.0.1", port=7, workers=2, folder="/f", node=1, nodes=3)
    out = worker_environment({"A": "1", "RANK": "of somebody else"}, meet, 1)
    assert (out["A"], out["RANK"], out["LOCAL_RANK"], out["GROUP_RANK"], out["WORLD_SIZE"]) == ("1", "3", "1", "1", "6")
    assert (out["MASTER_ADDR"], out["MASTER_PORT"]) == ("10.0.0.1", "7")
    assert out["TORCHELASTIC_ERROR_FILE"] == "/f/torchelastic/attempt_0/1/error.json"
    nccl = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    assert worker_environment(nccl, meet, 0).items() >= nccl.items()


def test_torchruns_own_options_are_named() -> None:
    assert without_effect({"PET_NO_PYTHON": "1", "A": "1", "TORCHELASTIC_HEALTH_CHECK_PORT": "1"}) == [
        "PET_NO_PYTHON",
        "TORCHELASTIC_HEALTH_CHECK_PORT",
    ]
