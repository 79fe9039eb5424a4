#!/usr/bin/env python
"""Quantised all-reduce against float32, in interleaved rounds, with medians and ratios at the end.

python -m benchmarks.evidence.bench_quantized --values 8000000 --size 2             # all members on this machine
python -m benchmarks.evidence.bench_quantized --rank 0 --store 10.0.0.1:29600 ...   # one member, on its own machine
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
import warnings

warnings.filterwarnings("ignore", message=".*NumPy.*")

import torch  # noqa: E402
from torch.distributed import ReduceOp  # noqa: E402

from torchft_x.comm import ProcessGroupGloo  # noqa: E402
from torchft_x.comm.quantized.collectives import allreduce_quantized  # noqa: E402
from torchft_x.comm.store.create import host_store, split_store_address  # noqa: E402

WAYS = ("float32", "int8", "int4")


def member(args: argparse.Namespace) -> None:
    """Run all rounds as member `args.rank`; rank 0 prints the results."""
    torch.set_num_threads(1)
    address, _ = split_store_address(args.store)
    store = host_store(address.host, 60.0, address.port) if args.rank == 0 else None
    host = args.host or address.host
    group = ProcessGroupGloo(300.0, host=host)
    deadline = time.monotonic() + 60
    while True:
        try:
            group.configure(f"{args.store}/bench", f"rank{args.rank}", args.rank, args.size, 1)
            break
        except RuntimeError:  # rank 0 does not serve the store yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    x = torch.randn(args.values, generator=torch.Generator().manual_seed(args.rank))
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    for round in range(args.rounds + 1):
        for way in WAYS:
            t = x.clone()
            group.allreduce([torch.zeros(1)]).wait()  # all begin together
            began = time.perf_counter()
            if way == "float32":
                group.allreduce([t]).wait()
            else:
                allreduce_quantized([t], ReduceOp.SUM, group, quantize=way).wait()
            if round:  # the first round warms up
                took[way].append(time.perf_counter() - began)
    if args.rank == 0:
        plain = took["float32"]
        for way, times in took.items():
            ratio = statistics.median(a / b for a, b in zip(times, plain, strict=True))
            print(f"{way:8s} median {1e3 * statistics.median(times):8.1f} ms, {ratio:.2f} x float32")
    group.allreduce([torch.zeros(1)]).wait()
    group.shutdown()
    del store


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--values", type=int, default=8_000_000, help="float32 values of the tensor")
    p.add_argument("--size", type=int, default=2, help="number of members")
    p.add_argument("--rounds", type=int, default=10)
    p.add_argument("--rank", type=int, help="be this member only")
    p.add_argument("--store", default="127.0.0.1:29611", help="HOST:PORT where rank 0 serves the store")
    p.add_argument("--host", help="this member's own address; rank 0: the store's")
    args = p.parse_args()
    if args.rank is not None:
        member(args)
        return
    others = [
        subprocess.Popen([sys.executable, "-m", "benchmarks.evidence.bench_quantized", *sys.argv[1:], "--rank", str(r)])
        for r in range(1, args.size)
    ]
    args.rank = 0
    try:
        member(args)
    finally:
        for other in others:
            other.wait()


if __name__ == "__main__":
    main()
