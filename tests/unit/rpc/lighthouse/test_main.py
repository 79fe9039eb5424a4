"""The command: flags, start-up, address file, bad input in one sentence, signals, and the job's verdict."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchft_x import env
from torchft_x.core.job.kept_groups import render
from torchft_x.core.messages.job import GroupsChanged
from torchft_x.rpc.lighthouse import main
from torchft_x.rpc.lighthouse.main import GroupsFile


@pytest.fixture
def logger() -> Iterator[None]:
    """The command configures logging for its process; put it back for the other tests."""
    ours = logging.getLogger("torchft_x")
    before = (ours.handlers[:], ours.propagate, ours.level)
    yield
    ours.handlers[:], ours.propagate = before[0], before[1]
    ours.setLevel(before[2])


def test_the_flags_are_frozen() -> None:
    flags = {a.option_strings[-1]: a.default for a in main.make_parser()._actions}
    assert flags == {
        "--help": "==SUPPRESS==",
        "--min_replicas": None,
        "--bind": "[::]:29510",
        "--join_timeout_ms": 60000,
        "--quorum_tick_ms": 100,
        "--heartbeat_timeout_ms": None,
        "--token_file": None,
        "--advertise_host": None,
        "--address_file": None,
        "--state_file": None,
        "--lease_dir": None,
        "--run_dir": None,
        "--job_groups": None,
        "--groups_file": None,
        "--job_min_replicas": 1,
        "--http_bind": None,
        "--replaced_within": None,
        "--last_words": None,
        "--attempt": 0,
        "--lease_owner": None,
        "--version": "==SUPPRESS==",
    }


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--bind", "127.0.0.1:99999"], "--bind '127.0.0.1:99999' has no valid port"),
        (["--bind", "nonsense"], "--bind 'nonsense' has no valid port"),
        (["--bind", "203.0.113.9:0"], "can't listen on 203.0.113.9:0"),
        (["--min_replicas", "0"], "min_replicas is 0"),
        (["--join_timeout_ms", "0"], "--join_timeout_ms is 0"),
        (["--heartbeat_timeout_ms", "-5"], "--heartbeat_timeout_ms is -5"),
        (["--token_file", "/nowhere/token"], "--token_file /nowhere/token: the token can't be read"),
        (["--token_file", "/dev/null"], "that is no file"),
        (["--job_groups", ""], "at least one group"),
        (["--job_groups", "0,0"], "names a group twice"),
        (["--job_groups", "0,1", "--job_min_replicas", "3"], "min_replicas is 3"),
        (["--address_file", "/nowhere/a"], "--address_file /nowhere/a: it can't be written"),
        (["--run_dir", "/proc/nowhere"], "--run_dir /proc/nowhere"),
        (["--lease_dir", "/nowhere"], "--lease_dir and port 0"),
        (["--lease_dir", "/nowhere", "--state_file", "/nowhere/s"], "--state_file and --lease_dir"),
        (["--lease_dir", "/nowhere/d", "--bind", "127.0.0.1:1"], "--lease_dir /nowhere/d can't be used (No such file"),
    ],
)
@pytest.mark.usefixtures("logger")
def test_bad_input_is_one_sentence_and_exit_code_2(
    flags: list[str], sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main.main(["--min_replicas", "1", "--bind", "127.0.0.1:0", *flags])
    err = capfd.readouterr().err
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err
    assert [x for x in err.splitlines() if x.startswith("torchft_x lighthouse: ")] == [err.splitlines()[-1]]


def test_what_a_scheduler_that_replaces_processes_changes() -> None:
    """Absence counts, also where the groups are in a file: nobody says there who has ended for good."""
    args = main.make_parser().parse_args(["--min_replicas", "1", "--job_groups", "0,1", "--groups_file", "/g.json"])
    once = main.read_settings(args)
    assert once.roster.kept
    assert once.roster.gone_grace < 10
    assert once.lighthouse.new_job
    args.replaced_within = 600.0
    replaced = main.read_settings(args)
    assert (replaced.roster.kept, replaced.roster.gone_grace, replaced.roster.arrive_timeout) == (False, 600, 600)
    assert not replaced.lighthouse.new_job  # it may be the second of its kind
    assert not replaced.lighthouse.restarted


@pytest.mark.parametrize(
    ("torchx", "flags", "name"),
    [
        ("local_cwd://torchx/ddp-k920wm", ["--run_dir", "/shared/runs/1"], "ddp-k920wm"),
        ("", ["--run_dir", "/shared/runs/mine/"], "mine"),
        ("", [], ""),
    ],
)
def test_a_job_has_a_name_for_people(torchx: str, flags: list[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.TORCHX_JOB_ID, torchx)
    assert main._name(main.read_settings(main.make_parser().parse_args(["--min_replicas", "1", *flags]))) == name


THREE = GroupsChanged(("0", "1", "2"))


def replace(path: Path, text: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


def test_each_content_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    path.write_text(render(THREE))
    file = GroupsFile(path)
    assert file.changed() == THREE
    assert file.changed() is None
    replace(path, render(GroupsChanged(("0",))))
    assert file.changed() == GroupsChanged(("0",))


def test_a_file_that_cant_be_used_changes_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "groups.json"
    file = GroupsFile(path)
    assert (file.changed(), file.changed()) == (None, None)
    assert len(caplog.records) == 1
    replace(path, "{torn")
    assert (file.changed(), file.changed()) == (None, None)
    assert len(caplog.records) == 2
    replace(path, render(THREE))
    assert file.changed() == THREE
