"""A child process with a process group, as its parent sees it: from one `configure` to the next."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from multiprocessing import Pipe, forkserver
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work
from torch.futures import Future

from torchft_x.comm.base import RankInfo
from torchft_x.comm.rebuilt import refusal
from torchft_x.comm.subprocess import collective_args, fork_server
from torchft_x.comm.subprocess.child_main import Child
from torchft_x.comm.subprocess.shared_memory import Place, Segment, SharedMemory
from torchft_x.comm.work import FailedWork
from torchft_x.errors import CollectiveError, TorchftXError
from torchft_x.timing import TIMING


class ChildWork(Work):
    """Handle of a collective in a child process. Once it is completed, the results are in the caller's tensors.

    Args:
        op: its name.
        result: value of the future.
        devices: of CUDA tensors in the result.
        limit: seconds after which the group's own timeout has certainly passed.
        late: called when a wait has lasted too long, with the caller's limit or None; it ends the group.
    """

    def __init__(
        self, op: str, result: Any, devices: list[torch.device], limit: float, late: Callable[[float | None], None]
    ) -> None:
        super().__init__()
        self.op = op
        self.segment: Segment | None = None  # of the tensors that are not shared CUDA tensors
        self.copies: list[tuple[Tensor, Tensor]] = []  # (destination, source in the segment) of what it writes
        self.kept: Any = None  # our objects that the child uses, kept alive
        self._result = result
        self._limit = limit
        self._late = late
        self._ended = threading.Event()
        self._error: CollectiveError | None = None  # the error with which it ended
        self._future: Future[Any] = Future(devices=devices) if devices else Future()

    def finish(self, error: CollectiveError | None) -> None:
        """Complete the handle, with an error or successfully (None). Called once."""
        self._error = error
        # A handle that the caller keeps must not keep the child's memory.
        self.segment, self.copies, self.kept, self._late = None, [], None, lambda given: None
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
        if not self._ended.wait(self._limit if given is None or given < 0 else given):
            self._late(given)
            self._ended.wait()  # `finish` has been called, or is about to be
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Future[Any]:
        return self._future


class ChildHandle:
    """One child process. The owner calls `issue` any number of times, and `end`, from any thread.

    Args:
        program: what the child does.
        info: the rank that it is.
        timeout: seconds, for each collective.
    """

    def __init__(self, program: Child, info: RankInfo, timeout: float) -> None:
        self._shared_device = "cuda" if program.device == "cuda" else None  # tensors there are shared, others copied
        self.info = info
        self._timeout = timeout
        self._owner = os.getpid()  # a forked process must not end its parent's child
        self._memory = SharedMemory()
        self._lock = threading.Lock()  # guards the fields below; held only briefly, never while blocking
        self.error: TorchftXError | None = None  # the first failure; never unset
        self._pid: int | None = None  # of the child, while it runs
        self._pending: dict[int, ChildWork] = {}  # collectives whose end the child has not reported
        self.started = threading.Event()  # set when the child runs
        self.configured = threading.Event()  # set when the child has connected with the members, or something failed
        self._sending = threading.Lock()  # collectives reach the child in the order of their numbers
        self._numbers = itertools.count()
        self._commands, far = Pipe()
        threading.Thread(target=self._run, args=(program, far), name="torchft_x child", daemon=True).start()

    @property
    def ready(self) -> bool:
        return self.configured.is_set()

    @property
    def active(self) -> int:
        """Number of running collectives."""
        return len(self._pending)

    def set_timeout(self, timeout: float) -> None:
        self._timeout = timeout
        with self._sending:
            self._send((None, "set_timeout", timeout))

    def issue(self, op: str, args: tuple[Any, ...]) -> Work:
        try:
            work, message = self._load(op, args)
        except Exception as e:
            # Other members may have started it. From here on the members are out of step, so the group can't be used
            # any more.
            return FailedWork(self.end(CollectiveError(f"{op} on {self.info} failed: {e}")))
        with self._sending:
            number = next(self._numbers)
            with self._lock:
                if self.error is not None:
                    return FailedWork(refusal(op, self))
                self._pending[number] = work
            self._send((number, *message))
        return work

    @torch.no_grad()
    def _load(self, op: str, args: tuple[Any, ...]) -> tuple[ChildWork, tuple[Any, ...]]:
        """Share CUDA tensors with the child, and copy others into a segment. Return the handle and the child's message."""
        shared: list[Tensor] = []
        staged: list[tuple[Tensor, Place]] = []

        def moved(t: Tensor) -> Tensor | Place:
            if t.device.type == self._shared_device:
                shared.append(t.detach())
                return shared[-1]
            staged.append((t, Place(staged[-1][1].end if staged else 0, t)))
            return staged[-1][1]

        pickled = bytes(ForkingPickler.dumps(collective_args.replace(args, Tensor, moved)))
        limit = self._timeout + TIMING.late_child
        work = ChildWork(op, args[0] if args else [], [t.device for t in shared[:1]], limit, partial(self._late, op))
        at = event = handle = None
        if staged:
            work.segment = self._memory.take(staged[-1][1].end)
            at = work.segment[:2]
            memory = work.segment.memory
            inputs = {id(t) for t in collective_args.read(op, args)}
            outputs = {id(t) for t in collective_args.written(op, args)}
            for t, place in staged:
                if id(t) in inputs:
                    place.view(memory).copy_(t.detach())
                if id(t) in outputs:
                    work.copies.append((t.detach(), place.view(memory)))
        if shared:
            event = torch.cuda.Event(interprocess=True)
            event.record(torch.cuda.current_stream(shared[0].device))
            handle = (shared[0].device.index, event.ipc_handle())
        work.kept = (args, shared, event)
        return work, (op, pickled, at, handle)

    def _send(self, message: tuple[Any, ...]) -> None:
        writable = select.poll()
        try:
            writable.register(self._commands, select.POLLOUT)
            if writable.poll(min(self._timeout, 3600) * 1000):
                self._commands.send(message)
            else:
                self._kill()  # it does not read; `_run` reports its end
        except OSError:
            pass  # the child has ended; `_run` reports how

    def _late(self, op: str, given: float | None) -> None:
        limit = "the limit given to wait()" if given else f"{self._timeout:g} s"
        self.end(CollectiveError(f"{op} on {self.info} timed out after {limit}; the group was aborted."))

    def end(self, error: TorchftXError) -> TorchftXError:
        """Fail all running collectives, and kill the child. Return the group's first error."""
        if self._owner != os.getpid():
            return error
        with self._lock:
            if self.error is None:
                self.error = error
            first = self.error
            given_up, self._pending = list(self._pending.values()), {}
        self.started.set()
        self.configured.set()
        self._kill()
        for work in given_up:
            work.finish(_released(work.op, error, first))
        return first

    def _kill(self) -> None:
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._pid is not None:
                os.kill(self._pid, signal.SIGKILL)

    # -- the child's thread --

    def _run(self, program: Child, far: Connection) -> None:
        """Start the child, receive its reports, and fail the group when it has ended."""
        try:
            with far:
                self._pid, status = fork_server.start(program, [far.fileno(), self._memory.fd])
        except Exception as e:
            how = f"its child process can't be started: {e or 'the helper process has ended'}"
        else:
            self.started.set()
            how = self._listen(status)
            os.close(status)
        self.end(CollectiveError(f"the group ({self.info}) failed: {how}"))
        with self._sending:
            self._commands.close()

    def _listen(self, status: int) -> str:
        """Receive the child's reports, and return how it ended."""
        try:
            while self.error is None:
                self._receive(*self._commands.recv())
        except Exception:
            pass  # it has ended, or sends nonsense
        self._kill()
        try:
            return _told_status(forkserver.read_signed(status))
        except EOFError:
            return "its child process was killed with the helper process; configure() starts new ones."
        finally:
            with self._lock:
                self._pid = None

    @torch.no_grad()
    def _receive(self, number: int | None, error: TorchftXError | None) -> None:
        if number is None:
            if error is not None:
                self.end(error)
            self.configured.set()
            return
        with self._lock:
            work = self._pending.pop(number, None)
        if work is None:
            return  # abandoned by `end`
        try:
            for destination, source in work.copies if error is None else ():
                destination.copy_(source)
        except RuntimeError as e:
            error = CollectiveError(f"{work.op} on {self.info} failed: {e}")
        if error is not None:
            self.end(error)
        elif work.segment is not None:
            self._memory.give_back(work.segment)
        work.finish(None if error is None else _released(work.op, error, error))


def _released(op: str, error: TorchftXError, first: TorchftXError) -> CollectiveError:
    sentence = str(error) if op in str(error) else f"{op} was released: {first}"
    return CollectiveError(sentence, getattr(first, "suspects", ()))


def _told_status(status: int) -> str:
    if status == -signal.SIGABRT:
        return (
            "its child process was aborted (SIGABRT), which gloo does where tensors of members differ in size or type, "
            "or where they issue collectives in different order: make all members issue the same. configure() starts a "
            "new one."
        )
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
    return f"its child process {how}; configure() starts a new one."
