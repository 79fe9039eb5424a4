"""From a rank's events to what its group tells the lighthouse."""

from __future__ import annotations

from typing import Any

from torchft_x.observe.events import EventLog
from torchft_x.observe.facts_collector import FactsCollector
from torchft_x.observe.view.facts import COMMITTED, HEALED, MOST_MOMENTS, RELEASED, RESTARTED, Copy
from torchft_x.observe.view.speed import STEPS


def event(name: str, mono: float, **fields: Any) -> dict[str, Any]:
    return {"event": name, "mono": mono, **fields}


def commit(mono: float, quorum: int = 1, participants: int = 2) -> dict[str, Any]:
    return event("commit", mono, quorum=quorum, participants=participants, duration=0.02, reduction=0.004)


def test_steps_are_counted_and_only_the_first_of_a_quorum_is_a_moment() -> None:
    telling = FactsCollector(lambda: None)
    assert telling.take(1.0) is None
    for k in range(3):
        telling.receive(commit(1.0 + k))
    assert telling.urgent
    facts = telling.take(4.0)
    assert (facts.commits, facts.drops, sum(facts.steps.counts), sum(facts.reductions.counts)) == (3, 0, 3, 3)
    assert [(m.what, m.quorum, m.participants, m.ago, m.took) for m in facts.moments] == [(COMMITTED, 1, 2, 3.0, 0.0)]
    telling.receive(commit(5.0))
    assert not telling.urgent  # it can wait for the next message
    again = telling.take(6.0)
    assert (again.commits, again.moments) == (1, ())
    assert telling.take(7.0) is None


def test_the_own_part_of_a_usual_step_is_known_after_enough_steps() -> None:
    telling = FactsCollector(lambda: None)
    for k in range(STEPS):
        assert (facts := telling.take(k)) is None or facts.own_part == 0.0
        telling.receive(commit(float(k)) | {"own_part": 30.0 if k < 20 else 0.25})
    assert telling.take(90.0).own_part == 0.25
    telling.receive(event("drop", 91.0))
    assert telling.take(92.0).own_part == 0.0  # nothing new


def test_a_loss_and_a_heal() -> None:
    done = (3, 10)
    telling = FactsCollector(lambda: done)
    telling.receive(event("joined", 1.0))
    telling.receive(event("heal_begin", 2.0, source="0:x"))
    facts = telling.take(4.0)
    assert [m.what for m in facts.moments] == [RESTARTED]
    assert facts.copy == Copy("0:x", 3, 10, 2.0)
    assert telling.urgent  # as long as it goes on
    telling.receive(event("heal_end", 5.0, duration=3.0))
    telling.receive(event("drop", 5.5))
    telling.receive(event("abort", 6.0, quorum=9))
    facts = telling.take(6.5)
    assert [(m.what, m.ago) for m in facts.moments] == [(HEALED, 1.5), (RELEASED, 0.5)]
    assert (facts.copy, sum(facts.heals.counts), facts.heals.sum, facts.drops) == (None, 1, 3.0, 1)


def test_a_copy_that_takes_long_is_told_to_people() -> None:
    said: list[str] = []
    telling = FactsCollector(lambda: (3 * 10**9, 10**10), said.append)
    telling.receive(event("heal_begin", 10.0, source="0:5f0c0000-0000-0000-0000-000000000000"))
    for now in (11.0, 12.5, 13.0, 17.0, 18.0):
        telling.take(now)
    assert said == [
        "it copies from group 0: 3 GB of 10 GB (30 %), 1.2 GB/s",
        "it copies from group 0: 3 GB of 10 GB (30 %), 375 MB/s",
    ]


def test_a_copy_that_fails_is_over() -> None:
    telling = FactsCollector(lambda: None)
    telling.receive(event("heal_begin", 1.0))
    telling.receive(event("error", 2.0, reason="healing failed"))
    facts = telling.take(3.0)
    assert facts is None


def test_what_is_told_at_once_is_bounded() -> None:
    telling = FactsCollector(lambda: None)
    for k in range(100):
        telling.receive(commit(float(k), quorum=k))
    facts = telling.take(100.0)
    assert (facts.commits, len(facts.moments), facts.moments[-1].quorum) == (100, MOST_MOMENTS, 99)


def test_a_log_without_a_folder_still_tells() -> None:
    log = EventLog(None, "trainer")
    facts = FactsCollector(lambda: None)
    log.listeners.append(facts.receive)
    log.emit("commit", step=1, quorum=1, participants=1, duration=0.1)
    log.emit("configure", quorum=1)
    assert facts.take(1e9).commits == 1
