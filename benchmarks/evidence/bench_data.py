"""Measure what exact data costs: the state and the next batch of many groups, and the time added to a step.

    python -m benchmarks.evidence.bench_data state
    python -m benchmarks.evidence.bench_data step --pairs 30
    python -m benchmarks.evidence.bench_data reproducible

"state" is pure Python: 10^9 samples, 1,000 groups, 8 slots of 8 samples for each.

"step": two groups train 25 million parameters in two jobs side by side, one with `ElasticLoader` and one with a plain loop
over batches of the same size, in blocks that alternate. Both load in the training process. A pair is a block of each.
"reproducible": as "step", one job with reproducible steps and one with the policy strict alone; --slots for each group.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import time
import timeit
import warnings
from collections.abc import Callable, Iterator
from typing import Any

warnings.filterwarnings("ignore", message=".*NumPy.*")

import torch  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from benchmarks import LARGE, models  # noqa: E402
from benchmarks.stats import summarize  # noqa: E402
from torchft_x import DistributedDataParallel, ElasticLoader, Manager, Optimizer, ProcessGroupGloo  # noqa: E402
from torchft_x.core.data.deal import Claim, Deal, deal  # noqa: E402
from torchft_x.core.data.options import DataOptions, Policy  # noqa: E402
from torchft_x.core.data.permutation import permute  # noqa: E402
from torchft_x.core.data.ranges import members  # noqa: E402
from torchft_x.core.data.state import DataState, samples  # noqa: E402
from torchft_x.rpc.coordination import LighthouseServer  # noqa: E402

HOST = "127.0.0.1"
SAMPLES, GROUPS, SLOTS, BATCH = 10**9, 1000, 8, 8  # slots of each group
ROWS, ROW = 2048, 2048  # data set of "step"


def measure_state() -> None:
    options = DataOptions(Policy.CONSTANT, GROUPS * SLOTS, BATCH)
    claims = [Claim()] * GROUPS
    whole = deal(options, claims)
    state = DataState(17, SAMPLES, "0" * 64, epoch=3, cursor=SAMPLES - 10**6)
    owing = state
    for lost in (3, 141, 592, 653, 897):  # one group is lost in each of five steps
        held = [Claim(() if g == lost else whole.share(g)) for g in range(GROUPS)]
        without_it = deal(options, [c for c in held if c.held])
        owing = owing.commit(without_it.slots, options)
    print(f"state: {len(state.to_json())} bytes, {len(owing.to_json())} after a loss in each of five steps")
    for name, at in (("no debt", state), ("debt", owing)):
        first, whole_step = (_fastest(lambda at=at, n=n: _next(at, options, whole, n)) for n in (1, SLOTS))
        print(
            f"next batch of a group, {name}: {1e3 * first:.3f} ms; all {SLOTS} of its step: {1e3 * whole_step:.3f} ms"
        )
    print(f"deal among {GROUPS} groups, once a quorum: {1e3 * _fastest(lambda: deal(options, claims)):.3f} ms")


def _next(state: DataState, options: DataOptions, whole: Deal, count: int) -> list[list[int]]:
    """Commit a step, and return the indices of the first `count` batches of a group in the next one."""
    state = state.commit(whole.slots, options)
    slots = members(state.present(whole.share(GROUPS // 2), options))[:count]
    return [[permute(p, SAMPLES, 17, e) for e, p in samples(state.slot(slot, options))] for slot in slots]


def _fastest(what: Callable[[], object]) -> float:
    """Return the seconds of a call: the fastest of some series, which the machine's other users disturb least."""
    return min(timeit.repeat(what, number=20, repeat=20)) / 20


class Rows:
    """A data set of rows of random numbers."""

    def __init__(self) -> None:
        self._values = torch.randn(ROWS, ROW)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._values[index]


class Trained:
    """One job of one group."""

    def __init__(self, group: int, lighthouse: str, dataset: Rows, *, dealing: dict[str, Any] | None) -> None:
        torch.manual_seed(0)
        net, batch = models.make(LARGE)
        sgd = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)
        self._manager = Manager(
            pg=ProcessGroupGloo(120.0, host=HOST), min_replica_size=2, timeout=120.0, rank=0, world_size=1,
            load_state_dict=lambda s: (net.load_state_dict(s["net"]), sgd.load_state_dict(s["sgd"])),
            state_dict=lambda: {"net": net.state_dict(), "sgd": sgd.state_dict()}, store_addr=HOST, store_port=0,
            lighthouse_addr=lighthouse, replica_id=f"group_{group}", hostname=HOST, straggler_timeout=60.0,
            init_sync=False,
        )  # fmt: skip
        self._ddp = DistributedDataParallel(self._manager, net)
        self._optimizer = Optimizer(self._manager, sgd)
        size = len(batch)
        self._data = None
        if dealing is not None:
            sizes = {"global_batch": 2 * size, "micro_batch": size // dealing.pop("slots")}
            self._data = ElasticLoader(self._manager, dataset, **sizes, **dealing)
        drawn = torch.randint(ROWS, (10_000, size), generator=torch.Generator().manual_seed(group)).tolist()
        self._plain = iter(DataLoader(dataset, batch_sampler=drawn))  # type: ignore[arg-type]

    def step(self) -> tuple[float, float, float]:
        """Train a step. Return its seconds, its CPU seconds, and the CPU seconds until its batch was there."""
        began, cpu, loaded = time.perf_counter(), time.process_time(), 0.0
        self._optimizer.zero_grad()
        batches, asked = self._batches(), time.thread_time()
        for batch in batches:
            loaded += time.thread_time() - asked
            models.loss_of(self._ddp, batch).backward()
            asked = time.thread_time()
        loaded += time.thread_time() - asked
        self._optimizer.step()
        return time.perf_counter() - began, time.process_time() - cpu, loaded

    def _batches(self) -> Iterator[torch.Tensor]:
        if self._data is None:
            yield next(self._plain)
        else:
            yield from (micro.batch for micro in self._data.step())

    def close(self) -> None:
        self._manager.shutdown()


def group(number: int, lighthouses: list[str], dealings: list[Any], pairs: int, steps: int, out: Any) -> None:
    torch.set_num_threads(1)
    dataset = Rows()
    jobs = [Trained(number, at, dataset, dealing=how) for at, how in zip(lighthouses, dealings, strict=True)]
    found = []
    for pair in range(pairs + 1):
        block: dict[int, list[tuple[float, float, float]]] = {}
        for which in (0, 1) if pair % 2 else (1, 0):
            block[which] = [jobs[which].step() for _ in range(steps)]
        if pair:  # the first one warms up
            found.append([[statistics.median(x) for x in zip(*block[which], strict=True)] for which in (0, 1)])
    out.put(found)
    for job in jobs:
        job.close()


def measure_step(dealings: list[Any], pairs: int, steps: int) -> None:
    servers = [LighthouseServer(f"{HOST}:0", 2, 60_000) for _ in range(2)]
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    arguments = ([s.address() for s in servers], dealings, pairs, steps, out)
    groups = [context.Process(target=group, args=(n, *arguments), daemon=True) for n in range(2)]
    for process in groups:
        process.start()
    found = [pair for _ in groups for pair in out.get()]
    for process in groups:
        process.join()
    for server in servers:
        server.shutdown()
    print(f"{pairs} pairs of blocks of {steps} steps in each of two groups; load {os.getloadavg()[0]:.1f}")
    step, cpu, batch = (1e3 * statistics.median(p[0][at] for p in found) for at in range(3))
    print(f"a step of the first job: {step:.1f} ms, {cpu:.1f} ms of CPU time, {batch:.2f} ms of it for the batch")
    for name, at, base in (("time of a step", 0, 0), ("CPU time of a step", 1, 1), ("CPU time for the batch", 2, 1)):
        s = summarize([100 * (elastic[at] - plain[at]) / plain[base] for plain, elastic in found])
        assert s is not None
        print(f"added {name}: {s.median:+.2f} % of a step, 95 % interval {s.low:+.2f} to {s.high:+.2f} ({s.n} pairs)")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["state", "step", "reproducible"])
    p.add_argument("--pairs", type=int, default=30)
    p.add_argument("--steps", type=int, default=5, help="steps of a block")
    p.add_argument("--slots", type=int, default=8, help="reproducible: slots of a group, which share 32 rows")
    args = p.parse_args()
    strict = {"policy": "strict", "slots": args.slots}
    if args.what == "state":
        measure_state()
    else:
        dealings = [None, {"slots": 1}] if args.what == "step" else [strict, strict | {"reproducible": True}]
        measure_step(dealings, args.pairs, args.steps)


if __name__ == "__main__":
    sys.exit(main())
