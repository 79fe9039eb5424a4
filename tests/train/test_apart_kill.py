"""Groups that train apart, killed with SIGKILL anywhere in their inner loops: what they have in common stays bit-equal."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.train.jobs import lighthouse
from tests.train.test_kill import Group
from tests.util import scaled, wait_for

STREAMING = (
    "sync_every=8",
    "fragments=2",
    "fragment_sync_delay=2",
    "fragment_update_alpha=0.5",
    "bucket_cap_mb=0.0001",
)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("count", "settings"),
    [
        (2, ("local_sgd", "sync_every=5")),
        (2, ("diloco", "sync_every=6", "fragment_sync_delay=5")),
        (3, ("diloco", *STREAMING)),
        (3, ("diloco", *STREAMING, 'should_quantize="int4"')),
    ],
    ids=["local_sgd", "always on the way", "streaming", "4 bits with error feedback"],
)
def test_kill_and_return(tmp_path: Path, count: int, settings: tuple[str, ...]) -> None:
    rng = random.Random(count)
    silence = scaled(5.0)  # taken for death; nobody may wait for it
    waits = []
    with lighthouse(1, int(silence * 1000)) as address:
        groups = [Group(i, address, tmp_path, "tests.train.apart_worker", *settings) for i in range(count)]
        try:
            for _ in range(2):
                goal = max(g.last_step() for g in groups) + 8
                wait_for(lambda: all(g.last_step() >= goal for g in groups), 60, "all groups to train together")  # noqa: B023
                time.sleep(rng.random() * 0.1)
                victim = rng.choice(groups)
                when = victim.kill()
                for g in groups:
                    if g is not victim:
                        after = wait_for(
                            lambda: [t for _, _, t in g.lines() if t > when + 0.002],  # noqa: B023
                            30,
                            "a survivor's next exchange",
                        )
                        waits.append(after[0] - when)
                victim.start()
            back = victim.last_step()
            wait_for(lambda: victim.last_step() > back + 8, 60, "the last one killed to be back")
            last = max(g.last_step() for g in groups) + 20
            (tmp_path / "new").write_text(str(last))
            (tmp_path / "new").rename(tmp_path / "stop")
            wait_for(lambda: all(g.process.poll() is not None for g in groups), 60, "the end of the run")
            assert [g.process.returncode for g in groups] == [0] * count
        finally:
            for g in groups:
                if g.process.poll() is None:
                    g.kill()
    found: dict[int, set[str]] = {}
    for g in groups:
        for exchange, digest, _ in g.lines():
            found.setdefault(exchange, set()).add(digest)
    assert sorted(found)[-1] == last
    # A group that begins in the exchange that makes it n writes n only; so no number is missing over all of them.
    assert set(range(1, last + 1)) <= set(found)
    different = [n for n, digests in found.items() if n and len(digests) != 1]
    assert different == []
    print(f"{count} groups, {settings}: survivors' next exchange after {[round(w, 3) for w in waits]} s")
    assert max(waits) < silence
