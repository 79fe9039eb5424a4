#!/usr/bin/env python
"""GB/s of HTTPTransport between two processes on loopback, against raw TCP of the same run.

    python -m benchmarks.evidence.bench_transfer [--megabytes 1024] [--rounds 10] [--streams 1 2 4]

Every variant receives the same bytes into memory that was touched before, since cold pages would measure the
hypervisor. The variants are interleaved round by round. The table shows best and median GB/s (1e9 bytes), and the
ratios of both to raw TCP with two streams.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable

warnings.filterwarnings("ignore", message=".*NumPy.*")

import torch  # noqa: E402

from torchft_x.transfer import HTTPTransport  # noqa: E402
from torchft_x.transfer.format.memory import allocate, memory_of  # noqa: E402

SLICE = 4 << 20  # bytes per recv_into of the raw variant
TENSORS = 64


def make_state(megabytes: int) -> dict[str, torch.Tensor]:
    size = (megabytes << 20) // 4 // TENSORS
    return {f"w{i}": torch.full((size,), float(i)) for i in range(TENSORS)}


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


def source(megabytes: int) -> None:
    """Serve the state as the other process.

    It prints the raw port and the transport's metadata. For each line on stdin it freezes the state under the step in
    the line, so that no digest of an earlier heal is reused, and prints the seconds of that.
    """
    torch.set_num_threads(1)
    state = make_state(megabytes)
    raw = allocate(megabytes << 20).fill_(1)
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve_raw, args=(listener, memory_of(raw)), daemon=True).start()
    transport: HTTPTransport[dict[str, torch.Tensor]] = HTTPTransport(60.0, host="127.0.0.1")
    print(listener.getsockname()[1], transport.metadata(), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        transport.send_checkpoint([], int(line), state, 60.0)
        print(time.perf_counter() - start, flush=True)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--source", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.source:
        return source(args.megabytes)
    torch.set_num_threads(1)
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "benchmarks.evidence.bench_transfer",
        "--source",
        "--megabytes",
        str(args.megabytes),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        port, metadata = other.stdout.readline().split()
        into = make_state(args.megabytes)
        memory = memory_of(allocate(args.megabytes << 20).fill_(0))
        variants: dict[str, Callable[[int], object]] = {}
        for n in args.streams:
            variants[f"raw TCP, {n} streams"] = lambda step, n=n: receive_raw(int(port), memory, n)
            for digest in (False, True):
                t: HTTPTransport[dict[str, torch.Tensor]] = HTTPTransport(60.0, n, digest=digest)
                name = f"HTTPTransport, {n} streams, {'digest' if digest else 'no digest'}"
                variants[name] = lambda step, t=t: t.recv_checkpoint(0, metadata, step, 60.0, into=into)
        seconds: dict[str, list[float]] = {name: [] for name in variants}
        frozen: list[float] = []
        step = 0
        for round_number in range(args.rounds + 1):
            for name, run in variants.items():
                step += 1
                print(step, file=other.stdin, flush=True)
                frozen.append(float(other.stdout.readline()))
                start = time.perf_counter()
                run(step)
                if round_number:  # the first round only warms up
                    seconds[name].append(time.perf_counter() - start)
        other.stdin.close()
    report(seconds, args.megabytes, frozen)


def report(seconds: dict[str, list[float]], megabytes: int, frozen: list[float]) -> None:
    size = (megabytes << 20) / 1e9
    base = seconds.get("raw TCP, 2 streams") or next(iter(seconds.values()))
    print(f"{megabytes} MiB; snapshot: {frozen[0]:.3f} s into new memory, then {statistics.median(frozen[1:]):.3f} s")
    print(f"{'':42}{'best GB/s':>10}{'median':>8}{'ratio of best':>15}{'of medians':>12}")
    for name, values in seconds.items():
        median = statistics.median(values)
        print(
            f"{name:42}{size / min(values):10.2f}{size / median:8.2f}"
            f"{min(base) / min(values):15.2f}{statistics.median(base) / median:12.2f}"
        )


if __name__ == "__main__":
    main()
