"""When a group is ended because it hangs: evidence that lasts, or a limit of the user's."""

from __future__ import annotations

from typing import Any

import pytest

from torchft_x.launch.process.hangs import BUSY, MOVES, STARVED, HangDetector, Usage
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
