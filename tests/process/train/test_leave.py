"""A group is told to end while it trains inside a grant, as real processes: it costs the others no step and no wait."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import pytest

from tests.torch.train.jobs import digests_of, finish, lighthouse, running, wait_end, wait_steps
from tests.util import scaled
from torchft_x.observe.events import read_events


@pytest.mark.timeout(400)
def test_who_leaves_inside_a_grant_costs_nobody_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHFT_X_RUN_DIR", str(tmp_path))
    with lighthouse(1) as address, running(3, address, tmp_path) as groups:
        staying = list(groups)
        for _ in range(2):
            wait_steps(staying, 100)
            leaver = staying.pop()
            leaver.process.send_signal(signal.SIGTERM)
            wait_end([leaver])
        wait_steps(staying, 100, "the last one to go on")
        finish(staying, 0)
    events = read_events(tmp_path)
    assert len([e for e in events if e["event"] == "leave"]) >= 2
    drops = [[line for line in g.lines("drop") if line[0] > 0] for g in groups]  # at 0: a late one's rehearsal
    assert drops == [[], [], []]
    for g in groups:
        together = [t for step, _, t in g.lines() if step > 50]  # before that they come up one after the other
        assert max(b - a for a, b in itertools.pairwise(together)) < scaled(1.5)
    last = staying[0].lines()
    assert [step for step, _, _ in last] == list(range(last[0][0], last[-1][0] + 1))
    assert all(len(digests) == 1 for digests in digests_of(groups).values())
