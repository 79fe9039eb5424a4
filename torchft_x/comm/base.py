"""The interface of all process groups in this package.

A `ProcessGroup` is a torch process group that can be rebuilt with other members (`configure`), any number of times.
Each collective has its signature here and nowhere else. All of them call one method, `_issue`, which a subclass
implements.

A collective does not raise when it is issued. It returns a `Work` whose ``wait()`` raises `CollectiveError` if the
collective failed. After a failure or an abort every further collective fails at once, until the next `configure`.
`errored` returns the first failure.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Work

from torchft_x.comm.handles import Handle
from torchft_x.comm.work import DoneWork
from torchft_x.errors import ConfigError


class RankInfo(NamedTuple):
    rank: int
    size: int  # number of members
    config_id: int | None  # the quorum's id for this set of members; None if the caller has none

    def __str__(self) -> str:
        config = "" if self.config_id is None else f" of configuration {self.config_id}"
        return f"rank {self.rank} of {self.size}{config}"


Tensors = list[Tensor]


class _Meta(ABCMeta, type(dist.ProcessGroup)):  # type: ignore[misc]  # torch's class has a metaclass of its own
    """Metaclass that allows abstract methods on a torch class."""


class ProcessGroup(dist.ProcessGroup, metaclass=_Meta):
    """Torch process group that can be rebuilt with other members.

    It works as ``group=`` of `all_reduce`, `all_gather` and `barrier` of `torch.distributed`. For functions that take
    the rank of another member (`broadcast`, `reduce`, `scatter`, `send`, object collectives, ...) call this group's
    methods instead: torch's own tables of ranks don't list its members. If an operation fails, torch may report that
    the group "is not initialized in the world group map" although the cause is another; `errored` returns the cause.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        super().__init__(rank, size)
        self._group_name: str | None = None  # set by torch when the group is registered
        self._group_desc = "undefined"  # set by torch; its word for "none given"
        self._handle = Handle()  # this member's handle for `reconfigure`
        # Replica id, group rank, group world size.
        self._identity: tuple[str, int | None, int | None] = ("", None, None)

    _creates = False  # whether subclasses may define a `_create_pg`

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_create_pg" in vars(cls) and not cls._creates:
            raise ConfigError(
                f"{cls.__name__} has a _create_pg, which nothing would call: {cls.__mro__[1].__name__} connects its members "
                "itself. Make it a subclass of torchft_x.comm.ProcessGroupWrapper."
            )

    @property
    def takes(self) -> str | None:
        """Kind of device that the tensors must be on, such as "cuda"; None if any will do."""
        return None

    # -- what a subclass implements --

    @abstractmethod
    def _issue(self, op: str, *args: Any) -> Work:
        """Start the collective `op`, the name of a method below, and return its handle.

        `args` are the method's arguments, without options that were not given.
        """

    @abstractmethod
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
        """Replace the present members by new ones, which all call this with the same store, prefix and `world_size`.

        Args:
            store_addr: ``host:port/prefix``, a torch TCPStore and a prefix that no other group has used.
            replica_id: this member's name in error messages.
            rank: this member's number among the members.
            world_size: number of members.
            quorum_id: the configuration's id (``Quorum.config_id``), for `abort`.
            group_rank: as in torchft; not needed here.
            group_world_size: as in torchft; not needed here.
            global_ranks: as in torchft; not needed here.

        Raises a `TorchftXError` that names what is missing, within the group's timeout, or at once after `abort`.
        """

    @abstractmethod
    def abort(self, quorum_id: int | None = None) -> None:
        """Release every running collective, and a running `configure`, within milliseconds. Safe from any thread.

        With `quorum_id`, do so only if that is the present configuration's id, so that a late abort leaves a newer
        group alone.
        """

    @abstractmethod
    def errored(self) -> Exception | None:
        """Return the first failure since the last `configure`, or None."""

    @abstractmethod
    def set_timeout(self, timeout: float | timedelta) -> None:
        """Set the longest time (seconds) that `configure` and each collective may take from now on."""

    @abstractmethod
    def shutdown(self) -> None:
        """Abort, and release the members' resources. `configure` starts again."""

    @abstractmethod
    def size(self) -> int:
        """Return the number of members."""

    @abstractmethod
    def rank(self) -> int:
        """Return this member's number among the members, from 0."""

    @abstractmethod
    def getBackendName(self) -> str:
        """Return the name under which torch knows this kind of group."""

    # -- the newer way to configure: by handles --

    @property
    def supports_reconfigure(self) -> bool:
        return True

    def get_reconfigure_handle(self) -> str:
        """Return this group's handle, which all members pass to `reconfigure`. The first call starts to host a store."""
        return self._handle.text()

    def reconfigure(self, opts: Any) -> Work:
        """Replace the present members by those whose handles are given: `configure` by other means.

        `opts` is a `ReconfigureOptions` of ours or torch's, alike in all members. This member's rank is the index of
        its own handle. Blocks as `configure` does. Raises what `configure` raises, and `ConfigError` for bad handles.
        """
        store_addr, rank, size, global_ranks = self._handle.meet(opts)
        if opts.timeout is not None:
            self.set_timeout(opts.timeout)
        replica_id, group_rank, group_size = self._identity
        self.configure(store_addr, replica_id, rank, size, int(opts.uuid), group_rank, group_size, global_ranks)
        return DoneWork()

    def set_rank_info(
        self, replica_id: str, group_rank: int, group_world_size: int, global_rank: int | None = None
    ) -> None:
        """Set this member's identity, for error messages and reports of `reconfigure`."""
        self._identity = (replica_id, group_rank, group_world_size)
        self._handle.global_rank = global_rank

    # -- collectives; tensors, options and results as in torch.distributed.ProcessGroup --

    def allgather(self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any = None) -> Work:
        return self._issue("allgather", output_tensors, input_tensors, *_given(opts))

    def allgather_into_tensor_coalesced(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> Work:
        return self._issue("allgather_into_tensor_coalesced", output_tensors, input_tensors, *_given(opts))

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        """Reduce `tensors` in place. `opts` is ``AllreduceOptions`` or a ``ReduceOp``; by default the sum."""
        return self._issue("allreduce", tensors, *_given(opts))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        return self._issue("allreduce_coalesced", tensors, *_given(opts))

    def alltoall_base(
        self,
        output_buffer: Tensor,
        input_buffer: Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
    ) -> Work:
        """Send a part of `input_buffer` to each member. Empty lists split evenly along the first dimension."""
        sizes = (output_split_sizes, input_split_sizes)
        return self._issue("alltoall_base", output_buffer, input_buffer, *sizes, *_given(opts))

    def barrier(self, opts: Any = None) -> Work:
        return self._issue("barrier", *_given(opts))

    def broadcast(self, tensor_list: Tensors, opts: Any = None) -> Work:
        return self._issue("broadcast", tensor_list, *_given(opts))

    def broadcast_one(self, tensor: Tensor, root: int) -> Work:
        """Broadcast one tensor from rank `root`, in place."""
        opts = dist.BroadcastOptions()
        opts.rootRank = root
        return self._issue("broadcast", [tensor], opts)

    def recv(self, tensors: Tensors, src_rank: int, tag: int = 0) -> Work:
        return self._issue("recv", tensors, src_rank, tag)

    def reduce_scatter(self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any = None) -> Work:
        return self._issue("reduce_scatter", output_tensors, input_tensors, *_given(opts))

    def reduce_scatter_tensor_coalesced(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> Work:
        return self._issue("reduce_scatter_tensor_coalesced", output_tensors, input_tensors, *_given(opts))

    def send(self, tensors: Tensors, dst_rank: int, tag: int = 0) -> Work:
        return self._issue("send", tensors, dst_rank, tag)

    # -- what torch calls on a group --

    def getRank(self) -> int:
        return self.rank()

    def getSize(self) -> int:
        return self.size()

    @property
    def group_name(self) -> str:
        """Name by which functional collectives find this group. Raises `RuntimeError` before `register`, as torch's."""
        if self._group_name is None:
            raise RuntimeError(f"{type(self).__name__} has no name yet: call register(name) first.")
        return self._group_name

    def getGroupName(self) -> str:
        return self.group_name

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    @property
    def group_desc(self) -> str:
        return self._group_desc

    def getGroupDesc(self) -> str:
        return self._group_desc

    def _set_group_desc(self, desc: str) -> None:
        self._group_desc = desc

    def register(self, name: str) -> ProcessGroup:
        """Register this group with torch, for device meshes and functional collectives, and return it.

        Needs an initialised default group (``init_process_group``), but doesn't communicate on it. torch is given a
        group of this process alone, since the number of members changes; `size` returns the present number.
        """
        backend = _unused_backend_name(f"{self.getBackendName()}:{name}")
        dist.Backend.register_backend(backend, lambda *args: self, devices=_devices())
        dist.new_group(
            [dist.get_rank()],
            backend=backend,
            group_desc=backend,
            timeout=timedelta(seconds=60),
            use_local_synchronization=True,  # the other members need not register at the same moment, or at all
        )
        return self

    def unregister(self) -> None:
        """Undo `register`. torch also shuts the group down; `configure` starts it again."""
        dist.destroy_process_group(self)
        self._group_name = None


def reduce_op_of(opts: Any) -> Any:
    """Return the reduce operation in `opts`, which may be options, the operation itself, or neither (the sum)."""
    if isinstance(opts, dist.ReduceOp | dist.ReduceOp.RedOpType):
        return opts
    return getattr(opts, "reduceOp", dist.ReduceOp.SUM)


def _given(opts: Any) -> Sequence[Any]:
    return () if opts is None else (opts,)


def _devices() -> list[str]:
    return ["cpu", *(kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_available())]


def _unused_backend_name(wanted: str) -> str:
    """Return `wanted`, with a number appended if torch has it already. torch never forgets a backend's name."""
    name, count = wanted, 1
    while hasattr(dist.Backend, name.upper()):
        count += 1
        name = f"{wanted}:{count}"
    return name


def check_dense(tensor: torch.Tensor) -> None:
    """Raise `ConfigError` unless the values fill the memory without holes or overlaps, in any order of dimensions.

    torch's gloo would use contiguous memory from the first value on.
    """
    if tensor.layout is not torch.strided:
        raise ConfigError(f"a tensor of layout {tensor.layout} can't be reduced; give a dense one (to_dense()).")
    if tensor.is_contiguous():
        return
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    ):
        if stride != expected:
            raise ConfigError(
                f"a tensor of shape {tuple(tensor.shape)} with strides {tensor.stride()} is a view with holes or overlaps, as a "
                "column or every second value is; reduce a copy (contiguous()), and write the result back."
            )
        expected *= size
