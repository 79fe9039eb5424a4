"""The two ends of a heal, without training: a process that holds a state, and one that fetches it, on command.

The process reads one JSON list per line (name, arguments) and answers with one JSON line. The Pythons of both libraries
run this program.
"""

import argparse
import importlib
import json
import os
import resource
import socket
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
warnings.filterwarnings("ignore")

import torch  # noqa: E402


def make_state(megabytes: int, tensors: int) -> dict[str, torch.Tensor]:
    size = (megabytes << 20) // 4 // tensors
    return {f"w{i}": torch.full((size,), float(i)) for i in range(tensors)}


class Source:
    """The end that holds a state and serves it."""

    def __init__(self, library: str, megabytes: int, host: str, tensors: int) -> None:
        self.ours = library == "torchft_x"
        self.state = make_state(megabytes, tensors)
        self.before = _memory("VmRSS")
        module = importlib.import_module("torchft_x.transfer" if self.ours else "torchft.checkpointing.http_transport")
        # Each library's Manager makes its transport with these arguments, except for the host's name.
        self.transport: Any = (
            module.HTTPTransport(60.0, host=host)
            if self.ours
            else module.HTTPTransport(timeout=timedelta(seconds=60), num_chunks=0)
        )

    def metadata(self) -> str:
        return self.transport.metadata()

    def hold(self) -> None:
        """Hold copies of the state as a supervisor does, and serve the state from them from now on."""
        self.transport.borrow_from(_holder(self.state))
        self.before = _memory("VmRSS")

    def freeze(self, step: int) -> float:
        """Serve the state under this step, and return the seconds for which training would stand still."""
        begin = time.perf_counter()
        if self.ours:
            self.transport.send_checkpoint([], step, self.state, 60.0)
        else:
            self.transport.disallow_checkpoint()
            self.transport.send_checkpoint([0], step, self.state, timedelta(seconds=60))
        return time.perf_counter() - begin

    def used(self) -> float:
        """Return the processor time so far, in seconds."""
        return processor_seconds()

    def extra(self) -> float:
        """Return the peak of the additional memory, as a share of the state."""
        return _extra(self.before, self.state)

    def raw(self, megabytes: int) -> int:
        """Serve as many plain bytes over TCP, and return the port."""
        from torchft_x.transfer.format.memory import allocate, memory_of

        listener = socket.create_server(("127.0.0.1", 0))
        memory = memory_of(allocate(megabytes << 20).fill_(1))
        threading.Thread(target=serve_raw, args=(listener, memory), daemon=True).start()
        return listener.getsockname()[1]


def _holder(state: dict[str, torch.Tensor]) -> Any:
    """Return a holder of two copies that lends the memory of one, as a supervisor does to a Manager."""
    from torchft_x.core.types import State
    from torchft_x.launch.process.checkpoint_memory import CheckpointMemory
    from torchft_x.transfer.memory_slots import MemorySlot

    memory = CheckpointMemory(1)
    slots = [MemorySlot.open(name, 1 << 40) for name in memory.names[0]]
    for slot in slots:
        assert slot is not None
        slot.grow(slot.room_for(state))
        slot.write(State(1), state)
        slot.seal()

    class Holder:
        returned: Any = staticmethod(lambda: True)
        held = memory, slots

        def lends(self, nbytes: int) -> bool:
            return True

        def lend(self, nbytes: int, returned: Any) -> Any:
            if not self.returned():
                return None
            self.returned = returned
            return slots[1].lend(nbytes)

    return Holder()


class Receiver:
    """The end that fetches a state. It has a state already, as a group that heals does."""

    def __init__(self, library: str, megabytes: int, host: str, tensors: int) -> None:
        self.ours = library == "torchft_x"
        self.state = make_state(megabytes, tensors)
        self.buffer: Any = None  # target of the raw copy, from its first use on
        if self.ours:
            from torchft_x.transfer import HTTPTransport

            self.transports: dict[str, Any] = {
                "network": HTTPTransport(60.0, shared_memory=False),  # as between hosts
                "defaults": HTTPTransport(60.0),  # as a Manager makes it
            }
        else:
            from torchft.checkpointing.http_transport import HTTPTransport

            peers = HTTPTransport(timeout=timedelta(seconds=60), num_chunks=0)
            self.transports = dict.fromkeys(("network", "defaults"), peers)  # torchft has one way
        self.before = _memory("VmRSS")  # memory of the state and the benchmark itself

    def fetch(
        self, metadata: str, step: int, how: str, in_place: bool, mirrors: Sequence[str] = ()
    ) -> tuple[float, float]:
        """Fetch the state, and return the seconds and the peak of the additional memory, as a share of the state.

        `mirrors` holds the metadata of further sources. Raise RuntimeError if the state arrived wrong.
        """
        transport = self.transports[how]
        begin = time.perf_counter()
        if self.ours:
            further = [lambda m=m: m for m in mirrors]
            into = self.state if in_place else None
            got = transport.recv_checkpoint(0, metadata, step, 60.0, into=into, mirrors=further)
        else:
            got = transport.recv_checkpoint(0, metadata, step, timedelta(seconds=60))
        seconds = time.perf_counter() - begin
        last = f"w{len(self.state) - 1}"
        if not torch.equal(got[last], self.state[last]):
            raise RuntimeError("the state arrived wrong")
        return seconds, _extra(self.before, self.state)

    def used(self) -> float:
        return processor_seconds()

    def raw(self, port: int, streams: int) -> float:
        """Copy plain bytes over TCP, first into new memory, later into the same, and return the seconds."""
        from torchft_x.transfer.format.memory import allocate, memory_of

        new = self.buffer is None
        if new:
            self.buffer = memory_of(allocate(sum(x.nbytes for x in self.state.values())))
        begin = time.perf_counter()
        receive_raw(port, self.buffer, streams)
        seconds = time.perf_counter() - begin
        if new:
            self.before = _memory("VmRSS")
        return seconds


SLICE = 4 << 20  # bytes of one recv_into


def serve_raw(listener: socket.socket, data: memoryview) -> None:
    """Read two bytes (part, parts) from each connection, and send that part of `data`."""

    def answer(connection: socket.socket) -> None:
        with connection:
            part, parts = connection.recv(2)
            size = len(data) // parts
            connection.sendall(data[part * size : (part + 1) * size])

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def receive_raw(port: int, memory: memoryview, streams: int) -> None:
    """Fill `memory` from the raw port, over `streams` connections at a time."""
    size = len(memory) // streams

    def part(i: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as s:
            s.sendall(bytes([i, streams]))
            done, end = i * size, (i + 1) * size
            while done < end:
                done += s.recv_into(memory[done : min(done + SLICE, end)])

    threads = [threading.Thread(target=part, args=(i,)) for i in range(streams)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def processor_seconds() -> float:
    """Return the processor time of this process, in user and system mode."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _extra(before: float, state: dict[str, torch.Tensor]) -> float:
    return max(0.0, _memory("VmHWM") - before) / sum(x.nbytes for x in state.values())


def _memory(name: str) -> float:
    """Return a field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024.0
    raise RuntimeError(f"no {name}")


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--library", required=True)
    p.add_argument("--role", required=True)
    p.add_argument("--megabytes", type=int, required=True)
    p.add_argument("--tensors", type=int, default=64)
    p.add_argument("--host", default="127.0.0.1", help="of a source")
    args = p.parse_args()
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of the libraries goes to the log
    subject = {"source": Source, "receiver": Receiver}[args.role](args.library, args.megabytes, args.host, args.tensors)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(subject, name)(*arguments)), file=answers)
    os._exit(0)


if __name__ == "__main__":
    main()
