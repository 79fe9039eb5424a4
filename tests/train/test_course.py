"""What becomes of a step that fails: adopted, committed late, reduced again, or dropped (R12-R15)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.fakes import run_threads
from tests.train.jobs import Trainer, lighthouse, loss_of, reference, same
from torchft_x.core.crossvote import WIDTH
from torchft_x.errors import CollectiveError
from torchft_x.observe.events import read_events


class Lost:
    """A collective that has worked everywhere, but this rank doesn't hear of it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.inner.wait()
        raise CollectiveError("the connection broke at the last moment")


def lose(trainer: Trainer, what: Callable[[torch.Tensor], bool]) -> None:
    """The next reduction of `trainer` that is `what` is lost for it."""
    real = trainer.pg.allreduce

    def allreduce(tensors: list[torch.Tensor], opts: Any = None) -> Any:
        work = real(tensors, opts)
        if not what(tensors[0]):
            return work
        trainer.pg.allreduce = real  # type: ignore[method-assign]
        return Lost(work)

    trainer.pg.allreduce = allreduce  # type: ignore[method-assign]


def is_vote(tensor: torch.Tensor) -> bool:
    return tensor.dtype is torch.int64 and tensor.numel() == WIDTH


def is_bucket(tensor: torch.Tensor) -> bool:
    return not is_vote(tensor)


def clipped_step(t: Trainer) -> bool:
    t.optimizer.zero_grad()
    loss_of(t.model, t.group, t.manager.current_step()).backward()
    torch.nn.utils.clip_grad_norm_(t.net.parameters(), 0.01)
    t.optimizer.step()
    if t.optimizer.committed:
        t.history[t.manager.current_step()] = {k: v.clone() for k, v in t.net.state_dict().items()}
    return bool(t.optimizer.committed)


class Pair:
    """Two groups that have committed two steps, and their events."""

    def __init__(self, address: str, folder: Path, **kwargs: Any) -> None:
        self.folder = folder
        self.a, self.b = self.both = run_threads(2, lambda g: Trainer(g, address, **kwargs))
        self.run_to(2)

    def run_to(self, step: int) -> None:
        run_threads(2, lambda g: self.both[g].run_to(step))

    def attempts(self, until: int, step: Callable[[Trainer], bool] = Trainer.step) -> list[list[bool]]:
        """What each group's steps said until it stood at `until`."""

        def body(g: int) -> list[bool]:
            said = []
            while self.both[g].manager.current_step() < until:
                said.append(step(self.both[g]))
            return said

        return run_threads(2, body)

    def events(self, name: str) -> list[str]:
        """Groups that emitted it since then."""
        events = [e for e in read_events(self.folder) if e["event"] == name and e["step"] >= 2]
        return sorted(str(e["group"]) for e in events)

    def check(self) -> None:
        """Both committed the same, and what one process would have."""
        for step in self.a.history:
            assert same(self.a.history[step], self.b.history[step]), step
        want = reference(2, max(self.a.history))
        for step, state in self.a.history.items():
            for name, value in want[step - 1].items():
                torch.testing.assert_close(state[name], value, atol=1e-6, rtol=1e-4)


@pytest.fixture(params=[True, False], ids=["async", "sync"])
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    monkeypatch.setenv("TORCHFT_X_RUN_DIR", str(tmp_path))
    with lighthouse(2) as address:
        pair = Pair(address, tmp_path, use_async_quorum=request.param)
        yield pair
        run_threads(2, lambda g: pair.both[g].manager.shutdown())


def test_who_did_not_hear_the_vote_commits_late(pair: Pair) -> None:
    lose(pair.b, is_vote)
    assert pair.attempts(5) == [[True] * 3] * 2
    assert pair.events("adopt") == ["group_1"]
    assert pair.events("drop") == pair.events("heal_begin") == []
    pair.check()


def test_a_result_that_may_have_been_committed_is_adopted(pair: Pair) -> None:
    lose(pair.a, is_vote)
    lose(pair.b, is_vote)
    assert pair.attempts(5) == [[True] * 3] * 2
    assert pair.events("adopt") == ["group_0", "group_1"]
    pair.check()


def test_what_one_group_did_not_get_is_reduced_again_by_both(pair: Pair) -> None:
    lose(pair.b, is_bucket)
    assert pair.attempts(5) == [[True] * 3] * 2
    assert pair.events("redo") == ["group_0", "group_1"]
    assert pair.events("drop") == pair.events("adopt") == []
    pair.check()


def test_twice_in_a_row(pair: Pair) -> None:
    lose(pair.b, is_bucket)
    lose(pair.a, is_vote)
    assert pair.attempts(5) == [[True] * 3] * 2
    pair.check()


def test_who_has_clipped_already_computes_again(pair: Pair) -> None:
    """The other reduces again inside backward, so that it clips the final gradients."""
    lose(pair.b, is_bucket)
    of_a, of_b = pair.attempts(4, clipped_step)
    assert of_a in ([False, True, True], [True, True])  # the broken connection may reach it inside backward, too
    assert of_b == [True, True]
    assert "group_1" in pair.events("redo")
    assert same(pair.a.history[3], pair.b.history[3])
    assert same(pair.a.history[4], pair.b.history[4])


def test_a_late_commit_keeps_the_clipped_gradients(pair: Pair) -> None:
    lose(pair.b, is_vote)
    assert pair.attempts(5, clipped_step) == [[True] * 3] * 2
    for step in (3, 4, 5):
        assert same(pair.a.history[step], pair.b.history[step])


def test_results_that_differ_are_not_committed(pair: Pair) -> None:
    def step(t: Trainer) -> bool:
        t.optimizer.zero_grad()
        loss_of(t.model, t.group, t.manager.current_step()).backward()
        if t is pair.b and not spoiled:
            spoiled.append(True)
            t.manager._course.works[0].digest += 1
        return t.manager.should_commit() and not t.optim.step()

    spoiled: list[bool] = []
    assert pair.attempts(4, step) == [[True, True]] * 2
    assert pair.events("redo") == ["group_0", "group_1"]
    assert same(pair.a.net.state_dict(), pair.b.net.state_dict())


def test_a_step_with_other_reductions_is_computed_again(pair: Pair) -> None:
    """A group that starts the step anew issues all of its reductions, so the others must, too."""

    def step(t: Trainer) -> bool:
        t.optimizer.zero_grad()
        t.manager.allreduce(torch.ones(1)).wait()
        loss_of(t.model, t.group, t.manager.current_step()).backward()
        return t.manager.should_commit() and not t.optim.step()

    lose(pair.b, lambda tensor: is_bucket(tensor) and tensor.numel() > 1)
    assert pair.attempts(4, step) == [[False, True, True]] * 2
    assert pair.events("redo") == []
    assert same(pair.a.net.state_dict(), pair.b.net.state_dict())
