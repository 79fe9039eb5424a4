"""Error feedback of DiLoCo: nothing that quantising leaves out is lost for good, whatever happens to exchanges."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.torch.train.apart import Weights, equal
from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import leave, lighthouse
from tests.torch.train.test_apart import start
from tests.torch.train.test_apart_faults import Watched, refuse
from torchft_x.train.local.diloco import DiLoCo
from torchft_x.train.local.error_feedback import ErrorFeedback


class Booked(Watched):
    """Writes down what each exchange should have brought and what it has."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert isinstance(self.loop, DiLoCo)
        (self.fragment,) = self.loop._fragments
        self.owed: list[Weights] = []  # by exchange: this group's pseudo-gradient
        self.applied: list[Weights] = []  # by exchange: the average that all got
        self._filled: Weights = []
        fill, apply = self.fragment.fill, self.fragment.apply

        def booked_fill(views: Sequence[torch.Tensor]) -> None:
            fill(views)
            self._filled = [view.clone() for view in views]

        def booked_apply(averages: Sequence[torch.Tensor]) -> None:
            self.owed.append(self._filled)
            self.applied.append([a.clone() for a in averages])
            apply(averages)

        self.fragment.fill, self.fragment.apply = booked_fill, booked_apply  # type: ignore[method-assign]

    def carried(self) -> torch.Tensor:
        assert self.fragment.feedback is not None
        return torch.cat([torch.zeros(0), *self.fragment.feedback._carried])


def flat(weights: Weights) -> torch.Tensor:
    """In the order of the flat buffer, which begins with the last parameter."""
    return torch.cat([w.reshape(-1) for w in reversed(weights)])


def balance(groups: Sequence[Booked]) -> tuple[torch.Tensor, torch.Tensor]:
    """(What was applied in all, what should have been); per value."""
    applied = sum(flat(a) for a in groups[0].applied)
    owed = sum(flat(o) / len(groups) for g in groups for o in g.owed)
    return applied, owed  # type: ignore[return-value]


def book(n: int, exchanges: int, **kwargs: Any) -> list[Booked]:
    with lighthouse(n) as addr:
        groups = run_threads(n, lambda g: Booked(g, addr, sync_every=2, **kwargs))
        run_threads(n, lambda g: groups[g].run_to(exchanges))
        leave(*groups)
    for g in groups:
        assert sorted(g.history) == list(range(1, exchanges + 1))
        assert all(equal(g.history[k], groups[0].history[k]) for k in g.history)
    return groups


@pytest.mark.parametrize(("n", "fmt", "delay"), [(2, "int8", 0), (3, "int4", 0), (2, "int4", 1)])
def test_all_that_was_left_out_is_applied_later_or_still_carried(n: int, fmt: str, delay: int) -> None:
    groups = book(n, 20, should_quantize=fmt, fragment_sync_delay=delay)
    applied, owed = balance(groups)
    carried = torch.stack([g.carried() for g in groups]).sum(0)
    assert carried.abs().max() > 0
    torch.testing.assert_close(applied + carried, owed, atol=2e-6, rtol=1e-5)
    largest = max(float(o.abs().max()) for g in groups for o in map(flat, g.owed))
    # As much as one exchange loses, not twenty: here all values are in two blocks (int8: one).
    assert carried.abs().max() < largest * (0.3 if fmt == "int4" else 0.02)


@pytest.mark.parametrize("delay", [0, 1])
def test_a_reduction_done_again_and_refused_exchanges_count_once(delay: int, pair_address: str) -> None:
    groups = run_threads(
        2, lambda g: Booked(g, pair_address, sync_every=2, should_quantize="int4", fragment_sync_delay=delay)
    )
    refused = refuse(groups[1], 3, 2)
    send = groups[1].manager.allreduce
    aborted: list[int] = []

    def break_one(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        work = send(tensor, *args, **kwargs)
        if "lost" in kwargs and groups[1].loop.exchanges == 6 and not aborted:
            aborted.append(1)
            groups[1].pg.abort()  # in the middle of the reduction
        return work

    groups[1].manager.allreduce = break_one  # type: ignore[method-assign]
    run_threads(2, lambda g: groups[g].run_to(10))
    assert len(refused) == 2
    assert aborted
    assert equal(groups[0].history[10], groups[1].history[10])
    applied, owed = balance(groups)
    torch.testing.assert_close(applied + groups[0].carried() + groups[1].carried(), owed, atol=2e-6, rtol=1e-5)


def test_a_group_that_resumes_begins_with_none(pair_address: str) -> None:
    groups = book(2, 3, should_quantize="int4")
    saved = copy.deepcopy(groups[0].loop.state_dict())
    assert groups[0].carried().numel()
    again = Booked(0, pair_address, sync_every=2, should_quantize="int4")
    again.loop.load_state_dict({**saved, "error_feedback": {"of": "group_0/0", "fragments": [[torch.ones(83)]]}})
    assert again.loop.exchanges == 3
    assert again.carried().numel() == 0  # a checkpoint of an earlier version has some
    leave(again)


def test_a_group_that_heals_goes_on_with_none() -> None:
    group = book(2, 3, should_quantize="int4")[0]
    assert group.carried().numel()
    group.loop._loop._load({"exchanges": 3})
    group.loop._loop._take_in_heal()
    assert group.carried().numel() == 0


def test_off_when_nothing_is_quantised_or_asked_for(address: str) -> None:
    for settings in ({}, {"should_quantize": False}, {"should_quantize": "int8", "error_feedback": False}):
        group = start(1, address, **settings)[0]
        assert isinstance(group.loop, DiLoCo)
        assert group.loop._fragments[0].feedback is None
        leave(group)


# --- by itself --------------------------------------------------------------------------------------------------------


def test_an_attempt_counts_with_its_commit_only() -> None:
    feedback, values = ErrorFeedback(), torch.tensor([1.0, 2.0])

    def attempt() -> torch.Tensor:
        sent = values.clone()
        (lost,) = feedback.start([sent], sends=True)
        feedback.add(0, sent)
        lost += 0.25
        return sent

    attempt()
    feedback.drop()
    feedback.commit()
    assert feedback._carried == []
    attempt()
    assert torch.equal(attempt(), values)  # again, after it broke
    feedback.commit()
    assert torch.equal(feedback._carried[0], torch.tensor([0.25, 0.25]))
    assert torch.equal(attempt(), values + 0.25)
    feedback.drop()
    assert torch.equal(feedback._carried[0], torch.tensor([0.25, 0.25]))
    zeros = torch.zeros(2)
    feedback.start([zeros], sends=False)[0].add_(1.0)  # it reduced others' values, and had none to send
    feedback.commit()
    assert torch.equal(zeros, torch.zeros(2))
    assert torch.equal(feedback._carried[0], torch.tensor([1.25, 1.25]))
    feedback.clear()
    assert feedback._carried == []


def test_what_a_narrow_type_rounds_away_is_carried_and_what_is_broken_is_not() -> None:
    feedback = ErrorFeedback()
    feedback._carried = [torch.tensor([2.0**-10, float(1)])]
    sent = torch.tensor([1.0, 1.0], dtype=torch.bfloat16)
    (lost,) = feedback.start([sent], sends=True)
    feedback.add(0, sent)
    assert sent.tolist() == [1.0, 2.0]
    lost[1] = float("nan")
    feedback.commit()
    assert feedback._carried[0].tolist() == [2.0**-10, 0.0]
