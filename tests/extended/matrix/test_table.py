"""What a cell says, and how the tables look."""

from __future__ import annotations

import pytest

from tests.extended.matrix.table import Results, Table


def table() -> Table:
    return Table("Jobs", ("line", "way"), ("run", "dry-run"))


def test_a_table() -> None:
    results, jobs = Results(), table()
    with results.cell(jobs, ("0.7.0", "wheel"), "run"):
        pass
    with pytest.raises(AssertionError), results.cell(jobs, ("0.7.0", "wheel"), "dry-run"):
        raise AssertionError("\nthe first line\nmore")
    with pytest.raises(pytest.skip.Exception), results.cell(jobs, ("nightly", "wheel"), "run"):
        pytest.skip("no such environment")
    results.note("A note.")
    results.note("A note.")
    assert results.lines() == [
        "Jobs:",
        "",
        "| line    | way   | run      | dry-run            |",
        "|---------|-------|----------|--------------------|",
        "| 0.7.0   | wheel | ok 0.0 s | FAILED after 0.0 s |",
        "| nightly | wheel | skipped  | -                  |",
        "",
        "0.7.0, wheel, dry-run: AssertionError: the first line",
        "A note.",
    ]


def test_nothing_tried_is_nothing_said() -> None:
    assert Results().lines() == []


def test_time_before_the_start_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("tests.extended.matrix.table.time.monotonic", lambda: now[0])
    results, jobs = Results(), table()
    with results.cell(jobs, ("a", "b"), "run") as watch:
        now[0] += 60  # an environment is made
        watch.start()
        now[0] += 2
    assert jobs.cells["a", "b"] == {"run": "ok 2.0 s"}
