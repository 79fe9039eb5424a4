"""Loops of scripts that throw a step away after backward, with real processes: everybody trains on, bit-equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.jobs import Group, lighthouse
from tests.train.loops_worker import AGAINST, BAD_BATCH
from tests.util import wait_for

LAST = 30


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("loop", ["report", "skip"])
def test_a_step_may_be_thrown_away_after_backward(tmp_path: Path, loop: str) -> None:
    (tmp_path / "stop").write_text(str(LAST))
    with lighthouse(2) as address:
        groups = [Group(i, address, tmp_path, "tests.train.loops_worker", loop) for i in range(2)]
        try:
            wait_for(lambda: all(g.process.poll() is not None for g in groups), 60, "the end of the run")
            told = [(tmp_path / f"group{i}.log").read_text() for i in range(2)]
            assert [g.process.returncode for g in groups] == [0, 0], told
        finally:
            for g in groups:
                if g.process.poll() is None:
                    g.kill()
    against = [[step for step, _, _ in g.lines("against")] for g in groups]
    for step, group in AGAINST.items():
        assert against[group].count(step) == 1
    assert against[0].count(BAD_BATCH) == 1  # the batch is its own: it is computed again
    # Who says so while the other one still reduces makes that one reduce the same batch again, at most max_redo times.
    assert against[1].count(BAD_BATCH) <= 3
    found = [g.digests() for g in groups]
    assert max(found[0]) == max(found[1]) == LAST
    shared = sorted(set(found[0]) & set(found[1]))
    assert [s for s in shared if found[0][s] != found[1][s]] == []
    assert len(shared) >= LAST - 2  # one group's first veto came too late for the other, which had committed the step
    assert sorted(set(found[0]) | set(found[1])) == list(range(1, LAST + 1))
