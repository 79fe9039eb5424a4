"""Errors from any thread: the first is kept, collectives are released, a late configure is not forgotten."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.util import scaled, wait_for
from torchft_x.core.commit.step import Step
from torchft_x.core.heal import QuorumPlan
from torchft_x.core.types import JoinReason, State
from torchft_x.errors import CollectiveError, FencedError, TransferError
from torchft_x.observe.events import EventLog
from torchft_x.timing import TIMING
from torchft_x.train.context.failures import StepFailures

LOG: Any = logging.LoggerAdapter(logging.getLogger("test"), {})


class FakeGroup:
    def __init__(self) -> None:
        self.aborts: list[int] = []
        self.on_abort: Callable[[int], None] = lambda config_id: None

    def abort(self, config_id: int) -> None:
        self.aborts.append(config_id)
        self.on_abort(config_id)


def plan(quorum_id: int = 7, config_id: int = 5) -> QuorumPlan:
    return QuorumPlan(
        quorum_id=quorum_id, config_id=config_id, number=1, replica_rank=0, replica_world_size=2, top=State(), heal=False,
        sources=(), source_rank=None, dst_ranks=(), store_address="", max_replica_rank=0, max_world_size=2,
        replica_ids=("a:1", "b:1"), handles=(), commit_failures=0,
    )  # fmt: skip


@pytest.fixture
def pg() -> FakeGroup:
    return FakeGroup()


@pytest.fixture
def guard(pg: FakeGroup) -> StepFailures:
    return StepFailures(Step(min_replica_size=1), pg, LOG, EventLog(None, "trainer"))


def begin(guard: StepFailures, p: QuorumPlan) -> None:
    guard.step.ask()
    guard.begin(p, p.top, 0, 2)


def end(guard: StepFailures, committed: bool) -> None:
    guard.step.vote()
    guard.step.conclude(committed)
    if committed:
        guard.step.restore(State(), 0)


def test_the_group_is_made_again_only_when_its_configuration_changes(guard: StepFailures) -> None:
    made: list[int] = []
    for quorum_id, config_id in ((7, 5), (8, 5), (9, 9)):
        begin(guard, plan(quorum_id, config_id))
        guard.configure(plan(quorum_id, config_id), lambda c=config_id: made.append(c))  # type: ignore[misc]
        end(guard, True)
    assert made == [5, 9]


def test_the_first_error_releases_the_collectives_of_its_configuration(guard: StepFailures, pg: FakeGroup) -> None:
    begin(guard, plan())
    guard.configure(plan(), lambda: None)
    guard.fail(CollectiveError("broken"))
    guard.fail(CollectiveError("again"))
    assert pg.aborts == [5]
    end(guard, False)
    terms = guard.step.ask()
    assert terms.reason is JoinReason.FAILED
    assert terms.suspects == ("b:1",)  # unnamed: all others


def test_an_abort_that_comes_late_leaves_the_next_group_alone(pg: FakeGroup) -> None:
    """Between noting an error and aborting, other threads may have come as far as the next quorum's process group."""
    made: list[int] = []

    class SlowLog(logging.LoggerAdapter[logging.Logger]):
        def info(self, *args: object, **kwargs: object) -> None:  # stands for a thread that is held up here
            end(guard, False)
            begin(guard, plan(9, 9))
            guard.configure(plan(9, 9), lambda: made.append(9))

    guard = StepFailures(
        Step(min_replica_size=1), pg, SlowLog(logging.getLogger("test"), {}), EventLog(None, "trainer")
    )
    begin(guard, plan(7, 5))
    guard.configure(plan(7, 5), lambda: made.append(5))
    guard.fail(CollectiveError("broken"))
    assert pg.aborts == [5]
    end(guard, True)
    begin(guard, plan(10, 9))
    guard.configure(plan(10, 9), lambda: made.append(10))
    assert made == [5, 9]


def test_over_before_the_quorum_arrives_prevents_configuring(guard: StepFailures) -> None:
    guard.step.ask()
    guard.on_over(7, ("a:1", "b:1"), "killed")
    guard.begin(plan(), plan().top, 0, 2)
    made: list[int] = []
    assert guard.configure(plan(), lambda: made.append(1)) is None
    assert not made
    assert str(guard.step.error) == "quorum 7 is over: lost a:1, b:1 (killed); the next quorum goes on without it."


def test_a_quorum_that_is_over_without_a_loss_has_its_reason(guard: StepFailures) -> None:
    begin(guard, plan())
    guard.on_over(7, (), "a step of b:1 failed.")
    assert str(guard.step.error) == "quorum 7 is over: a step of b:1 failed."


def test_over_just_before_configure_begins_still_ends_it(guard: StepFailures, pg: FakeGroup) -> None:
    begin(guard, plan())
    started, released = threading.Event(), threading.Event()
    entered = threading.Event()

    def make() -> None:
        entered.set()
        assert started.wait(scaled(10))  # the first abort comes before this group listens to any
        pg.on_abort = lambda config_id: released.set()
        if not released.wait(scaled(10)):
            raise AssertionError("configure was left waiting for a dead member")
        raise CollectiveError("the group was aborted")

    configuring = threading.Thread(target=lambda: guard.configure(plan(), make))
    configuring.start()
    assert entered.wait(scaled(10))
    over = threading.Thread(target=lambda: guard.on_over(7, ("b:1",), "killed"))
    over.start()
    wait_for(lambda: pg.aborts, what="the first abort")
    started.set()
    for thread in (configuring, over):
        thread.join(scaled(10))
        assert not thread.is_alive()
    assert "lost b:1" in str(guard.step.error)


def test_a_failed_configure_is_the_steps_error(guard: StepFailures, pg: FakeGroup) -> None:
    begin(guard, plan())

    def make() -> None:
        raise CollectiveError("nobody came")

    assert guard.configure(plan(), make) is None
    assert "nobody came" in str(guard.step.error)


def test_the_end_of_the_group_is_raised_from_then_on(guard: StepFailures) -> None:
    guard.raise_if_ended()
    guard.on_end("a newer attempt is here", True)
    for _ in range(2):
        with pytest.raises(FencedError, match="newer attempt"):
            guard.raise_if_ended()


@pytest.mark.parametrize("others_wait", [True, False])
def test_a_heal_that_the_others_gave_up_is_no_reason_to_end(others_wait: bool, pg: FakeGroup) -> None:
    guard = StepFailures(Step(min_replica_size=1), pg, LOG, EventLog(None, "trainer"), heal_patience=0.0)
    for quorum_id in range(7, 17):
        guard.step.ask()
        guard.begin(replace(plan(quorum_id), heal=True), State(), None, 1)
        if not others_wait:
            guard.on_over(quorum_id, ("a:1",), "it did not come")
        guard.heal_failed(TransferError("nothing has come."), torn=False)
        end(guard, False)
    assert isinstance(guard.ended, TransferError) is others_wait


@pytest.mark.parametrize(("took", "named"), [(0.9, ()), (1.1, ("b:1",))])
def test_who_does_not_answer_is_asked_after_a_long_failed_connect_only(
    guard: StepFailures, monkeypatch: pytest.MonkeyPatch, took: float, named: tuple[str, ...]
) -> None:
    """Whatever ended it: another rank may have given up before. A lost member mostly ends a short one."""
    now = [100.0]
    monkeypatch.setattr("torchft_x.train.context.failures.time.monotonic", lambda: now[0])

    def make() -> None:
        now[0] += took * TIMING.slow_connect
        raise CollectiveError("the group was aborted")

    begin(guard, plan())
    assert guard.configure(plan(), make, lambda: ("b:1",)) is None
    end(guard, committed=False)
    assert guard.step.ask().unreached == named
