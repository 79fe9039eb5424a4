"""Where the lighthouse role serves. (What else it adds to its command line: test_cli.py.)"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from torchft_x import env
from torchft_x.launch.lighthouse_role import complete
from torchft_x.net import any_host


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (env.TOKEN, env.TOKEN_FILE, env.ADVERTISE_HOST, env.LIGHTHOUSE_PORT):
        monkeypatch.delenv(name, raising=False)


def bind(folder: Path, *, local: bool) -> str:
    argv = complete([], folder, local=local)
    return argv[argv.index("--bind") + 1]


@pytest.mark.parametrize("host", ["127.0.0.1", any_host()])
def test_the_port_the_others_expect_unless_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv(env.LIGHTHOUSE_PORT, str(port))
        assert bind(tmp_path, local=False) == "[::]:0"
        (line,) = capsys.readouterr().err.splitlines()
        assert f"port {port} is taken" in line
        assert "--run_dir" in line
    assert bind(tmp_path, local=False) == f"[::]:{port}"
    assert capsys.readouterr().err == ""


def test_a_local_job_takes_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.LIGHTHOUSE_PORT, "30123")
    assert bind(tmp_path, local=True) == "[::]:0"


def test_a_given_token_file_is_the_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.TOKEN_FILE, "/mounted/token")
    assert "--token_file" not in complete([], tmp_path, local=True)  # the server reads the variable
    assert not (tmp_path / "token").exists()
