"""Process group on gloo that is rebuilt for each quorum and can be aborted within milliseconds.

One `ProcessGroupGloo` lives as long as the trainer. Each `configure` makes a new `GlooMembership`, one set of
members, on the same gloo device. A short-lived thread connects it, so that `configure` returns at its deadline or at
an abort even if gloo is still waiting. Once the new members are connected, the same thread releases the old group.
That takes 10 ms and must not delay training.
"""

from __future__ import annotations

import atexit
import copy
import ctypes
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

from torchft_x import env, net
from torchft_x.comm import flight_recorder
from torchft_x.comm.base import RankInfo, check_dense
from torchft_x.comm.gloo import device as devices
from torchft_x.comm.gloo.membership import GlooMembership, full_group
from torchft_x.comm.rebuilt import RebuiltGroup, end_when_forgotten
from torchft_x.comm.store.create import StoreClient
from torchft_x.comm.work import BETWEEN_TWO, GroupWork, WaitedOnThread
from torchft_x.durations import seconds
from torchft_x.errors import CollectiveError, DeadlineError, TorchftXError
from torchft_x.timing import PATIENCE, POLL, TIMING

_ROUNDING = 0.01  # seconds by which the store's and gloo's own timeouts may end before our deadline
_ONLY_ON_FULL_GROUP = frozenset({"allgather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced"})
_IN_MEMORY_ORDER = frozenset(["allreduce", "allreduce_coalesced", "alltoall_base", "broadcast"])
"""Operations of gloo that take the memory as it is. The other operations copy, or refuse with a clear error."""


class ProcessGroupGloo(RebuiltGroup):
    """Process group on gloo between replica groups, on CPU tensors, and on CUDA and XPU tensors through host memory.

    All members must issue the same collectives with the same sizes and types in the same order: gloo ends the
    *process* (SIGABRT) if sizes differ.

    Args:
        timeout: the longest time (seconds or timedelta) that one `configure` and one collective may take.
        host: the address or name of this machine on which to listen; default: the result of
            `torchft_x.net.advertise_host`.

    Raises `AddressError` if `host` is not an address of this machine.
    """

    def __init__(self, timeout: float | timedelta = 60.0, *, host: str | None = None) -> None:
        super().__init__()
        self._timeout = seconds(timeout)
        # All state; handles and threads keep it after this object is gone.
        self._generations = _Generations(net.advertise_host(host))
        end_when_forgotten(self, self._generations.close)  # must not keep its threads

    @property
    def _present(self) -> GlooMembership | None:
        return self._generations.present

    def _configure(self, info: RankInfo, store_addr: str, replica_id: str, *names: Any) -> None:
        """Connect new members, see `ProcessGroup.configure`.

        Raises `UnreachableError` at once if nothing listens at the store's address, `DeadlineError` at the timeout
        (at most 10 s), naming the ranks that did not come, and `CollectiveError` after an abort.
        """
        generation = GlooMembership(info, store_addr, replica_id)
        limit = min(self._timeout, TIMING.connect)
        deadline = time.monotonic() + limit
        self._generations.start(generation, self._timeout)
        generation.built.wait(limit + TIMING.late_gloo)
        if not generation.ready:
            late = time.monotonic() > deadline - _ROUNDING
            raise self._generations.not_connected(generation, limit, late)

    def abort(self, quorum_id: int | None = None) -> None:
        self._generations.abort(quorum_id)

    def set_timeout(self, timeout: float | timedelta) -> None:
        super().set_timeout(timeout)
        present = self._present
        group = None if present is None else present.torch_group
        if group is not None:
            group.set_timeout(timedelta(seconds=self._timeout))

    def shutdown(self) -> None:
        self._generations.close()

    def getBackendName(self) -> str:
        return "torchft-gloo"

    def _issue(self, op: str, *args: Any) -> Work:
        if op in _IN_MEMORY_ORDER:
            _check_arguments(args)
        return super()._issue(op, *args)

    def _start(self, generation: GlooMembership, op: str, args: tuple[Any, ...]) -> Work:
        generations, group = self._generations, generation.torch_group  # read once: another thread may release it
        if group is None:
            return super()._start(generation, op, args)
        if op in _ONLY_ON_FULL_GROUP:
            group = full_group(group, generation.rank, generation.size)
        work = getattr(group, op)(*args)
        return GroupWork(
            WaitedOnThread(work, self._timeout, _in_background) if op in BETWEEN_TWO else work,
            args[0] if args else [],
            failed=functools.partial(generations.failed, generation, op),  # must not keep this object
            broken=lambda: generation.error is not None,
            leave=functools.partial(_leave, generation),
            lost=lambda: generations.lost(generation) is not None,
        )

    def _failed(self, generation: GlooMembership, op: str, cause: BaseException | None) -> CollectiveError:
        return self._generations.failed(generation, op, cause)


class _Generations:
    """Owner of the present generation and of the device. Decides when a generation ends.

    The lock guards which generation is the present one and the fields of each. Connections are shut under the lock,
    too, although that is I/O (under a millisecond, never blocking). All generations share the device, so an abort
    that has checked its id must be finished before a newer generation's first connection exists.
    """

    def __init__(self, host: str) -> None:
        self._host = host  # address or name on which our device listens
        self._lock = threading.Lock()  # guards all fields of this class and the shutting of connections (see the class)
        self._device: devices.Device | None = devices.lease(host)  # None after close()
        self.present: GlooMembership | None = None  # the newest generation; may be connecting, up or failed
        self._spare: StoreClient | None = None  # the store's client with which the last `configure` connected
        _all.add(self)

    def start(self, generation: GlooMembership, timeout: float) -> None:
        """Make `generation` the present one, abort the old one's collectives, and connect in the background."""
        with self._lock:
            old, self.present = self.present, generation
            if old is not None:
                self._end(old, "the group was configured anew")
            device = self._device = self._device or devices.lease(self._host)
            device.shut()
            if generation.size == 1:
                generation.built.set()
        needed = generation.size > 1 or (old is not None and old.torch_group is not None)
        if needed and not _in_background(functools.partial(self._build, generation, device, timeout, old)):
            with self._lock:
                self._end(generation, "the process ends")

    def failed(self, generation: GlooMembership, op: str, cause: BaseException | None) -> CollectiveError:
        """End `generation` after a failed collective, so that no member waits in vain, and return the error to raise.

        `cause` is None if the collective has not ended in time.
        """
        cause = cause or self.lost(generation)
        with self._lock:
            error = generation.failure(op, cause)
            if generation.error is None:
                generation.error = copy.copy(error)  # a raised exception collects a traceback, and with it whole frames
                self._shut(generation)
                _record(generation)
            return error

    def lost(self, generation: GlooMembership) -> CollectiveError | None:
        """Return which members' connections were lost without being shut by us; None if none were, or if unknown."""
        device = self._device
        if device is None or not generation.ready or self.present is not generation:
            return None
        connections = device.connections()
        return None if connections is None or connections >= generation.size - 1 else generation.lost(device.peers())

    def not_connected(self, generation: GlooMembership, timeout: float, late: bool) -> TorchftXError:
        """End `generation`, which could not be connected, and return the error to raise."""
        error = generation.error or generation.cause
        if not isinstance(error, TorchftXError):  # those of the store and of `abort` are already readable
            sentence = generation.not_connected(timeout)
            error = DeadlineError(sentence) if late else CollectiveError(sentence)
        with self._lock:
            if generation.error is None:
                generation.error = error
                self._shut(generation)
            return copy.copy(generation.error)

    def abort(self, config_id: int | None) -> None:
        with self._lock:
            present = self.present
            if present is None or (config_id is not None and config_id != present.config_id):
                return
            recorded = present.error is not None
            self._end(present, "the group was aborted")
            if not recorded:
                _record(present)

    def close(self) -> None:
        """End the present generation and return the device to the pool. `start` starts again."""
        with self._lock:
            present, device = self.present, self._device
            if device is None or not device.own:
                return  # closed before; or this is a forked child, which owns neither connections nor threads
            if present is not None:
                self._end(present, "the group was shut down")
            self._device = self._spare = None
        if not _in_background(functools.partial(_let_go, present, device)):
            _let_go(present, device)

    def _end(self, generation: GlooMembership, why: str) -> None:
        """Fail a generation that hasn't failed yet, and release its waiting callers. The caller holds the lock."""
        if generation.error is None:
            generation.error = CollectiveError(f"{why} ({generation.info})")
        generation.built.set()
        self._shut(generation)

    def _shut(self, generation: GlooMembership) -> None:
        """Break this generation's connections; while it connects, also the store client's. The caller holds the lock."""
        if generation.client is not None and generation.torch_group is None:
            generation.client.shut()
        if self.present is generation and self._device is not None:
            self._device.shut()

    def _build(
        self, generation: GlooMembership, device: devices.Device, timeout: float, old: GlooMembership | None
    ) -> None:
        """Connect a generation, then release the old one and exchange names. Runs on the connecting thread."""
        store = self._connect(generation, device, timeout) if generation.size > 1 else None
        if old is None or not old.left or not _in_background(functools.partial(_let_go, old)):
            _let_go(old)
        if store is None:
            return
        try:
            generation.meet(store, device)
        except RuntimeError:
            pass  # the store was closed meanwhile: errors name addresses instead of members

    def _connect(self, generation: GlooMembership, device: devices.Device, timeout: float) -> Any:
        """Connect the members. Return the store, or None if that failed or the generation has ended meanwhile."""
        limit = min(timeout, TIMING.connect)
        deadline = time.monotonic() + limit
        try:
            store = self._client_for(generation).open(limit)
            if generation.error is not None:
                return None
            group = generation.connect(store, device, max(deadline - time.monotonic(), 0.001))
            group.set_timeout(timedelta(seconds=timeout))
        except Exception as e:
            generation.cause = e.with_traceback(None)  # a traceback would keep the store's client alive
            generation.built.set()
            return None
        with self._lock:
            wanted = generation.error is None
            if wanted:
                generation.torch_group = group
                self._spare = generation.client  # our last requests to it don't block, so it may be reused
        generation.built.set()
        return store if wanted else None

    def _client_for(self, generation: GlooMembership) -> StoreClient:
        assert generation.store_address is not None, "a group of one has no store"
        with self._lock:
            spare, self._spare = self._spare, None
            generation.client = StoreClient.of(generation.store_address, spare)
        return generation.client


def _check_arguments(arguments: Iterable[Any]) -> None:
    """Call `check_dense` for each tensor among an operation's arguments."""
    for argument in arguments:
        for tensor in argument if isinstance(argument, list) else [argument]:
            if isinstance(tensor, torch.Tensor):
                check_dense(tensor)


def _let_go(generation: GlooMembership | None, device: devices.Device | None = None) -> None:
    """Release torch's group, then the device. The group takes 10 ms, as its connections are shut.

    Destroying a group blocks until its operations have ended, so this function first waits for abandoned operations.
    """
    if generation is not None:
        while not _ending and any(not work.is_completed() for work in generation.left):
            time.sleep(POLL)
        if _ending:  # leaks the group: its destructor would hold up the process's exit
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(generation.torch_group))
            return
        generation.left.clear()
        generation.torch_group = generation.client = None
    if device is not None:
        devices.give_back(device)


def _leave(generation: GlooMembership, work: Any) -> None:
    """Abandon an operation. The process's exit doesn't wait for its thread either."""
    generation.left.append(work)
    if isinstance(work, WaitedOnThread) and work.thread is not None:
        _threads.discard(work.thread)


def _record(generation: GlooMembership) -> None:
    """Dump the Flight Recorder in the background; once per generation, when it has just failed or been aborted."""
    if generation.torch_group is not None and env.flight_folder() is not None:
        about = (generation.config_id, generation.replica_id, generation.rank, generation.size)
        _in_background(functools.partial(flight_recorder.dump, *about, str(generation.error)))


_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # threads that run gloo's code
_all: weakref.WeakSet[_Generations] = weakref.WeakSet()  # objects that process exit must close


_birth = threading.Lock()  # guards `_ending`, and that every running thread is in `_threads`
_ending = False  # the process is exiting: no thread of ours starts any more


def _in_background(action: Callable[[], object]) -> threading.Thread | None:
    """Start a thread that runs `action`, and return it; None if the process is exiting and no thread was started."""
    thread = threading.Thread(target=action, name="torchft_x gloo", daemon=True)
    with _birth:
        if _ending:
            return None
        try:
            thread.start()
        except RuntimeError:  # the interpreter starts no threads any more
            return None
        _threads.add(thread)
        return thread


def _at_exit() -> None:
    """Stop all threads inside gloo before the interpreter is finalised: the process would end with SIGABRT."""
    global _ending
    with _birth:
        _ending = True
    deadline = time.monotonic() + PATIENCE
    for generations in list(_all):
        generations.close()
    for thread in list(_threads):
        thread.join(max(deadline - time.monotonic(), 0))


def _after_fork_in_child() -> None:
    """Replace the lock, which another thread of the parent may have held. The parent keeps its threads and groups."""
    global _birth
    _birth = threading.Lock()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork_in_child)
