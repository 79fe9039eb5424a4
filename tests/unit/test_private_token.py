"""S11: a token file that others can have read or made is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchft_x import env
from torchft_x.errors import ConfigError


def token_file(tmp_path: Path, mode: int) -> str:
    path = tmp_path / "secret"
    path.write_text("abc\n")
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_of_ones_own_is_read(tmp_path: Path, mode: int) -> None:
    assert env.read_token_file(token_file(tmp_path, mode), "it") == "abc"


@pytest.mark.parametrize("mode", [0o666, 0o644, 0o640, 0o604, 0o620, 0o610])
def test_one_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = token_file(tmp_path, mode)
    with pytest.raises(ConfigError, match=f"mode is 0{mode:o}, so that others may know .* chmod 600 {path}") as e:
        env.read_token_file(path, "it")
    assert "abc" not in str(e.value)


def test_one_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = token_file(tmp_path, 0o600)
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match=r"belongs to user \d+, and this process runs as user \d+"):
        env.read_token_file(path, "it")


def test_a_mounted_secret_of_root_may_be_read_by_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a file of root")
    path = token_file(tmp_path, 0o440)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert env.read_token_file(path, "it") == "abc"
    os.chmod(path, 0o444)
    with pytest.raises(ConfigError, match="mode is 0444"):
        env.read_token_file(path, "it")


def test_a_named_pipe_and_a_folder_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="that is no file"):
        env.read_token_file(str(tmp_path / "pipe"), "it")
    with pytest.raises(ConfigError, match=r"can.t be read|that is no file"):
        env.read_token_file(str(tmp_path), "it")
