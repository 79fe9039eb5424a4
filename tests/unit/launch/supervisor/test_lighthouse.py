"""``torchft_x lighthouse`` as processes: what is killed comes back at the same port, and everything ends as it should."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from tests.util import write_secret
from torchft_x import env
from torchft_x.arguments import option
from torchft_x.launch.supervisor.config import LauncherOptions
from torchft_x.launch.supervisor.lighthouse import LighthouseSupervisor, complete, hold_port, make_token
from torchft_x.launch.supervisor.requests import StopRequests
from torchft_x.net import any_host, parse_address


def attempts(monkeypatch: pytest.MonkeyPatch, *codes: int) -> tuple[int, int]:
    """The keeper's exit code, and how many attempts it took, if the server ends with these codes, each at once."""
    left = list(codes)
    monkeypatch.setattr(LighthouseSupervisor, "_live", lambda self, argv: left.pop(0))
    monkeypatch.setattr(StopRequests, "wait", lambda self, condition, seconds: False)
    return LighthouseSupervisor([], LauncherOptions())._keep([]), len(codes) - len(left)


@pytest.mark.parametrize(
    ("codes", "ends"),
    [
        ((0,), (0, 1)),
        ((1,), (1, 1)),  # the job has failed
        ((2,), (2, 1)),  # a mistake in the arguments
        ((-9, 2, 0), (0, 3)),  # the arguments were good before
        ((70, -11, -9, -9, -9, 1), (1, 6)),
        ((70,) * 9, (1, 5)),  # its own doing, again and again
        ((-11,) * 9, (1, 5)),
        ((-9,) * 60 + (0,), (0, 61)),  # somebody else's
        ((-9,) * 200, (1, 101)),
    ],
)
def test_what_ends_it(monkeypatch: pytest.MonkeyPatch, codes: tuple[int, ...], ends: tuple[int, int]) -> None:
    assert attempts(monkeypatch, *codes) == ends


@pytest.mark.parametrize("host", ["127.0.0.1", "[::]"])
def test_the_port_is_held_and_can_be_listened_on(host: str) -> None:
    argv, held = hold_port(["--min_replicas", "1", "--bind", f"{host}:0"])
    with held:
        bind = parse_address(argv[-1])
        assert bind.port > 0
        there = any_host() if bind.host == "::" else bind.host
        with socket.socket(held.family, socket.SOCK_STREAM) as rude, pytest.raises(OSError):
            rude.bind((there, bind.port))  # without SO_REUSEADDR: anybody else
        with socket.create_server((there, bind.port), family=held.family):
            pass


def test_what_can_not_be_bound_is_left_to_the_server() -> None:
    for bind in ("nonsense", "203.0.113.9:0"):
        argv = ["--bind", bind]
        assert hold_port(argv) == (argv, None)


def test_the_port_is_the_one_that_the_others_expect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.LIGHTHOUSE_AT, "HOST:29700")
    for local, bind in ((False, "[::]:29700"), (True, "[::]:0")):
        argv = complete([], tmp_path, local=local)
        assert argv[argv.index("--bind") + 1] == bind


def test_of_several_the_one_that_serves_writes_the_address_and_each_job_has_a_lease_of_its_own(tmp_path: Path) -> None:
    for job in ("ddp-1", "ddp-2"):
        folder = tmp_path / "run/lighthouses" / job
        argv = complete(["--job_groups", "0", "--lease_dir", str(folder)], tmp_path / "run", local=True)
        assert option(argv, "--address_file") == str(tmp_path / "run/lighthouse")
        assert option(argv, "--state_file") is None
        assert [path.stat().st_mode & 0o022 for path in (folder, *folder.parents[:2])] == [0, 0, 0]
    complete(["--lease_dir", str(tmp_path / "theirs")], tmp_path / "run", local=True)  # of no job: a mistake, maybe
    assert not (tmp_path / "theirs").exists()


def test_who_comes_second_waits_for_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    made: list[Path] = []
    waiting = threading.Thread(target=lambda: made.append(make_token(tmp_path)))
    waiting.start()
    assert made == []
    write_secret(tmp_path / "token")
    waiting.join()
    assert made == [tmp_path / "token"]
