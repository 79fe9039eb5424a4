"""Where the lighthouse role serves. (What else it adds to its command line: test_cli.py.)"""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from tests.util import free_port, write_secret
from torchft_x import env
from torchft_x.errors import ConfigError
from torchft_x.launch.supervisor.lighthouse_role import complete, make_token
from torchft_x.net import any_host


def bind(folder: Path, *, local: bool) -> str:
    argv = complete([], folder, local=local)
    return argv[argv.index("--bind") + 1]


@pytest.mark.parametrize("host", ["127.0.0.1", any_host()])
def test_the_port_the_others_expect_unless_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    port = free_port()
    with socket.create_server((host, port), family=family):
        monkeypatch.setenv(env.LIGHTHOUSE_AT, f"HOST:{port}")
        assert bind(tmp_path, local=False) == "[::]:0"
        (line,) = capsys.readouterr().err.splitlines()
        assert f"port {port} is taken" in line
        assert "--run_dir" in line
    assert bind(tmp_path, local=False) == f"[::]:{port}"
    assert capsys.readouterr().err == ""


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.TORCHX_JOB_ID, "local_cwd://torchx/ddp-1")


@pytest.mark.usefixtures("several")
def test_each_of_several_has_an_address_of_its_own_and_they_share_a_directory(tmp_path: Path) -> None:
    for index in "01":
        argv = complete(["--index", index], tmp_path, local=True)
        assert argv[argv.index("--address_file") + 1] == str(tmp_path / "lighthouses" / index)
        assert argv[argv.index("--lease_dir") + 1] == str(tmp_path / "lighthouses")
        assert "--state_file" not in argv
        assert "--index" not in argv


@pytest.mark.usefixtures("several")
def test_a_directory_in_which_another_job_has_begun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    complete(["--index", "0"], tmp_path, local=True)
    monkeypatch.setenv(env.TORCHX_JOB_ID, "local_cwd://torchx/ddp-2")
    for index in "01":
        with pytest.raises(ConfigError, match="Another job with several lighthouses has begun in the run directory"):
            complete(["--index", index], tmp_path, local=True)


def test_who_comes_second_waits_for_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    made: list[Path] = []
    waiting = threading.Thread(target=lambda: made.append(make_token(tmp_path)))
    waiting.start()
    assert made == []
    write_secret(tmp_path / "token")
    waiting.join()
    assert made == [tmp_path / "token"]
