"""What goes wrong between groups that train apart, with every exchange recomputed from what the groups held."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.train.apart import LR, MOMENTUM, LocalTrainer, Weights, equal, near, reference
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import leave, lighthouse
from tests.torch.train.test_apart import check, start
from tests.util import scaled
from torchft_x.core.heal import WorldSizeMode
from torchft_x.errors import StepError
from torchft_x.observe.events import read_events


class Watched(LocalTrainer):
    """Remembers the weights after each of its own inner steps, before they are exchanged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.local: dict[int, Weights] = {}  # by inner step of this attempt, from 0
        self.sent: dict[int, Weights] = {}  # by exchange
        self.inner.register_step_post_hook(lambda *_: self.local.__setitem__(self.steps, self.weights()))

    def note(self) -> None:
        super().note()
        if self.local:
            self.sent[self.loop.exchanges] = self.local[max(self.local)]


def refuse(group: LocalTrainer, exchange: int, times: int) -> list[int]:
    """Let a group refuse some attempts of the exchange after `exchange`. Return its inner steps at each, so far."""
    refused: list[int] = []
    end_pass = group.manager.steps.end_pass

    def refusing(*args: Any) -> bool:
        if group.loop.exchanges == exchange and len(refused) < times:
            refused.append(group.steps)
            group.manager.report_error(RuntimeError("not now"))
        return end_pass(*args)

    group.manager.steps.end_pass = refusing  # type: ignore[method-assign]
    return refused


def explain(groups: list[Watched], who: Callable[[int], list[int]], exchanges: int, begin: Weights) -> None:
    """Each exchange is the outer step over the average of those who took part in it, and of nobody else."""
    by_group = {g.group: g for g in groups}
    common, momentum = begin, [torch.zeros_like(t) for t in begin]
    for k in range(1, exchanges + 1):
        members = [by_group[g] for g in who(k)]
        for i, value in enumerate(common):
            average = sum(value - g.sent[k][i] for g in members) / len(members)
            momentum[i] = average if k == 1 else MOMENTUM * momentum[i] + average
            common[i] = value - LR * (average + MOMENTUM * momentum[i])
        for g in groups:
            if k in g.history:
                near(g.history[k], common)
                common = [t.clone() for t in g.history[k]]
    for k in range(1, exchanges + 1):
        held = [g.history[k] for g in groups if k in g.history]
        assert held
        assert all(equal(h, held[0]) for h in held)


def test_a_group_that_begins_has_the_global_weights_and_counts_from_its_own_first_step(address: str) -> None:
    made: list[Watched] = []
    inside, here, left = threading.Event(), threading.Event(), threading.Event()
    a = Watched(0, address, sync_every=3)
    begin = a.weights()

    def first() -> None:
        with a.loop:
            while a.loop.exchanges < 2:
                a.step()
            a.step()  # in the middle of a period
            inside.set()
            assert here.wait(scaled(20))
            while not left.is_set():
                a.step()

    def second() -> None:
        assert inside.wait(scaled(20))
        made.append(Watched(1, address, sync_every=3, seed=7))
        here.set()
        with made[0].loop:
            assert made[0].steps == 0
            made[0].note()
            for _ in range(9):
                made[0].step()
        made[0].manager.shutdown()
        left.set()

    run_threads(2, lambda i: second() if i else first())
    b, arrived = made[0], min(made[0].history)
    assert arrived >= 3
    assert sorted(b.sent) == [arrived + 1, arrived + 2, arrived + 3]  # nothing in the one that it arrived with
    explain([a, b], lambda k: [0, 1] if k in b.sent else [0], a.loop.exchanges, begin)


@pytest.mark.parametrize("delay", [1, 3])
def test_a_reduction_that_breaks_is_done_again_with_the_same_pseudo_gradients(delay: int, pair_address: str) -> None:
    """Both groups' process groups are torn down while the second exchange is on the way."""
    groups = start(2, pair_address, sync_every=4, fragment_sync_delay=delay)

    def run(g: int) -> None:
        with groups[g].loop:
            for step in range(12):
                if g and step == 7:
                    groups[g].pg.abort()
                groups[g].step()

    run_threads(2, run)
    check(groups, 12, sync_every=4, delay=delay)


@pytest.mark.parametrize("algorithm", ["diloco", "local_sgd"])
def test_an_exchange_that_is_refused_loses_no_inner_step(algorithm: str, pair_address: str) -> None:
    """Every attempt of the second exchange is refused by a group, three times: weights stay, and it comes later."""
    groups = run_threads(2, lambda g: Watched(g, pair_address, algorithm=algorithm, sync_every=3))
    begin = groups[0].weights()
    refused = refuse(groups[1], 1, 3)
    before: dict[int, list[Weights]] = {0: [], 1: []}

    def run(g: int) -> None:
        with groups[g].loop:
            while groups[g].loop.exchanges < 4:
                groups[g].step()
                if groups[g].loop.exchanges == 1:
                    before[g].append(groups[g].weights())

    run_threads(2, run)
    assert len(refused) == 3
    assert groups[1].steps > 12  # three of the second exchange's attempts came to nothing
    for g in groups:
        # Whatever was refused, each inner step went on from the one before.
        for one, two in zip(before[g.group][1:], before[g.group][2:], strict=False):
            assert not equal(one, two)
        for k, found in g.history.items():
            assert equal(found, groups[0].history[k])
    if algorithm == "diloco":
        explain(list(groups), lambda _: [0, 1], 4, begin)
    else:
        for k in range(1, 5):
            near(groups[0].history[k], [(x + y) / 2 for x, y in zip(*(g.sent[k] for g in groups), strict=True)])


def test_groups_that_stand_at_different_exchanges_are_told(pair_address: str) -> None:
    groups = start(2, pair_address, sync_every=2, manager={"init_sync": False})
    groups[1].loop._loop.schedule.exchanges = 5

    def body(g: int) -> str:
        with pytest.raises(StepError) as error:
            groups[g].run(3)
        return str(error.value)

    said = run_threads(2, body)
    assert all("resume all of them from the same checkpoint" in s for s in said)


def test_a_checkpoint_goes_on_where_it_was(pair_address: str) -> None:
    groups = start(2, pair_address, sync_every=3)
    run_threads(2, lambda g: groups[g].run(6))
    leave(*groups)
    saved = [(g.loop.state_dict(), g.inner.state_dict(), g.manager.state_dict()) for g in groups]  # type: ignore[union-attr]
    with lighthouse(2) as another:
        again = start(2, another, sync_every=3, seed=9)

        def body(g: int) -> None:
            loop, inner, manager = saved[g]
            again[g].loop.load_state_dict(loop)  # type: ignore[union-attr]
            again[g].inner.load_state_dict(inner)
            again[g].manager.load_state_dict(manager)
            again[g].steps = 6
            again[g].run(6)

        run_threads(2, body)
        leave(*again)
    want, _ = reference(2, 12, sync_every=3)
    for g in again:
        assert sorted(g.history) == [3, 4]
        near(g.history[4], want[3])
        assert equal(g.history[4], again[0].history[4])


class GoneError(Exception):
    """The group has left."""


def leave_while_it_sends(group: Watched) -> None:
    """Its next reduction of weights, not the census, is where it leaves."""
    real = group.pg.allreduce

    def allreduce(tensors: list[torch.Tensor], opts: Any = None) -> Any:
        if tensors[0].dtype is torch.float64:
            return real(tensors, opts)
        group.manager.shutdown(finished=False)
        raise GoneError

    group.pg.allreduce = allreduce  # type: ignore[method-assign]


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_spare_that_counts_sends_its_work_again(leaver: int, run_dir: Path, pair_address: str) -> None:
    """I9: the census weighs the exchanges, so that a group's number may change."""
    options = {"min_replica_size": 2, "world_size_mode": WorldSizeMode.FIXED_WITH_SPARES}
    groups = run_threads(3, lambda g: Watched(g, pair_address, sync_every=2, manager=options))
    begin = groups[0].weights()

    def body(i: int) -> None:
        group = groups[i]
        with group.loop:
            while group.loop.exchanges < 3:
                if group.loop.exchanges == 1 and i == leaver:
                    leave_while_it_sends(group)
                try:
                    group.step()
                except Exception:
                    if i != leaver:
                        raise
                    return

    run_threads(3, body)
    stayed = [g for g in groups if g.group != leaver]
    ids = [g.group for g in stayed]
    explain(groups, lambda k: [0, 1] if k == 1 else ids, 3, begin)
    redone = {str(e["group"]) for e in read_events(run_dir) if e["event"] == "redo"}
    assert redone == {f"group_{g}" for g in ids}
