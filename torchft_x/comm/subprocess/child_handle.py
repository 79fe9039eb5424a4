"""A child process with a process group, as its parent sees it: from one `configure` to the next."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import Work
from torch.futures import Future

from torchft_x import env, errors
from torchft_x.comm.accelerator import ipc
from torchft_x.comm.rank_info import RankInfo, refusal
from torchft_x.comm.subprocess import args_codec, shared_memory
from torchft_x.comm.subprocess.fork_server import NURSERY
from torchft_x.comm.work import FailedWork
from torchft_x.errors import CollectiveError, TorchftXError
from torchft_x.timing import TIMING

_END_LIMIT = 10.0  # seconds to wait for a child's exit status; without one, the child's memory is not reused


class ChildWork(Work):
    """Handle of a collective in a child process. Once it is completed, the results are in the caller's tensors."""

    def __init__(self, result: Any, devices: list[torch.device], late: Callable[[float | None], None]) -> None:
        super().__init__()
        self._result = result  # value of the future
        self._late = late  # called when a wait has lasted too long; ends the group. None: the group's own limit
        self._ended = threading.Event()
        self._error: Exception | None = None  # the error with which it ended
        self._future: Future[Any] = Future(devices=devices) if devices else Future()
        self.limit = 0.0  # seconds after which the group's own timeout has certainly passed

    def finish(self, error: Exception | None) -> None:
        """Complete the handle, with an error or successfully (None). Called once."""
        self._error = error
        self._ended.set()
        if error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(error)

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def result(self) -> Any:
        return self._result

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end, at most `timeout` (None or zero: the group's own). Raise `CollectiveError` if it failed.

        If the limit runs out, the group is aborted, and nothing writes to the tensors afterwards.
        """
        given = timeout.total_seconds() if timeout else None
        if not self._ended.wait(self.limit if given is None or given < 0 else given):
            self._late(given)
            self._ended.wait()  # `finish` has been called, or is about to be
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Future[Any]:
        return self._future


class _Load(NamedTuple):
    """The tensors of a collective, in the form in which the child uses them."""

    where: list[Any]  # location of each tensor, see child_main.py
    segment: shared_memory.Segment | None  # None if there are no tensors, or all are shared CUDA tensors
    copies: list[tuple[Tensor, Tensor]]  # (destination, place in the segment) of each tensor that it writes
    event: Any  # CUDA event for which the child's stream must wait, or None
    devices: list[torch.device]  # device of the CUDA tensors that are shared without a copy
    kept: list[Any]  # our objects that the child uses, kept alive


class _Pending(NamedTuple):
    """A collective whose end the child has not reported."""

    op: str
    work: ChildWork
    load: _Load


class ChildHandle:
    """One child process. The owner calls `configure`, then `issue` any number of times, and `end`, from any thread."""

    def __init__(self, kind: str, device: str, memory: shared_memory.SharedSegments, info: RankInfo) -> None:
        self._kind = kind  # kind of group, a key of child_main.KINDS
        self._shared_device = "cuda" if device == "cuda" else None  # tensors on this device are shared, others copied
        self._arena = memory
        self.info = info
        self._pid = os.getpid()  # a forked process shares the pipes and must not touch them
        self._lock = threading.Lock()  # guards the fields below; held only briefly, never while blocking
        self.error: TorchftXError | None = None  # the first failure; never unset
        self._pending: dict[int, _Pending] = {}
        self._orphans: list[
            shared_memory.Segment
        ] = []  # segments of abandoned collectives, to which the child may still write
        self.timeout = 0.0  # seconds, for each collective
        self.started = threading.Event()  # set when the child runs
        self.configured = threading.Event()  # set when the child has connected with the members, or something failed
        self._issuing = threading.Lock()  # collectives reach the child in the order of their numbers
        self._numbers = itertools.count()
        self._known: dict[int, int] = {}  # sizes of the segments that the child has mapped, by number; under `_issuing`
        self._commands, self._lifeline = NURSERY.child()
        threading.Thread(target=self._listen, name="torchft_x child", daemon=True).start()

    @property
    def active(self) -> int:
        """Number of running collectives."""
        return len(self._pending)

    def configure(self, timeout: float, device: int, host: str | None, at: dict[str, Any]) -> None:
        """Start to connect the child's group. `configured` is set when that has ended."""
        self.timeout = timeout
        self._commands.limit_sends(timeout)
        about = {"timeout": timeout, "device": device, "host": host, "at": at, "flight": env.flight_folder()}
        self._tell({"configure": self._kind, **about})

    def set_timeout(self, timeout: float) -> None:
        self.timeout = timeout
        self._commands.limit_sends(timeout)
        self._tell({"timeout": timeout})

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._commands.send(message)
        except OSError:
            pass  # the child has ended; `_listen` reports how

    def issue(self, op: str, args: tuple[Any, ...]) -> Work:
        try:
            packed = args_codec.pack(op, args)
            load = self._load(op, args)
        except (CollectiveError, RuntimeError, OSError, ValueError) as e:
            # Other members may have started it. From here on the members are out of step, so the group can't be used
            # any more.
            return FailedWork(self.end(CollectiveError(f"{op} on {self.info} failed: {e}")))
        work = ChildWork(args[0] if args else [], load.devices, self._late_for(op))
        work.limit = self.timeout + TIMING.late_child
        with self._issuing:
            number = next(self._numbers)
            with self._lock:
                if self.error is not None:
                    if load.segment is not None:
                        self._arena.give_back(load.segment)
                    return FailedWork(refusal(op, self.info, self.error))
                self._pending[number] = _Pending(op, work, load)
            self._send(number, op, packed, load)
        return work

    @torch.no_grad()
    def _load(self, op: str, args: tuple[Any, ...]) -> _Load:
        """Make the tensors accessible to the child: share CUDA tensors, copy others into a segment."""
        tensors = [t for arg in args for t in args_codec.tensors_in(arg)]
        inputs = {id(t) for t in args_codec.read(op, args)}
        outputs = {id(t) for t in args_codec.written(op, args)}
        staged = [t for t in tensors if t.device.type != self._shared_device]
        starts, nbytes = shared_memory.place(staged)
        segment = self._arena.take(nbytes) if nbytes else None
        where: list[Any] = []
        copies: list[tuple[Tensor, Tensor]] = []
        event, kept = None, list(args)
        devices: list[torch.device] = []
        rest = iter(starts)
        for t in tensors:
            if t.device.type == self._shared_device:
                where.append(["ipc", *ipc.export(t)])
                devices = [t.device]
                continue
            start = next(rest)
            where.append(["shm", start, str(t.dtype).removeprefix("torch."), list(t.shape)])
            if segment is not None and t.numel():
                place = shared_memory.view(segment.memory, start, t.dtype, t.shape)
                if id(t) in inputs:
                    place.copy_(t.detach())
                if id(t) in outputs:
                    copies.append((t.detach(), place))
        if devices:
            event, made = ipc.record_event(devices[0])
            kept.append(made)
        return _Load(where, segment, copies, event, devices, kept)

    def _send(self, number: int, op: str, packed: list[Any], load: _Load) -> None:
        segment, fds = load.segment, []
        described: list[Any] = [0, 0, False]
        if segment is not None:
            is_new = self._known.get(segment.number) is None
            described = [segment.number, segment.size, is_new]
            fds = [segment.fd] if is_new else []
            self._known[segment.number] = segment.size
        message = {
            "do": op,
            "id": number,
            "args": packed,
            "tensors": load.where,
            "segment": described,
            "event": load.event,
        }
        try:
            self._commands.send(message, fds)
        except OSError:
            if self.error is None:  # it ended (then `_listen` reports how), or did not read for the timeout
                self._lifeline.half_close()

    def _late_for(self, op: str) -> Callable[[float | None], None]:
        def late(given: float | None) -> None:
            limit = "the limit given to wait()" if given else f"{self.timeout:g} s"
            self.end(CollectiveError(f"{op} on {self.info} timed out after {limit}; the group was aborted."))

        return late

    def end(self, error: TorchftXError) -> TorchftXError:
        """Fail all running collectives, and kill the child. Return the group's first error."""
        if self._pid != os.getpid():
            return error
        with self._lock:
            if self.error is None:
                self.error = error
            first = self.error
            given_up, self._pending = self._pending, {}
            self._orphans += [p.load.segment for p in given_up.values() if p.load.segment is not None]
        self.started.set()
        self.configured.set()
        self._lifeline.half_close()
        self._commands.shut()  # also ends a send in progress
        for pending in given_up.values():
            sentence = str(error) if pending.op in str(error) else f"{pending.op} was released: {first}"
            pending.work.finish(CollectiveError(sentence, getattr(first, "suspects", ())))
        return first

    # -- the listening thread --

    def _listen(self) -> None:
        try:
            while True:
                message, _ = self._commands.recv()
                if "id" in message:
                    self._ended(message["id"], message["error"])
                elif "started" in message:
                    self.started.set()
                elif message["configured"] is None:
                    self.configured.set()
                else:
                    self.end(_rebuilt(message["configured"]))
        except EOFError:
            pass
        how = self._how_it_ended()
        self.end(CollectiveError(f"the group ({self.info}) failed: {how or 'its child process is out of reach'}"))
        self._lifeline.close()
        self._commands.close()
        with self._lock:
            orphans, self._orphans = self._orphans, []
        if how is not None:  # otherwise the child may still write to them
            for segment in orphans:
                self._arena.give_back(segment)

    @torch.no_grad()
    def _ended(self, number: int, error: list[Any] | None) -> None:
        with self._lock:
            pending = self._pending.pop(number, None)
        if pending is None:
            return  # abandoned by `end`
        if error is None:
            for destination, place in pending.load.copies:
                destination.copy_(place)
            if pending.load.segment is not None:
                self._arena.give_back(pending.load.segment)
            pending.work.finish(None)
            return
        failure = _rebuilt(error)
        with self._lock:
            if pending.load.segment is not None:
                self._orphans.append(pending.load.segment)
        self.end(failure)
        told = str(failure) if pending.op in str(failure) else f"{pending.op} was released: {failure}"
        pending.work.finish(CollectiveError(told, getattr(failure, "suspects", ())))

    def _how_it_ended(self) -> str | None:
        """Return how the child ended, from its last message; None if none comes."""
        deadline = time.monotonic() + _END_LIMIT
        try:
            while True:
                self._lifeline.wait_readable(max(deadline - time.monotonic(), 0.001))
                message, _ = self._lifeline.recv()
                if "status" in message:
                    return _told_status(message["status"])
        except EOFError:
            return None


def _told_status(status: int) -> str:
    if status == -signal.SIGABRT:
        return (
            "its child process was aborted (SIGABRT), which gloo does where tensors of members differ in size or type, "
            "or where they issue collectives in different order: make all members issue the same. configure() starts a "
            "new one."
        )
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
    return f"its child process {how}; configure() starts a new one."


def _rebuilt(error: list[Any]) -> TorchftXError:
    name, sentence, suspects = error
    kind = getattr(errors, name, CollectiveError)
    return CollectiveError(sentence, tuple(suspects)) if kind is CollectiveError else kind(sentence)
