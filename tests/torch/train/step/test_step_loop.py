"""What becomes of a step that fails: adopted, committed late, reduced again, or dropped (R12-R15)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.torch.train.fakes import run_threads
from tests.torch.train.jobs import Trainer, batch, lighthouse, loss_of, near, reference, same, two_by_two
from tests.util import wait_for
from torchft_x.errors import CollectiveError, ConfigError, StepError
from torchft_x.observe.events import read_events


class Lost:
    """A collective that has worked everywhere, but this rank doesn't hear of it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.inner.wait()
        raise CollectiveError("the connection broke at the last moment")


def lose(trainer: Trainer, what: Callable[[torch.Tensor], bool] = lambda tensor: True, *, always: bool = False) -> None:
    """Let the next reduction of `trainer` that is `what` be lost for it, or each one from now on."""
    real = trainer.pg.allreduce

    def allreduce(tensors: list[torch.Tensor], opts: Any = None) -> Any:
        work = real(tensors, opts)
        if not what(tensors[0]):
            return work
        if not always:
            trainer.pg.allreduce = real  # type: ignore[method-assign]
        return Lost(work)

    trainer.pg.allreduce = allreduce  # type: ignore[method-assign]


def lose_vote(trainer: Trainer) -> None:
    """The next vote is held, and `trainer` does not hear how it ended."""
    votes = trainer.manager._context.peers.all_min
    real = votes.minimum

    def minimum(row: Sequence[int], timeout: float, meanwhile: Callable[[], None]) -> list[int]:
        votes.minimum = real  # type: ignore[method-assign]
        votes.minimum(row, timeout, meanwhile)
        raise CollectiveError("the connection broke at the last moment")

    votes.minimum = minimum  # type: ignore[method-assign]


def clipped_step(t: Trainer) -> bool:
    t.optimizer.zero_grad()
    loss_of(t.model, t.group, t.manager.current_step()).backward()
    torch.nn.utils.clip_grad_norm_(t.net.parameters(), 0.01)
    return t.finish_step()


def in_microbatches(t: Trainer) -> bool:
    """A step whose backwards are somebody else's calls, as in a pipeline: accumulated, then averaged in one go."""
    t.optimizer.zero_grad()
    data = batch(t.group, t.manager.current_step())
    with t.model.no_sync():
        for part in data.chunk(2):
            (t.model(part).square().mean() / 2).backward()
    t.model.reduce_gradients()
    torch.nn.utils.clip_grad_norm_(t.net.parameters(), 1e6)
    return t.finish_step()


def attempts(t: Trainer, until: int, step: Callable[[Trainer], bool] = Trainer.step) -> list[bool]:
    """Return whether each of its steps was committed until it stood at `until`."""
    said = []
    while t.manager.current_step() < until:
        said.append(step(t))
    return said


class Pair:
    """Two groups that have committed two steps, and their events."""

    def __init__(self, address: str, folder: Path, **kwargs: Any) -> None:
        self.folder = folder
        self.a, self.b = self.both = run_threads(2, lambda g: Trainer(g, address, **kwargs))
        self.run_to(2)

    def run_to(self, step: int) -> None:
        run_threads(2, lambda g: self.both[g].run_to(step))

    def attempts(self, until: int, step: Callable[[Trainer], bool] = Trainer.step) -> list[list[bool]]:
        return run_threads(2, lambda g: attempts(self.both[g], until, step))

    def events(self, name: str) -> list[str]:
        """Groups that emitted it since then."""
        events = [e for e in read_events(self.folder) if e["event"] == name and e["step"] >= 2]
        return sorted(str(e["group"]) for e in events)

    def check(self, like_one_process: bool = True) -> None:
        """Both committed the same, and what one process would have."""
        want = reference(2, max(self.a.history))
        for step, state in self.a.history.items():
            assert same(state, self.b.history[step]), step
            if like_one_process:
                near(state, want[step - 1])


@contextlib.contextmanager
def training(folder: Path, **kwargs: Any) -> Iterator[Pair]:
    with lighthouse(2) as address:
        pair = Pair(address, folder, **kwargs)
        yield pair
        run_threads(2, lambda g: pair.both[g].manager.shutdown())


@pytest.fixture(params=[True, False], ids=["async", "sync"])
def pair(run_dir: Path, request: pytest.FixtureRequest) -> Any:
    with training(run_dir, use_async_quorum=request.param) as pair:
        yield pair


BOTH = ["group_0", "group_1"]
AGAIN = {"redo": BOTH, "drop": [], "adopt": []}


@pytest.mark.parametrize(
    ("reduction", "votes", "step", "events"),
    [
        # Who did not hear the vote commits late.
        (False, "b", Trainer.step, {"adopt": ["group_1"], "drop": [], "heal_begin": []}),
        (False, "ab", Trainer.step, {"adopt": BOTH}),  # a result that may have been committed is adopted
        (True, "", Trainer.step, AGAIN),
        (True, "", in_microbatches, AGAIN),
        (True, "a", Trainer.step, {}),
        (True, "", clipped_step, {"redo": BOTH}),  # before backward returns
        (False, "b", clipped_step, {}),
    ],
)
def test_what_is_lost_is_reduced_again_or_committed_late(
    pair: Pair, reduction: bool, votes: str, step: Callable[[Trainer], bool], events: dict[str, list[str]]
) -> None:
    """A step's reduction is lost for group b, or how its vote ended for the groups in `votes`: no group drops it."""
    assert pair.attempts(3, step) == [[True]] * 2
    if reduction:
        lose(pair.b)
    for group in votes:
        lose_vote(pair.a if group == "a" else pair.b)
    assert pair.attempts(6, step) == [[True] * 3] * 2
    assert {name: pair.events(name) for name in events} == events
    pair.check(like_one_process=step is not clipped_step)


def test_results_that_differ_are_not_committed(pair: Pair) -> None:
    """And are reduced again: the digest says nothing about the gradients."""
    loop = pair.b.manager.steps
    real = loop.end_pass

    def spoil(good: bool, *rest: Any) -> None:
        loop.end_pass = real  # type: ignore[method-assign]
        loop.reductions.works[0].digest += 1
        real(good, *rest)

    loop.end_pass = spoil  # type: ignore[method-assign]
    assert pair.attempts(4) == [[True, True]] * 2
    assert pair.events("redo") == ["group_0", "group_1"]
    assert same(pair.a.net.state_dict(), pair.b.net.state_dict())


def test_a_step_with_other_reductions_is_computed_again(pair: Pair) -> None:
    """A group that starts the step anew issues all of its reductions, so the others must, too."""

    def step(t: Trainer) -> bool:
        t.optimizer.zero_grad()
        t.manager.allreduce(torch.ones(1)).wait()
        loss_of(t.model, t.group, t.manager.current_step()).backward()
        return t.manager.should_commit() and not t.optim.step()

    lose(pair.b, lambda tensor: tensor.numel() > 1)
    assert pair.attempts(4, step) == [[False, True, True]] * 2
    assert pair.events("redo") == []
    assert same(pair.a.net.state_dict(), pair.b.net.state_dict())


# --- decided inside backward ------------------------------------------------------------------------------------------


def begin(t: Trainer) -> None:
    t.optimizer.zero_grad()
    loss_of(t.model, t.group, t.manager.current_step()).backward()


def test_what_happens_after_backward_changes_nothing(pair: Pair) -> None:
    """R13: a vote that has passed is the decision. Here the quorum is over before should_commit."""

    def step(t: Trainer) -> bool:
        begin(t)
        if not told[t.group]:
            told[t.group].append(True)
            role = t.manager.steps.role
            assert role is not None
            t.manager._failures.on_over(role.quorum.id, (), "somebody died")
        return t.manager.should_commit() and not t.optim.step()

    told: dict[int, list[bool]] = {0: [], 1: []}
    assert pair.attempts(5, step) == [[True] * 3] * 2
    assert pair.events("drop") == pair.events("redo") == pair.events("adopt") == []
    assert same(pair.a.net.state_dict(), pair.b.net.state_dict())


def test_the_number_of_the_step_changes_with_should_commit(pair: Pair) -> None:
    run_threads(2, lambda g: begin(pair.both[g]))
    assert [t.manager.current_step() for t in pair.both] == [2, 2]
    assert run_threads(2, lambda g: pair.both[g].manager.should_commit()) == [True, True]
    assert [t.manager.current_step() for t in pair.both] == [3, 3]


class Against:
    """Makes some groups throw away the first step they decide, as scripts do."""

    def __init__(self, groups: set[int], way: str) -> None:
        self.groups = groups
        self.way = way

    def step(self, t: Trainer) -> bool:
        begin(t)
        against = t.group in self.groups
        self.groups.discard(t.group)
        if against and self.way == "skip":
            return False  # zero_grad of the next step comes instead
        if against:
            t.manager.report_error(RuntimeError("the gradients look odd"))
        committed = t.manager.should_commit()
        if committed:
            t.optim.step()
            t.remember()
        return committed


@pytest.mark.parametrize("way", ["report", "skip"])
def test_who_throws_a_decided_step_away_copies_it_from_the_others(pair: Pair, way: str) -> None:
    said = pair.attempts(5, Against({1}, way).step)
    assert said[1][0] is False
    assert said[0] == [True] * 3
    assert pair.events("heal_begin") == ["group_1"]
    assert not pair.b.manager._context.step.torn
    assert same(pair.a.history[5], pair.b.history[5])
    assert all(t.manager.steps.need_round().votes_late for t in pair.both)


@pytest.mark.parametrize("way", ["report", "skip"])
def test_a_decided_step_that_everybody_throws_away_is_computed_again(pair: Pair, way: str) -> None:
    assert pair.attempts(5, Against({0, 1}, way).step) == [[False, True, True, True]] * 2
    assert pair.events("heal_begin") == []
    pair.check()


def test_thrown_away_steps_count_as_failed(run_dir: Path) -> None:
    with training(run_dir, max_retries=0) as pair:

        def body(g: int) -> None:
            with pytest.raises(StepError, match=r"max_retries is 0.*thrown away.*look odd"):
                Against({0, 1}, "report").step(pair.both[g])

        run_threads(2, body)


@pytest.mark.parametrize("against", [(2,), (2, 3)], ids=["one rank", "both ranks"])
def test_a_group_of_ranks_that_throws_a_step_away_copies_it(
    run_dir: Path, against: tuple[int, ...], pair_address: str
) -> None:
    """I2: what one rank has thrown away and the other has committed is no state, until it is copied."""

    def body(i: int, t: Trainer) -> Trainer:
        t.run_to(2)
        attempts(t, 6, Against({1} if i in against else set(), "report").step)
        return t

    trainers = two_by_two(pair_address, body)
    events = [e for e in read_events(run_dir) if e["event"] == "heal_end" and e["step"] >= 2]
    assert sorted((str(e["group"]), e["rank"]) for e in events) == [("group_1", 0), ("group_1", 1)]
    for rank in (0, 1):
        assert same(trainers[rank].history[6], trainers[2 + rank].history[6])


def test_gradients_a_script_is_against_are_not_reduced_again_unseen(run_dir: Path) -> None:
    """All see the same bad average; the word of who was first may come before the other ones have said theirs."""
    against = {0, 1}

    def step(t: Trainer) -> bool:
        begin(t)
        if t.group in against:
            against.remove(t.group)
            if t.group == 0:
                wait_for(lambda: t.manager.errored() is not None, 20, "what the other group reported")
            t.manager.report_error(RuntimeError("the gradients look odd"))
        return t.manager.should_commit() and not t.optim.step()

    with training(run_dir, vote_in_backward=False) as pair:
        assert pair.attempts(4, step) == [[False, True, True]] * 2
        assert pair.events("redo") == []


def test_a_script_that_reduces_after_backward_votes_at_the_end(pair: Pair) -> None:
    """From its second such step on, and so does a newcomer at its first (or gloo would end them both)."""

    def step(t: Trainer) -> bool:
        begin(t)
        decided.append(t.manager.steps.decided)
        value = torch.full((3,), float(t.group))
        assert t.manager.allreduce(value).wait()
        return t.manager.should_commit() and not t.optim.step()

    decided: list[bool] = []
    assert pair.attempts(5, step) == [[True] * 3] * 2
    assert sorted(decided) == [False] * 4 + [True] * 2
    decided.clear()
    c = Trainer(2, pair.a.manager._context.options.lighthouse or "")
    everybody = [*pair.both, c]
    until = [math.inf]  # known once the newcomer trains: the others are a step ahead of it at most

    def on(g: int) -> None:
        t = everybody[g]
        while t.manager.current_step() < until[0]:
            if step(t) and t is c and until[0] == math.inf:
                until[0] = c.manager.current_step() + 5

    run_threads(3, on)
    assert c.manager.num_participants() == 3
    assert decided.count(True) == 0
    c.manager.shutdown()
    assert same(pair.a.net.state_dict(), pair.b.net.state_dict())


def test_all_ranks_of_a_group_reduce_again(run_dir: Path, pair_address: str) -> None:
    """Only one rank of four sees the failure, and clipping follows."""

    def body(i: int, t: Trainer) -> Trainer:
        t.run_to(2)
        if i == 2:
            lose(t)
        assert attempts(t, 5, clipped_step) == [True] * 3, i
        return t

    trainers = two_by_two(pair_address, body)
    events = [e for e in read_events(run_dir) if e["event"] in ("redo", "drop", "adopt")]
    found = sorted((e["event"], str(e["group"]), e["rank"]) for e in events)
    assert found == [("redo", group, rank) for group in ("group_0", "group_1") for rank in (0, 1)]
    for rank in (0, 1):
        for step in (3, 4, 5):
            assert same(trainers[rank].history[step], trainers[2 + rank].history[step])


def test_a_rank_without_gradients_makes_its_group_drop(run_dir: Path, pair_address: str) -> None:
    """I2: its other rank could reduce again, and must not. The other group waits with its gradients."""

    def body(i: int, t: Trainer) -> tuple[Trainer, list[bool]]:
        t.run_to(2)
        if i == 1:
            lose(t)
        return t, attempts(t, 4)

    done = two_by_two(pair_address, body, lambda i: {"keep_gradients": i != 2})
    assert [said for _, said in done] == [[True] * 2] * 2 + [[False, True, True]] * 2
    for rank in (0, 1):
        assert same(done[rank][0].history[4], done[2 + rank][0].history[4])


def test_max_retries_ends_a_group_that_never_hears_the_end(run_dir: Path) -> None:
    """Every step of b is undecided and committed nowhere."""
    sentence = "2 steps in a row did not commit at step 2 and max_retries is 1"

    def body(g: int) -> None:
        with pytest.raises(StepError, match=sentence):
            pair.both[g].run_to(3)

    with training(run_dir, max_retries=1) as pair:
        for t in pair.both:
            lose(t, always=True)
        run_threads(2, body)
        assert len(pair.events("drop")) == 4


def test_a_sparse_gradient_ends_the_group_with_a_sentence(address: str) -> None:
    """It would come again in each step."""
    trainer = Trainer(0, address, net=nn.Sequential(nn.Embedding(4, 3, sparse=True)))
    trainer.optimizer.zero_grad()
    trainer.model(torch.tensor([1])).sum().backward()
    with pytest.raises(ConfigError, match=r"parameter 0, of shape \(4, 3\), is sparse"):
        trainer.optimizer.step()


def test_a_view_with_holes_is_refused(address: str) -> None:
    trainer = Trainer(0, address)
    trainer.optimizer.zero_grad()
    table = torch.ones(4, 6)
    with pytest.raises(ConfigError, match=r"shape \(4,\) with strides \(6,\) is a view with holes"):
        trainer.manager.allreduce(table[:, 1])
    assert trainer.manager.allreduce(table.t()).wait()
