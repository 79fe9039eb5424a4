"""When a group is ended because it hangs: evidence that lasts, or a limit of the user's."""

from __future__ import annotations

from typing import Any

import pytest

from torchft_x.launch.process.hangs import BUSY, MOVES, STARVED, HangDetector, StoppedProcesses, Usage, is_stalled
from torchft_x.timing import TIMING


def status(seconds: float, **more: Any) -> dict[str, Any]:
    return {"step_seconds": seconds, "commits": 50, "phase": "idle", **more}


class Watch:
    """Looks once a second at workers that show `more`, and use so much."""

    def __init__(
        self,
        limit: float | None = None,
        cpu: float = 0.01,
        moved: float = 100.0,
        ready: tuple[float, ...] = (),  # of each thread, in a second
        turns: int = 0,  # in a second
        **more: Any,
    ) -> None:
        self.hangs = HangDetector(limit)
        self.began = self.now = 100.0
        self.used = Usage(5.0, 1000, dict.fromkeys(range(len(ready)), 5.0), {7: 1000})
        self.cpu, self.moved, self.ready, self.turns, self.more = cpu, moved, ready, turns, more
        self.stack = "trouble (train.py:41)"

    def after(self, seconds: float, *others: dict[str, Any]) -> float | None:
        """Seconds after the last step at which it is found to hang, within so many from now; None: it isn't."""
        began, until = self.began, self.now + seconds
        while self.now < until:
            self.now += 1.0
            threads = {i: self.used.ready[i] + t for i, t in enumerate(self.ready)}
            self.used = Usage(
                self.used.cpu + self.cpu,
                self.used.bytes + int(self.moved),
                threads,
                {7: self.used.turns[7] + self.turns},
            )
            said = [status(self.now - began, **self.more), *({**o, "step_seconds": self.now - began} for o in others)]
            if self.hangs.limit_passed(said):
                return self.now - began
            if self.hangs.wants_stacks(said, lambda: self.used, self.now) and self.hangs.is_hung([self.stack]):
                return self.now - began
        return None


def test_who_stands_still_and_does_nothing_hangs() -> None:
    assert Watch().after(4 * TIMING.hang_idle) == pytest.approx(TIMING.hang_quiet + TIMING.hang_idle, abs=2.0)


@pytest.mark.parametrize("does", [{"cpu": 2 * BUSY}, {"ready": (0.01, STARVED + 0.1)}, {"moved": 2 * MOVES}], ids=str)
def test_who_computes_or_would_if_there_were_a_processor_or_reads_or_writes_does_not(does: dict[str, Any]) -> None:
    assert Watch(**does).after(600.0) is None


def test_many_threads_that_wake_up_on_a_busy_machine_do_not_compute() -> None:
    assert Watch(ready=(0.2,) * 12).after(60.0) is not None


def test_who_looks_again_and_again_for_something_gets_more_time() -> None:
    """A compiler's file lock, which another group holds: its wait looks twenty times a second."""
    assert Watch(turns=20).after(2 * TIMING.hang_idle_at_first) == pytest.approx(
        TIMING.hang_quiet + TIMING.hang_idle_at_first, abs=3.0
    )


def test_nor_whose_thread_moves() -> None:
    watch = Watch()
    for line in range(40):
        watch.stack = f"poll (train.py:{line})"
        assert watch.after(9.0) is None


def test_what_it_did_before_counts_from_then_on() -> None:
    watch = Watch(cpu=2 * BUSY)
    assert watch.after(100.0) is None
    watch.cpu = 0.0
    assert watch.after(TIMING.hang_idle - 2.0) is None
    assert watch.after(10.0) is not None


@pytest.mark.parametrize("why", [{"paused": True}, {"leaving": True}, {"waits": True, "phase": "running"},
                                 {"waits": True, "phase": "asking"}])  # fmt: skip
def test_who_has_a_good_reason_does_not(why: dict[str, Any]) -> None:
    assert Watch(**why).after(600.0) is None
    assert Watch(10.0, **why).after(600.0) is None


def test_a_rank_that_waits_for_other_groups_excuses_its_group() -> None:
    assert Watch().after(600.0, status(0.0, waits=True, phase="running")) is None


def test_a_rank_that_asks_while_another_one_does_not_come_excuses_nobody() -> None:
    assert Watch().after(60.0, status(0.0, waits=True, phase="asking")) is not None


def test_before_its_first_commit_it_has_longer() -> None:
    assert Watch(commits=0).after(TIMING.hang_idle_at_first - 5.0) is None
    assert Watch(commits=0).after(TIMING.hang_idle_at_first + 10.0) is not None


def test_a_first_step_after_a_restart_may_do_nothing_for_twice_as_long_as_the_longest_before() -> None:
    before = Watch(longest_step=4.0 + TIMING.hang_idle)
    assert before.after(2.0) is None
    again = Watch(commits=0)
    again.hangs = HangDetector(before=before.hangs)
    seconds = again.after(100.0)
    assert seconds == pytest.approx(TIMING.hang_quiet + 2 * (4.0 + TIMING.hang_idle), abs=3.0)
    third = Watch(commits=0, turns=20)
    third.hangs = HangDetector(before=again.hangs)
    assert third.after(TIMING.hang_idle_at_first - 5.0) is None  # it looks for something


def test_a_limit_of_the_user_is_kept_to_whatever_it_does() -> None:
    assert Watch(40.0, cpu=1.0).after(39.0) is None
    assert Watch(40.0, cpu=1.0).after(60.0) == pytest.approx(40.0, abs=1.0)
    assert Watch(5.0).after(60.0) == pytest.approx(5.0, abs=1.0)


def test_stacks_that_can_not_be_had_are_alike() -> None:
    watch = Watch()
    watch.stack = ""
    assert watch.after(60.0) is not None


def looks(
    halts: StoppedProcesses, stopped: set[int], since: float, until: float, turns: int = 0
) -> list[tuple[int | None, float]]:
    """Ten looks in the time after which a stop is reported, in which `since` and `until` are counted; the news."""
    count = round((until - since) * 10)
    reported = [
        halts.poll(dict.fromkeys(stopped, turns), TIMING.stop_report * (since + i / 10)) for i in range(count + 1)
    ]
    return [x for x in reported if x is not None]


def test_a_stop_is_told_once_and_its_end_too() -> None:
    halts = StoppedProcesses()
    ((rank, seconds),) = looks(halts, {1}, 0.0, 5.0)
    assert rank == 1
    assert seconds == pytest.approx(TIMING.stop_report, rel=0.11)
    assert looks(halts, set(), 5.1, 6.0) == [(None, 0.0)]


def test_each_stop_counts_from_its_own_begin() -> None:
    halts = StoppedProcesses()
    for begin in (0.0, 2.0, 4.0):
        assert looks(halts, {0}, begin, begin + 0.9) == []
        assert looks(halts, set(), begin + 1.0, begin + 1.9) == []


def test_a_worker_that_went_on_between_two_looks_is_stopped_anew() -> None:
    """The supervisor looks ten times a second. A process that goes on for 50 ms between two stops was taken for one
    that is stopped all the time."""
    halts = StoppedProcesses()
    assert looks(halts, {0}, 0.0, 0.7, turns=5) == []
    assert looks(halts, {0}, 0.8, 1.5, turns=9) == []
    assert [rank for rank, _ in looks(halts, {0}, 1.6, 2.5, turns=9)] == [0]
    assert looks(halts, {0}, 2.6, 3.0, turns=12) == [(None, 0.0)]


def test_another_one_is_told_when_the_first_goes_on() -> None:
    halts = StoppedProcesses()
    assert [rank for rank, _ in looks(halts, {0, 1}, 0.0, 2.0)] == [0]
    assert [rank for rank, _ in looks(halts, {1}, 2.1, 3.0)] == [1]


def test_a_supervisor_that_was_stopped_with_its_workers_blames_none() -> None:
    halts = StoppedProcesses()
    assert looks(halts, {0}, 0.0, 0.1) == []
    assert looks(halts, {0}, 60.0, 60.2) == []  # the gap counts as a short one
    assert looks(halts, set(), 60.3, 61.0) == []


def of_worker(**fields: Any) -> dict[str, Any]:
    """Return a worker's status. Its times are counted in tenths of the shortest stall: seconds at scale 1."""
    usual = {"phase": "running", "commits": 9, "longest_step": 0.1, "timeout": 60.0, "step_seconds": 11.0}
    return {k: v * TIMING.stall_usual / 10 if isinstance(v, float) else v for k, v in (usual | fields).items()}


@pytest.mark.parametrize(
    ("fields", "stalled"),
    [
        ({}, True),
        ({"step_seconds": 9.0}, False),
        ({"longest_step": 4.0}, False),  # five times that
        ({"longest_step": 4.0, "step_seconds": 21.0}, True),
        ({"timeout": 8.0, "step_seconds": 7.0}, True),  # before the collective is given up
        ({"timeout": 8.0, "step_seconds": 7.0, "longest_step": 5.0}, False),  # such steps are usual here
        ({"phase": "asking"}, False),  # it waits for others
        ({"phase": "idle"}, True),  # it does not begin the next one
        ({"paused": True}, False),
        ({"phase": "idle", "leaving": True}, False),  # it has left, and does something else
        ({"commits": 0}, False),  # a first step compiles
        ({"commits": 0, "step_seconds": 46.0}, True),
        ({"commits": 0, "step_seconds": 46.0, "phase": "idle"}, False),
        ({"apart": True, "phase": "idle", "timeout": 10.0, "step_seconds": 20.0}, False),  # it makes inner steps
        ({"apart": True, "phase": "idle", "timeout": 10.0, "step_seconds": 61.0}, True),
        ({"apart": True, "phase": "idle", "longest_step": 15.0, "step_seconds": 61.0}, False),
        ({"apart": True, "timeout": 10.0, "step_seconds": 8.0}, True),  # in an exchange
    ],
)
def test_steps_of_its_own_are_the_measure(fields: dict[str, Any], stalled: bool) -> None:
    assert is_stalled(of_worker(**fields)) is stalled
