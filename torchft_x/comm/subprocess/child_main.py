"""Program of a group's child process: it runs a process group on commands from a pipe.

Messages are pickled: the pipe has no name, and its other end is the parent's. ::

    from the parent: (None, "set_timeout", seconds)
                     (number, collective, pickled arguments, (start, size) of a segment or None,
                      (device index, handle) of a CUDA event or None)
    to the parent:   (number, error or None); without a number: it is configured, or that has failed

Arguments hold a `Place` for each tensor in the segment. The process ends when the pipe is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import resource
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work

from torchft_x.comm import flight_recorder
from torchft_x.comm.base import ProcessGroup
from torchft_x.comm.subprocess import collective_args
from torchft_x.comm.subprocess.shared_memory import Place, map_segment
from torchft_x.errors import CollectiveError, TorchftXError

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Child:
    """What a child does. Pickled for the fork server's child, which calls `_bootstrap`, as that of a `Process`."""

    make: Callable[[], ProcessGroup]  # creates the group
    members: tuple[str, str, int, int, int | None]  # arguments of its `configure`
    device: str  # kind of device that the group works on
    index: int  # of the device
    flight: str | None  # folder of the Flight Recorder

    def _bootstrap(self, parent_sentinel: int) -> int:
        """Run the group until the parent closes the pipe, and return the exit code.

        The server kills this process when it ends, and it ends when nobody holds the descriptor that is closed here
        but the trainer. So this process may hang.
        """
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
        # No core dumps: aborts are expected.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        torch.set_num_threads(1)
        commands, memory = forkserver.get_inherited_fds()  # type: ignore[misc]
        with contextlib.suppress(EOFError, OSError):  # the parent has ended, or wants this process to end
            _Service(self, Connection(commands), memory).run()
        return 0


class _Service:
    def __init__(self, program: Child, commands: Connection, memory: int) -> None:  # `memory`: a descriptor
        self._program = program
        self._device = program.device
        self._flight = program.flight  # None once the Flight Recorder's file is written
        self._commands = commands
        self._sending = threading.Lock()  # one message at a time
        self._segment = cache(partial(map_segment, memory))  # maps each segment once
        self._group: Any = None  # the process group
        # Numbers and waits of collectives without a usable future, in order. `_finish` calls them on a thread of its own.
        self._waiting: queue.SimpleQueue[tuple[int, Callable[[], None]]] = queue.SimpleQueue()

    def run(self) -> None:
        """Configure the group and carry out the commands. Raises `EOFError` when the pipe is closed."""
        threading.Thread(target=self._finish, name="finish", daemon=True).start()
        error: Exception | None = None
        try:
            if self._device != "cpu":
                torch.get_device_module(self._device).set_device(self._program.index)
            self._group = self._program.make()
            self._group.configure(*self._program.members)
        except Exception as e:
            error = e
        self._send(None, error)
        while True:
            number, op, *rest = self._commands.recv()
            if number is None:
                getattr(self._group, op)(*rest)
                continue
            try:
                self._start(number, op, *rest)
            except Exception as e:
                self._answer(number, e)

    @torch.no_grad()
    def _start(self, number: int, op: str, pickled: bytes, at: tuple[int, int] | None, event: Any) -> None:
        kept: list[Any] = []  # kept alive until the collective has ended
        if event is not None:
            index, handle = event
            kept.append(torch.cuda.Event.from_ipc_handle(torch.device("cuda", index), handle))
            torch.cuda.current_stream(index).wait_event(kept[0])
        segment = torch.empty(0) if at is None else self._segment(*at)
        staged: list[tuple[Tensor, Tensor]] = []

        def tensor(place: Place) -> Tensor:
            shared = place.view(segment)
            staged.append((shared, shared.to(self._device)))  # no copy on the CPU
            return staged[-1][1]

        args = collective_args.replace(ForkingPickler.loads(pickled), Place, tensor)
        work = getattr(self._group, op)(*args)
        if self._device == "cpu":
            with contextlib.suppress(RuntimeError):  # gloo's reduce_scatter has no future
                # Called on a thread of gloo's, which must not wait for the work.
                work.get_future().add_done_callback(lambda future: self._report(number, future.value))
                return
        self._waiting.put((number, partial(self._wait, work, staged, (args, kept))))

    @torch.no_grad()
    def _wait(self, work: Work, staged: list[tuple[Tensor, Tensor]], kept: Any) -> None:
        """Wait until the shared memory holds the result, above all on an accelerator. Raise if the collective failed."""
        work.wait()
        if self._device != "cpu":
            for shared, copy in staged:
                shared.copy_(copy)
            torch.get_device_module(self._device).current_stream().synchronize()
            if (error := self._group.errored()) is not None:
                raise error

    def _finish(self) -> None:
        while True:
            self._report(*self._waiting.get())

    def _report(self, number: int, end: Callable[[], Any]) -> None:
        """Report the end of a collective. `end` raises if it failed."""
        error: Exception | None = None
        try:
            end()
        except Exception as e:
            error = (self._group.errored() if self._device == "cpu" else None) or e
        self._answer(number, error)

    def _answer(self, number: int, error: Exception | None) -> None:
        """Answer the parent, which ends this process at the first failure. So that is recorded before."""
        folder, (_, replica_id, rank, size, quorum_id) = self._flight, self._program.members
        if error is not None and folder is not None:
            self._flight = None
            flight_recorder.dump(quorum_id, replica_id, rank, size, str(error), folder)
        with contextlib.suppress(OSError):  # the main thread notices the closed pipe, too
            self._send(number, error)

    def _send(self, number: int | None, error: Exception | None) -> None:
        if error is not None and not isinstance(error, TorchftXError):
            error = CollectiveError(f"{type(error).__name__}: {error}")
        with self._sending:
            self._commands.send((number, error))
