"""What Prometheus reads."""

from __future__ import annotations

import time

from tests.unit.rpc.lighthouse.page.served import served
from tests.unit.rpc.lighthouse.page.test_metrics import TOKEN, samples
from tests.unit.rpc.support import group
from tests.util import wait_for
from torchft_x.observe.telling import Telling
from torchft_x.rpc.group.client import LocalGroupClient


def test_what_a_group_tells_of_itself() -> None:
    none: frozenset[str] = frozenset()
    telling = Telling(lambda: (3, 10))
    with served() as page, group("0:x", page.address, token=TOKEN) as a:
        LocalGroupClient(a, token=TOKEN).tell(telling)
        now = time.monotonic()
        for name, fields in (
            ("commit", {"quorum": 1, "participants": 1, "duration": 0.03, "reduction": 0.004}),
            ("drop", {}),
            ("heal_begin", {"source": "1:x"}),
        ):
            telling.hear({"event": name, "mono": now, **fields})
        wait_for(lambda: samples(page)["torchft_x_commits_total", none] == 1.0, 10.0, "what it tells")
        found = samples(page)
        assert found["torchft_x_dropped_steps_total", none] == 1.0
        assert found["torchft_x_step_seconds_bucket", frozenset({"0.05"})] == 1.0
        assert found["torchft_x_step_seconds_bucket", frozenset({"0.025"})] == 0.0
        assert found["torchft_x_reduce_seconds_sum", none] == 0.004
        telling.hear({"event": "heal_end", "mono": now, "duration": 2.0})
        wait_for(lambda: samples(page)["torchft_x_heal_seconds_count", none] == 1.0, 10.0, "its heal")
