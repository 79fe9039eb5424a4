"""torchtitan's flags and files, as the three training scripts understand them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchft_x.errors import ConfigError

SCRIPTS = ("train_ddp", "train_hsdp", "train_diloco")
LINE = ["--fault_tolerance.enable", "--fault_tolerance.replica_id=1", "--fault_tolerance.group_size=2"]
PRIMUS = ["--training.steps=1000", *LINE, "--training.mock_data=True"]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS", "TORCHFT_X_FAULT_TOLERANCE"):
        monkeypatch.setenv(name, "")  # so that what a script sets is undone
        monkeypatch.delenv(name)


@pytest.fixture(params=SCRIPTS)
def parse(request: pytest.FixtureRequest) -> Callable:
    return parser_of(request.param)


def parser_of(name: str) -> Callable:
    return importlib.import_module(name).parse_args


def test_the_documents_flags(parse: Callable) -> None:
    args = parse(PRIMUS)
    assert (args.steps, args.mock_data, args.ft.replica_id, args.ft.group_size) == (1000, True, 1, 2)
    assert (os.environ["REPLICA_GROUP_ID"], os.environ["NUM_REPLICA_GROUPS"]) == ("1", "2")
    assert len(sys.modules["byte_model"].load_data(args)) > 1000


def test_a_launchers_number_and_another_one_are_refused(parse: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICA_GROUP_ID", "0")
    with pytest.raises(ConfigError, match="leave the key out"):
        parse(LINE)


def test_a_file_and_flags(parse: Callable, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    file = tmp_path / "debug.toml"
    file.write_text("[training]\nsteps = 5\n[fault_tolerance]\nenable = true\nprocess_group_timeout_ms = 7000\n")
    method = "diloco" if "diloco" in request.node.name else "none"
    args = parse(["--job.config_file", str(file), "--training.steps=6", f"--fault_tolerance.semi_sync_method={method}"])
    assert (args.steps, args.timeout) == (6, 7.0)


@pytest.mark.parametrize("name", ["train_ddp", "train_hsdp"])
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--fault_tolerance.semi_sync_method=diloco"], "train_diloco.py.*or write none"),
        (["--fault_tolerance.sync_steps=10"], "--fault_tolerance.sync_steps .* train_diloco.py takes it"),
        (["--fault_tolerance.enable=false"], "say so, or --fault_tolerance.enable"),
        (["--fault_tolerance.group_sise=2"], "did you mean group_size"),
        (["--training.stepz=2"], "did you mean steps"),
    ],
)
def test_what_is_not_for_groups_that_average_each_step(name: str, flags: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parser_of(name)(flags)


def test_a_number_of_steps_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser_of("train_ddp")(["--training.steps=none"])
    assert "--training.steps: invalid int value: 'none'" in capsys.readouterr().err


def test_what_a_file_says_in_vain_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "debug.toml"
    file.write_text("[model]\nname = 1\n[fault_tolerance]\nenable = true\nsync_steps = 10\n[training]\nseed = 1\n")
    parser_of("train_ddp")(["--config", str(file)])
    said = capsys.readouterr().err
    for name in ("[model]", "seed of [training]", "sync_steps of [fault_tolerance]"):
        assert f"{name} means nothing to this script" in said
