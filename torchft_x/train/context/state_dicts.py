"""Holds the user's state dict functions by key, and guards when they may be read."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torchft_x.errors import ConfigError, DeadlineError, TransferError

Load = Callable[[Any], None]
Save = Callable[[], Any]

DEFAULT_KEY = "default"  # key of the functions given to the Manager's constructor


class StateDicts:
    """State that a heal copies, by key. Thread-safe.

    The thread that takes a snapshot uses `read`. The training thread uses `forbid` and `allow` around changes of the
    parameters that the Manager does not see (an inner optimizer's).
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout  # seconds that a reader and a writer wait for each other
        self._fns: dict[str, tuple[Load, Save]] = {}  # by key
        self._changed = threading.Condition()  # guards `_allowed` and `_readers`
        self._allowed = True  # False while the state is being changed
        self._readers = 0  # number of snapshots in progress

    def register(self, key: str, load: Load, save: Save, *, replace: bool = False) -> None:
        if key in self._fns and not replace:
            raise ConfigError(f"state dict functions are already registered under {key!r}; choose another key.")
        self._fns[key] = (load, save)

    def save(self) -> dict[str, Any]:
        return {key: save() for key, (_, save) in self._fns.items()}

    def check(self, state: Any) -> dict[str, Any]:
        """Return `state` if `load` can take it. Raises `TransferError` if its keys are not the registered ones."""
        if not isinstance(state, dict) or set(state) != set(self._fns):
            theirs = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise TransferError(
                f"the source registered state dicts {theirs}, this rank {sorted(self._fns)}; register the same keys in "
                "all groups."
            )
        return state

    def load(self, state: Any) -> None:
        for key, value in self.check(state).items():
            self._fns[key][0](value)

    @contextlib.contextmanager
    def read(self) -> Iterator[None]:
        """Make `forbid` wait while a snapshot is taken. Raises `DeadlineError` if reading stays forbidden."""
        with self._changed:
            self._wait(lambda: self._allowed, "allow_state_dict_read was not called")
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @property
    def readable(self) -> bool:
        """Whether `read` would not have to wait."""
        return self._allowed

    def forbid(self) -> None:
        with self._changed:
            self._allowed = False
            self._wait(lambda: self._readers == 0, "a snapshot of the state takes too long")

    def allow(self) -> None:
        with self._changed:
            self._allowed = True
            self._changed.notify_all()

    def _wait(self, condition: Callable[[], bool], why: str) -> None:
        if not self._changed.wait_for(condition, self._timeout):
            raise DeadlineError(f"the state dict could not be used within {self._timeout:g} s: {why}.")
