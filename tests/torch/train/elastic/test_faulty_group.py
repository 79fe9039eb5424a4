"""A group that computes other bits than the others is found by a slot that several groups compute, and named."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import HOST, Trainer, leave, lighthouse, model, same, two_by_two
from tests.util import scaled
from torchft_x.comm.votes.ranks import Decision
from torchft_x.core.commit.slot_check import SlotCheck, compared_slot, is_due
from torchft_x.core.data.deal import Claim, deal
from torchft_x.core.data.options import DataOptions, Policy
from torchft_x.core.types import State
from torchft_x.errors import CollectiveError, ConfigError, FaultyError
from torchft_x.observe.events import read_events
from torchft_x.train.elastic.loader import ElasticLoader
from torchft_x.train.elastic.sampler import ElasticSampler

EVERY, SLOTS = 4, 8
DEALING: dict[str, Any] = {
    "global_batch": 2 * SLOTS, "micro_batch": 2, "policy": "strict", "reproducible": True, "check_every": EVERY
}  # fmt: skip
DATA = torch.randn(160, 6, generator=torch.Generator().manual_seed(1))
LAST = 22
Fault = Callable[["Checked", int], None]
"""Called with a trainer and a slot before the forward of the slot."""


def checks_of(group: int, groups: int, since: int) -> list[int]:
    """Return the steps from `since` on in which this group's gradient of a slot is compared."""
    options = DataOptions(Policy.STRICT, SLOTS, 2, check_every=EVERY)
    dealt = deal(options, [Claim()] * groups)
    steps = range(since, since + 20 * EVERY)
    return [s for s in steps if SlotCheck().slot(State(s, 1), options, dealt, group) is not None]


def flip(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with one other bit in its first element."""
    changed = tensor.detach().clone()
    changed.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 3)
    return changed


class Checked(Trainer):
    """Trainer that computes its slots, and calls `fault` before each."""

    def __init__(self, group: int, address: str, **kwargs: Any) -> None:
        super().__init__(group, address, net=model(7), **kwargs)
        self.data = ElasticSampler(self.manager, len(DATA), **DEALING)
        self.computed: dict[int, list[int]] = {}  # slots by step

    @property
    def weight(self) -> torch.nn.Parameter:
        found = next(iter(self.net.parameters()))
        assert isinstance(found, torch.nn.Parameter)
        return found

    def train(self, fault: Fault | None = None, last: int = LAST) -> str:
        """Train to step `last`, and return the sentence with which the group had to end; empty: it has trained to the end."""
        try:
            while (step := self.manager.current_step()) < last:
                self.optimizer.zero_grad()
                for micro in self.data.step():
                    slot = self.manager.steps.data.slot
                    if fault is not None and slot is not None:
                        fault(self, slot)
                    self.computed.setdefault(step, []).append(-1 if slot is None else slot)
                    self.model(DATA[micro.indices]).square().mean().backward()
                self.finish_step()
        except FaultyError as e:
            self.manager.shutdown(finished=False)
            return str(e)
        return ""


def once(since: int, act: Callable[[Checked], object]) -> Fault:
    """Act before the first slot of step `since`."""

    def fault(t: Checked, slot: int) -> None:
        if t.manager.current_step() == since and not struck:
            struck.append(slot)
            act(t)

    struck: list[int] = []
    return fault


def in_parameter(t: Checked) -> None:
    t.weight.data.copy_(flip(t.weight))


def in_moment(t: Checked) -> None:
    moment = t.optim.state[t.weight]["exp_avg"]
    moment.copy_(moment * 2)  # a bit of the exponent; a low one may be rounded away in the parameter


def in_each_gradient(t: Checked) -> None:
    t.weight.register_hook(flip)


def in_each_product(t: Checked) -> None:
    def hook(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output + (flip(output) - output).detach()

    t.net[0].register_forward_hook(hook)


def in_the_compared_gradient(since: int) -> Fault:
    """Fault in one gradient: that of the slot that is compared in step `since`, computed for the first time."""
    wanted = compared_slot(State(since, 1), DataOptions(Policy.STRICT, SLOTS, 2, check_every=EVERY))

    def fault(t: Checked, slot: int) -> None:
        if t.manager.current_step() == since and slot == wanted and not struck:
            struck.append(slot)
            t.weight.register_hook(hook)

    def hook(grad: torch.Tensor) -> torch.Tensor:
        struck.append(wanted)
        return flip(grad) if len(struck) == 2 else grad

    struck: list[int] = []
    return fault


def reasons(run_dir: Path) -> list[tuple[int, str]]:
    """Return step and sentence of the errors that rank 0 of group 0 has reported."""
    events = [e for e in read_events(run_dir) if e["event"] == "error" and e["group"] == "group_0" and e["rank"] == 0]
    return [(e["step"], e["reason"]) for e in events]


def run(groups: int, fault: Fault | None, faulty: int = 1, last: int = LAST) -> tuple[list[Checked], list[str]]:
    least = max(1, groups - 1)
    with lighthouse(least) as address:
        trainers = run_threads(groups, lambda g: Checked(g, address, min_replica_size=least))
        ends = run_threads(groups, lambda g: trainers[g].train(fault if g == faulty else None, last), timeout=240)
        leave(*[t for t, end in zip(trainers, ends, strict=True) if not end])
    return trainers, ends


@pytest.fixture(scope="module")
def alone() -> dict[str, torch.Tensor]:
    """The parameters of a single group without a fault."""
    (trainer,), (end,) = run(1, None)
    assert end == ""
    return {name: value.clone() for name, value in trainer.net.state_dict().items()}


FIRST = checks_of(1, 3, since=6)[0]


def test_without_a_fault_nothing_is_said(run_dir: Path, alone: dict[str, torch.Tensor]) -> None:
    """The group that compares another's slot computes it before its own ones, and it counts once."""
    trainers, ends = run(3, None)
    assert ends == ["", "", ""]
    assert reasons(run_dir) == []
    assert all(same(t.net.state_dict(), alone) for t in trainers)
    for step in range(LAST):
        due = is_due(State(step, 1), DataOptions(Policy.STRICT, SLOTS, 2, check_every=EVERY))
        assert sum(len(t.computed[step]) for t in trainers) == SLOTS + due


@pytest.mark.parametrize(
    "fault", [once(FIRST, in_each_gradient), once(FIRST, in_each_product), in_the_compared_gradient(FIRST)],
    ids=["each gradient", "each product", "one gradient"],
)  # fmt: skip
def test_the_group_that_computes_wrong_gradients_ends(
    fault: Fault, run_dir: Path, alone: dict[str, torch.Tensor]
) -> None:
    """No step with the wrong gradient is committed."""
    trainers, ends = run(3, fault)
    assert [bool(end) for end in ends] == [False, True, False]
    assert f"another gradient, in step {FIRST}. Its host {HOST} probably computes wrong results" in ends[1]
    (at, first), (then, why) = reasons(run_dir)
    assert (at, then) == (FIRST, FIRST)
    assert first.endswith("the step is computed again, and that slot by all groups")
    assert why.startswith(f"group group_1 ({HOST}) computes wrong gradients: that of slot ")
    assert all(same(t.net.state_dict(), alone) for t in (trainers[0], trainers[2]))


def test_a_faulty_group_that_misses_the_end_of_the_roll_call_is_told_again(run_dir: Path) -> None:
    """The others need not compute the slot for that."""

    def fault(t: Checked, slot: int) -> None:
        act(t, slot)
        vote = t.manager.steps._vote
        if not calls and t.manager.current_step() == FIRST:
            call_roll, vote._call_roll = vote._call_roll, lambda *args: miss(call_roll(*args))  # type: ignore[method-assign]
            calls.append("none yet")

    def miss(found: Decision) -> Decision:
        calls.append("faulty" if found.faulty else "not")
        if calls[1:] == ["not", "faulty"]:
            raise CollectiveError("the quorum was revoked")
        return found

    calls: list[str] = []
    act = once(FIRST, in_each_gradient)
    _, ends = run(3, fault)
    assert f"another gradient, in step {FIRST}. Its host" in ends[1]
    assert calls[1:] == ["not", "faulty", "faulty"]


def test_two_groups_know_which_was_wrong_once(run_dir: Path, alone: dict[str, torch.Tensor]) -> None:
    since = checks_of(1, 2, since=6)[0]
    trainers, ends = run(2, in_the_compared_gradient(since))
    assert [bool(end) for end in ends] == [False, True]
    assert same(trainers[0].net.state_dict(), alone)


def test_two_groups_that_always_differ_train_on_with_a_sentence(run_dir: Path) -> None:
    since = checks_of(1, 2, since=6)[0]
    trainers, ends = run(2, once(since, in_each_gradient), last=since + 2)
    assert ends == ["", ""]
    assert "no majority says which is right; more groups would say it" in reasons(run_dir)[1][1]
    assert same(trainers[0].net.state_dict(), trainers[1].net.state_dict())


@pytest.mark.parametrize(("act", "name"), [(in_parameter, "0.weight"), (in_moment, "0.weight")])
def test_a_group_whose_state_is_wrong_copies_it(act: Callable[[Checked], object], name: str, run_dir: Path) -> None:
    """A gradient that differs leads to a comparison of all of the state, which explains it."""
    trainers, ends = run(3, once(FIRST - 1, act))
    assert ends == ["", "", ""]
    said = [why for _, why in reasons(run_dir)]
    assert f"group group_1 ({HOST}) differ from those of 2 others: group group_1 ({HOST}) copies them" in said[1]
    assert said[2] == f"the first tensor that differs on this rank is {name}"
    assert len(said) == 3
    assert all(same(t.net.state_dict(), trainers[0].net.state_dict()) for t in trainers)


def test_all_ranks_of_a_faulty_group_end(run_dir: Path, address: str) -> None:
    """Two groups of two ranks. A rank of group 1 is wrong once."""
    since = checks_of(1, 2, since=6)[0]
    fault, all_there = in_the_compared_gradient(since), threading.Barrier(4)

    def body(i: int, t: Trainer) -> str:
        checked = Checked.__new__(Checked)
        checked.__dict__.update(t.__dict__)
        checked.data, checked.computed = ElasticSampler(t.manager, len(DATA), **DEALING), {}
        all_there.wait(scaled(20))
        return checked.train(fault if i == 3 else None)

    ends = two_by_two(address, body)
    assert [bool(end) for end in ends] == [False, False, True, True]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_loads_the_compared_slot(workers: int, pair_address: str) -> None:
    def train(g: int) -> int:
        trainer = Trainer(g, pair_address, net=model(7))
        data, extra = ElasticLoader(trainer.manager, DATA, num_workers=workers, **DEALING), 0
        while trainer.manager.current_step() < 2 * EVERY:
            trainer.optimizer.zero_grad()
            for micro in data.step():
                assert torch.equal(micro.batch, DATA[micro.indices])
                extra += not micro.counts
                trainer.model(micro.batch).square().mean().backward()
            trainer.finish_step()
        data.close()
        leave(trainer)
        return extra

    assert sum(run_threads(2, train)) >= 2  # two checks; and what doesn't count for another reason


@pytest.mark.parametrize("wrong", [{"check_every": 1}, {"reproducible": False}])
def test_what_cannot_be_compared_is_refused(wrong: dict[str, Any], address: str) -> None:
    trainer = Trainer(0, address)
    with pytest.raises(ConfigError, match="needs reproducible=True"):
        ElasticSampler(trainer.manager, 10, **{**DEALING, **wrong})
    leave(trainer)
