"""T1: an address that somebody else can have written is not believed."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchft_x.address_files import make_run_dir, read_address
from torchft_x.errors import AddressError, ConfigError
from torchft_x.net import Address

ADDRESS = Address("127.0.0.1", 29510)
USER, STRANGER, SHARED = 12345, 12346, 20000  # ids


@pytest.fixture
def file(tmp_path: Path) -> Path:
    make_run_dir(tmp_path / "run")
    (tmp_path / "run/lighthouse").write_text(f"{ADDRESS.url}\n")
    return tmp_path / "run/lighthouse"


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """This process is of a user with a private group, to whom the run directory belongs."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    names = {USER: "ann", STRANGER: "bob", SHARED: "lab", 0: "root"}
    monkeypatch.setattr(os, "geteuid", lambda: USER)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name=names[uid]))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_name=names[gid], gr_mem=[]))
    for path in (file.parent, file):
        os.chown(path, USER, USER)


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o444, 0o640])
@pytest.mark.parametrize("folder", [0o700, 0o755, 0o750, 0o2755])
def test_what_only_this_user_may_write_is_believed(file: Path, mode: int, folder: int) -> None:
    file.chmod(mode)
    file.parent.chmod(folder)
    assert read_address(file) == ADDRESS


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize("which", ["file", "folder"])
@pytest.mark.parametrize("mode", [0o666, 0o606, 0o622, 0o777, 0o1777])
def test_what_everybody_may_write_is_refused(file: Path, which: str, mode: int) -> None:
    """Who may write the folder can put another file of this user in place of the address, also where it is sticky."""
    path = file if which == "file" else file.parent
    path.chmod(mode)
    with pytest.raises(
        ConfigError, match=rf"{path} may be written by other users \(mode {mode:04o}\).* chmod go-w {path},"
    ):
        read_address(file)


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize("which", ["file", "folder"])
def test_what_belongs_to_somebody_else_is_refused(file: Path, which: str) -> None:
    path = file if which == "file" else file.parent
    os.chown(path, STRANGER, USER)
    with pytest.raises(ConfigError, match=f"{path} belongs to user {STRANGER}, and this process runs as user {USER}: "):
        read_address(file)
    os.chown(path, 0, 0)
    assert read_address(file) == ADDRESS


@pytest.mark.usefixtures("as_user")
def test_a_private_group_may_write(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each user has a group of the same name the usual umask is 002."""
    file.chmod(0o664)
    file.parent.chmod(0o775)
    assert read_address(file) == ADDRESS
    monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_name="ann", gr_mem=["ann", "bob"]))
    with pytest.raises(ConfigError, match=r"mode 0775"):
        read_address(file)


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize("group", [SHARED, 0, 54321])  # the last one has no name
@pytest.mark.parametrize("which", ["file", "folder"])
def test_another_group_may_not(file: Path, which: str, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """That the list of its members is empty says nothing: those whose primary group it is are not in it."""
    path = file if which == "file" else file.parent

    def named(gid: int) -> SimpleNamespace:
        return SimpleNamespace(gr_name={SHARED: "lab", 0: "root", USER: "ann"}[gid], gr_mem=[])

    monkeypatch.setattr(grp, "getgrgid", named)
    os.chown(path, USER, group)
    path.chmod(0o775)
    with pytest.raises(ConfigError, match=r"may be written by other users \(mode 0775\)"):
        read_address(file)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_what_we_make_is_believed_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_run_dir(tmp_path / "runs/1")
    finally:
        os.umask(before)
    assert (tmp_path / "runs/1").stat().st_mode & 0o777 == 0o755 & ~umask


def test_without_an_address(tmp_path: Path) -> None:
    file = tmp_path / "lighthouse"
    tmp_path.chmod(0o777)  # such as a pod's own volume, in which another pod's lighthouse is looked for
    assert read_address(file) is None
    tmp_path.chmod(0o700)
    file.write_text(" \n")
    assert read_address(file) is None
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(AddressError):
        read_address(file)
    file.unlink()
    os.mkfifo(file)  # nobody waits for what is written into it
    assert read_address(file) is None
