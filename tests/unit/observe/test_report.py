"""observe/report: what a kill cost, and the run as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchft_x.observe.console import Story
from torchft_x.observe.report import Summary, death, summarize, summary, training_together, workers


def event(t: float, name: str, group: str, attempt: int = 0, **fields: Any) -> dict[str, Any]:
    base = {"t": t, "mono": t, "event": name, "role": "trainer", "group": group, "attempt": attempt, "rank": 0}
    return {**base, "pid": 1000 + 10 * int(group) + attempt, **fields}


def a_kill() -> list[dict[str, Any]]:
    """Two groups commit every 0.1 s; group 1 is killed at 10.0, drops step 4 of group 0, and is back at 15."""
    return [
        event(9.0, "joined", "0"),
        event(9.0, "joined", "1"),
        *[event(9.7 + 0.1 * s, "commit", g, step=s, participants=2) for s in (1, 2, 3) for g in "01"],
        event(10.001, "commit", "0", step=3, participants=2),  # a step that was all but done
        event(10.05, "member_lost", "0", lost="1:x", reason="connection lost"),
        event(10.06, "drop", "0", step=4, quorum=7),
        event(10.2, "commit", "0", step=4, participants=1),
        event(13.0, "joined", "1", attempt=1),
        event(15.0, "commit", "0", step=5, participants=1),
        event(15.0, "commit", "1", attempt=1, step=5, participants=1),
        event(15.1, "commit", "0", step=6, participants=2),
    ]


def test_what_a_kill_cost() -> None:
    found = death(a_kill(), "1", 10.0)
    assert found.detected == pytest.approx(0.05)
    assert found.next_commit == pytest.approx(0.2)  # not the step that was all but done
    assert found.rejoined == pytest.approx(5.0)
    assert found.dropped == 1


def test_what_never_happened_is_none_and_later_kills_are_not_mixed_in() -> None:
    found = death(a_kill(), "1", 10.0, until=10.1)
    assert found.detected == pytest.approx(0.05)
    assert (found.next_commit, found.rejoined) == (None, None)


def test_who_stood_at_a_boundary_learns_it_from_the_next_quorum() -> None:
    events = [e for e in a_kill() if e["event"] not in ("member_lost", "drop")]
    assert death(events, "1", 10.0).detected is None
    quorums = [event(10.01, "quorum", "0", members=["0:x", "1:x"]), event(10.1, "quorum", "0", members=["0:x"])]
    assert death([*events[:8], *quorums, *events[8:]], "1", 10.0).detected == pytest.approx(0.1)


def test_workers_are_the_newest_attempts() -> None:
    assert [(w.group, w.attempt, w.pid) for w in workers(a_kill())] == [("0", 0, 1000), ("1", 1, 1011)]


def test_together_is_judged_by_the_newest_commit() -> None:
    events = a_kill()
    assert training_together(events, 2)
    assert not training_together(events[:-1], 2)
    assert not training_together([], 2)


def test_the_summary_of_a_run() -> None:
    found = summarize(a_kill())
    assert (found.steps, found.restarts, found.dropped) == (7, 1, 1)
    assert 0.05 < found.lost < 0.3  # the gap around the kill, less a usual step
    assert str(found).startswith("done: 7 steps committed, 1 restart, 1 step dropped, 0.")


def test_restarts_are_counted_from_the_runs_first_attempt_of_a_group() -> None:
    """The lighthouse knows the groups from a job before."""
    renumbered = [{**e, "attempt": e["attempt"] + 4} for e in a_kill()]
    assert summarize(renumbered).restarts == 1


def test_a_summary_without_a_run_directory_is_the_story() -> None:
    story = Story("0")
    story.sentences({"event": "commit", "mono": 1.0, "step": 0})
    assert summary(story, None) == Summary(steps=1, restarts=0, dropped=0, lost=0.0)


def test_an_empty_run_has_an_empty_summary() -> None:
    assert summarize([]) == Summary(steps=0, restarts=0, dropped=0, lost=0.0)


def test_a_log_that_was_cut_short_gives_no_wrong_totals(tmp_path: Path) -> None:
    story = Story("0")
    (tmp_path / "events").mkdir()
    lines = [json.dumps(event(1.0, "commit", "0", step=step)) + "\n" for step in range(3)]
    path = tmp_path / "events" / "trainer-0.jsonl"
    path.write_text("".join(lines))
    story.sentences({"event": "commit", "mono": 1.0, "step": 2})
    assert str(summary(story, tmp_path)).startswith("done: 3 steps committed, 0 restarts, ")
    story.sentences({"event": "commit", "mono": 1.0, "step": 9})  # it has seen more than is written
    assert str(summary(story, tmp_path)) == (
        f"done: 10 steps committed; restarts and drops are not known: the event log in {tmp_path / 'events'} could not be "
        "written to its end (disk full?)"
    )
    (tmp_path / "events" / "trainer-1.jsonl.incomplete").touch()
    assert f"not known: {tmp_path}/events/trainer-1.jsonl could not be" in str(summary(story, tmp_path))
