"""Command lines: what they refuse, and what the lighthouse role adds to its own."""

from __future__ import annotations

import shlex
import stat
import sys
from pathlib import Path

import pytest

from torchft_x.__main__ import main
from torchft_x._version import __version__
from torchft_x.errors import ConfigError
from torchft_x.launch.supervisor.config import SupervisorConfig
from torchft_x.launch.supervisor.lighthouse import complete, make_token


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("", 2, "torchft_x lighthouse"),
        ("--help", 0, "torchft_x supervise"),
        ("--version", 0, __version__),
        ("train", 2, "there is no command 'train'"),
        ("supervise --group 0 --groups 1", 2, "No script given"),
        ("supervise --group 0 --groups 0 -- x", 2, "groups is 0"),
        ("supervise --group 0 --groups 1 --workers 0 -- x", 2, "workers is 0"),
        ("supervise --group 0 --groups 3 --workers 1,2 -- x", 2, "--workers names 2 groups"),
        ("supervise --group 0 --groups 1 --workers two -- x", 2, "'two' is no number"),
        ("supervise --group 0 --groups 1 --max_restarts -1 -- x", 2, "max_restarts is -1"),
        ("supervise --group 0 --groups 1 -- x", 2, "TORCHFT_LIGHTHOUSE"),
        ("supervise --group 0 --nodes 2 --groups 1 -- x", 2, "give --replica K"),
        ("supervise --replica 4 --nodes 2 --groups 2 -- x", 2, "are replicas 0 to 3"),
        ("supervise --replica 0 --nodes 0 --groups 2 -- x", 2, "--nodes is 0"),
        ("supervise --replica 3 --nodes 2 --groups 2 --workers 3 -- x", 2, "workers is 3"),
        ("supervise --group 0 --groups 1 --run_dir /proc/nothing -- x", 2, "/proc/nothing can't be written"),
        ("supervise --group 0 --groups 1 --memory 1.5 --run_dir /r -- x", 2, "memory is 1.5"),
        ("accompany --name e", 2, "No program given"),
        ("accompany --name '' -- x", 2, "--name is empty"),
        ("accompany --name e -- x", 2, "TORCHFT_LIGHTHOUSE"),
    ],
)
def test_what_it_says(words: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(words)) == code
    out, err = capsys.readouterr()
    assert said in out + err
    assert "Traceback" not in err


def test_a_link_with_torchfts_name_of_the_command_is_its_lighthouse(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[list[str]] = []
    monkeypatch.setattr("torchft_x.launch.cli.lighthouse", lambda words: reported.append(words) or 0)
    monkeypatch.setattr(sys, "argv", ["/env/bin/torchft_lighthouse", "--min_replicas", "1"])
    assert main() == 0
    assert reported == [["--min_replicas", "1"]]


@pytest.mark.parametrize("words", [["supervise"], ["supervise", "--groups", "two", "--group", "0", "--", "x"]])
def test_arguments_that_do_not_parse_are_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "group_and_node"),
    [
        (["--group", "g7", "--groups", "1"], ("g7", 0, 1)),
        (["--replica", "1", "--groups", "2"], ("1", 0, 1)),
        (["--replica", "5", "--nodes", "3", "--groups", "2", "--workers", "6"], ("1", 2, 3)),
    ],
)
def test_which_group_and_node_it_is(
    words: list[str], group_and_node: tuple[str, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SupervisorConfig] = []
    run = {"run": lambda self: 0, "__init__": lambda self, config, connect, warm: seen.append(config)}
    monkeypatch.setattr("torchft_x.launch.supervisor.group.Supervisor", type("Recorded", (), run))
    assert main(["supervise", *words, "--", "x.py"]) == 0
    (config,) = seen
    assert (config.group, config.node, config.nodes) == group_and_node


def test_a_lighthouse_of_a_job_in_an_unwritable_directory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lighthouse", "--min_replicas", "1", "--run_dir", "/proc/nothing"]) == 2
    out, err = capsys.readouterr()
    assert out == "Run directory: /proc/nothing\n"
    assert "/proc/nothing can't be written" in err


def test_the_token_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = make_token(tmp_path / "run")
    token = path.read_text()
    assert len(token.strip()) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert make_token(tmp_path / "run").read_text() == token
    with pytest.raises(ConfigError, match="can't be written"):
        make_token(path / "below a file")


def test_the_role_adds_what_is_not_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHFT_X_LIGHTHOUSE_AT", raising=False)
    token = ["--token_file", str(tmp_path / "token")]
    address = ["--address_file", str(tmp_path / "lighthouse")]
    state = ["--state_file", str(tmp_path / "lighthouse.state")]
    host = ["--advertise_host", "127.0.0.1"]
    assert complete([], tmp_path, local=True) == ["--bind", "[::]:0", *token, *address, *state, *host]
    assert complete([], tmp_path, local=False) == ["--bind", "[::]:29510", *token, *address, *state]
    monkeypatch.setenv("TORCHFT_X_LIGHTHOUSE_AT", "HOST:30001")
    assert complete([], tmp_path, local=False)[:2] == ["--bind", "[::]:30001"]
    bind = ["--bind", "[::]:1"]
    given = [*bind, "--token_file", "t", "--state_file", "s", "--address_file", "a", "--advertise_host", "h"]
    assert complete(given, tmp_path, local=True) == given
    monkeypatch.setenv("TORCHFT_X_TOKEN_FILE", "/given")
    assert complete(bind, tmp_path, local=False) == [*bind, *address, *state]
    monkeypatch.setenv("TORCHFT_X_TOKEN", "secret")
    monkeypatch.setenv("TORCHFT_X_ADVERTISE_HOST", "node1")
    assert complete(bind, tmp_path, local=True) == [*bind, *address, *state]
