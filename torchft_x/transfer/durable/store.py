"""One folder of an fsspec file system: reads and writes files by name, and words the errors."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import fsspec

from torchft_x.errors import ConfigError, TransferError

_SECRET = re.compile(r"pass|secret|token|key|sig|credential", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"([?&][^=&\s]*(?:pass|secret|token|key|sig|credential)[^=&\s]*=)[^&\s]+", re.IGNORECASE)
_MAX_REASON = 300  # characters of a library's own message


class MissingError(TransferError):
    """Raised if no file of a name exists, though it may have been listed."""


class DeniedError(TransferError):
    """Raised if permission is missing, or the storage is read-only."""


class Store:
    """The folder at `url`. Raises `ConfigError` for a URL that can't be used at all.

    A failed operation raises `TransferError`. No error ever shows a password or key. Nothing is cached, since other
    processes write to the folder, too.
    """

    def __init__(self, url: str) -> None:
        if not url.strip():
            raise ConfigError("the checkpoint's URL is empty; name a directory, or a URL such as s3://bucket/run.")
        self._secrets = [urlsplit(url).password] if "://" in url else []
        try:
            self._fs, path = fsspec.core.url_to_fs(url)
        except ImportError as e:
            raise ConfigError(
                f"checkpoint {self.hide(url)}: the package for this kind of storage is missing ({e})."
            ) from None
        except ValueError as e:
            raise ConfigError(
                f"checkpoint {self.hide(url)}: {self.hide(str(e))}; fsspec knows file, s3, gs, az, memory and others."
            ) from None
        except Exception as e:  # each library has its own errors
            raise ConfigError(f"checkpoint {self.hide(url)}: it can't be used ({self._reason(e)}).") from None
        options = getattr(self._fs, "storage_options", {})
        self._secrets += [v for k, v in options.items() if isinstance(v, str) and _SECRET.search(str(k))]
        self._path = str(path).rstrip("/")
        self.shown = self.hide(url).rstrip("/")  # for messages, without secrets

    def __repr__(self) -> str:
        return f"<Store {self.shown}>"

    def children(self, folder: str = "") -> dict[str, int | None]:
        """Return a folder's entries: name -> bytes of a file, None for a folder. Empty if the folder doesn't exist."""
        path = self._at(folder)
        with self._guarded("list", folder):
            self._fs.invalidate_cache(path)
            try:
                found = self._fs.ls(path, detail=True)
            except FileNotFoundError:
                return {}
            names = {}
            for entry in found:
                name = str(entry["name"]).rstrip("/")
                if name.strip("/") == path.strip("/") and entry["type"] != "directory":
                    raise ConfigError(f"checkpoint {self.shown}: that is a file; name a directory for checkpoints.")
                size = entry.get("size")
                names[name.rpartition("/")[2]] = size if entry["type"] != "directory" else None
            return names

    def read(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end` of a file, or fewer if it is shorter. Raises `MissingError`."""
        with self._guarded("read", name):
            data: bytes = self._fs.cat_file(self._at(name), start=start, end=end)
            return data

    def write(self, name: str, parts: Iterable[Any]) -> None:
        """Write a file of these parts (anything with the buffer interface); on a local disk, wait for the disk.

        A write that fails may leave a part of the file.
        """
        with self._guarded("write", name), self._open(self._at(name)) as f:
            for part in parts:
                f.write(part)
            _sync(f)

    def _open(self, path: str) -> Any:
        try:
            return self._fs.open(path, "wb")
        except FileNotFoundError:  # the folder is missing: not all file systems have folders
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            return self._fs.open(path, "wb")

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all its content. Does nothing if it doesn't exist."""
        with self._guarded("remove", name), contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._at(name), recursive=True)

    @contextlib.contextmanager
    def about(self, name: str) -> Iterator[None]:
        """Prefix errors about a file's content with the file's name."""
        try:
            yield
        except TransferError as e:
            raise type(e)(f"checkpoint {self.shown}: {name}: {e}") from None

    def hide(self, text: str) -> str:
        """Return `text` without passwords and keys."""
        for secret in filter(None, self._secrets):
            text = text.replace(secret, "***")
        return _QUERY.sub(r"\1***", _USERINFO.sub("***@", text))

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path or "/"

    def _reason(self, error: Exception) -> str:
        lines = str(error).strip().splitlines()
        return self.hide(lines[0] if lines else type(error).__name__)[:_MAX_REASON]

    @contextlib.contextmanager
    def _guarded(self, verb: str, name: str) -> Iterator[None]:
        where = f"checkpoint {self.shown}" + (f": {name}" if name else "")
        try:
            yield
        except (ConfigError, TransferError):
            raise
        except FileNotFoundError as e:
            raise MissingError(f"{where} is not there ({self._reason(e)}).") from None
        except Exception as e:  # each library has its own errors
            if isinstance(e, PermissionError) or getattr(e, "errno", None) == errno.EROFS:
                raise DeniedError(f"{where}: no permission to {verb} it ({self._reason(e)}).") from None
            raise TransferError(f"{where}: it could not be {_PAST[verb]} ({self._reason(e)}).") from None


_PAST = {"list": "listed", "read": "read", "write": "written", "remove": "removed"}


def _sync(f: Any) -> None:
    """Wait until the disk has the data, if it is a file of this machine."""
    try:
        fd = f.fileno()
    except (OSError, AttributeError, ValueError):  # not a local file
        return
    f.flush()
    os.fsync(fd)
