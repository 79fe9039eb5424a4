"""A group is told to end while it trains inside a grant, as real processes: it costs the others no step and no wait."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pytest

from tests.train.jobs import Group, lighthouse
from tests.util import scaled, wait_for
from torchft_x.observe.events import read_events


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_who_leaves_inside_a_grant_costs_nobody_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHFT_X_RUN_DIR", str(tmp_path))
    with lighthouse(1) as address:
        groups = [Group(i, address, tmp_path) for i in range(3)]
        try:
            staying = list(groups)
            for _ in range(2):
                goal = max(g.last_step() for g in groups) + 100
                wait_for(lambda: all(g.last_step() > goal for g in staying), 90, "the groups to train")  # noqa: B023
                leaver = staying.pop()
                leaver.process.send_signal(signal.SIGTERM)
                wait_for(lambda: leaver.process.poll() is not None, 30, "the end of the leaver")  # noqa: B023
                assert leaver.process.returncode == 0
            goal = staying[0].last_step() + 100
            wait_for(lambda: staying[0].last_step() > goal, 30, "the last one to go on")
            (tmp_path / "new").write_text(str(goal))
            (tmp_path / "new").rename(tmp_path / "stop")
            wait_for(lambda: staying[0].process.poll() == 0, 30, "the end of the run")
        finally:
            for g in groups:
                if g.process.poll() is None:
                    g.kill()
    events = read_events(tmp_path)
    assert len([e for e in events if e["event"] == "leave"]) >= 2
    drops = [[line for line in g.lines("drop") if line[0] > 0] for g in groups]  # at 0: a late one's rehearsal
    assert drops == [[], [], []]
    for g in groups:
        together = [t for step, _, t in g.lines() if step > 50]  # before that they come up one after the other
        assert max(b - a for a, b in itertools.pairwise(together)) < scaled(1.5)
    by_step: dict[int, set[str]] = {}
    for g in groups:
        for step, digest, _ in g.lines():
            by_step.setdefault(step, set()).add(digest)
    last = staying[0].lines()
    assert [step for step, _, _ in last] == list(range(last[0][0], last[-1][0] + 1))
    assert all(len(digests) == 1 for digests in by_step.values())
