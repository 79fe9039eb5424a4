"""A trainer on command, for times that are shorter than a start: empty steps, and steps with and without the library.

The process reads one JSON list per line (name, arguments) and answers with one JSON line. There is one process per rank
of each group, and steps.py sends all of them the same command at the same time. The Pythons of both libraries run this
program.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from benchmarks import SMALL, models  # noqa: E402
from benchmarks.adapter import Adapter, manager_options  # noqa: E402


class Empty:
    """Steps without a gradient: start_quorum and should_commit."""

    def __init__(self, library: str, options: dict[str, Any]) -> None:
        model, _ = models.make(SMALL)
        self.adapter = Adapter(library, model, torch.optim.SGD(model.parameters(), lr=0.0), **options)
        self.dropped = 0

    def groups(self) -> int:
        self._step()
        return self.adapter.manager.num_participants()

    def _step(self) -> None:
        self.adapter.manager.start_quorum()
        self.dropped += not self.adapter.manager.should_commit()

    def steps(self, number: int) -> list[float]:
        return [_timed(self._step) for _ in range(number)]


class Overhead:
    """One model twice: in torch's DistributedDataParallel over gloo, and in the library's."""

    def __init__(self, library: str, options: dict[str, Any], size: str, store_port: int) -> None:
        group = int(os.environ["REPLICA_GROUP_ID"])
        store = dist.TCPStore("127.0.0.1", store_port, is_master=group == 0, timeout=timedelta(seconds=60))
        dist.init_process_group("gloo", store=store, rank=group, world_size=2)
        torch.manual_seed(0)
        model, self.batch = models.make(size)
        self.plain = torch.nn.parallel.DistributedDataParallel(model)
        self.optim = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        model, _ = models.make(size)
        self.adapter = Adapter(library, model, torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9), **options)
        self.dropped = 0

    def groups(self) -> int:
        self._ft()
        return self.adapter.manager.num_participants()

    def _plain(self) -> None:
        self.optim.zero_grad()
        models.loss_of(self.plain, self.batch).backward()
        self.optim.step()

    def _ft(self) -> None:
        self.adapter.optimizer.zero_grad()
        models.loss_of(self.adapter.ddp, self.batch).backward()
        self.dropped += not self.adapter.step()

    def steps(self, which: str, number: int) -> list[float]:
        step = self._plain if which == "plain" else self._ft
        return [_timed(step) for _ in range(number)]


class Sharded:
    """One model twice, sharded by FSDP2 over the ranks of a group.

    Gradients of the first are reduced between the groups by plain all-reduces after backward, of the second by the
    library.
    """

    def __init__(self, options: dict[str, Any], size: str, store_port: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        import torchft_x

        group, rank = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["RANK"])
        ranks = int(os.environ["WORLD_SIZE"])
        rank_of_all = group * ranks + rank
        store = dist.TCPStore("127.0.0.1", store_port, is_master=rank_of_all == 0, timeout=timedelta(seconds=60))
        dist.init_process_group("gloo", store=store, rank=rank_of_all, world_size=2 * ranks)
        mesh = init_device_mesh("cpu", (2, ranks), mesh_dim_names=("groups", "shards"))
        self.between = mesh["groups"].get_group()
        self.plain, self.batch = _sharded(size, mesh["shards"])
        self.optim = torch.optim.SGD(self.plain.parameters(), lr=1e-4, momentum=0.9)
        model, _ = _sharded(size, mesh["shards"])
        optim = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        shards = torchft_x.ShardedState(model, optim)
        self.manager = torchft_x.Manager(
            pg=torchft_x.ProcessGroupGloo(), load_state_dict=shards.load_state_dict, state_dict=shards.state_dict,
            min_replica_size=1, replica_id=str(group), **options,
        )  # fmt: skip
        self.model = torchft_x.HybridShardedDataParallel(self.manager, model)
        self.optimizer = torchft_x.Optimizer(self.manager, optim)
        self.dropped = 0

    def groups(self) -> int:
        self._ft()
        return int(self.manager.num_participants())

    def _plain(self) -> None:
        self.optim.zero_grad()
        models.loss_of(self.plain, self.batch).backward()
        grads = [p.grad.to_local() for p in self.plain.parameters()]  # type: ignore[union-attr]
        works = [dist.all_reduce(g, group=self.between, async_op=True) for g in grads]
        for work, grad in zip(works, grads, strict=True):
            work.wait()  # type: ignore[union-attr]
            grad.div_(2)
        self.optim.step()

    def _ft(self) -> None:
        before = self.manager.current_step()
        self.optimizer.zero_grad()
        models.loss_of(self.model, self.batch).backward()
        self.optimizer.step()
        self.dropped += self.manager.current_step() == before

    def steps(self, which: str, number: int) -> list[float]:
        step = self._plain if which == "plain" else self._ft
        return [_timed(step) for _ in range(number)]


def _sharded(size: str, mesh: Any) -> tuple[torch.nn.Module, torch.Tensor]:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model, batch = models.make(size)
    for layer in model.children():
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh), batch


def _timed(step: Callable[[], None]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--library", required=True)
    p.add_argument("--options", default="{}", help="more arguments of the Manager, as JSON")
    p.add_argument("--size", help="compare with plain DDP; without it: empty steps")
    p.add_argument("--store-port", type=int)
    args = p.parse_args()
    torch.set_num_threads(1)
    options = json.loads(args.options)
    out = os.dup(1)
    os.dup2(2, 1)  # output of the libraries goes to the log
    answers = os.fdopen(out, "w", buffering=1)
    unknown = set(options) - manager_options(args.library)
    if unknown:
        print(json.dumps({"unknown": sorted(unknown)}), file=answers)
        return
    if args.size is None:
        subject: Empty | Overhead | Sharded = Empty(args.library, options)
    elif os.environ.get("WORLD_SIZE", "1") != "1":
        subject = Sharded(options, args.size, args.store_port)
    else:
        subject = Overhead(args.library, options, args.size, args.store_port)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(subject.dropped if name == "dropped" else getattr(subject, name)(*arguments)), file=answers)
    os._exit(0)  # skip the libraries' shutdown, which is not measured


if __name__ == "__main__":
    main()
