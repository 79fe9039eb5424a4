"""Common part of process groups that are rebuilt for each set of members, and collectives of a set of one.

With one member collectives copy at most, and never communicate.
"""

from __future__ import annotations

import _thread
import logging
import os
import weakref
from abc import abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import Work

from torchft_x.comm.base import ProcessGroup, RankInfo, reduce_op_of
from torchft_x.comm.work import DoneWork, FailedWork
from torchft_x.durations import seconds
from torchft_x.errors import CollectiveError, ConfigError, TorchftXError

log = logging.getLogger(__name__)

_kept: list[Callable[[], object]] = []  # calls that could not be made; what they hold must not be destroyed here


class EndedError(CollectiveError):
    """A regular end of a set of members, by a new one or by `shutdown`."""


class SingleMember:
    """A set of one member, which communicates with nobody."""

    ready = True

    def __init__(self, info: RankInfo) -> None:
        self.info = info
        self.error: TorchftXError | None = None  # the first failure; never unset

    def end(self, error: TorchftXError) -> TorchftXError:
        self.error = self.error or error
        return self.error


class RebuiltGroup(ProcessGroup):
    """Process group with its newest set of members in `_present`.

    The set has `info`, its first `error`, and `ready`: whether collectives may be issued.
    """

    _present: Any = None  # None before the first `configure`
    _timeout = 60.0  # seconds, for `configure` and for each collective

    def __repr__(self) -> str:
        present = self._present
        if present is None:
            return f"{type(self).__name__}(not configured)"
        state = present.error or ("up" if present.ready else "connecting")
        return f"{type(self).__name__}({present.info}: {state})"

    def configure(
        self,
        store_addr: str,
        replica_id: str,
        rank: int,
        world_size: int,
        quorum_id: int | None = None,
        group_rank: int | None = None,
        group_world_size: int | None = None,
        global_ranks: list[int] | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"Rank {rank} is not in 0..{world_size - 1}: give a rank below world_size.")
        self._configure(RankInfo(rank, world_size, quorum_id), store_addr, replica_id, group_rank, global_ranks)

    @abstractmethod
    def _configure(
        self, info: RankInfo, store_addr: str, replica_id: str, group_rank: int | None, global_ranks: list[int] | None
    ) -> None:
        """Do what `configure` says, after the check of its arguments. Nobody is contacted for one member."""

    def abort(self, quorum_id: int | None = None) -> None:
        self._end_present(CollectiveError, "aborted", quorum_id)

    def shutdown(self) -> None:
        self._end_present(EndedError, "shut down")

    def _end_present(self, kind: type[CollectiveError], how: str, quorum_id: int | None = None) -> None:
        present = self._present  # read once, so that a newer one stays
        if present is not None and quorum_id in (None, present.info.config_id):
            self._end(present, kind(f"the group was {how} ({present.info})"))

    def _end(self, present: Any, error: TorchftXError) -> TorchftXError:
        """Fail a set of members that hasn't failed yet, and release its waiting callers. Return its first error."""
        first: TorchftXError = present.end(error)
        return first

    def errored(self) -> Exception | None:
        present = self._present
        return None if present is None else present.error

    def set_timeout(self, timeout: float | timedelta) -> None:
        self._timeout = seconds(timeout)

    def size(self) -> int:
        present = self._present
        return 1 if present is None else present.info.size

    def rank(self) -> int:
        present = self._present
        return 0 if present is None else present.info.rank

    def _issue(self, op: str, *args: Any) -> Work:
        present = self._present
        if present is None or present.error is not None or not present.ready:
            return FailedWork(refusal(op, present))
        try:
            return self._start(present, op, args)
        except (RuntimeError, ValueError) as e:
            # Other members may have started it. From here on the members are out of step, so the group can't be used
            # any more.
            return FailedWork(self._failed(present, op, e))

    def _start(self, present: Any, op: str, args: tuple[Any, ...]) -> Work:
        """Start a collective: here of one member. Several are refused, as their group was released a moment ago."""
        return alone(op, *args) if present.info.size == 1 else FailedWork(refusal(op, present))

    def _failed(self, present: Any, op: str, cause: Exception | None) -> TorchftXError:
        """End the group after a collective that failed, or timed out (`cause` None), and return the error to raise."""
        return self._end(present, CollectiveError(f"{op} on {present.info} failed: {cause}"))


def refusal(op: str, members: Any) -> CollectiveError:
    """Return why a collective can't be started among the `_present` members of a `RebuiltGroup`."""
    if members is None:
        return CollectiveError(f"{op} was not started: the group has no members yet; call configure().")
    error = members.error
    if error is None:
        return CollectiveError(f"{op} on {members.info} was not started: configure() is still connecting the members.")
    return CollectiveError(
        f"{op} was not started, because the group failed before and needs configure(): {error}",
        getattr(error, "suspects", ()),
    )


def alone(op: str, *args: Any) -> Work:
    """Carry out the collective `op` in a group of one, and return its completed handle.

    Raises `CollectiveError` for operations that make no sense in a group of one: ``send`` and ``recv``, and a
    reduction that scales its input.
    """
    if op in ("send", "recv"):
        raise CollectiveError(f"{op} needs another member, and this group has one.")
    if "reduce" in op and reduce_op_of(args[-1]) == dist.ReduceOp.PREMUL_SUM:
        raise CollectiveError(f"{op} with PREMUL_SUM is not offered; scale the tensor and use SUM.")
    if op == "barrier":
        return DoneWork([])
    if op == "allgather":
        _copy([output for row in args[0] for output in row], args[1])
    elif op == "reduce_scatter":
        _copy(args[0], [row[0] for row in args[1]])
    elif op == "alltoall_base":
        args[0].copy_(args[1])
        return DoneWork([args[0]])
    elif op.endswith("_tensor_coalesced"):
        _copy(args[0], args[1])
    return DoneWork(args[0])


def _copy(outputs: list[Any], inputs: list[Any]) -> None:
    for output, given in zip(outputs, inputs, strict=True):
        output.copy_(given)


def end_when_forgotten(owner: object, end: Callable[[], object]) -> None:
    """Call `end` on a thread of its own soon after `owner` is garbage-collected, but not at process exit.

    The collector runs in any thread, between any two instructions and under any lock, including one that `end` needs.
    `_thread` takes no lock of Python's. `end` must not reference `owner`, which a forked child leaves to its parent.
    """
    weakref.finalize(owner, _start, end, os.getpid()).atexit = False


def _run(end: Callable[[], object]) -> None:
    try:
        end()
    except Exception:
        log.exception("a group that was forgotten could not be closed")


def _start(end: Callable[[], object], pid: int) -> None:
    try:
        if pid == os.getpid():
            _thread.start_new_thread(_run, (end,))
            return
    except RuntimeError:  # the interpreter starts no threads any more
        pass
    _kept.append(end)
