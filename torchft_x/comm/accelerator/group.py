"""Common part of process groups on accelerators: members, deadlines, aborts, errors.

``wait()`` of a collective makes the current *stream* wait, as in torch, and the thread runs on. So only the watch
(`torchft_x.comm.accelerator.stream_watch`) notices a collective that hangs: at its deadline it aborts the
communicator, and the stream runs on with undefined values in the tensors. `errored` then returns the failure.
Therefore call `errored` before the result is used, as the Manager does: `errored` waits for the stream first.

Each `configure` makes a new communicator. A short-lived thread does so, so that `configure` returns at its deadline
or at an abort even if the library is still waiting. `torchft_x.comm.accelerator.nccl` adds the libraries.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import Work

from torchft_x.comm import flight_recorder
from torchft_x.comm.accelerator.stream_watch import StreamWork, Watch
from torchft_x.comm.base import RankInfo
from torchft_x.comm.rebuilt import EndedError, RebuiltGroup
from torchft_x.comm.store.create import StoreClient, split_store_address
from torchft_x.durations import seconds
from torchft_x.errors import CollectiveError, ConfigError, DeadlineError, TorchftXError, first_line
from torchft_x.timing import POLL_FAST, TIMING


def lacking(kind: str, who: str) -> None:
    """Raise `ConfigError` unless this machine can run ``"nccl"`` or ``"xccl"``. `who` is the class that needs it."""
    device, available = ("cuda", dist.is_nccl_available) if kind == "nccl" else ("xpu", dist.is_xccl_available)
    missing: list[str] = []
    if not available():
        missing.append(f"this PyTorch ({torch.__version__}) is built without {kind.upper()}")
    if not getattr(torch, device).is_available():
        missing.append(f"no {device.upper()} device is to be seen")
    if missing:
        raise ConfigError(f"{who} can't be used here: {' and '.join(missing)}; use ProcessGroupGloo.")


_log = logging.getLogger(__name__)

_ABORT_LIMIT = 30.0  # seconds that the next communicator waits for the abort of the last one


class AcceleratorGroup(RebuiltGroup):
    """Common part of process groups on accelerators. A subclass names the device and creates torch's backend."""

    _kind = ""  # "nccl" or "xccl"
    _device = ""  # torch's name of the device type

    def __init__(self, timeout: float | timedelta = 60.0) -> None:
        super().__init__()
        self._require()
        self._timeout = seconds(timeout)
        self._lock = threading.Lock()  # guards `_present`, and the fields of each configuration
        self._present: Members | None = None  # the newest set of members; may be connecting, up or failed
        self._watch = Watch()

    def _require(self) -> None:
        lacking(self._kind, type(self).__name__)

    def _backend(self, store: dist.Store, info: RankInfo, device: torch.device, names: dict[str, Any]) -> Any:
        """Create torch's backend, connected with the others. `names`: ``group_name``, ``global_ranks``, for reports."""
        raise NotImplementedError

    @property
    def takes(self) -> str | None:
        return self._device

    def _configure(
        self, info: RankInfo, store_addr: str, replica_id: str, group_rank: int | None, global_ranks: list[int] | None
    ) -> None:
        """Connect a new set of members, as `ProcessGroup.configure` says, on the calling thread's current device.

        `group_rank` and `global_ranks` (of the members, in order) name the group and its ranks in the Flight
        Recorder.
        """
        members = Members(info, replica_id)
        device = self._current_device()
        name = f"torchft_{info.config_id}" + ("" if group_rank is None else f"_rank_{group_rank}")
        names = {"group_name": name, "global_ranks": global_ranks or []}
        where = split_store_address(store_addr) if info.size > 1 else None
        with self._lock:
            old, self._present = self._present, members
        if old is not None:
            self._end(old, EndedError(f"the group was configured anew ({old.info})"))
        if where is None:
            members.built.set()
            return
        members.client = StoreClient(where[0])
        limit = self._timeout
        action = (members, where[1], device, names, limit, old)
        threading.Thread(target=self._build, args=action, name=f"torchft_x {self._kind}", daemon=True).start()
        if not members.built.wait(limit + TIMING.late_accelerator):
            sentence = f"Configuring {members.info} failed: the members did not connect within {limit:g} s."
            self._end(members, DeadlineError(sentence))
        if members.error is not None:
            raise copy.copy(members.error)

    def _build(
        self,
        members: Members,
        prefix: str,
        device: torch.device,
        names: dict[str, Any],
        limit: float,
        old: Members | None,
    ) -> None:
        """Connect the members. Runs on the connecting thread."""
        assert members.client is not None, "a group of one isn't built"
        deadline = time.monotonic() + limit
        backend = None
        try:
            if old is not None:
                old.gone.wait(_ABORT_LIMIT)
            self._use(device)
            store = members.store = members.client.open(limit).under(prefix)
            self._meet(members, store, deadline, limit)
            group, backend = self._create(store, members, device, names)
            with self._lock:
                wanted = members.error is None
                if wanted:
                    members.group, members.backend = group, backend
            members.built.set()
            if not wanted:
                _abort(backend)
        except TorchftXError as e:
            self._end(members, e)
        except Exception as e:
            self._end(members, CollectiveError(f"Configuring {members.info} failed: {first_line(e)}"))

    _backend_type = "NCCL"  # torch's name of the backend

    def _create(self, store: dist.Store, members: Members, device: torch.device, names: dict[str, Any]) -> Any:
        """Create a torch group of these members. Return it and the object whose ``abort`` ends it."""
        backend = self._backend(store, members.info, device, names)
        group = dist.ProcessGroup(store, members.info.rank, members.info.size)
        kind = getattr(dist.ProcessGroup.BackendType, self._backend_type)
        group._set_default_backend(kind)
        group._register_backend(torch.device(self._device), kind, backend)
        return group, backend

    def _meet(self, members: Members, store: dist.Store, deadline: float, limit: float) -> None:
        """Wait until all members have come to the store. The library's own errors couldn't name the missing ones."""
        info = members.info
        store.set(f"torchft_x/{info.rank}", "here")
        missing = list(range(info.size))
        while missing := [rank for rank in missing if not store.check([f"torchft_x/{rank}"])]:
            if members.error is not None:
                raise members.error
            if time.monotonic() > deadline:
                assert members.client is not None, "it is open"
                who = "rank" if len(missing) == 1 else "ranks"
                raise DeadlineError(
                    f"Configuring {info} failed: {who} {', '.join(map(str, missing))} did not come to the store at "
                    f"{members.client.address.target} within {limit:g} s."
                )
            time.sleep(POLL_FAST)

    def _end(self, members: Members, error: TorchftXError) -> TorchftXError:
        """End a set of members as `RebuiltGroup` says. The library's own abort goes on beside, maybe for seconds."""
        with self._lock:
            first = members.error is None
            if first:
                members.error = error  # set before the abort: the callers that it releases read the error
        if first:
            if members.client is not None and members.group is None:
                members.client.shut()
            members.failed = not isinstance(error, EndedError)
            threading.Thread(target=members.let_go, name=f"torchft_x {self._kind} abort", daemon=True).start()
        members.built.set()
        assert members.error is not None, "just set"
        return members.error

    def errored(self) -> Exception | None:
        """Return the first failure since the last `configure`, or None.

        Waits for the current stream first, since a failure shows only then. That takes at most the timeout, at which
        the watch aborts.
        """
        present = self._present
        if present is None:
            return None
        if present.error is None and present.group is not None:
            self._synchronize()
        return present.error

    def getBackendName(self) -> str:
        return f"torchft-{self._kind}"

    def _start(self, members: Members, op: str, args: tuple[Any, ...]) -> Work:
        group = members.group  # read once: another thread may release it
        if group is None:
            return super()._start(members, op, args)
        return self._work(members, op, getattr(group, op)(*args), args)

    def _work(self, members: Members, op: str, work: Work, args: tuple[Any, ...]) -> Work:
        """Return the handle of a collective that was started."""

        def failed(cause: Exception | None) -> TorchftXError:
            return self._failed(members, op, cause)

        self._watch.add(work, self._timeout, lambda: failed(None))
        return StreamWork(work, args[0] if args else [], failed, self._watch, lambda: members.error)

    def _failed(self, members: Members, op: str, cause: Exception | None) -> TorchftXError:
        if members.error is not None:
            return CollectiveError(f"{op} was released: {members.error}", getattr(members.error, "suspects", ()))
        if cause is None:
            why = f"{op} on {members.info} timed out after {self._timeout:g} s; the group was aborted."
        else:
            why = f"{op} on {members.info} failed: {first_line(cause)}"
        return copy.copy(self._end(members, CollectiveError(why)))

    # -- the device --

    def _current_device(self) -> torch.device:
        return torch.device(self._device, torch.get_device_module(self._device).current_device())

    def _use(self, device: torch.device) -> None:
        torch.get_device_module(self._device).set_device(device)

    def _synchronize(self) -> None:
        torch.get_device_module(self._device).current_stream().synchronize()


class Members:
    """One set of members, from the start of a `configure` to the start of the next."""

    def __init__(self, info: RankInfo, replica_id: str) -> None:
        self.info = info
        self.replica_id = replica_id  # this member's name
        self.failed = False  # whether it ended by a failure, so that the Flight Recorder is dumped
        self.client: StoreClient | None = None  # the library uses it later, too
        self.store: dist.Store | None = None  # kept alive for the library
        self.group: Any = None  # torch's group, once connected
        self.backend: Any = None  # the object whose `abort` ends `group`
        self.error: TorchftXError | None = None  # the first failure; never unset
        self.built = threading.Event()  # set when connecting has succeeded or failed
        self.gone = threading.Event()  # set when the library has released the group
        self.left: list[Any] = []  # torch's handles of abandoned operations

    @property
    def ready(self) -> bool:
        return self.built.is_set()

    def let_go(self) -> None:
        """Abort and release the library's group. May take long."""
        backend, self.group, self.backend = self.backend, None, None
        if backend is not None:
            if self.failed:
                info = self.info
                flight_recorder.dump(info.config_id, self.replica_id, info.rank, info.size, str(self.error))
            _abort(backend)
        self.gone.set()


def _abort(backend: Any) -> None:
    try:
        backend.abort()
    except RuntimeError as e:
        _log.warning("The abort of a communicator failed: %s", first_line(e))
