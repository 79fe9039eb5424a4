"""One rank of `exact_data`: the training script. It trains a model that counts, and logs its samples by itself."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore", message=".*NumPy.*")

import torch  # noqa: E402
import torch._dynamo  # noqa: E402  # imported once for all forks, as the first optimizer of a process imports it
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from torchft_x import (  # noqa: E402
    Checkpoint,
    DiLoCo,
    DistributedDataParallel,
    DistributedSampler,
    ElasticLoader,
    HybridShardedDataParallel,
    Manager,
    Optimizer,
    ProcessGroupGloo,
    ShardedState,
    observe,
)

HOST = "127.0.0.1"
SAMPLERS = ("sampler", "sampler_fresh")


@dataclass(frozen=True)
class Job:
    """What all attempts of all groups share. `policy`: one of `ElasticSampler`, or one of SAMPLERS, for comparison.

    "sampler" is torchft's sampler with the loader's position in the Manager's state, so that a heal copies it. With
    "sampler_fresh" each attempt starts its share anew, as in torchft's train_ddp.py. `exact_torchft` has both, too.
    """

    folder: Path
    layout: str  # ddp, hsdp2x2 or diloco
    groups: int  # groups at the start
    ranks: int  # ranks of a group
    length: int
    epochs: int
    policy: str
    tail: str
    slots: int  # diloco: inner steps between two exchanges
    batch: int
    workers: int
    every: int  # steps between two checkpoints
    reproducible: bool = False  # train a model of real numbers, whose final bits are compared
    check_every: int = 0  # steps between two comparisons of a slot


@dataclass(frozen=True)
class RankAttempt:
    """One rank of one attempt of its group."""

    group: int
    number: int  # of the attempt
    rank: int
    port: int  # of the group's store
    lighthouse: str


class Samples:
    """A data set whose samples are their own indices."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Counts(nn.Module):
    """Parameters that count how often each sample was trained, in all epochs together.

    The loss is a mean, so its gradient is 1/n at each of the batch's n samples.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.count = nn.Parameter(torch.zeros(length))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.count[indices].mean()


class Learner(nn.Module):
    """A model whose gradients have other bits if they are summed in another order."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.Embedding(997, 24)
        self.net = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 1))

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return (self.net(self.rows(indices % 997)).squeeze(1) - torch.sin(indices.float())).square().mean()


class Count(torch.optim.Optimizer):
    """Adds to each count how often its sample is in the gradient: a sample that is in it once has the least value."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        (param,) = self.param_groups[0]["params"]
        mine, grad = (t.to_local() if hasattr(t, "to_local") else t for t in (param, param.grad))
        where = grad.nonzero().squeeze(1)
        if len(where):
            found = grad[where]
            times = found.abs() / found.abs().min()  # DiLoCo's pseudo-gradients are negative
            torch.testing.assert_close(times, times.round(), msg="the samples of a step have different weights")
            mine[where] += times.round()


class Log:
    """Lines of one attempt: what it tries in each step, and what is committed."""

    def __init__(self, job: Job, attempt: RankAttempt, manager: Manager) -> None:
        name = f"group{attempt.group}-attempt{attempt.number:04}-rank{attempt.rank}.jsonl"
        self._file = (job.folder / name).open("w", buffering=1)
        self._who = {"who": manager.context.connection.replica_id, "rank": attempt.rank, "ranks": job.ranks}
        self._manager = manager
        self._apart = job.layout == "diloco"
        self._contributors: dict[int, tuple[str, ...]] = {}  # by quorum
        self._before = manager.context.step.state  # state from which the step in hand starts
        self.rounds = 0  # commits and heals of groups that train apart, with which their samples begin anew
        observe.subscribe(self._take)

    def _write(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps({"kind": kind, **self._who, **values}) + "\n")

    def tries(self, samples: list[tuple[int, int]]) -> None:
        """Log the samples of this step that count, before its last backward.

        Groups that train apart log all samples since the last commit. They ask for the quorum only after that.
        """
        if self._apart:
            self._write("try", step=self._manager.current_step(), quorum=0, samples=samples)
        elif quorum := self._learn():
            self._before = self._manager.context.step.top
            self._write("try", step=self._before.step, quorum=quorum, samples=samples)

    def committed(self) -> None:
        state = self._manager.context.step.state
        self._write(
            "commit", step=state.step - 1, committed_in=state.committed_in, before=self._before.committed_in,
            contributors=self._contributors[state.committed_in],
        )  # fmt: skip

    def _start_round(self, state: Any) -> None:
        """Begin a round of inner steps at `state`. The next exchange may come before the first of them."""
        self._before = state
        self.rounds += 1
        self._write("try", step=state.step, quorum=0, samples=[])

    def _learn(self) -> int:
        """Remember the contributors of the quorum in hand, and return its id; 0 if there is none (a rehearsal)."""
        round = self._manager.steps.round
        if round is None or round.role is None:
            return 0
        role = round.role
        self._contributors[role.quorum.id] = role.plan.carriers if self._apart else role.part.contributors
        return role.quorum.id

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind in ("quorum", "redo", "commit"):
            self._learn()  # after "redo" the try is the one before
        if self._apart and kind == "heal_end" and self._manager.steps.round is not None:
            self._start_round(self._manager.steps.round.role.plan.top)  # the state that has come
        if self._apart and kind == "commit":
            self.committed()
            self._start_round(self._manager.context.step.state)
        if kind in ("redo", "adopt", "drop", "new_lineage"):
            self._write(kind, step=event.get("step"))


class Sampled:
    """A loop over torchft's sampler, for comparison. `state_dict` has the position, as StatefulDataLoader's has it."""

    def __init__(self, job: Job, attempt: RankAttempt) -> None:
        self._job, self._batch = job, job.slots * job.batch // job.groups
        self._sampler = DistributedSampler(Samples(job.length), attempt.group, job.groups, 0, 1, shuffle=True)
        self.epoch = self.drawn = 0
        self._share: list[int] = []
        self._shared = -1  # epoch of `_share`

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "drawn": self.drawn}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.drawn = state["epoch"], state["drawn"]

    @property
    def samples_done(self) -> int:
        return self.epoch * self._job.length + self.drawn * self._job.groups

    def step(self) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Yield the next batch of this group's share: epochs and indices."""
        if self._shared != self.epoch:
            self._sampler.set_epoch(self.epoch)
            self._share, self._shared = list(self._sampler), self.epoch
        found = self._share[self.drawn : self.drawn + self._batch]
        yield [self.epoch] * len(found), torch.tensor(found)
        self.drawn += self._batch
        if self.drawn + self._batch > len(self._share):  # like drop_last=True, so that all batches have one size
            self.epoch, self.drawn = self.epoch + 1, 0


class Dealt:
    """A loop over `ElasticLoader`."""

    def __init__(self, job: Job, attempt: RankAttempt, manager: Manager) -> None:
        sizes: dict[str, Any] = {} if job.policy == "shrink" else {"global_batch": job.slots * job.batch}
        self._length = job.length
        self._data = ElasticLoader(
            manager, Samples(job.length), micro_batch=job.batch, policy=job.policy, tail=job.tail, rank=attempt.rank,
            ranks=job.ranks, num_workers=job.workers, reproducible=job.reproducible, check_every=job.check_every, **sizes,
        )  # fmt: skip

    @property
    def epoch(self) -> int:
        return self._data.epoch

    @property
    def samples_done(self) -> int:
        at = self._data.position
        return at.epoch * self._length + at.cursor - at.owed

    def step(self) -> Iterator[tuple[list[int], torch.Tensor]]:
        """Yield the micro batches of this step: epochs and indices. Epochs are empty if the batch does not count."""
        for micro in self._data.step():
            yield [s.epoch for s in micro.samples] if micro.counts else [], micro.batch


def train(job: Job, attempt: RankAttempt, done: Any, stop: Any) -> None:
    """Train until all epochs are complete. `done[group]`: samples committed, once this attempt has committed a step."""
    redirect(job, attempt)
    (_train_apart if job.layout == "diloco" else _train_together)(job, attempt, done, stop)


def redirect(job: Job, attempt: RankAttempt) -> None:
    """Write what this process prints into the group's log, and set its threads and its seed."""
    with (job.folder / f"group{attempt.group}.log").open("ab") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    torch.set_num_threads(1)
    torch.manual_seed(attempt.group)


def _train_together(job: Job, attempt: RankAttempt, done: Any, stop: Any) -> None:
    net: nn.Module = Learner() if job.reproducible else Counts(job.length)
    if job.ranks > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = dist.TCPStore(HOST, attempt.port, None, False, timedelta(seconds=60))
        store = dist.PrefixStore("default", store)
        dist.init_process_group("gloo", store=store, rank=attempt.rank, world_size=job.ranks)
        fully_shard(net)
    optim = torch.optim.AdamW(net.parameters(), lr=1e-3) if job.reproducible else Count(net.parameters())
    state = ShardedState(net, optim)
    manager = _manager(job, attempt, state.load_state_dict, state.state_dict)
    model = (HybridShardedDataParallel if job.ranks > 1 else DistributedDataParallel)(manager, net)
    optimizer = Optimizer(manager, optim)
    data: Dealt | Sampled
    if job.policy in SAMPLERS:
        data = Sampled(job, attempt)
        if job.policy == "sampler":
            manager.register_state_dict_fn("loader", data.load_state_dict, data.state_dict)
    else:
        data = Dealt(job, attempt, manager)
    parts = {"model": net, "optim": optim, **({"loader": data} if job.policy == "sampler" else {})}
    checkpoint = _resumed(job, manager, parts)
    log = Log(job, attempt, manager)
    leaves = False
    while data.epoch < job.epochs and not leaves:
        optimizer.zero_grad()
        samples: list[tuple[int, int]] = []
        for epochs, indices in data.step():
            samples += zip(epochs, indices.tolist(), strict=False)
            if manager.steps.data.next_slot is None:
                log.tries(samples if manager.is_participating() else [])
            model(indices).backward()
        optimizer.step()
        if optimizer.committed:
            log.committed()
            if attempt.rank == 0:
                done[attempt.group] = data.samples_done
        if checkpoint is not None:
            checkpoint.step()
        leaves = _any_rank(stop[attempt.group], job.ranks)
    count = None if job.reproducible else net.count.full_tensor() if job.ranks > 1 else net.count
    if job.reproducible and not leaves:
        bits = torch.cat([p.detach().flatten().view(torch.uint8) for p in net.parameters()])
        digest = hashlib.sha256(bytes(bits.tolist())).hexdigest()
        (job.folder / f"group{attempt.group}.digest").write_text(f"{manager.current_step()} {digest}")
    _end(job, attempt, manager, checkpoint, count, leaves=leaves)


def _train_apart(job: Job, attempt: RankAttempt, done: Any, stop: Any) -> None:
    net = Counts(job.length)
    inner, outer = Count(net.parameters()), Count(net.parameters())
    manager = _manager(job, attempt, None, None, use_async_quorum=False)
    data = Dealt(job, attempt, manager)
    loop = DiLoCo(manager, [net], inner, outer, sync_every=job.slots)
    checkpoint = _resumed(job, manager, {"loop": loop, "inner": inner})
    log = Log(job, attempt, manager)
    log.tries([])  # the first commit of an attempt may be one without samples
    leaves = False
    with loop:
        samples: list[tuple[int, int]] = []
        while data.epoch < job.epochs and not leaves:
            inner.zero_grad()
            for epochs, indices in data.step():
                samples += zip(epochs, indices.tolist(), strict=False)
                net(indices).backward()
            log.tries(samples)
            rounds = log.rounds
            inner.step()
            if log.rounds > rounds:
                samples = []
                done[attempt.group] = data.samples_done
            if checkpoint is not None:
                checkpoint.step()
            leaves = bool(stop[attempt.group])
    _end(job, attempt, manager, checkpoint, loop.global_parameters[0]["count"], leaves=leaves)


def _manager(job: Job, attempt: RankAttempt, load: Any, save: Any, **options: Any) -> Manager:
    return Manager(
        pg=ProcessGroupGloo(20.0, host=HOST), load_state_dict=load, state_dict=save, min_replica_size=1, timeout=30.0,
        quorum_timeout=60.0, connect_timeout=60.0, rank=attempt.rank, world_size=job.ranks, store_addr=HOST,
        store_port=attempt.port, hostname=HOST, lighthouse_addr=attempt.lighthouse,
        replica_id=f"group_{attempt.group}", **options,
    )  # fmt: skip


def _resumed(job: Job, manager: Manager, parts: dict[str, Any]) -> Checkpoint | None:
    if not job.every:
        return None
    checkpoint = Checkpoint(manager, str(job.folder / "checkpoints"), parts, every=job.every)
    checkpoint.resume()
    return checkpoint


def _end(
    job: Job,
    attempt: RankAttempt,
    manager: Manager,
    save: Checkpoint | None,
    count: torch.Tensor | None,
    *,
    leaves: bool,
) -> None:
    """Write the final counts unless the group leaves before the end, and end."""
    if attempt.rank == 0 and not leaves and count is not None:
        raw = bytes(count.detach().to(torch.uint8).tolist())
        # With those, groups end at different steps.
        name = "last" if job.policy in SAMPLERS else f"group{attempt.group}"
        (job.folder / f"{name}.counts").write_bytes(raw)
    if save is not None:
        save.close()
    manager.shutdown(finished=not leaves)
    if job.ranks > 1:
        dist.destroy_process_group()


def _any_rank(flag: int, ranks: int) -> bool:
    """Return whether the flag is set on a rank of the group: ranks that compute together must leave together."""
    if ranks == 1:
        return bool(flag)
    flags = torch.tensor([flag])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    return bool(flags)
