"""Process group around torch groups that a user's function creates, one for each set of members.

`ProcessGroupWrapper` uses it for subclasses that have torchft's ``_create_pg``. Deadlines, aborts and errors are
those of `AcceleratorGroup`, but a group may also be on the host, where ``wait()`` blocks the calling thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Work

from torchft_x.comm.accelerator.group import AcceleratorGroup, Members
from torchft_x.comm.work import BETWEEN_TWO, GroupWork, WaitedOnThread
from torchft_x.timing import POLL

Create = Callable[[dist.Store, int, int], Any]  # (store, rank, number of members) -> a torch process group


class CreatedGroup(AcceleratorGroup):
    """Process group that creates its torch groups with `create`, on a thread.

    So `configure` returns in time even if `create` blocks. A group of one member creates none. If aborting the torch
    group does not end its running operations (gloo's abort doesn't), they are abandoned. An abandoned operation may
    write to its tensors until the torch group's own timeout, so their values are undefined.
    """

    _kind = "created"

    def __init__(self, create: Create, timeout: float | timedelta = 60.0) -> None:
        super().__init__(timeout)
        self._create_one = create

    def _require(self) -> None:
        pass

    @property
    def takes(self) -> str | None:
        return None

    def _create(self, store: dist.Store, members: Members, device: torch.device, names: dict[str, Any]) -> Any:
        group = self._create_one(store, members.info.rank, members.info.size)
        return group, _Aborter(group, members)

    def _work(self, members: Members, op: str, work: Work, args: tuple[Any, ...]) -> Work:
        if not _on_host(args):
            return super()._work(members, op, work, args)

        def failed(cause: Exception | None) -> Any:
            return self._failed(members, op, cause)

        self._watch.add(work, self._timeout, lambda: failed(None))
        result = args[0] if args else []
        broken, leave = (lambda: members.error is not None), members.left.append
        return GroupWork(
            WaitedOnThread(work, self._timeout) if op in BETWEEN_TWO else work, result, failed, broken, leave
        )

    def _current_device(self) -> torch.device:
        return torch.device("cpu")

    def _use(self, device: torch.device) -> None:
        pass

    def _synchronize(self) -> None:
        if torch.accelerator.is_available():
            torch.accelerator.current_stream().synchronize()


class _Aborter:
    """Aborter of a torch group. Keeps it until its abandoned operations end: its destructor would wait for them."""

    def __init__(self, group: Any, members: Members) -> None:
        self._group = group
        self._members = members

    def abort(self) -> None:
        if hasattr(self._group, "abort"):
            self._group.abort()
        while any(not work.is_completed() for work in self._members.left):
            time.sleep(POLL)
        self._members.left.clear()


def _on_host(value: Any) -> bool:
    """Return whether all tensors in these arguments are in host memory."""
    if isinstance(value, torch.Tensor):
        return value.device.type == "cpu"
    return not isinstance(value, (list, tuple)) or all(map(_on_host, value))
