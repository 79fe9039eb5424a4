"""Program of a group's child process: it runs a process group on commands from a pipe.

::

    parent -> child                                                     child -> parent
                                                                        {"started": pid}
    {"configure": kind, "timeout": s, "device": i, "host": h,
     "at": {...}, "flight": folder or null}                             {"configured": null} or {"configured": error}
    {"timeout": s}
    {"do": op, "id": n, "args": [...], "tensors": [where, ...],
     "segment": [number, size, new], "event": [...]}                    {"id": n, "error": null or error}
    {"drop": [number, ...]}

    where: ["shm", start, dtype, shape] | ["ipc", ...]     error: [class name, sentence, [suspect, ...]]

A new segment's descriptor is sent beside the message. The process ends when the pipe is closed.
"""

from __future__ import annotations

import functools
import importlib
import os
import queue
import threading
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Work
from torch.futures import Future

from torchft_x.comm import flight_recorder
from torchft_x.comm.accelerator import ipc
from torchft_x.comm.subprocess import args_codec
from torchft_x.comm.subprocess.pipe import Pipe
from torchft_x.comm.subprocess.shared_memory import map_segment, view
from torchft_x.errors import TorchftXError

KINDS = {  # name -> (module, class, kind of device that its tensors must be on)
    "gloo": ("torchft_x.comm.gloo.group", "ProcessGroupGloo", "cpu"),
    "nccl": ("torchft_x.comm.accelerator.nccl", "ProcessGroupNCCL", "cuda"),
    "xccl": ("torchft_x.comm.accelerator.nccl", "ProcessGroupXCCL", "xpu"),
}


def serve(pipe: Pipe) -> None:
    """Carry out the commands from the pipe until it is closed."""
    service = _Service(pipe)
    try:
        pipe.send({"started": os.getpid()})
        while True:
            message, fds = pipe.recv()
            service.handle(message, fds)
    except (EOFError, OSError):
        pass  # the parent has ended, or wants this process to end


class _Service:
    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._group: Any = None  # the process group
        self._device = "cpu"  # kind of device that the group works on
        self._segments: dict[int, Tensor] = {}  # mapped segments, by number
        self._about: dict[str, Any] = {}  # the message that configured this process
        self._waiting: queue.SimpleQueue[tuple[int, Work, Any]] = queue.SimpleQueue()  # for `_finish`, in order
        threading.Thread(target=self._finish, name="finish", daemon=True).start()

    def handle(self, message: dict[str, Any], fds: list[int]) -> None:
        if "do" in message:
            try:
                self._do(message, fds)
            except Exception as e:
                self._answer(message["id"], e)
        elif "configure" in message:
            self._pipe.send({"configured": self._configure(message)})
        elif "timeout" in message:
            self._group.set_timeout(message["timeout"])
        else:
            for number in message["drop"]:
                self._segments.pop(number, None)

    def _configure(self, message: dict[str, Any]) -> list[Any] | None:
        module, name, self._device = KINDS[message["configure"]]
        self._about = message
        try:
            if self._device != "cpu":
                torch.get_device_module(self._device).set_device(message["device"])
            options = {"host": message["host"]} if self._device == "cpu" else {}
            self._group = getattr(importlib.import_module(module), name)(message["timeout"], **options)
            self._group.configure(**message["at"])
        except Exception as e:
            return _error(e)
        return None

    @torch.no_grad()
    def _do(self, message: dict[str, Any], fds: list[int]) -> None:
        number, size, is_new = message["segment"]
        if is_new:
            self._segments[number] = map_segment(fds[0], size)
            os.close(fds[0])
        memory = self._segments[number] if size else None
        kept: list[Any] = []  # kept alive until the collective has ended
        if message["event"] is not None:
            kept.append(ipc.wait_event(message["event"]))
        tensors, staged = [], []
        for kind, *where in message["tensors"]:
            if kind == "ipc":
                tensors.append(ipc.open_tensor(where))
                continue
            start, dtype, shape = where
            assert memory is not None, "a tensor needs a segment"
            shared = view(memory, start, getattr(torch, dtype), shape)
            tensors.append(shared.to(self._device))  # no copy on the CPU
            if tensors[-1] is not shared:
                staged.append((shared, tensors[-1]))
        work = getattr(self._group, message["do"])(*args_codec.unpack(message["args"], tensors))
        if self._device == "cpu":
            try:
                future = work.get_future()
            except RuntimeError:
                pass  # gloo's reduce_scatter has no future
            else:
                future.add_done_callback(functools.partial(self._told, message["id"]))
                return
        self._waiting.put((message["id"], work, (tensors, staged, kept)))

    def _told(self, number: int, future: Future[Any]) -> None:
        """Report the end of a collective on the CPU. Runs on a thread of gloo's, which must not wait for the work."""
        error: Exception | None = None
        try:
            future.value()
        except Exception as e:
            error = self._group.errored() or e
        self._answer(number, error)

    @torch.no_grad()
    def _finish(self) -> None:
        """Wait for collectives without a usable future, above all on an accelerator. Runs on a thread of its own.

        Reports the end only when the memory holds the result.
        """
        while True:
            number, work, (_, staged, _) = self._waiting.get()
            error: Exception | None = None
            try:
                work.wait()
                for shared, copy in staged:
                    shared.copy_(copy)
                if self._device != "cpu":
                    torch.get_device_module(self._device).current_stream().synchronize()
                    error = self._group.errored()
            except Exception as e:
                error = e
            self._answer(number, error)

    def _answer(self, number: int, error: Exception | None) -> None:
        if error is not None:
            self._record(error)
        try:
            self._pipe.send({"id": number, "error": None if error is None else _error(error)})
        except OSError:
            pass  # the main thread notices the closed pipe, too

    def _record(self, error: Exception) -> None:
        """Dump the Flight Recorder at the first failure, before the parent receives it and kills this process."""
        folder, self._about["flight"] = self._about["flight"], None
        if folder is not None:
            at = self._about["at"]
            flight_recorder.dump(at["quorum_id"], at["replica_id"], at["rank"], at["world_size"], str(error), folder)


def _error(e: Exception) -> list[Any]:
    if isinstance(e, TorchftXError):
        return [type(e).__name__, str(e), list(getattr(e, "suspects", ()))]
    return ["CollectiveError", f"{type(e).__name__}: {e}", []]
