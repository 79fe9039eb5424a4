"""Groups that train apart, killed with SIGKILL anywhere in their inner loops: what they have in common stays bit-equal."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.torch.train.jobs import digests_of, killed_and_back, lighthouse, running
from tests.util import scaled

STREAMING = (
    "sync_every=8",
    "fragments=2",
    "fragment_sync_delay=2",
    "fragment_update_alpha=0.5",
    "bucket_cap_mb=0.0001",
)


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
def test_kill_and_return(tmp_path: Path, count: int, settings: tuple[str, ...]) -> None:
    silence = scaled(5.0)  # taken for death; nobody may wait for it
    worker = ("tests.process.train.apart_worker", *settings)
    with lighthouse(1, int(silence * 1000)) as address, running(count, address, tmp_path, *worker) as groups:
        waits, last = killed_and_back(groups, random.Random(count), kills=2, together=8, within=0.1, more=20)
    found = digests_of(groups)
    assert sorted(found)[-1] == last
    # A group that begins in the exchange that makes it n writes n only; so no number is missing over all of them.
    assert set(range(1, last + 1)) <= set(found)
    different = [n for n, digests in found.items() if n and len(digests) != 1]
    assert different == []
    print(f"{count} groups, {settings}: survivors' next exchange after {[round(w, 3) for w in waits]} s")
    assert max(waits) < silence
