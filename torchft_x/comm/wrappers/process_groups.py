"""Process groups around others, and one without members: for tests, fault injection, and the Manager's all-reduce."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed import Store, Work
from torch.futures import Future

from torchft_x.comm.accelerator.from_factory import CreatedGroup
from torchft_x.comm.base import ProcessGroup, RankInfo, reduce_op_of
from torchft_x.comm.rebuilt import RebuiltGroup, SingleMember
from torchft_x.comm.work import AllWork, DoneWork, FailedWork
from torchft_x.durations import seconds
from torchft_x.errors import CollectiveError, ConfigError


class ProcessGroupDummy(RebuiltGroup):
    """Process group with one member and no communication. Every collective is done at once.

    `configure` may be called with one member only; `configure_count` counts its calls.
    """

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        if (rank, world) != (0, 1):
            raise ConfigError(
                f"ProcessGroupDummy has one member, so rank {rank} of {world} can't be; use ProcessGroupGloo."
            )
        super().__init__()
        self.configure_count = 0  # number of calls of `configure`
        self._present = SingleMember(RankInfo(0, 1, None))

    def _configure(self, info: RankInfo, *names: Any) -> None:
        if info.size > 1:
            raise ConfigError(f"ProcessGroupDummy has one member, not {info}; use ProcessGroupGloo.")
        self.configure_count += 1
        self._present = SingleMember(info)

    def getBackendName(self) -> str:
        return "torchft-dummy"


class ProcessGroupWrapper(ProcessGroup):
    """Process group that forwards every call to another group; subclasses override the methods that they change.

    A subclass with a ``_create_pg(store, rank, world_size)``, as in torchft, needs no other group: that method
    returns a torch process group for each set of members. torchft's other hooks work, too: ``_opts_hook(opts)``,
    ``_wrap_work(work, opts)``, ``_run_context()``.

    Args:
        timeout: the longest time (seconds or timedelta) that one `configure` and one collective of a created group
            may take.
        pg: the group that does the work. It may be the first argument.
    """

    _creates = True

    def __init__(self, timeout: float | timedelta | ProcessGroup = 60.0, pg: ProcessGroup | None = None) -> None:
        super().__init__()
        if isinstance(timeout, ProcessGroup):
            pg, timeout = timeout, 60.0
        if pg is None:
            if type(self)._create_pg is ProcessGroupWrapper._create_pg:
                raise ConfigError(f"{type(self).__name__} needs a process group to wrap, or a _create_pg of its own.")
            pg = CreatedGroup(lambda store, rank, size: self._create_pg(store, rank, size), timeout)
        self._timeout = timedelta(seconds=seconds(timeout))  # for subclasses
        self._pg = pg  # the group that does the work

    def _create_pg(self, store: Store, rank: int, world_size: int) -> Any:
        """Create a torch process group of these members; they meet in `store`."""
        raise NotImplementedError

    def _opts_hook(self, opts: Any) -> Any:
        """Return the options to pass to a collective instead of `opts`."""
        return opts

    def _wrap_work(self, work: Work, opts: Any) -> Work:
        """Return the handle to give to the caller instead of `work`."""
        return work

    def _run_context(self) -> AbstractContextManager[Any]:
        """Return a context manager in which collectives are started."""
        return nullcontext()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._pg!r})"

    @property
    def parent(self) -> ProcessGroup:
        """The group that does the work."""
        return self._pg

    @property
    def takes(self) -> str | None:
        return self._pg.takes

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
        self._pg.configure(
            store_addr, replica_id, rank, world_size, quorum_id, group_rank, group_world_size, global_ranks
        )

    def abort(self, quorum_id: int | None = None) -> None:
        self._pg.abort(quorum_id)

    def errored(self) -> Exception | None:
        return self._pg.errored()

    def set_timeout(self, timeout: float | timedelta) -> None:
        self._pg.set_timeout(timeout)

    def shutdown(self) -> None:
        self._pg.shutdown()

    def size(self) -> int:
        return self._pg.size()

    def rank(self) -> int:
        return self._pg.rank()

    def getBackendName(self) -> str:
        return self._pg.getBackendName()

    def _issue(self, op: str, *args: Any) -> Work:
        hooked = any(getattr(type(self), hook) is not getattr(ProcessGroupWrapper, hook) for hook in _HOOKS)
        if not hooked or op in _WITHOUT_OPTIONS:
            return self._pg._issue(op, *args)
        given, opts = (args[:-1], args[-1]) if _are_options(args) else (args, _OPTIONS[op]())
        with self._run_context():
            return self._wrap_work(self._pg._issue(op, *given, self._opts_hook(opts)), opts)


_HOOKS = ("_opts_hook", "_wrap_work", "_run_context")
_WITHOUT_OPTIONS = frozenset({"send", "recv"})
_OPTIONS: dict[str, Any] = {
    "allgather": AllgatherOptions,
    "allgather_into_tensor_coalesced": AllgatherOptions,
    "allreduce": dist.AllreduceOptions,
    "allreduce_coalesced": dist.AllreduceCoalescedOptions,
    "alltoall_base": dist.AllToAllOptions,
    "barrier": dist.BarrierOptions,
    "broadcast": dist.BroadcastOptions,
    "reduce_scatter": dist.ReduceScatterOptions,
    "reduce_scatter_tensor_coalesced": dist.ReduceScatterOptions,
}


def _are_options(args: tuple[Any, ...]) -> bool:
    """Return whether the last argument of a collective is its options, or the operation of a reduction."""
    return bool(args) and not isinstance(args[-1], (list, torch.Tensor))


class _FailedOnce(ProcessGroupWrapper):
    """Wrapper with a failure of its own, until the next `configure`."""

    def __init__(self, pg: ProcessGroup) -> None:
        super().__init__(pg)
        self._error: Exception | None = None  # the first failure since the last `configure`

    def configure(self, *args: Any, **kwargs: Any) -> None:
        self._error = None
        super().configure(*args, **kwargs)

    def errored(self) -> Exception | None:
        return self._error or super().errored()


class ErrorSwallowingProcessGroupWrapper(_FailedOnce):
    """Process group whose collectives never raise. After a failure all are no-ops until the next `configure`.

    `error` returns the failure. The ``wait()`` of a swallowed failure returns False, and its future has the output
    tensors with undefined values.
    """

    def error(self) -> Exception | None:
        """Return the first failure since the last `configure`, or None."""
        return self._error

    def report_error(self, e: Exception) -> None:
        """Record a failure that happened elsewhere: collectives are no-ops from now on."""
        if self._error is None:
            self._error = e

    def _issue(self, op: str, *args: Any) -> Work:
        result = args[0] if args else []
        if self.errored() is not None:
            return DoneWork(result)
        return _SwallowingWork(self, super()._issue(op, *args), result)


class _SwallowingWork(Work):
    """Handle that reports a failure to its group instead of raising it."""

    def __init__(self, group: ErrorSwallowingProcessGroupWrapper, inner: Work, result: Any) -> None:
        super().__init__()
        self._group = group  # group to which the failure is reported
        self._inner = inner  # the collective's own handle
        self._result = result  # value of the future if it fails

    def is_completed(self) -> bool:
        return self._inner.is_completed()

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            return bool(self._inner.wait(timeout) if timeout else self._inner.wait())
        except Exception as e:
            self._group.report_error(e)
            return False

    def get_future(self) -> Future[Any]:
        return self._inner.get_future().then(self._swallow)

    def _swallow(self, future: Future[Any]) -> Any:
        try:
            return future.value()
        except Exception as e:
            self._group.report_error(e)
            return self._result


class FakeProcessGroupWrapper(_FailedOnce):
    """Process group that injects faults into another group."""

    def __init__(self, pg: ProcessGroup) -> None:
        super().__init__(pg)
        self._future_error: Exception | None = None  # injected into the next collective
        self._configure_error: Exception | None = None  # injected into the next `configure`

    def report_future_error(self, e: Exception) -> None:
        """Let the next collective run, but make its ``wait()`` and its future fail with `e`."""
        self._future_error = e

    def report_configure_error(self, e: Exception) -> None:
        """Make the next `configure` raise `e` and do nothing."""
        self._configure_error = e

    def configure(self, *args: Any, **kwargs: Any) -> None:
        error, self._configure_error = self._configure_error, None
        if error is not None:
            raise error
        super().configure(*args, **kwargs)

    def _issue(self, op: str, *args: Any) -> Work:
        if self._error is not None:
            return FailedWork(CollectiveError(f"{op} was not started, because the group failed before: {self._error}"))
        work = super()._issue(op, *args)
        error, self._future_error = self._future_error, None
        if error is None:
            return work
        self._error = error
        return AllWork([work, FailedWork(error)], None)


class ManagedProcessGroup(ProcessGroupWrapper):
    """The Manager's process group as torch sees it. The Manager's all-reduce handles healing, scaling and failures.

    `size` is the number of participants. Other collectives go directly to the Manager's process group. The Manager
    configures, aborts and shuts down that group; here `configure` and `abort` are forwarded.
    """

    def __init__(self, manager: Any) -> None:
        super().__init__(manager._pg)
        self._manager = manager  # reduces, and counts the participants

    def size(self) -> int:
        number: int = self._manager.num_participants()
        return number

    def shutdown(self) -> None:
        """Do nothing: the Manager owns the group, which must still work after `unregister`."""

    def _issue(self, op: str, *args: Any) -> Work:
        if op not in ("allreduce", "allreduce_coalesced"):
            return super()._issue(op, *args)
        tensors, reduce_op = args[0], reduce_op_of(args[1] if len(args) > 1 else None)
        works: list[Work] = [self._manager.allreduce(tensor, reduce_op=reduce_op) for tensor in tensors]
        return works[0] if len(works) == 1 else AllWork(works, tensors)
