"""The section [fault_tolerance]: what the mission's configurations say, and every mistake a sentence."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import pytest
from torch import nn

from torchft_x.errors import ConfigError
from torchft_x.train.fault_tolerance import KEYS, FaultTolerance, parse_args, read_toml
from torchft_x.train.local.partition import cut_into_fragments

APART = ("--fault_tolerance.enable", "--fault_tolerance.semi_sync_method=diloco")
FRAGMENTS = """
[fault_tolerance]
enable = true
sync_steps = 10
num_fragments = 2
semi_sync_method = "diloco"
process_group = "gloo"
process_group_timeout_ms = 10000
"""
ISLANDS = FRAGMENTS.replace("num_fragments = 2", "num_fragments = 1") + "rank0_synchronization_only = true\n"
ON_CPU = ISLANDS.replace("only = true", "only = false") + "copy_pseudogradients_to_cpu = true\n"


@pytest.fixture(autouse=True)
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The environment, without what launchers set and without what the last call has set."""
    for name in ("REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS", "TORCHFT_X_FAULT_TOLERANCE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def settings(text: str, tmp_path: Path, *flags: str) -> FaultTolerance:
    file = tmp_path / "debug.toml"
    file.write_text(text)
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", "--training.steps", type=int)
    ft = parse_args(parser, ["--config", str(file), *flags], apart=True).ft
    assert isinstance(ft, FaultTolerance)
    return ft


def test_the_missions_configurations(tmp_path: Path) -> None:
    same = {"enable": True, "sync_steps": 10, "semi_sync_method": "diloco", "process_group_timeout_ms": 10000}
    assert settings(FRAGMENTS, tmp_path) == FaultTolerance(num_fragments=2, **same)
    assert settings(ISLANDS, tmp_path) == FaultTolerance(rank0_synchronization_only=True, **same)
    assert settings(ON_CPU, tmp_path) == FaultTolerance(copy_pseudogradients_to_cpu=True, **same)


def test_the_keys_are_torchtitans_and_the_missions() -> None:
    """Growth is a decision."""
    assert KEYS == (
        "enable", "process_group", "process_group_timeout_ms", "replica_id", "group_size", "min_replica_size",
        "semi_sync_method", "sync_steps", "should_quantize", "fragment_sync_delay", "fragment_update_alpha",
        "module_fqns_per_model_fragment", "num_fragments", "rank0_synchronization_only", "copy_pseudogradients_to_cpu",
    )  # fmt: skip


def test_flags_beat_the_file_and_the_file_beats_the_environment(tmp_path: Path, environ: pytest.MonkeyPatch) -> None:
    own = {"sync_steps": 50, "fragment_sync_delay": 1, "should_quantize": "int8"}
    environ.setenv("TORCHFT_X_FAULT_TOLERANCE", json.dumps(own))
    found = settings(FRAGMENTS, tmp_path, "--fault_tolerance.num-fragments", "5")
    assert (found.sync_steps, found.num_fragments, found.fragment_sync_delay) == (10, 5, 1)
    assert found.should_quantize == "int8"
    named = settings("", tmp_path, *APART, "--fault_tolerance.module_fqns_per_model_fragment=a,b;c")
    assert named.module_fqns_per_model_fragment == (("a", "b"), ("c",))
    assert settings(f"{FRAGMENTS}module_fqns_per_model_fragment = [['a', 'b'], ['c']]", tmp_path).fragments == 2
    environ.setenv("REPLICA_GROUP_ID", "3")
    environ.setenv("NUM_REPLICA_GROUPS", "4")
    found = settings(FRAGMENTS, tmp_path)
    assert (found.replica_id, found.group_size) == (3, 4)
    for text, sentence in (
        ("[7]", "is no JSON object"),
        ('{"sync": 1}', "TORCHFT_X_FAULT_TOLERANCE has an unknown key"),
    ):
        environ.setenv("TORCHFT_X_FAULT_TOLERANCE", text)
        with pytest.raises(ConfigError, match=sentence):
            settings("", tmp_path)


def test_the_numbers_that_flags_give_are_this_process_s(tmp_path: Path) -> None:
    found = settings("", tmp_path, *APART, "--fault_tolerance.replica_id=1", "--fault_tolerance.group_size", "2")
    assert (found.enable, found.replica_id, found.group_size) == (True, 1, 2)
    assert (os.environ["REPLICA_GROUP_ID"], os.environ["NUM_REPLICA_GROUPS"]) == ("1", "2")


def test_other_arguments_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    args = parse_args(parser, ["--fault_tolerance.enable", "--seed", "1"])
    assert (args.seed, args.given) == (1, {"enable"})
    with pytest.raises(SystemExit):
        parse_args(argparse.ArgumentParser(), ["--fault_tolerance.enable", "true", "--see", "1"])
    assert "unrecognized arguments: --see 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "flags", "sentence"),
    [
        ("sync_step = 3", (), r"unknown key sync_step; did you mean sync_steps\?"),
        ("", ("--fault_tolerance.num_fragment=2",), r"num_fragment is unknown; did you mean num_fragments\?"),
        ("", ("--training.stepss=2",), r"training.stepss is unknown; did you mean steps\?"),
        ("xyzzy = 1", (), r"unknown key xyzzy; known are enable, "),
        ('semi_sync_method = "dilco"', (), r"'dilco' is unknown; did you mean diloco\?"),
        ('process_group = "ncl"', (), r"'ncl' is unknown; did you mean nccl\?"),
        ('process_group = "mccl"', (), r"'mccl' is not offered .*; write 'nccl'"),
        ('sync_steps = "ten"', (), r"sync_steps is 'ten'; it must be a whole number"),
        ("sync_steps = true", (), r"sync_steps is 'true'; it must be a whole number"),
        ('enable = "perhaps"', (), r"enable is 'perhaps'; it must be true or false"),
        ("fragment_update_alpha = 2.0", (), r"between 0 and 1"),
        ('semi_sync_method = "diloco"\nsync_steps = 5\nnum_fragments = 2', (), r"sync_steps is 5; it must be a multiple"),
        ("rank0_synchronization_only = true\nnum_fragments = 2", (), r"needs num_fragments = 1, and it is 2"),
        ('rank0_synchronization_only = true\nsemi_sync_method = "local_sgd"', (), r'works with semi_sync_method "diloco"'),
        ("replica_id = 2\ngroup_size = 2", (), r"replica_id is 2, but there are 2 groups"),
        ('module_fqns_per_model_fragment = ["a"]', (), r"must be a list of lists"),
        ('group_size = "x"', (), r"group_size is 'x'; it must be a whole number"),
        ("fragment_update_alpha = 1" + "0" * 400, (), r"fragment_update_alpha is inf; it must lie between 0 and 1"),
        ("sync_steps = 0x" + "f" * 5000, (), r"sync_steps has more digits"),
        ("", ("--fault_tolerance.sync_steps=" + "9" * 5000,), r"sync_steps is '9+\.\.\.9+'; it must be a whole number"),
    ],
)  # fmt: skip
def test_a_mistake_is_a_sentence(text: str, flags: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        settings(f"[fault_tolerance]\n{text}", tmp_path, *flags)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.toml can't be read"):
        read_toml(str(tmp_path / "nowhere.toml"))
    for text in ("[fault_tolerance\n", "a = " + "[" * 50_000 + "]" * 50_000):
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(ConfigError, match=r"bad.toml can't be read"):
            read_toml(str(tmp_path / "bad.toml"))


def test_what_the_launcher_says_is_not_contradicted(tmp_path: Path, environ: pytest.MonkeyPatch) -> None:
    environ.setenv("REPLICA_GROUP_ID", "1")
    environ.setenv("NUM_REPLICA_GROUPS", "3")
    for flag, sentence in (
        ("replica_id=0", r"replica_id is 0, but REPLICA_GROUP_ID is 1"),
        ("group_size=2", r"group_size is 2, but NUM_REPLICA_GROUPS is 3"),
        ("group_size=x", r"group_size is 'x'; it must be a whole number"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            settings("", tmp_path, f"--fault_tolerance.{flag}")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.head = nn.Linear(4, 4)


@pytest.mark.parametrize("n", range(1, 7))
def test_a_model_is_cut_into_runs_that_hold_every_parameter_once(n: int) -> None:
    net = Net()
    parts = cut_into_fragments(net, n)
    held = [id(p) for part in parts for p in part.parameters()]
    assert held == [id(p) for p in net.parameters()]
    sizes = [sum(p.numel() for p in part.parameters()) for part in parts]
    assert len(parts) == n
    assert max(sizes) - min(sizes) <= 20


def test_a_cut_by_names_must_hold_every_parameter() -> None:
    net = Net()
    first, second = cut_into_fragments(net, fqns=[["inp", "blocks.0", "blocks.1"], ["blocks.2", "blocks.3", "head"]])
    assert len(list(first.parameters())) == len(list(second.parameters())) == 6
    with pytest.raises(ConfigError, match=r"parameter head.weight is in 0 fragments"):
        cut_into_fragments(net, fqns=[["inp"], ["blocks"]])
    with pytest.raises(ConfigError, match=r"no module 'tail'"):
        cut_into_fragments(net, fqns=[["tail"]])
    with pytest.raises(ConfigError, match=r"6 parts, which can't be cut into 7"):
        cut_into_fragments(net, 7)
