"""The lighthouse as a process: its time to the first answer, its memory, and its processor time per heartbeat."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import Bench, Measured, interleave
from benchmarks.libraries import Library
from benchmarks.processes import Child, GaveUp, cpu_seconds, listens, memory_mb, wait_for
from benchmarks.stats import Goal
from tests.util import free_port
from torchft_x.launch.process import process_tree
from torchft_x.rpc.proto import torchft_pb2 as peer_pb
from torchft_x.rpc.transport import grpc_options

import grpc  # isort: skip  (our room sets its environment first)

BOUND = 60.0
_HEARTBEATS = 2000


class Served:
    """A running lighthouse. `ready` holds the seconds from its start to its first answer."""

    def __init__(self, library: Library, folder: Path, *more: str) -> None:
        port = free_port()
        self.bind = f"127.0.0.1:{port}"
        log = folder / f"lighthouse-{library.key}-{port}.log"
        began = time.monotonic()
        self._child = Child(library.lighthouse(self.bind, *more), library.environment(), log, folder)
        try:
            wait_for(lambda: listens(self.bind), BOUND, "the lighthouse listens", poll=0.001)
            _ask(self.bind)
        except BaseException:
            self.stop()
            raise
        self.ready = time.monotonic() - began

    def memory(self) -> float:
        """Return the resident memory in 1e6 bytes. Ours has two processes: the server and its restarting parent."""
        return sum(memory_mb(pid) for pid in (self._child.pid, *process_tree.descendants(self._child.pid)))

    def heartbeat(self, number: int) -> float:
        """Return the processor seconds per heartbeat, of `number` unary ones in sequence."""
        beat = peer_pb.LighthouseHeartbeatRequest(replica_id="bench:1").SerializeToString()
        with grpc.insecure_channel(self.bind, options=[("grpc.enable_http_proxy", 0)]) as channel:
            call = channel.unary_unary(f"/{grpc_options.LIGHTHOUSE}/Heartbeat")
            for _ in range(50):
                call(beat, timeout=BOUND, wait_for_ready=True)
            before = self._cpu()
            for _ in range(number):
                call(beat, timeout=BOUND)
            return (self._cpu() - before) / number

    def _cpu(self) -> float:
        return sum(cpu_seconds(pid) for pid in (self._child.pid, *process_tree.descendants(self._child.pid)))

    def stop(self) -> None:
        self._child.kill()


def _ask(bind: str) -> None:
    """Call a method that the server lacks, which changes no state of either library, and return when it answers."""
    with grpc.insecure_channel(bind, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(f"/{grpc_options.LIGHTHOUSE}/Nothing")(b"", timeout=BOUND, wait_for_ready=True)
        except grpc.RpcError as e:
            if e.code() != grpc.StatusCode.UNIMPLEMENTED:
                raise GaveUp(f"the lighthouse at {bind} does not answer: {e.details()}") from None


@dataclass(frozen=True)
class Start:
    """Measurements of one lighthouse."""

    ready: float
    """Seconds from the start to the first answer."""
    memory: float
    """Resident memory in 1e6 bytes, idle."""
    heartbeat: float
    """Processor seconds of the server per unary heartbeat."""


def start_once(library: Library) -> Start:
    folder = Path(tempfile.mkdtemp(prefix="bench-lighthouse-"))
    try:
        served = Served(library, folder)
        time.sleep(0.2)  # the memory includes the work right after the start
        try:
            return Start(served.ready, served.memory(), served.heartbeat(_HEARTBEATS))
        finally:
            served.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_lighthouse(bench: Bench) -> list[Measured]:
    pairs = interleave(bench, start_once)
    note = "; ".join(pairs.failures)
    ready = Measured("lighthouse.ready", "lighthouse: process start -> first answer", "s", goal=Goal(0.5), note=note)
    memory = Measured("lighthouse.memory", "lighthouse: memory, idle", "MB", goal=Goal(80.0))
    beat = Measured("lighthouse.heartbeat", "lighthouse: processor time of a unary heartbeat (torchft's clients)", "us")
    return [
        pairs.fill(ready, lambda x: x.ready, bench),
        pairs.fill(memory, lambda x: x.memory, bench),
        pairs.fill(beat, lambda x: 1e6 * x.heartbeat, bench),
    ]
