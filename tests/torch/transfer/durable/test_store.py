"""Any file system of fsspec, and one sentence where it fails."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest

from torchft_x.errors import ConfigError, TransferError
from torchft_x.transfer.durable.store import MissingError, Store


@pytest.fixture(params=["path", "file", "memory", "spaces"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {
        "path": str(tmp_path / "run"),
        "file": f"file://{tmp_path}/run",
        "memory": f"memory://{uuid.uuid4().hex}/run",
        "spaces": str(tmp_path / "a run #1 [x] ü"),
    }[str(request.param)]


def test_what_is_written_is_read(url: str) -> None:
    store = Store(url)
    assert store.children() == {}
    store.write("a/b", [b"01234", memoryview(b"56789")])
    store.write("c", [b""])
    assert store.children() == {"a": None, "c": 0}
    assert store.children("a") == {"b": 10}
    assert store.read("a/b", 2, 5) == b"234"
    assert store.read("a/b", 8, 100) == b"89"
    store.write("a/b", [b"other"])
    assert Store(url).read("a/b", 0, 100) == b"other"
    store.remove("a")
    assert Store(url).children() == {"c": 0}
    store.remove("a")  # nothing happens


def test_what_is_not_there(url: str) -> None:
    with pytest.raises(MissingError, match="a/b is not there"):
        Store(url).read("a/b", 0, 1)
    assert Store(url).children("a") == {}


def test_the_root_of_a_file_system_is_a_folder() -> None:
    url, name = "memory://", uuid.uuid4().hex
    Store(url).write(f"{name}/a", [b"0"])
    assert name in Store(url).children()
    assert {"dev", "proc"} <= set(Store("/").children())


def test_a_file_is_no_place_for_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"model\.pt: that is a file; name a directory"):
        Store(str(tmp_path / "model.pt")).children()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", "empty"),
        ("nosuch://bucket/run", "Protocol not known: nosuch"),
        ("dropbox://run", "package .* missing .*dropbox"),
    ],
)
def test_a_url_that_can_not_be_used(url: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Store(url)


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    store = Store(str(tmp_path))
    monkeypatch.setattr(type(store._fs), "open", refuse)
    with pytest.raises(TransferError, match="no permission to write it"):
        store.write("a", [b"x"])


class Talkative(fsspec.spec.AbstractFileSystem):  # type: ignore[misc]
    """A file system whose errors tell its secrets."""

    protocol = "talkative"
    cachable = False

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"401 for {self.storage_options} at talkative://me:hunter2@host/x?X-Amz-Signature=abc123&n=1"
        )


def test_no_secret_is_shown() -> None:
    fsspec.register_implementation("talkative", Talkative, clobber=True)
    fsspec.config.conf["talkative"] = {"password": "swordfish", "anon": "yes"}
    try:
        store = Store("talkative://me:hunter2@host/run")
        with pytest.raises(TransferError) as caught:
            store.children()
    finally:
        del fsspec.config.conf["talkative"]
    text = f"{caught.value} {store!r} {store.shown}"
    for secret in ("hunter2", "abc123", "swordfish"):
        assert secret not in text
    for word in ("n=1", "yes"):
        assert word in text
    assert caught.value.__suppress_context__
