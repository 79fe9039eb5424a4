"""Groups as real processes, killed with SIGKILL or told to leave: survivors go on, and what they hold stays bit-equal."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from tests.process.train import apart_worker, worker
from tests.torch.train.jobs import (
    check_equal,
    digests_of,
    finish,
    killed_and_back,
    lighthouse,
    running,
    wait_end,
    wait_steps,
)
from tests.util import scaled
from torchft_x.observe.events import read_events

SILENCE = 5.0  # seconds, taken for death; nobody may wait for it
STREAMING = (
    "sync_every=8",
    "fragments=2",
    "fragment_sync_delay=2",
    "fragment_update_alpha=0.5",
    "bucket_cap_mb=0.0001",
)


@pytest.mark.timeout(400)
def test_kill_and_return(tmp_path: Path) -> None:
    """Of three groups; two are in tests/journeys/test_kills.py."""
    count = 3
    with (
        lighthouse(1, int(scaled(SILENCE) * 1000)) as address,
        running(count, address, tmp_path, worker.main) as groups,
    ):
        waits, last = killed_and_back(groups, random.Random(count), kills=count, together=15, within=0.05, more=50)
    check_equal(groups, last)
    assert max(waits) < scaled(SILENCE)


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("count", "settings"),
    [
        (2, ("local_sgd", "sync_every=5")),
        (2, ("diloco", "sync_every=6", "fragment_sync_delay=5")),
        (3, ("diloco", *STREAMING, 'should_quantize="int4"')),
    ],
    ids=["local_sgd", "always on the way", "streaming in 4 bits with error feedback"],
)
def test_kill_and_return_apart(tmp_path: Path, count: int, settings: tuple[str, ...]) -> None:
    """A kill may come anywhere in an inner loop."""
    with (
        lighthouse(1, int(scaled(SILENCE) * 1000)) as address,
        running(count, address, tmp_path, apart_worker.main, *settings) as groups,
    ):
        waits, last = killed_and_back(groups, random.Random(count), kills=2, together=8, within=0.1, more=20)
    found = digests_of(groups)
    assert sorted(found)[-1] == last
    # A group that begins in the exchange that makes it n writes n only; so no number is missing over all of them.
    assert set(range(1, last + 1)) <= set(found)
    assert [n for n, digests in found.items() if n and len(digests) != 1] == []
    assert max(waits) < scaled(SILENCE)


@pytest.mark.timeout(400)
def test_who_leaves_inside_a_grant_costs_nobody_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a wait."""
    monkeypatch.setenv("TORCHFT_X_RUN_DIR", str(tmp_path))
    with lighthouse(1) as address, running(3, address, tmp_path, worker.main) as groups:
        staying = list(groups)
        for _ in range(2):
            wait_steps(staying, 100)
            leaver = staying.pop()
            leaver.process.terminate()
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
