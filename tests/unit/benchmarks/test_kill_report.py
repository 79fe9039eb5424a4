"""benchmarks/evidence/kill_report.py: whose batches were lost, and what a report says of them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.evidence import check_params, kill_report
from benchmarks.evidence.kill_report import HANG, KILL, Fault, death


def dump(group: str, step: int, drawn: int, *, attempt: int = 0, healed: bool = False) -> check_params.Dump:
    """Of a job that commits a step a second."""
    digest = f"of step {step}"
    return check_params.Dump(group, 0, attempt, step, digest, digest, 1, 1, float(step), healed, drawn)


def made(group: str, steps: range, *, attempt: int = 0, lost_after: tuple[int, ...] = ()) -> list[check_params.Dump]:
    """Every step, but where steps are missing its state was copied."""
    made, drawn = [], 0
    for step in steps:
        drawn += 1 + (step - 1 in lost_after)
        made.append(dump(group, step, drawn, attempt=attempt))
    return made


def drop(group: str, t: float, reason: str, attempt: int = 0) -> dict[str, Any]:
    return {"t": t, "event": "drop", "role": "trainer", "group": group, "rank": 0, "attempt": attempt, "reason": reason}


def test_what_nobody_lost_is_not_told() -> None:
    """A killed attempt's last batch, unknown to all, and a new one that begins with another count are no loss."""
    dumps = [*made("0", range(1, 9)), *made("1", range(1, 4)), *made("1", range(6, 9), attempt=1)]
    assert check_params.lost(dumps) == []


def test_the_batch_of_a_stopped_worker_is_its_own_and_that_of_a_survivor_is_named() -> None:
    # Group 1 stands still from 4.5 to 7.2: the others go on, and it copies their state for step 9.
    stopped = [*made("1", range(1, 5)), dump("1", 9, 6, healed=True), dump("1", 10, 7)]
    dumps = [*made("0", range(1, 11), lost_after=(2, 8)), *stopped]
    faults = [Fault(KILL, "0", 1.5, 1.5), Fault(HANG, "1", 4.5, 7.2)]
    events = [drop("1", 2.5, "of another group"), drop("0", 2.6, "the first error"), drop("1", 7.5, "peers are gone")]
    events += [drop("0", 8.5, "of another attempt", attempt=1)]
    result = kill_report.report(events, dumps, faults)
    assert result["lost_batches"] == [
        {"group": "0", "rank": 0, "attempt": 0, "step": 2, "number": 1, "stopped": False, "reason": "the first error"},
        {"group": "1", "rank": 0, "attempt": 0, "step": 4, "number": 1, "stopped": True, "reason": "peers are gone"},
        {"group": "0", "rank": 0, "attempt": 0, "step": 8, "number": 1, "stopped": False,
         "reason": "no event of this attempt says why"},
    ]  # fmt: skip


def test_it_is_shown_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    dumps = [*made("0", range(1, 6), lost_after=(2,)), *made("1", range(1, 6), lost_after=(3,))]
    faults = [Fault(HANG, "1", 3.5, 4.5)]
    events = [drop("0", 2.6, "a reason")]
    kill_report.show({"groups": 2, "exit_code": 0, **kill_report.report(events, dumps, faults)})
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "batches drawn by survivors, not committed 1" in said
    assert "... by those that were stopped 1" in said
    assert "1 of group 0 rank 0 attempt 0, after step 2: a reason" in said
    assert any(line.startswith("1 of stopped group 1 rank 0 attempt 0, after step 3: ") for line in said)


def test_a_training_that_one_process_does_not_confirm_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    dumps = [*made("0", range(1, 6)), *made("1", range(1, 6))]
    assert kill_report.report([], dumps, [], reference={"error": "loss"})["findings"] == ["the reference: loss"]
    good = {"steps": 5, "losses": 10, "loss_error": 1e-6, "wholes": 10, "value_error": 2e-7}
    kill_report.show({"groups": 2, "exit_code": 0, **kill_report.report([], dumps, [], reference=good)})
    assert "10 losses differ by at most 1.0e-06, 10 whole models by 2.0e-07" in capsys.readouterr().out


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
