"""A gradient counts only in the part for which it was computed (I9): the weights tell whose batches were used.

Nobody copies parameters that a script moves inside a step, and nothing computed there is reduced again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import HOST, Trainer, leave, lighthouse, loss_of, same
from tests.util import scaled, wait_for
from torchft_x.comm.store.create import host_store
from torchft_x.core.heal import WorldSizeMode
from torchft_x.observe.events import read_events
from torchft_x.train.optim import OptimizerWrapper

BATCHES: dict[int | None, float] = {0: 1.0, 1: 1e3, 2: 1e6, None: 1e9}  # by number; the last must never count
SPARES: dict[str, Any] = {"min_replica_size": 2, "world_size_mode": WorldSizeMode.FIXED_WITH_SPARES}
LATE: dict[str, Any] = {"vote_in_backward": False}


class One(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, batch: float) -> torch.Tensor:
        return self.w * batch


class Numbered(Trainer):
    """Chooses its batch by its number, with the rate 1."""

    def __init__(self, group: int, address: str, **kwargs: Any) -> None:
        super().__init__(group, address, net=One(), **kwargs)
        self.optim = torch.optim.SGD(self.net.parameters(), lr=1.0)
        self.optimizer = OptimizerWrapper(self.manager, self.optim)
        self.moves: dict[int, float] = {}  # by how much each committed step has moved the weight

    @property
    def weight(self) -> float:
        value: torch.Tensor = self.net.w  # type: ignore[assignment]
        return value.item()

    def train(self, until: int, meet: threading.Barrier | None = None, *, at: int = -1, leaves: bool = False) -> None:
        """Train to step `until`. At the step `at` wait for the others that have computed; who `leaves` goes there."""
        while self.manager.current_step() < until:
            self.optimizer.zero_grad()
            step, number = self.manager.current_step(), self.manager.participating_rank()
            loss, before = self.model(BATCHES[number]), self.weight
            if step == at and meet is not None:
                meet.wait(scaled(20))
                meet = None
                if leaves:
                    self.manager.shutdown(finished=False)
                    return
            loss.backward()
            self.optimizer.step()
            if self.optimizer.committed:
                self.moves[step] = before - self.weight


def a_loss(folder: Path, leaver: int, *, ranks: int = 1, **kwargs: Any) -> tuple[float, list[str]]:
    """One of three groups leaves in step 3. Returns how that step moves the weight of the others, and who redoes it."""
    meet = threading.Barrier(3 * ranks)
    stores = [host_store(HOST)[0] for _ in range(3)]

    def start(i: int) -> Numbered:
        group, rank = divmod(i, ranks)
        store = {"rank": rank, "world_size": ranks, "store_port": stores[group].port} if ranks > 1 else {}
        return Numbered(group, address, **store, **kwargs)

    with lighthouse(2) as address:
        trainers = run_threads(3 * ranks, start)
        run_threads(3 * ranks, lambda i: trainers[i].train(5, meet, at=3, leaves=i // ranks == leaver))
        stayed = [t for t in trainers if t.group != leaver]
        run_threads(len(stayed), lambda i: stayed[i].manager.shutdown())
    assert all(t.moves == stayed[0].moves for t in stayed)
    redone = {str(e["group"]) for e in read_events(folder) if e["event"] == "redo" and e["step"] == 3}
    return stayed[0].moves[3], sorted(redone)


@pytest.mark.parametrize(
    ("leaver", "ranks", "options", "counted", "redone"),
    [
        # The spare computes anew for the number that it gets. Who has the same number as before keeps its gradient;
        # without group 0 group 1 is number 0, and the spare number 1.
        (0, 1, SPARES, (0, 1), []),
        (1, 1, SPARES, (0, 1), ["group_0"]),
        (0, 1, SPARES | LATE, (0, 1), []),
        (1, 1, SPARES | LATE, (0, 1), ["group_0"]),
        (1, 2, SPARES, (0, 1), ["group_0"]),
        # Without spares nobody new counts: both keep what they have computed, so that no batch is lost (R15).
        (0, 1, {}, (1, 2), ["group_1", "group_2"]),
        # Who votes late may have clipped its gradients, and cannot keep them.
        (0, 1, LATE, (0, 1), []),
    ],
)
def test_when_a_group_leaves_each_batch_counts_once(
    leaver: int, ranks: int, options: dict[str, Any], counted: tuple[int, int], redone: list[str],
    run_dir: Path,
) -> None:  # fmt: skip
    """`counted`: the numbers whose batches move the weight in that step; all ranks of a group decide alike."""
    move, found = a_loss(run_dir, leaver, ranks=ranks, **options)
    assert move == sum(BATCHES[number] for number in counted) / 2
    assert found == redone


@pytest.mark.parametrize("group", [0, 1])
def test_who_copies_its_state_in_its_first_quorum_computes_anew_when_it_counts(group: int, address: str) -> None:
    """Its first step, with the one that stayed alone at the top, is too small to be committed."""
    pair = run_threads(2, lambda g: Numbered(g, address, min_replica_size=2))
    run_threads(2, lambda g: pair[g].train(3))
    pair[group].manager.shutdown(finished=False)
    stays = pair[1 - group]

    def body(i: int) -> Numbered:
        if i == 0:
            stays.train(6)
            return stays
        wait_for(lambda: stays.manager.num_participants() == 1, 20, "a quorum of one")
        comes = Numbered(group, address, min_replica_size=2)
        comes.train(6)
        return comes

    both = run_threads(2, body)
    for trainer in both:
        assert {step: trainer.moves[step] for step in (3, 4, 5)} == dict.fromkeys(
            (3, 4, 5), (BATCHES[0] + BATCHES[1]) / 2
        )


AT, LAST = 3, 8  # the step in which one of two groups leaves, and the last one


class SharpnessAware(Trainer):
    """Computes each step's gradient a little way up the slope, and takes the step from where it started."""

    def step(self, hook: Callable[[], None] | None = None) -> bool:
        self.optimizer.zero_grad()
        step = self.manager.current_step()
        with self.model.no_sync():
            loss_of(self.model, self.group, step).backward()
        before = [p.detach().clone() for p in self.net.parameters()]
        with torch.no_grad():
            for p in self.net.parameters():
                p.add_(p.grad, alpha=0.05)
                p.grad = None
        if hook is not None:
            hook()
        loss_of(self.model, self.group, step).backward()
        with torch.no_grad():
            for p, old in zip(self.net.parameters(), before, strict=True):
                p.copy_(old)
        return self.finish_step()


@pytest.mark.parametrize("options", [{}, {"use_async_quorum": False}, {"vote_in_backward": False}], ids=str)
def test_a_newcomer_copies_the_committed_parameters(options: dict[str, Any], run_dir: Path) -> None:
    meet, gone = threading.Barrier(2), threading.Event()

    def run(attempt: int) -> SharpnessAware | None:
        if attempt == 2:
            assert gone.wait(scaled(30))
        trainer = SharpnessAware(min(attempt, 1), address, seed=0, min_replica_size=2, **options)

        def leave_in_the_middle() -> None:
            meet.wait(scaled(20))
            trainer.manager.shutdown(finished=False)
            gone.set()
            raise InterruptedError

        try:
            trainer.run_to(AT)
            if attempt < 2:
                trainer.step([lambda: meet.wait(scaled(20)), leave_in_the_middle][attempt])
            trainer.run_to(LAST)
        except InterruptedError:
            return None
        return trainer

    with lighthouse(2) as address:
        stayed, _, came = run_threads(3, run)
        both = stayed.history.keys() & came.history.keys()
        assert both == set(range(AT + 1, LAST + 1))
        assert all(same(stayed.history[step], came.history[step]) for step in both)
        leave(stayed, came)
    assert not [e for e in read_events(run_dir) if e["event"] == "redo"]
