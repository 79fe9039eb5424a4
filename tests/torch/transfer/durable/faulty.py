"""A file system on a local folder in which any operation can be the last one of its process."""

from __future__ import annotations

import os
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem


class Killed(BaseException):
    """The process has died: no later code runs, not even clean-up."""


class FaultyFileSystem(LocalFileSystem):
    """File system that counts the operations that change the folder.

    Before operation number `fatal` takes effect, or in the middle of it, it raises `Killed`. Every later operation
    raises, too.
    """

    protocol = "faulty"
    cachable = False
    count = 0
    fatal = 0  # number of the fatal operation; 0: none
    error: type[BaseException] = Killed

    @classmethod
    def reset(cls, fatal: int = 0, error: type[BaseException] = Killed) -> None:
        cls.count, cls.fatal, cls.error = 0, fatal, error

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return LocalFileSystem._strip_protocol(path.removeprefix("faulty://") if isinstance(path, str) else path)

    @classmethod
    def step(cls) -> bool:
        """Return whether this operation is the fatal one. Raise if that has passed."""
        cls.count += 1
        if cls.fatal and cls.count > cls.fatal:
            raise cls.error("after the end")
        return cls.count == cls.fatal

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **kwargs: Any) -> Any:
        if mode == "rb":
            return super()._open(path, mode, block_size, **kwargs)
        if FaultyFileSystem.step():
            raise self.error("before it was opened")
        return _File(super()._open(path, mode, block_size, **kwargs))

    def rm(self, path: Any, recursive: bool = False, maxdepth: Any = None) -> None:
        """Remove a folder file by file."""
        for name in [path] if isinstance(path, str) else path:
            if os.path.isdir(name):
                for child in sorted(os.listdir(name)):
                    self.rm(f"{name}/{child}")
            if FaultyFileSystem.step():
                raise self.error(f"instead of removing {name}")
            os.rmdir(name) if os.path.isdir(name) else os.remove(name)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        if FaultyFileSystem.step():
            raise self.error(f"instead of making {path}")
        super().makedirs(path, exist_ok)


class _File:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def write(self, data: Any) -> int:
        if FaultyFileSystem.step():
            self._inner.write(bytes(data)[: len(data) // 2])
            raise FaultyFileSystem.error("in the middle of a write")
        return int(self._inner.write(data))

    def fileno(self) -> int:
        raise OSError("no file of this machine: what was written is there")

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.close()


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
