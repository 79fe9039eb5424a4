"""One group of `exact_data --reference torchft`: torchft's own loop and sampler, which log the same lines.

Wrappers, sampler, loader and timeouts are those of torchft's train_ddp.py; heals go over torchft's default transport.
An epoch is counted by policy:

* "sampler_fresh" is that script as it stands: a new attempt starts its share anew, and training ends by what
  was committed. An epoch is what was trained until as many samples as the data set has were committed.
* "sampler" is the script with the advice in its comments: a group saves its loader's state after each step. Each group
  trains until it went `epochs` times through its share. An epoch is what all groups trained in their pass of that
  number, in whichever steps, so that a group that lags behind the others loses nothing by it.

A group that is through trains on until all are: otherwise the newest parameters could leave with it. What it trains
then belongs to a later epoch, which is not judged for missing samples.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo

from benchmarks.evidence.exact_worker import HOST, Count, Counts, Job, RankAttempt, Samples, redirect


class Client:
    """The Manager's client, and the last quorum it received: the Manager itself keeps no names of the members."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.quorum: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _quorum(self, **arguments: Any) -> Any:
        self.quorum = self._client._quorum(**arguments)
        return self.quorum


class Log:
    """Lines of one attempt, as `exact_worker.Log` writes them. A heal copies the quorum of the last commit.

    All members of the quorum contribute to a commit, because an allreduce succeeds only with all of them. A member that
    heals has a line without samples, because torchft sets its gradient to zero.
    """

    def __init__(self, job: Job, attempt: RankAttempt, manager: Manager) -> None:
        name = f"group{attempt.group}-attempt{attempt.number:04}-rank0.jsonl"
        self._file = (job.folder / name).open("w", buffering=1)
        self._who = {"who": manager._store.get("replica_id").decode(), "rank": 0, "ranks": 1}
        self._manager = manager
        self._client = manager._client = Client(manager._client)
        self._committed_in = 0
        manager.register_state_dict_fn("log", self._load, lambda: self._committed_in)

    def _load(self, committed_in: int) -> None:
        self._committed_in = committed_in

    def _write(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps({"kind": kind, **self._who, **values}) + "\n")

    def tries(self, samples: list[tuple[int, int]]) -> None:
        quorum = self._client.quorum.quorum_id
        self._write("try", step=self._manager.current_step(), quorum=quorum, samples=samples)

    def committed(self) -> None:
        quorum = self._client.quorum
        self._write(
            "commit", step=self._manager.current_step() - 1, committed_in=quorum.quorum_id, before=self._committed_in,
            contributors=quorum.replica_ids,
        )  # fmt: skip
        self._committed_in = quorum.quorum_id


class Share:
    """Batches of a group's share, pass after pass, and the state that it saves under the policy "sampler"."""

    def __init__(self, job: Job, attempt: RankAttempt) -> None:
        samples, batch = Samples(job.length), job.slots * job.batch // job.groups
        sampler = DistributedSampler(samples, attempt.group, job.groups, 0, 1, shuffle=True)
        self._loader = StatefulDataLoader(samples, batch_size=batch, num_workers=job.workers, sampler=sampler)
        self._file = job.folder / f"group{attempt.group}.loader"
        self.number = 0  # of the pass
        if job.policy == "sampler" and self._file.exists():
            state = torch.load(self._file)
            self.number = state["pass"]
            self._loader.load_state_dict(state["loader"])

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield from self._loader
            self.number += 1

    def save(self) -> None:
        made = self._file.with_suffix(".new")
        torch.save({"pass": self.number, "loader": self._loader.state_dict()}, made)
        os.replace(made, self._file)


def train(job: Job, attempt: RankAttempt, done: Any, stop: Any) -> None:
    """Train until all groups are through. `done[group]`: samples committed, once this attempt has committed a step."""
    redirect(job, attempt)
    net = Counts(job.length)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=1, timeout=timedelta(seconds=30),
        load_state_dict=lambda state: net.load_state_dict(state), state_dict=lambda: net.state_dict(), rank=0,
        world_size=1, store_addr=HOST, store_port=attempt.port, hostname=HOST, lighthouse_addr=attempt.lighthouse,
        replica_id=f"group_{attempt.group}",
    )  # fmt: skip
    model = DistributedDataParallel(manager, net)
    optimizer = Optimizer(manager, Count(net.parameters()))
    log, share = Log(job, attempt, manager), Share(job, attempt)
    fresh, batch = job.policy == "sampler_fresh", job.slots * job.batch // job.groups
    for indices in share:
        if (manager.batches_committed() * batch // job.length if fresh else share.number) >= job.epochs:
            (job.folder / f"group{attempt.group}.through").touch()
            if len(list(job.folder.glob("*.through"))) == job.groups:
                break
        optimizer.zero_grad()
        manager.wait_quorum()
        step = manager.current_step()
        epoch = manager.batches_committed() * batch // job.length if fresh else share.number
        log.tries([(epoch, index) for index in indices.tolist()] if manager.is_participating() else [])
        model(indices).backward()
        optimizer.step()
        if manager.current_step() > step:
            log.committed()
            done[attempt.group] = manager.batches_committed() * batch
        if not fresh:
            share.save()
    if done[attempt.group]:
        (job.folder / "last.counts").write_bytes(bytes(net.count.detach().to(torch.uint8).tolist()))
    manager.shutdown()
