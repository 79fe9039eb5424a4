from typing import Any

from benchmarks.evidence.cost import cost, whole_at


def _commit(group: str, attempt: str, t: float, participants: int = 2) -> dict[str, Any]:
    return {"event": "commit", "group": group, "replica_id": f"{group}:{attempt}", "t": t, "participants": participants}


_STEADY = [_commit(g, "a", 10 + 0.1 * i) for i in range(11) for g in ("0", "1")]  # until 11.0
_ALONE = [_commit("0", "a", 11.5 + 0.1 * i, 1) for i in range(5)]
_AGAIN = [_commit(g, "a" if g == "0" else "b", 12.2 + 0.1 * i) for i in range(5) for g in ("0", "1")]


def test_a_fault_costs_a_pause_beyond_a_usual_step_dropped_steps_and_undone_ones() -> None:
    lost = [{"event": "drop", "group": "0", "step": 11, "t": 11.2}, {"event": "new_lineage", "steps": 3, "t": 11.3}]
    events = [*_STEADY, *lost, *_ALONE, *_AGAIN]
    whole = whole_at(events, "1", 2, 11.05)
    assert whole == 12.2
    found = cost(events, "1", ["0"], 11.05, whole, 12.6)
    assert round(found.pause, 3) == 0.4
    assert round(found.whole or 0.0, 3) == 1.15
    assert (found.dropped, found.undone) == (1, 3)


def test_a_victim_and_a_survivor_that_never_come_back_are_said_so() -> None:
    late = [*_STEADY, _commit("1", "a", 11.06)]  # of the victim's old attempt
    assert whole_at(late, "1", 2, 11.0) is None
    assert round(cost(late, "1", ["0"], 11.0, None, 15.0).pause, 1) == 3.9
